//! The answers; their fields are those of `org.tortie.agent.varlink`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::engine::enforcement::Listing;
use crate::flows::LastHit;
use crate::host_changes::{ConfirmedChanges, HeldChanges};

/// Answer to the query of the same name.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// State of the engine.
    Status(Box<EngineStatus>),
    /// All parameters.
    Configuration(Configuration),
    /// Endpoints, workloads first, by name.
    Endpoints(Vec<Endpoint>),
    /// Policies, by name, and the counters of their rules if they were requested.
    Policies(Vec<Policy>, Option<RuleCounts>),
    /// IP sets, by id.
    IpSets(Vec<IpSet>),
    /// Held changes that were put in force.
    Confirmed(ConfirmedChanges),
    /// There is no answer yet.
    Busy,
}

/// State of the engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Number of the session in this process, from 1.
    pub session: u64,
    /// `waiting`, `resyncing` or `in sync`.
    pub datastore_state: String,
    /// Reason why the datastore cannot be read now.
    pub datastore_unavailable: Option<String>,
    /// Time since the datastore could last be read, in seconds.
    #[serde(default)]
    pub datastore_unavailable_seconds: Option<u64>,
    /// Reason why no changes are enforced.
    pub on_hold: Option<String>,
    /// Changes that are held back because they would cut management connections of the host.
    #[serde(default)]
    pub held_changes: Option<HeldChanges>,
    /// Back end that enforces policy: `iptables`, `nftables`, `programs` (eBPF), or `driver`.
    #[serde(default)]
    pub enforced_by: String,
    /// Problems of the input.
    pub input_problems: Vec<String>,
    /// Objects that are invalid under the configuration in force.
    pub ignored_objects: Vec<String>,
    /// Problems that keep the kernel out of sync.
    pub dataplane_problems: Vec<String>,
    /// The last time that the kernel was programmed.
    pub last_apply: Option<LastApply>,
    /// Changes from the datastore that the engine has taken and that are not in the kernel yet.
    #[serde(default)]
    pub waiting_for_kernel: u64,
    /// Workload endpoints of this node.
    pub workload_endpoints: usize,
    /// Host endpoints of this node.
    pub host_endpoints: usize,
    /// Policies that apply to them.
    pub policies: usize,
    /// IP sets that these need.
    pub ip_sets: usize,
}

/// The last time that the kernel was programmed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastApply {
    /// When it ended.
    pub seconds_ago: f64,
    /// Duration in milliseconds.
    pub took_ms: f64,
    /// Whether everything is in force that can be.
    pub complete: bool,
}

/// All parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// By name.
    pub parameters: Vec<Parameter>,
    /// Notices about the values.
    pub notices: Vec<String>,
}

/// A parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// The value in force.
    pub value: String,
    /// Source of the value; `default` if it is not set.
    pub source: String,
    /// The values of other sources that this one overrides, the strongest first.
    pub overridden: Vec<SetValue>,
    /// Whether it has an effect here.
    pub used: bool,
}

/// A value that some source sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetValue {
    /// Source.
    pub source: String,
    /// The value as written.
    pub value: String,
}

/// An endpoint of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `workload` or `host`.
    pub kind: String,
    /// `NAMESPACE/POD` for pods, the name of host endpoints.
    pub name: String,
    /// `ORCHESTRATOR/WORKLOAD/ENDPOINT`, the name of host endpoints.
    pub id: String,
    /// The interface on the host; `*` for all of the host's.
    pub interface: Option<String>,
    /// Addresses.
    pub addresses: Vec<String>,
    /// Its own labels.
    pub labels: BTreeMap<String, String>,
    /// Profiles in order of evaluation.
    pub profiles: Vec<String>,
    /// `up`, `down` or `error`, as of the last apply.
    pub status: Option<String>,
    /// Policies for traffic to and from it.
    pub tiers: Vec<Tier>,
    /// Of a host endpoint: policies before connection tracking.
    pub untracked_tiers: Vec<Tier>,
    /// Of a host endpoint: policies before DNAT.
    pub pre_dnat_tiers: Vec<Tier>,
    /// Of a host endpoint: policies for forwarded traffic.
    pub forward_tiers: Vec<Tier>,
}

/// The policies of a tier that apply to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// `Deny` or `Pass`, for traffic that some of its policies selected and none decided.
    pub default_action: String,
    /// Policies for traffic to the endpoint, in order of evaluation.
    pub ingress: Vec<String>,
    /// Policies for traffic from the endpoint, in order of evaluation.
    pub egress: Vec<String>,
}

