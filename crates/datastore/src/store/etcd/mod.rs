//! etcd v3: the resources of `projectcalico.org/v3` under Calico's paths.
//!
//! [`EtcdStore`] reads and writes single resources, at one endpoint at a time; when it fails, the
//! next one is used. [`EtcdFeed`] lists and watches the texts under some paths.

pub mod client;
mod config;
mod connection;
mod feed;
mod range;
mod store;
mod value;
mod watch;

pub use config::{EtcdConfig, EtcdConfigError, EtcdPace, Password};
pub use feed::{EtcdEvent, EtcdFeed};
pub use store::EtcdStore;
