//! Values as their text in formats of serde (feature `serde`).

#[cfg(feature = "serde")]
pub use serde;

/// Reads a value from its text.
///
/// # Errors
/// If the value is not a text, or not a valid one.
#[cfg(feature = "serde")]
pub fn de_text<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
    D: serde::Deserializer<'de>,
{
    let text: String = serde::Deserialize::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

/// Writes values of a type as their text, and reads them with a function that takes a deserializer.
#[cfg(feature = "serde")]
#[doc(hidden)]
#[macro_export]
macro_rules! serde_text {
    ($type:ty, $read:expr) => {
        impl $crate::serde::Serialize for $type {
            fn serialize<S: $crate::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> $crate::serde::Deserialize<'de> for $type {
            fn deserialize<D: $crate::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $read(deserializer)
            }
        }
    };
}

/// Nothing is written in formats of serde without the feature.
#[cfg(not(feature = "serde"))]
#[doc(hidden)]
#[macro_export]
macro_rules! serde_text {
    ($type:ty, $read:expr) => {};
}
