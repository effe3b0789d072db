//! The policy that one node must enforce, as typed chains.
//!
//! The input is a configuration ([`RulesConfig`]) and the desired state of `tortie-model`:
//! policies, profiles, and the interfaces of endpoints. The output is typed chains of
//! `tortie-netfilter`, to be evaluated, or printed by `tortie-iptables` and `tortie-nftables`.
//! Every method of [`Renderer`] is a pure function; the crate does not read the kernel's state.
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
//! # From an endpoint to a table
//!
//! The desired state of a workload becomes the input of `iptables-restore` without the rest of the
//! agent:
//!
//! ```
//! use std::collections::BTreeMap;
//! # use std::sync::Arc;
//!
//! use tortie_iptables::{Backend, Chain, Features, InterfaceName, MapKey, Reconciler, ReconcilerConfig, Table};
//! use tortie_model::desired::{Policy, WorkloadEndpointState};
//! # use tortie_model::desired::{RuleSets, Rules, TierPolicies};
//! use tortie_model::{AdminState, Cidr, Family, IpSetId, PolicyId};
//! # use tortie_model::{PolicyKind, Rule, RuleAction, TierDefaultAction, WorkloadEndpoint};
//! use tortie_netfilter::{Member, SetType};
//! use tortie_nftables as nft;
//! use tortie_rules::names::ip_set_name;
//! use tortie_rules::{HostDispatch, Renderer, RulesConfig, TierGroups};
//! # use tortie_rules::{NftablesConfig, PacketFilter};
//!
//! type Error = Box<dyn std::error::Error>;
//!
//! /// The chains of the table `filter`: fixed ones, and those of the policies and of one workload.
//! fn chains(
//!     renderer: &Renderer,
//!     policies: &BTreeMap<PolicyId, Policy>,
//!     workload: &WorkloadEndpointState,
//! ) -> Result<Vec<Chain>, Error> {
//!     let mut chains = renderer.fixed_chains(Table::Filter, Family::V4);
//!     chains.extend(renderer.host_dispatch(HostDispatch::Filter, [], false));
//!     chains.push(renderer.cidr_block([], Family::V4));
//!     for (id, policy) in policies {
//!         let rendered = renderer.policy(id, policy, Family::V4);
//!         chains.extend(rendered.into_iter().flat_map(|policy| [policy.inbound, policy.outbound]));
//!     }
//!     let endpoint = &workload.endpoint;
//!     let interface = endpoint.iface.ok_or("a workload without an interface")?;
//!     let selector_of = |id| policies.get(id).map(|policy| &*policy.selector);
//!     let tiers: Vec<_> = workload.tiers.iter().map(|tier| TierGroups::of(tier, selector_of)).collect();
//!     let groups = tiers.iter().flat_map(|tier| tier.ingress.iter().chain(&tier.egress));
//!     chains.extend(groups.map(|group| renderer.policy_group(group)));
//!     chains.extend(renderer.workload_endpoint(interface, endpoint.state, &tiers, &endpoint.profiles, None));
//!     chains.extend(renderer.workload_dispatch([interface]));
//!     Ok(chains)
//! }
//!
//! /// All of `*filter … COMMIT`.
//! fn text(renderer: &Renderer, chains: Vec<Chain>) -> Result<String, Error> {
//!     let mut table = Reconciler::new(ReconcilerConfig::new(Table::Filter, Family::V4, Backend::Nft), Features::ALL);
//!     for hook in renderer.hooks().into_iter().filter(|hook| hook.table == Table::Filter) {
//!         table.set_hook(hook.kernel_chain, hook.position, hook.rules);
//!     }
//!     chains.into_iter().for_each(|chain| table.update_chain(chain));
//!     Ok(table.render()?)
//! }
//!
//! /// With nftables, interfaces are members of maps, and sets are part of the table: the input of `nft -f`.
//! fn nft_text(renderer: &Renderer, chains: Vec<Chain>, interface: InterfaceName) -> Result<String, Error> {
//!     let mut table = nft::Table::new(nft::TableConfig::new(nft::TableId::calico(Family::V4)), nft::Features::ALL);
//!     for hook in renderer.hooks().into_iter().filter(|hook| hook.table == Table::Filter) {
//!         table.set_hook(hook.table, hook.kernel_chain, hook.position, hook.rules);
//!     }
//!     chains.into_iter().for_each(|chain| table.update_chain(Table::Filter, chain));
//!     for (map, verdict) in renderer.workload_maps(interface, Some((AdminState::Active, None))) {
//!         table.set_verdict(Table::Filter, map, MapKey::Interface(interface), verdict);
//!     }
//!     let (id, client) = (IpSetId::from("s:clients"), Member::from("10.0.0.1/32".parse::<Cidr>()?));
//!     table.replace_set(&id, ip_set_name(Family::V4, &id)?, SetType::HashNet, [client])?;
//!     Ok(table.render()?.iter().map(ToString::to_string).collect())
//! }
//! # let id = PolicyId::new(PolicyKind::NetworkPolicy, "shop", "web");
//! # let policy = Policy {
//! #     source: Arc::default(),
//! #     selector: "app == \"web\"".into(),
//! #     inbound: Rules::new([Rule::new(RuleAction::Allow)].into(), [RuleSets::default()].into()).unwrap(),
//! #     outbound: Rules::default(),
//! # };
//! # let tier = TierPolicies {
//! #     name: "default".into(),
//! #     default_action: Some(TierDefaultAction::Deny),
//! #     ingress: [id.clone()].into(),
//! #     egress: [].into(),
//! # };
//! # let endpoint = WorkloadEndpoint { iface: Some("cali1".parse().unwrap()), ..WorkloadEndpoint::default() };
//! # let (endpoint, tiers) = (Arc::new(endpoint), [tier].into());
//! # let workload = WorkloadEndpointState { endpoint, tiers, ..WorkloadEndpointState::default() };
//! # let policies = BTreeMap::from([(id, policy)]);
//! # let renderer = Renderer::new(RulesConfig::default());
//! # let iptables = text(&renderer, chains(&renderer, &policies, &workload)?)?;
//! # assert!(iptables.starts_with("*filter\n:cali"), "{iptables}");
//! # for chain in ["cali-tw-cali1", "cali-fw-cali1", "cali-pi-np/shop/web"] {
//! #     assert!(iptables.contains(&format!("\n-A {chain} ")), "{chain} in {iptables}");
//! # }
//! # assert!(iptables.ends_with("\nCOMMIT\n"), "{iptables}");
//! # let packet_filter = PacketFilter::Nftables(NftablesConfig::default());
//! # let renderer = Renderer::new(RulesConfig { packet_filter, ..RulesConfig::default() });
//! # let nftables = nft_text(&renderer, chains(&renderer, &policies, &workload)?, InterfaceName::new("cali1")?)?;
//! # assert!(nftables.starts_with("add table ip calico\n"), "{nftables}");
//! # for line in ["add set ip calico cali40s-clients ", "{ cali1 : goto filter-cali-tw-cali1 }"] {
//! #     assert!(nftables.contains(line), "{line} in {nftables}");
//! # }
//! # Ok::<(), Error>(())
//! ```
//!
//! # Path of a packet through these chains
//!
//! | table | hooked chain | contents |
//! |---|---|---|
//! | `raw` | PREROUTING, OUTPUT | spoofed sources denied; untracked policy of host endpoints |
//! | `mangle` | PREROUTING, POSTROUTING | pre-DNAT policy; DSCP; host policy for translated packets |
//! | `nat` | PREROUTING, OUTPUT, POSTROUTING | floating addresses, masquerading |
//! | `filter` | INPUT, FORWARD, OUTPUT | dispatch by interface to the endpoints' chains |
//!
//! * An endpoint's chain evaluates tiers in order, in each tier its policies in order, and at last
//!   the profiles.
//! * A policy's chain only sets a mark: *accept*, or *pass* to the next tier. Denied packets end
//!   there.
//! * The hooked chain turns the accept mark into the configured action, so that a packet between
//!   two workloads of the node meets the policies of both.
//! * A packet of an unlisted workload interface is denied, also while the agent does not run.
//!
//! # Differences from Felix
//!
//! Texts, names and hashes are Felix's, so that a node can be taken over without rewriting its
//! rules. The exceptions are deliberate, and each is counted in the tests that compare with
//! recorded output:
//!
//! * From the third match block of alternatives on, the result of the second no longer counts for
//!   the later ones.
//! * A profile that passes first clears the pass mark, which a tier or another profile may have
//!   left set: the mark would skip the rest of the profile, denials included.
//! * A rule that iptables cannot express ([`RuleProblem`]) fails closed alone, and not with the
//!   whole table. A rule with a protocol and an excluded protocol matches the former only. A rule
//!   about the other family's ICMP is skipped.
//! * There is one DSCP rule for each address. An IPv4 `NATOutgoingAddress` is not in IPv6 tables.
//!   No chain sets a mark without bits. Names that are not valid in a restore line are hashed.
//!   Annotations, foreign sources and DSCP values are sorted.
//!
//! iptables and nftables cannot match HTTP requests. Felix renders a rule with an HTTP match by its
//! other conditions; here it is a [`RuleProblem`] and fails closed.
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
    AllowAction, DomainRules, EndpointToHostAction, FailsafePort, IpvsConfig, LogConfig, NatConfig, NftablesConfig,
    OpenStackConfig, PacketFilter, PolicyBackend, RejectReply, RulesConfig, TunnelConfig, WireguardConfig,
    WireguardTunnel, WorkloadDispatch,
};
pub use dispatch::HostDispatch;
pub use dispatch_by_address::{WorkloadAddress, WorkloadAttachment};
pub use endpoint_marks::EndpointMarks;
pub use fixed::Hook;
pub use groups::{PolicyGroup, TierGroups};
pub use lists::DscpRule;
pub use marks::{MarkMaskTooSmall, Marks};
pub use nflog::{
    NFLOG_GROUP_EGRESS, NFLOG_GROUP_INGRESS, OwnerKind, PrefixParts, PrefixVerdict, end_of_tier_prefix,
    no_profile_prefix, rule_prefix,
};
pub use policy::{InvalidCondition, PolicyChains, RuleFallback, RuleProblem};
pub use renderer::Renderer;
pub use tortie_model::DenyAction;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
