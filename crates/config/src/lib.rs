#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod dns_server;
mod format_value;
mod mtu;
mod params;
mod parse;
mod resolve;
mod server;
pub mod settings;
mod sources;
mod versions;

pub use mtu::{HOST_MTU_IF_UNKNOWN, Mtus, Tunnels};

pub use dns_server::{DnsServer, DnsServerError};
pub use format_value::FormatValue;
pub use params::{
    AddressClaims, AllowAction, ChainInsertMode, Config, DenyAction, DenyRejectWith, DnsClusterAddresses,
    DnsMatchNames, EndpointToHostAction, FlowTableOffload, HookAttachment, IptablesBackend, LocalReachability,
    MetricsClientAuth, NatOutgoingExclusions, NftablesLayout, NftablesMode, PolicyEvaluationMode, ProgramClusterRoutes,
    RouteSource, ServiceLoopPrevention, Switch, WorkloadSourceSpoofing, default_of,
};
pub use parse::{FailsafePort, IfacePattern, LogRate, LogSeverity, TableRange};
pub use resolve::{ConfigError, Notice, Resolved, canonical_name, source_name, validate_parameter};
pub use server::{GrpcServer, ServerError};
pub use sources::{
    BY_ADDRESS, FileError, IdleLine, PREFIXES_BY_ADDRESS, Raw, Sources, from_environment, from_file_text,
};
