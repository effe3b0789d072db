//! Connections and key ranges for users that also watch. The types are those of `etcd-client`.

pub use super::connection::{Failure, Head, connect, within};
pub use super::range::{Pages, end_of};
