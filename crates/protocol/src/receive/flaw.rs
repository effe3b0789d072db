//! Errors in messages that are valid protobuf.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use tortie_model::parse_address;

/// Maximum number of characters of a value in an error message.
const SHOWN: usize = 100;

/// An invalid object in a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {flaw}")]
#[non_exhaustive]
pub struct Unusable {
    object: String,
    flaw: Flaw,
}

/// A missing or invalid field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Flaw {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{field}: `{value}` is not understood")]
    Bad { field: &'static str, value: String },
}

/// Adds the object to a flaw.
pub(super) fn in_object(object: impl Display) -> impl FnOnce(Flaw) -> Unusable {
    move |flaw| Unusable { object: object.to_string(), flaw }
}

/// Returns the flaw for an invalid value.
pub(super) fn bad(field: &'static str, value: impl Display) -> Flaw {
    let mut value = value.to_string();
    if let Some((end, _)) = value.char_indices().nth(SHOWN) {
        value.truncate(end);
        value.push('…');
    }
    Flaw::Bad { field, value }
}

/// Returns a required value.
pub(super) fn required<T>(field: &'static str, value: Option<T>) -> Result<T, Flaw> {
    value.ok_or(Flaw::Missing(field))
}

/// Parses a text as `T`.
pub(super) fn parsed<T: FromStr>(field: &'static str, text: &str) -> Result<T, Flaw> {
    text.parse().map_err(|_| bad(field, text))
}

/// Parses an IP address with Go's syntax.
pub(super) fn address(field: &'static str, text: &str) -> Result<IpAddr, Flaw> {
    parse_address(text).ok_or_else(|| bad(field, text))
}

/// Parses texts as `T`.
pub(super) fn all<T: FromStr, C: FromIterator<T>>(field: &'static str, texts: &[String]) -> Result<C, Flaw> {
    texts.iter().map(|text| parsed(field, text)).collect()
}

/// Parses IP addresses with Go's syntax.
pub(super) fn addresses(field: &'static str, texts: &[String]) -> Result<Box<[IpAddr]>, Flaw> {
    texts.iter().map(|text| address(field, text)).collect()
}

/// Converts a number to `T`.
pub(super) fn number<T: TryFrom<i32>>(field: &'static str, number: i32) -> Result<T, Flaw> {
    T::try_from(number).map_err(|_| bad(field, number))
}
