//! Managers that turn the desired state of a node into tables, IP sets, routes and sysctls.
#![forbid(unsafe_code)]

mod cleanup;
mod config;
mod dataplane;
mod kernel;
mod links;
mod render;
mod report;
mod route;

pub use cleanup::{CleanupConfig, CleanupReport, cleanup};
pub use config::{DataplaneConfig, IpSetsConfig, IptablesConfig, RoutesConfig};
pub use dataplane::Dataplane;
pub use kernel::{
    CommandOutcome, CommandStatus, InvalidSysctlPath, Kernel, KernelCommand, KernelError, MacAddress, Neighbour,
    SysctlPath,
};
pub use links::LinkEvent;
pub use render::Rendered;
pub use report::{
    ApplyReport, DataplaneStats, EndpointProblem, EndpointStatus, IpSetProblem, Owner, Problem, StatusChange,
};
pub use route::{Route, RouteChange, RouteKey, RouteKind, RouteProtocol, RouteScope, RouteTarget};
