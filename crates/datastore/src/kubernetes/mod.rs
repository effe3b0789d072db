//! The API server of Kubernetes: a client of our own that hides everybody else's, lists that stay up to date, and
//! a source of updates.
//!
//! * [`KubeConfig`]: where the API server is and who we are there.
//! * [`Client`]: objects one by one, as JSON.
//! * [`Reflector`]: all objects of some kinds, and what changes.
//! * [`ServiceEndpoints`]: where the pods behind a Service are.
//! * [`KubernetesSource`]: what an agent needs of them, as updates.
//! * [`KubernetesStore`]: single resources of Calico, and policies of Kubernetes, read and written.
//!
//! Nothing in a signature here is a type of the client that is used underneath. All methods are synchronous; I/O happens
//! on a thread that a [`Client`] owns.

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
mod timing;
mod versions;

pub use client::Client;
pub use config::{FixedConfig, KubeConfig};
pub use error::{ApiError, KubeConfigError};
pub use reflector::{Event, ListWatch, ObjectMeta, Received, Reflector, Waker};
pub use resource::ApiResource;
pub use service::{ServiceEndpoint, ServiceEndpoints};
pub use source::KubernetesSource;
pub use store::KubernetesStore;
pub use timing::Timing;
