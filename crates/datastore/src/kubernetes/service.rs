//! Addresses of the pods behind a Service.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use serde::Deserialize;
use tortie_model::{Cause, parse_address};

use super::client::Client;
use super::config::KubeConfig;
use super::error::ApiError;
use super::resource::ApiResource;

/// The label by which an `EndpointSlice` names its Service (`k8s.io/api/discovery/v1`).
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Endpoints of one port of a Service, read from its `EndpointSlice`s at each request.
#[derive(Clone, Debug)]
pub struct ServiceEndpoints {
    client: Client,
    namespace: String,
    service: String,
    port: String,
}

/// An address behind a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceEndpoint {
    /// Address and port on which it listens.
    pub address: SocketAddr,
    /// The node that it runs on.
    pub node: Option<String>,
    /// Whether it is ready to receive traffic.
    pub ready: bool,
}

impl ServiceEndpoints {
    /// Returns the endpoints of the port with this name. Nothing is read yet.
    ///
    /// # Errors
    /// If the thread for I/O cannot be started.
    pub fn new(config: KubeConfig, namespace: &str, service: &str, port: &str) -> io::Result<Self> {
        let client = Client::new(config)?;
        Ok(Self { client, namespace: namespace.into(), service: service.into(), port: port.into() })
    }

    /// Lists the current endpoints, ready or not, each address once, in ascending order.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub fn list(&self) -> Result<Vec<ServiceEndpoint>, ApiError> {
        let selector = format!("{SERVICE_NAME}={}", self.service);
        let slices = self.client.list(ApiResource::ENDPOINT_SLICES, &self.namespace, &selector)?;
        let slices = slices.into_iter().map(serde_json::from_value).collect::<Result<Vec<Slice>, _>>();
        let slices = slices.map_err(|error| ApiError::Malformed(Cause::new(SliceError(error))))?;
        Ok(endpoints(&slices, &self.port))
    }
}

/// Invalid `EndpointSlice`.
#[derive(Debug, thiserror::Error)]
#[error("an EndpointSlice cannot be read")]
struct SliceError(#[source] serde_json::Error);

fn endpoints(slices: &[Slice], port: &str) -> Vec<ServiceEndpoint> {
    let mut found: BTreeMap<SocketAddr, ServiceEndpoint> = BTreeMap::new();
    for slice in slices {
        let ports = slice.ports.iter().flatten();
        let Some(number) = ports.filter(|named| named.name.as_deref() == Some(port)).find_map(|named| named.port)
        else {
            continue;
        };
        for endpoint in slice.endpoints.iter().flatten() {
            // An unknown state counts as ready, by the definition of the API.
            let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
            // Slices of domain names contain no IP addresses.
            for address in endpoint.addresses.iter().filter_map(|address| parse_address(address)) {
                let address = SocketAddr::new(address, number);
                let node = endpoint.node_name.clone();
                let entry = found.entry(address).or_insert(ServiceEndpoint { address, node, ready });
                // While an endpoint moves between slices it is in both.
                entry.ready |= ready;
            }
        }
    }
    found.into_values().collect()
}

/// The used fields of an `EndpointSlice` (`discovery.k8s.io/v1`).
#[derive(Debug, Deserialize)]
struct Slice {
    ports: Option<Vec<Port>>,
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Debug, Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    #[serde(default)]
    addresses: Vec<String>,
    conditions: Option<Conditions>,
    node_name: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Conditions {
    ready: Option<bool>,
}

#[cfg(test)]
mod tests;
