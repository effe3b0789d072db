//! Policies, profiles and endpoints as iptables chains.
#![forbid(unsafe_code)]

mod config;
mod dispatch;
mod endpoint;
mod endpoint_marks;
mod fixed;
#[cfg(test)]
mod golden;
mod groups;
mod lists;
mod marks;
pub mod names;
mod nflog;
mod policy;
mod renderer;

pub use config::{
    AllowAction, DenyAction, EndpointToHostAction, FailsafePort, IpvsConfig, LogConfig, NatConfig, OpenStackConfig,
    RulesConfig, TunnelConfig, WireguardConfig, WireguardTunnel,
};
pub use dispatch::HostDispatch;
pub use endpoint_marks::EndpointMarks;
pub use fixed::Hook;
pub use groups::{PolicyGroup, TierGroups};
pub use lists::DscpRule;
pub use marks::{MarkMaskTooSmall, Marks};
pub use nflog::{OwnerKind, Verdict, end_of_tier_prefix, no_profile_prefix, rule_prefix};
pub use policy::{Instead, InvalidCondition, PolicyChains, RuleProblem};
pub use renderer::Renderer;
