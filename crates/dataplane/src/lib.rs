#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod apply;
mod bandwidth;
mod cleanup;
mod config;
mod connectivity;
mod dataplane;
mod device;
mod domains;
mod drive;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod gate;
mod identity;
mod kernel;
mod kernel_error;
mod link_changes;
mod links;
mod managers;
mod migrations;
mod needs;
mod neighbour;
mod neighbours;
mod output;
mod peer_addresses;
mod proxy_neighbours;
mod qdisc;
mod render;
mod report;
mod route;
mod routes;
mod routing_rule;
mod routing_rules;
mod ruleset;
mod set_defects;
mod stand_ins;
mod status;
mod sysctl_path;
mod sysctls;
mod tunnel_device;
mod vtep_entries;
mod wireguard;
mod wireguard_device;

pub use cleanup::{CleanupConfig, CleanupReport, cleanup};
pub use config::{
    DataplaneConfig, InterfaceFilter, IpSetsConfig, IptablesConfig, LocalReachabilityConfig, NftablesConfig,
    RoutePriority, RoutesConfig, TunnelsConfig, WireguardConfig,
};
pub use dataplane::Dataplane;
pub use device::{Device, DeviceChange, DeviceKind, FdbEntry, Vxlan};
pub use domains::{
    DomainLearner, DomainSetPart, DomainsConfig, LearnerCommand, LearnerError, Shard, TrustedServer, domain_set_name,
};
pub use identity::ProblemIdentity;
pub use kernel::{
    CallTimes, Clock, Conntrack, Kernel, Links, Measured, Neighbours, Netfilter, Routing, Subsystem, Sysctls,
};
pub use kernel_error::KernelError;
pub use links::LinkEvent;
pub use managers::domains::learner_number;
pub use managers::live_migrations::{MigrationChange, MigrationState};
pub use migrations::AnnouncementWatch;
pub use neighbour::{AddressPlace, Neighbour, NeighbourChange, ProxyNeighbour, ProxyNeighbourChange};
pub use qdisc::{Qdisc, QdiscChange, QdiscKind, TokenBucket};
pub use render::Rendered;
pub use report::{
    ApplyReport, Awaited, BandwidthProblem, DataplaneProblem, DataplaneStats, DeviceProblem, EndpointProblem,
    EndpointStatus, Owner, ProgramProblem, Reduction, StatusChange,
};
pub use route::{Route, RouteChange, RouteKey, RouteKind, RouteProtocol, RouteScope, RouteTableIndex, RouteTarget};
pub use routing_rule::{RoutingRule, RoutingRuleChange};
pub use ruleset::RulesetEvent;
pub use sysctl_path::{InvalidSysctlPath, SysctlPath};
pub use wireguard_device::{
    DevicePeer, InvalidWireguardKey, PeerChange, WireguardChange, WireguardDevice, WireguardKey,
};

pub use tortie_netfilter::{Command, CommandStatus, Outcome};
