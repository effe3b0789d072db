//! Connections and ranges of keys, for whoever also watches. They are those of `etcd-client`.

pub use super::connection::{Failure, Head, connect, within};
pub use super::range::{Pages, end_of};
