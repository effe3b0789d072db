//! The policy that one node must enforce, as typed chains.
//!
//! The input is a configuration ([`RulesConfig`]) and the desired state of `tortie-model`: policies, profiles, and the
//! interfaces of endpoints. The output is typed chains of `tortie-netfilter`, to be evaluated, or printed by
//! `tortie-iptables` and `tortie-nftables`. Every method of
//! [`Renderer`] is a pure function; nothing here knows what the kernel holds.
//!
//! ```
//! use std::sync::Arc;
//!
//! use tortie_iptables::{Features, Renderer as Lines};
//! use tortie_model::desired::{Policy, RuleSets, Rules};
//! use tortie_model::{
//!     EntityMatch, Family, NamedProtocol, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction,
//! };
//! use tortie_rules::{Marks, Renderer, RulesConfig};
//!
//! // "Allow TCP 443 from whoever is in the IP set s:clients."
//! let rule = Rule {
//!     protocol: Some(Protocol::Named(NamedProtocol::Tcp)),
//!     destination: EntityMatch { ports: [PortSpec::single(443)].into(), ..EntityMatch::default() },
//!     ..Rule::new(RuleAction::Allow)
//! };
//! let sets = RuleSets { src: ["s:clients".into()].into_iter().collect(), ..RuleSets::default() };
//! let policy = Policy {
//!     source: Arc::default(),
//!     selector: "app == \"web\"".into(),
//!     inbound: Rules::new([rule].into(), [sets].into()).unwrap(),
//!     outbound: Rules::default(),
//! };
//!
//! let renderer = Renderer::new(RulesConfig::with_mark_mask(Marks::DEFAULT_MASK)?);
//! let id = PolicyId::new(PolicyKind::NetworkPolicy, "shop", "web");
//! let chains = renderer.policy(&id, &policy, Family::V4).expect("not a staged policy");
//! assert!(chains.problems.is_empty());
//!
//! let lines: Vec<String> = Lines::new(Features::ALL).chain(&chains.inbound).append_lines().collect();
//! assert_eq!(
//!     lines,
//!     ["-A cali-pi-np/shop/web -m comment --comment \"cali:vSLJdrkFsr7FjE9G\" \
//!       -m comment --comment \"NetworkPolicy shop/web ingress\" \
//!       -p tcp -m set --match-set cali40s:clients src -m multiport --destination-ports 443 \
//!       --jump MARK --set-mark 0x10000/0x10000"]
//! );
//! # Ok::<(), tortie_rules::MarkMaskTooSmall>(())
//! ```
//!
//! # How a packet meets these chains
//!
//! | table | hooked chain | what is in it |
//! |---|---|---|
//! | `raw` | PREROUTING, OUTPUT | spoofed sources denied; untracked policy of host endpoints |
//! | `mangle` | PREROUTING, POSTROUTING | pre-DNAT policy; DSCP; host policy for translated packets |
//! | `nat` | PREROUTING, OUTPUT, POSTROUTING | floating addresses, masquerading |
//! | `filter` | INPUT, FORWARD, OUTPUT | dispatch by interface to the endpoints' chains |
//!
//! * An endpoint's chain asks tiers in order, in each tier its policies in order, and at last the profiles.
//! * A policy's chain only sets a mark: *accept*, or *pass* to the next tier. Denied packets end there.
//! * The hooked chain turns the accept mark into the configured action, so that a packet between two workloads of the
//!   node meets the policies of both.
//! * A packet of a workload interface that nobody knows is denied, also while nothing of ours is running.
//!
//! # Where this differs from Felix
//!
//! Texts, names and hashes are Felix's, so that a node can be taken over without rewriting its rules. The exceptions
//! are deliberate, and each is counted in the tests that compare with recorded output:
//!
//! * From the third match block of alternatives on, the result of the second no longer counts for the later ones.
//! * A profile that passes begins by clearing the pass mark, which a tier or another profile may have left set: it would
//!   skip the rest of the profile, denials included.
//! * A rule that iptables cannot express ([`RuleProblem`]) fails closed and alone, and not with the whole table. One that
//!   wants one protocol and excludes another asks for the wanted one only; one about the other family's ICMP is skipped.
//! * One DSCP rule for each address; an IPv4 `NATOutgoingAddress` stays out of IPv6 tables; no chain that sets a mark of
//!   no bits; names that a restore line cannot hold are hashed; annotations, foreign sources and DSCP values are sorted.
//!
//! HTTP matches have no place in iptables: as in Felix, a rule with one is rendered by its other conditions.
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod arp;
mod config;
mod dispatch;
mod dispatch_by_address;
mod endpoint;
mod endpoint_marks;
mod fixed;
mod groups;
mod lists;
mod marks;
pub mod names;
mod nflog;
mod policy;
mod renderer;

pub use arp::{arp_dispatch, arp_hook, arp_workload};
pub use config::{
    AllowAction, DenyAction, EndpointToHostAction, FailsafePort, IpvsConfig, LogConfig, NatConfig, NftablesConfig,
    OpenStackConfig, PacketFilter, PolicyBy, RulesConfig, TunnelConfig, WireguardConfig, WireguardTunnel, WorkloadsBy,
};
pub use dispatch::HostDispatch;
pub use dispatch_by_address::{WorkloadAddress, WorkloadPlace};
pub use endpoint_marks::EndpointMarks;
pub use fixed::Hook;
pub use groups::{PolicyGroup, TierGroups};
pub use lists::DscpRule;
pub use marks::{MarkMaskTooSmall, Marks};
pub use nflog::{
    NFLOG_GROUP_EGRESS, NFLOG_GROUP_INGRESS, OwnerKind, PrefixParts, Verdict, end_of_tier_prefix, no_profile_prefix,
    rule_prefix,
};
pub use policy::{InvalidCondition, PolicyChains, RuleFallback, RuleProblem};
pub use renderer::Renderer;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
