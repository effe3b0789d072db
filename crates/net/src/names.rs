//! Types for names: any text for names given by others, checked words for names that are written to
//! the kernel.

/// A name that the kernel, or the text that `iptables-restore` and `ipset restore` read, would not
/// take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} name {name:?} must be 1 to {max} printable ASCII characters that need no quoting")]
pub struct InvalidName {
    /// Kind of the name: `chain`, `IP set` or `interface`.
    pub kind: &'static str,
    /// The rejected text.
    pub name: String,
    /// The longest legal name, in bytes.
    pub max: usize,
}

/// Defines a type for one kind of name that may be any text; cheap to clone.
///
/// ```
/// tortie_net::text_id!(
///     /// The name of a tier.
///     TierName
/// );
/// let tier = TierName::new("default");
/// assert_eq!((tier.as_str(), tier.to_string()), ("default", "default".to_owned()));
/// ```
#[macro_export]
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Wraps a name; cheap to clone afterwards.
            pub fn new(name: impl Into<std::sync::Arc<str>>) -> Self {
                Self(name.into())
            }

            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self::new(name)
            }
        }

        $crate::serde_text!($name, |deserializer| {
            <std::sync::Arc<str> as $crate::serde::Deserialize>::deserialize(deserializer).map($name)
        });
    };
}

/// Defines a type for one kind of name that is checked once and stored inline: one word of at most
/// so many bytes.
///
/// The type needs a function `acceptable(&InlineText<N>) -> bool` for its further conditions.
///
/// ```
/// use tortie_net::InlineText;
/// tortie_net::word_name!(
///     /// The name of an iptables chain: at most 28 bytes, the kernel's limit.
///     ChainName, 28, "chain"
/// );
/// impl ChainName {
///     const fn acceptable(_: &InlineText<28>) -> bool {
///         true
///     }
/// }
/// const INPUT: ChainName = ChainName::from_static("INPUT");
/// assert_eq!(ChainName::new("INPUT")?, INPUT);
/// assert_eq!(
///     ChainName::new("a b").unwrap_err().to_string(),
///     "chain name \"a b\" must be 1 to 28 printable ASCII characters that need no quoting"
/// );
/// # Ok::<(), tortie_net::InvalidName>(())
/// ```
#[macro_export]
macro_rules! word_name {
    ($(#[$doc:meta])* $name:ident, $max:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($crate::InlineText<$max>);

        impl $name {
            /// The longest legal name, in bytes.
            pub const MAX_LEN: usize = $max;

            /// Checks `text` and keeps it in place, without an allocation.
            ///
            /// # Errors
            /// `InvalidName` if the text is empty, too long, or not one bare ASCII word.
            pub fn new(text: &str) -> Result<Self, $crate::InvalidName> {
                $crate::InlineText::new(text).filter(Self::acceptable).map(Self).ok_or_else(|| $crate::InvalidName {
                    kind: $kind,
                    name: text.to_owned(),
                    max: $max,
                })
            }

            /// Wraps a name that is a constant of the program.
            ///
            /// # Panics
            /// If the name is not legal; meant for constants, where that is a compile error.
            #[must_use]
            pub const fn from_static(name: &'static str) -> Self {
                match $crate::InlineText::new(name) {
                    Some(text) if Self::acceptable(&text) => Self(text),
                    _ => panic!(concat!("not a legal ", $kind, " name")),
                }
            }

            /// Returns the text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(self.as_str(), f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::InvalidName;

            fn from_str(text: &str) -> Result<Self, $crate::InvalidName> {
                Self::new(text)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }

        $crate::serde_text!($name, $crate::de_text);
    };
}
