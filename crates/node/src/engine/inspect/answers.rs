//! The answers; their fields are those of `org.tortie.agent.varlink`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::engine::enforcement::Listing;
use crate::flows::LastHit;
use crate::host_changes::{ConfirmedChanges, HeldChanges};

/// What is answered to a query of the same name.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// How the engine is.
    Status(Box<EngineStatus>),
    /// All parameters.
    Configuration(Configuration),
    /// Endpoints, workloads first, by name.
    Endpoints(Vec<Endpoint>),
    /// Policies, by name, and where what is counted for their rules is found, if that was asked for.
    Policies(Vec<Policy>, Option<RuleCounts>),
    /// IP sets, by id.
    IpSets(Vec<IpSet>),
    /// What was held back and is put in force.
    Confirmed(ConfirmedChanges),
    /// There is no answer yet.
    Busy,
}

/// How the engine is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Counts the times that the engine began in this process.
    pub session: u64,
    /// `waiting`, `resyncing` or `in sync`.
    pub datastore_state: String,
    /// Why the datastore cannot be read now.
    pub datastore_unavailable: Option<String>,
    /// Why nothing new is enforced.
    pub on_hold: Option<String>,
    /// Changes that are held back because they would cut those off who manage the host.
    #[serde(default)]
    pub held_changes: Option<HeldChanges>,
    /// Who enforces policy: `chains`, `programs` of eBPF, or a `driver`.
    #[serde(default)]
    pub enforced_by: String,
    /// What is wrong with the input.
    pub input_problems: Vec<String>,
    /// Objects that are invalid under the configuration in force.
    pub ignored_objects: Vec<String>,
    /// What is out of sync in the kernel.
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
    /// How long it took.
    pub took_ms: f64,
    /// Whether everything is in force that can be.
    pub complete: bool,
}

/// All parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// By name.
    pub parameters: Vec<Parameter>,
    /// What the operator should know of the values.
    pub notices: Vec<String>,
}

/// A parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// The value in force.
    pub value: String,
    /// Where that is set; `default` if nowhere.
    pub source: String,
    /// The values of other sources that this one overrides, the strongest first.
    pub overridden: Vec<SetValue>,
    /// Whether it has an effect here.
    pub used: bool,
}

/// A value that some source sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetValue {
    /// Where.
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
    /// Of a host endpoint: policies before destination NAT.
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
    /// Which endpoints it is for.
    pub selector: String,
    /// Whether it is calculated and never enforced.
    pub staged: bool,
    /// How many rules it has for traffic to its endpoints.
    pub ingress_rules: usize,
    /// How many rules it has for traffic from its endpoints.
    pub egress_rules: usize,
    /// The IP sets that its rules name.
    pub ip_sets: Vec<String>,
    /// The endpoints of this node to which it applies, by name.
    pub endpoints: Vec<String>,
    /// Its chain in the kernel for traffic to its endpoints; none if it is staged, or eBPF programs enforce policy.
    pub ingress_chain: Option<String>,
    /// Its chain in the kernel for traffic from its endpoints; none if it is staged, or eBPF programs enforce policy.
    pub egress_chain: Option<String>,
    /// When a rule of it decided about a connection last, and how often that was; if flows are collected.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_hit: Option<LastHit>,
    /// The rules of its chains, if their counters were asked for; none if another program enforces.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<Vec<RuleCounters>>,
    /// What its rules decided, if counters were asked for and eBPF programs enforce policy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub decisions: Option<Vec<DecisionCounters>>,
}

/// Where what is counted for rules of policies is found.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleCounts {
    /// Here, for rules of tables of nftables.
    Rules(Vec<CountedRule>),
    /// In the kernel's rules, which these programs list; nowhere if another program enforces.
    Listings(Vec<Listing>),
    /// Here.
    Decisions(Vec<DecisionCounters>),
    /// It cannot be read.
    Failed(String),
}

/// About how many packets something decided that eBPF programs enforce.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionCounters {
    /// `ingress` or `egress`.
    pub direction: Option<String>,
    /// `allow`, `deny`, or `undecided` where what is asked next decides.
    pub verdict: String,
    /// The tier, of a rule of a policy and of the end of a tier.
    pub tier: Option<String>,
    /// The policy, of a rule of one.
    pub policy: Option<String>,
    /// The profile, of a rule of one.
    pub profile: Option<String>,
    /// The rule's place in the list of its direction, from 0.
    pub rule: Option<usize>,
    /// What decided, in words.
    pub decided_by: String,
    /// Packets that began a connection, or belong to none, since the programs were attached.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What the kernel has counted for a rule of a policy's chain.
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
    /// With nftables, which rules of policies are counted here, as `KIND/NAMESPACE/NAME DIRECTION NUMBER`: those of the policy,
    /// and the first of others, where several share the count.
    #[serde(default)]
    pub counts_for: Vec<String>,
    /// How many these are in all; 0 if that is not told.
    #[serde(default)]
    pub counted_together: usize,
    /// Of how many rules of the kernel this is the sum.
    #[serde(default = "one")]
    pub kernel_rules: usize,
}

const fn one() -> usize {
    1
}

/// What the kernel has counted for rules of policies that are one rule in the kernel, wherever it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountedRule {
    /// The count.
    pub counters: RuleCounters,
    /// Whose rules they are, by the owner's id, and in words: `ingress 3`.
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
    /// How many members it has, of both families.
    pub size: usize,
    /// The names of its sets in the kernel, by family; none if eBPF programs enforce policy.
    pub kernel_names: Vec<String>,
    /// The policies and profiles whose rules name it.
    pub users: Vec<String>,
    /// Its members, if one set was asked for and this program enforces.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub members: Option<Vec<String>>,
}
