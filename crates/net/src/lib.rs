#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod family;

pub use family::Family;