/// A policy that applies to endpoints of this node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// `KIND/NAMESPACE/NAME`, or `KIND/NAME`.
    pub id: String,
    /// Its tier.
    pub tier: String,
    /// Its position there; without one it comes last.
    pub order: Option<f64>,
    /// Selector of its endpoints.
    pub selector: String,
    /// Whether it is staged: evaluated and never enforced.
    pub staged: bool,
    /// Number of rules for traffic to its endpoints.
    pub ingress_rules: usize,
    /// Number of rules for traffic from its endpoints.
    pub egress_rules: usize,
    /// The IP sets that its rules name.
    pub ip_sets: Vec<String>,
    /// The endpoints of this node to which it applies, by name.
    pub endpoints: Vec<String>,
    /// Its chain in the kernel for traffic to its endpoints; none if it is staged, or eBPF programs
    /// enforce policy.
    pub ingress_chain: Option<String>,
    /// Its chain in the kernel for traffic from its endpoints; none if it is staged, or eBPF
    /// programs enforce policy.
    pub egress_chain: Option<String>,
    /// Time of the last decision of its rules about a connection, and number of decisions; if flows
    /// are collected.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_hit: Option<LastHit>,
    /// The rules of its chains, if their counters were requested; none if another program enforces.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<Vec<RuleCounters>>,
    /// Counters of its rules, if counters were requested and eBPF programs enforce policy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub decisions: Option<Vec<DecisionCounters>>,
}

/// Counters of policy rules, or the programs that list them.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleCounts {
    /// Counters of nftables rules.
    Rules(Vec<CountedRule>),
    /// The counters are in kernel rules, which these programs list; none if another program
    /// enforces.
    Listings(Vec<Listing>),
    /// Counters of eBPF programs.
    Decisions(Vec<DecisionCounters>),
    /// The counters cannot be read.
    Failed(String),
}

/// Approximate number of packets that one rule, or another step of the evaluation, has decided in
/// eBPF programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionCounters {
    /// `ingress` or `egress`.
    pub direction: Option<String>,
    /// `allow`, `deny`, or `undecided` if a later step of the evaluation decides.
    pub verdict: String,
    /// The tier, of a rule of a policy and of the end of a tier.
    pub tier: Option<String>,
    /// The policy, of a rule of one.
    pub policy: Option<String>,
    /// The profile, of a rule of one.
    pub profile: Option<String>,
    /// The rule's place in the list of its direction, from 0.
    pub rule: Option<usize>,
    /// Description of the deciding rule or step.
    pub decided_by: String,
    /// Packets that began a connection, or belong to none, since the programs were attached.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The kernel's counters of a rule of a policy's chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCounters {
    /// 4 or 6.
    pub ip_version: u8,
    /// `filter`, `mangle` or `raw`.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The rule, as `iptables-save` or `nft` prints it.
    pub rule: String,
    /// Packets that matched since the chain was written.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// With nftables: the policy rules that are counted here, as `KIND/NAMESPACE/NAME DIRECTION
    /// NUMBER`. These are the policy's own, and the first of others if several share the count.
    #[serde(default)]
    pub counts_for: Vec<String>,
    /// Total number of these rules; 0 if it is not known.
    #[serde(default)]
    pub counted_together: usize,
    /// Number of kernel rules of which this is the sum.
    #[serde(default = "one")]
    pub kernel_rules: usize,
}

const fn one() -> usize {
    1
}

/// The kernel's counters of policy rules that are one rule in the kernel, in whichever chains it
/// stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountedRule {
    /// The count.
    pub counters: RuleCounters,
    /// The policy rules: the owner's id, and the rule's direction and number: `ingress 3`.
    pub of: Vec<(Arc<str>, String)>,
}

/// An IP set that policies of this node need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpSet {
    /// Its id.
    pub id: String,
    /// `hash:ip`, `hash:net` or `hash:ip,port`.
    #[serde(rename = "type")]
    pub set_type: String,
    /// Number of members of both families.
    pub size: usize,
    /// The names of its sets in the kernel, by family; none if eBPF programs enforce policy.
    pub kernel_names: Vec<String>,
    /// The policies and profiles whose rules name it.
    pub users: Vec<String>,
    /// Its members, if one set was requested and this program enforces.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub members: Option<Vec<String>>,
}
