//! etcd v3: the resources of `projectcalico.org/v3` under Calico's paths.
//!
//! [`EtcdSource`] lists them at one revision and watches from the next. One endpoint is used at a
//! time; when it fails, the next one is. [`store::etcd`](crate::store::etcd) reads and writes
//! single ones.

mod position;
mod source;

pub use crate::store::etcd::{EtcdConfig, EtcdConfigError, EtcdPace, Password};
pub use source::EtcdSource;
