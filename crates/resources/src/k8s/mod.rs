//! The kinds of Kubernetes.

mod service;

pub(crate) use service::{endpoint_slice, service};
