//! Messages of a driver.

use prost::Message;
use tortie_model::{Family, HostEndpointName, WorkloadEndpointId};

use crate::felix;
use crate::felix::from_dataplane::Payload;

/// A message of a driver: its own status, or the status of an endpoint.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Report {
    /// The driver is alive.
    Process {
        /// Time of the report, RFC 3339.
        timestamp: String,
        /// Uptime of the driver in seconds.
        uptime: f64,
    },
    /// Status of a host endpoint (`up`, `down`, `error`); `None` if the endpoint was removed.
    Host(HostEndpointName, Option<String>),
    /// Status of a workload endpoint.
    Workload {
        /// Id of the endpoint.
        id: WorkloadEndpointId,
        /// Status (`up`, `down`, `error`); `None` if the endpoint was removed.
        status: Option<String>,
        /// The endpoint as the driver received it; `None` if the report does not contain it.
        endpoint: Option<Box<felix::WorkloadEndpoint>>,
    },
    /// Public key of this node's `WireGuard` interface.
    Wireguard {
        /// The key in base64; empty if the interface no longer exists.
        public_key: String,
        /// Address family; `None` if the driver does not report it.
        family: Option<Family>,
    },
    /// All updates before [`InSync`](tortie_model::desired::DesiredUpdate::InSync) are in force.
    InSync,
}

/// An invalid report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The bytes are not a protobuf message of this type.
    #[error("not a FromDataplane message")]
    NotProtobuf(#[from] prost::DecodeError),
    /// The payload is missing or unknown. A later version of the protocol may define it.
    #[error("a report of an unknown kind")]
    Unknown,
    /// The report lacks the id of its endpoint.
    #[error("a report without the id of its endpoint")]
    NoId,
}

impl Report {
    /// Parses a serialised `felix.FromDataplane`, without framing.
    ///
    /// # Errors
    /// [`ReportError`]. The next report can still be valid.
    pub fn decode(bytes: &[u8]) -> Result<Self, ReportError> {
        let payload = felix::FromDataplane::decode(bytes)?.payload.ok_or(ReportError::Unknown)?;
        let word = |status: Option<felix::EndpointStatus>| Some(status.unwrap_or_default().status);
        Ok(match payload {
            Payload::ProcessStatusUpdate(update) => {
                Self::Process { timestamp: update.iso_timestamp, uptime: update.uptime }
            }
            Payload::HostEndpointStatusUpdate(update) => Self::Host(host_id(update.id)?, word(update.status)),
            Payload::HostEndpointStatusRemove(remove) => Self::Host(host_id(remove.id)?, None),
            Payload::WorkloadEndpointStatusUpdate(update) => Self::Workload {
                id: workload_id(update.id)?,
                status: word(update.status),
                endpoint: update.endpoint.map(Box::new),
            },
            Payload::WorkloadEndpointStatusRemove(remove) => {
                Self::Workload { id: workload_id(remove.id)?, status: None, endpoint: None }
            }
            Payload::WireguardStatusUpdate(update) => Self::Wireguard {
                family: match update.ip_version() {
                    felix::IpVersion::Any => None,
                    felix::IpVersion::Ipv4 => Some(Family::V4),
                    felix::IpVersion::Ipv6 => Some(Family::V6),
                },
                public_key: update.public_key,
            },
            Payload::DataplaneInSync(_) => Self::InSync,
        })
    }

    /// Serialises the report as a `felix.FromDataplane`, without framing.
    #[must_use]
    pub fn encode(self, sequence_number: u64) -> Vec<u8> {
        let payload = Some(self.payload());
        felix::FromDataplane { sequence_number, payload }.encode_to_vec()
    }

    fn payload(self) -> Payload {
        let status = |status: String| Some(felix::EndpointStatus { status });
        match self {
            Self::Process { timestamp, uptime } => {
                Payload::ProcessStatusUpdate(felix::ProcessStatusUpdate { iso_timestamp: timestamp, uptime })
            }
            Self::Host(name, word) => {
                let id = Some(felix::HostEndpointId { endpoint_id: name.to_string() });
                match word {
                    Some(word) => {
                        Payload::HostEndpointStatusUpdate(felix::HostEndpointStatusUpdate { id, status: status(word) })
                    }
                    None => Payload::HostEndpointStatusRemove(felix::HostEndpointStatusRemove { id }),
                }
            }
            Self::Workload { id, status: word, endpoint } => {
                let id = Some(felix::WorkloadEndpointId {
                    orchestrator_id: id.orchestrator.as_ref().into(),
                    workload_id: id.workload.as_ref().into(),
                    endpoint_id: id.endpoint.as_ref().into(),
                });
                match word {
                    Some(word) => Payload::WorkloadEndpointStatusUpdate(felix::WorkloadEndpointStatusUpdate {
                        id,
                        status: status(word),
                        endpoint: endpoint.map(|endpoint| *endpoint),
                    }),
                    None => Payload::WorkloadEndpointStatusRemove(felix::WorkloadEndpointStatusRemove { id }),
                }
            }
            Self::Wireguard { public_key, family } => {
                let version = match family {
                    None => felix::IpVersion::Any,
                    Some(Family::V4) => felix::IpVersion::Ipv4,
                    Some(Family::V6) => felix::IpVersion::Ipv6,
                };
                Payload::WireguardStatusUpdate(felix::WireguardStatusUpdate { public_key, ip_version: version.into() })
            }
            Self::InSync => Payload::DataplaneInSync(felix::DataplaneInSync {}),
        }
    }
}

fn host_id(id: Option<felix::HostEndpointId>) -> Result<HostEndpointName, ReportError> {
    id.map(|id| HostEndpointName::new(id.endpoint_id)).ok_or(ReportError::NoId)
}

fn workload_id(id: Option<felix::WorkloadEndpointId>) -> Result<WorkloadEndpointId, ReportError> {
    let id = id.ok_or(ReportError::NoId)?;
    Ok(WorkloadEndpointId {
        orchestrator: id.orchestrator_id.into(),
        workload: id.workload_id.into(),
        endpoint: id.endpoint_id.into(),
    })
}

#[cfg(test)]
mod tests;
