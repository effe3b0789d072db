//! etcd v3: the resources of `projectcalico.org/v3` under Calico's paths, read and written.
//!
//! * [`EtcdSource`] lists them at one revision and watches from the next.
//! * [`EtcdStore`] reads and writes single ones.
//!
//! One endpoint is used at a time; when it fails, the next one is.

mod config;
mod connection;
mod position;
mod range;
mod source;
mod store;

pub use config::{EtcdConfig, EtcdConfigError, EtcdPace, Password};
pub use source::EtcdSource;
pub use store::EtcdStore;
