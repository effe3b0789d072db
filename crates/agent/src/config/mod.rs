//! Felix's configuration: the same names, sources, precedence and treatment of bad values
//! (`felix/config/config_params.go`).
//!
//! Every source keeps its raw values; [`Sources::resolve`] parses all of them, also those that a higher source
//! overrides, so that each bad value is reported. A bad value counts as the default, not as the next lower source's.

pub(crate) mod felix;
mod params;
mod parse;
mod resolve;
pub(crate) mod shown;
mod sources;

pub(crate) use params::PARAMS;
pub use params::{
    AddressClaims, AllowAction, ChainInsertMode, Config, DenyAction, EndpointToHostAction, FlowTableOffload,
    HookAttachment, IptablesBackend, LocalReachability, LogSeverity, MetricsClientAuth, NatOutgoingExclusions,
    NftablesLayout, NftablesMode, PolicyEvaluationMode, ProgramClusterRoutes, RouteSource, ServiceLoopPrevention,
    Switch, WorkloadSourceSpoofing,
};
#[cfg(all(feature = "etcd", feature = "kubernetes"))]
pub(crate) use parse::go_duration;
pub use parse::{FailsafePort, IfacePattern, LogRate, TableRange};
pub use resolve::{ConfigError, Notice, Resolved};
pub(crate) use resolve::{canonical_name, judge, source_name};
pub(crate) use sources::{BY_ADDRESS, PREFIXES_BY_ADDRESS};
pub use sources::{IdleLine, Raw, Sources, from_environment, from_file_text};
