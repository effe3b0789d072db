//! Selection of the dataplane: this program or another one.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The dataplane that enforces the calculated state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum DataplaneUrl {
    /// In this kernel, by this program.
    #[default]
    Internal,
    /// By the program at this path.
    Exec(PathBuf),
}

/// A text that names no dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected internal or exec:PATH, the path of a driver program")]
pub(super) struct InvalidDataplaneUrl;

impl FromStr for DataplaneUrl {
    type Err = InvalidDataplaneUrl;

    fn from_str(text: &str) -> Result<Self, InvalidDataplaneUrl> {
        match text.split_once(':') {
            None if text == "internal" => Ok(Self::Internal),
            Some(("exec", path)) if !path.is_empty() => Ok(Self::Exec(path.into())),
            _ => Err(InvalidDataplaneUrl),
        }
    }
}

impl fmt::Display for DataplaneUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internal => f.write_str("internal"),
            Self::Exec(program) => write!(f, "exec:{}", program.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DataplaneUrl;

    #[test]
    fn only_programs_can_be_named() {
        assert_eq!("internal".parse(), Ok(DataplaneUrl::Internal));
        assert_eq!("exec:/a:b".parse(), Ok(DataplaneUrl::Exec("/a:b".into())));
        for bad in ["", "exec:", "exec", "tcp:host", "internal:"] {
            assert!(bad.parse::<DataplaneUrl>().is_err(), "{bad}");
        }
    }
}
