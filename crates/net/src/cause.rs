//! Errors with the errors that caused them.

use std::error::Error;
use std::fmt;
use std::iter::successors;
use std::sync::Arc;

/// Cause of an error that can be cloned and compared: an error of another library, or the message
/// of a kernel, a server or a child process.
///
/// Two causes are equal if they and their own causes have the same texts.
///
/// ```
/// use tortie_net::{Cause, with_causes};
///
/// let cause = Cause::new("seven".parse::<u8>().unwrap_err());
/// assert_eq!(cause, Cause::from("invalid digit found in string"));
/// assert_eq!(with_causes(&cause), cause.to_string());
/// ```
#[derive(Clone)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    /// Wraps an error.
    pub fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }

    /// Returns the error, for callers that know its type.
    #[must_use]
    pub fn get(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl From<String> for Cause {
    fn from(words: String) -> Self {
        Self(Box::<dyn Error + Send + Sync>::from(words).into())
    }
}

impl From<&str> for Cause {
    fn from(words: &str) -> Self {
        words.to_owned().into()
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        with_causes(self) == with_causes(other)
    }
}

impl Eq for Cause {}

/// Returns the text of an error and of its causes, as `a: b: c`. It leaves out causes that an error
/// repeats in its own text, as some of other libraries do.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    successors(error.source(), |&cause| cause.source()).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Outer(&'static str, #[source] Cause);

    #[test]
    fn causes_are_printed_once() {
        let inner = || Cause::new(Outer("no file", "no room".into()));
        let cause = Cause::new(Outer("no table", inner()));
        assert_eq!(cause.to_string(), "no table");
        assert_eq!(with_causes(&cause), "no table: no file: no room");
        assert_eq!(with_causes(&Outer("no room left", "no room".into())), "no room left");
        assert!(cause.get().downcast_ref::<Outer>().is_some());
        assert_eq!(cause.clone(), cause);
        assert_ne!(cause, inner());
    }
}
