#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cidr;
mod family;
mod inline_text;
mod interface;
mod mac;
mod names;

pub use cidr::{Cidr, CidrParseError};
pub use family::Family;
pub use inline_text::InlineText;
pub use interface::{IfaceName, InterfaceName};
pub use mac::{Mac, MacParseError};
pub use names::InvalidName;
