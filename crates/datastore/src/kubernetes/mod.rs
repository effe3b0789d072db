//! The API server of Kubernetes: a client, lists that stay up to date, and a source of updates.
//!
//! * [`KubeConfig`]: address and credentials of the API server.
//! * [`Client`]: single objects, as JSON.
//! * [`Reflector`]: all objects of some kinds, and their changes.
//! * [`ServiceEndpoints`]: addresses of the pods behind a Service.
//! * [`KubernetesSource`]: the objects that an agent needs, as updates.
//! * [`KubernetesStore`]: single resources of Calico, and policies of Kubernetes, read and written.
//!
//! No signature contains a type of the underlying client library. All methods are synchronous; I/O
//! happens on a thread that a [`Client`] owns.

mod client;
mod config;
mod connection;
mod cycle;
mod discovery;
mod error;
mod history;
mod json;
mod kinds;
mod reflector;
mod resource;
mod service;
mod source;
mod store;
mod switch;
mod timing;
mod versions;
mod watch;

pub use client::Client;
pub use config::{FixedConfig, KubeConfig};
pub use error::{ApiError, KubeConfigError};
pub use kinds::CalicoApi;
pub use reflector::{Event, ListWatch, ObjectMeta, Received, Reflector, Waker};
pub use resource::ApiResource;
pub use service::{ServiceEndpoint, ServiceEndpoints};
pub use source::KubernetesSource;
pub use store::KubernetesStore;
pub use timing::Timing;
