//! A test node: states, interfaces, and functions to apply them to a kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{ApplyReport, Dataplane, DataplaneConfig, DataplaneProblem, Kernel, LinkEvent};
use tortie_iptables::Backend;
use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, IpSetType, IpSetUpdate, Members, Policy, Profile, RuleSets, Rules, TierPolicies,
    WorkloadEndpointState,
};
use tortie_model::{
    AdminState, Cidr, HostEndpoint, Mac, PolicyId, PolicyKind, Rule, RuleAction, TierDefaultAction, WorkloadEndpoint,
    WorkloadEndpointId, with_causes,
};
use tortie_rules::{Marks, RulesConfig};

pub(crate) fn config(backend: Backend) -> DataplaneConfig {
    let rules = RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).expect("the default mask is large enough");
    DataplaneConfig::new("node-1".into(), rules, backend)
}

pub(crate) fn cidr(text: &str) -> Cidr {
    text.parse().expect(text)
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

pub(crate) fn workload_id(name: &str) -> WorkloadEndpointId {
    WorkloadEndpointId {
        orchestrator: "k8s".into(),
        workload: format!("default/{name}").into(),
        endpoint: "eth0".into(),
    }
}

/// A pod with an IPv4 and an IPv6 address that end in `number`.
pub(crate) fn pod(iface: &str, number: u8) -> WorkloadEndpoint {
    WorkloadEndpoint {
        state: AdminState::Active,
        iface: Some(iface.parse().expect("an interface name")),
        mac: Some(Mac([2, 0, 0, 0, 0, number])),
        profiles: Arc::new(["kns.default".into()]),
        ipv4_nets: [cidr(&format!("10.65.0.{number}/32"))].into_iter().collect(),
        ipv6_nets: [cidr(&format!("fd00::{number:x}/128"))].into_iter().collect(),
        ..WorkloadEndpoint::default()
    }
}

pub(crate) fn workload(name: &str, endpoint: WorkloadEndpoint, policies: &[&str]) -> DesiredUpdate {
    let state = WorkloadEndpointState { endpoint: Arc::new(endpoint), tiers: tiers(policies), computed: None };
    DesiredUpdate::WorkloadEndpoint(workload_id(name), state)
}

pub(crate) fn tiers(policies: &[&str]) -> Arc<[TierPolicies]> {
    if policies.is_empty() {
        return Arc::new([]);
    }
    let ids: Arc<[PolicyId]> = policies.iter().map(|name| policy_id(name)).collect();
    let tier = TierPolicies {
        name: "default".into(),
        default_action: Some(TierDefaultAction::Deny),
        ingress: Arc::clone(&ids),
        egress: ids,
    };
    Arc::new([tier])
}

pub(crate) fn policy_id(name: &str) -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name)
}

/// A policy that allows ingress from a set, or from anywhere.
pub(crate) fn policy(name: &str, selector: &str, set: Option<&str>) -> DesiredUpdate {
    let rule = Rule::new(RuleAction::Allow);
    let sets = RuleSets { src: set.map(Into::into).into_iter().collect(), ..RuleSets::default() };
    DesiredUpdate::Policy(policy_id(name), Arc::new(policy_of(selector, vec![rule], vec![sets])))
}

pub(crate) fn policy_of(selector: &str, rules: Vec<Rule>, sets: Vec<RuleSets>) -> Policy {
    Policy {
        source: Arc::new(tortie_model::Policy::default()),
        selector: selector.into(),
        inbound: Rules::new(rules.into(), sets.into()).expect("as many rules as sets"),
        outbound: Rules::default(),
    }
}

pub(crate) fn profile(name: &str) -> DesiredUpdate {
    let rule = Rule::new(RuleAction::Allow);
    let rules = || Rules::new([rule.clone()].into(), [RuleSets::default()].into()).expect("one each");
    DesiredUpdate::Profile(name.into(), Arc::new(Profile { inbound: rules(), outbound: rules() }))
}

pub(crate) fn set(id: &str, members: &[&str]) -> DesiredUpdate {
    let members = Members::Nets(members.iter().map(|net| cidr(net)).collect());
    DesiredUpdate::IpSet(IpSetUpdate { id: id.into(), set_type: IpSetType::Net, members })
}

pub(crate) fn host_endpoint(iface: Option<&str>, expected: &[&str]) -> HostEndpoint {
    HostEndpoint {
        iface: iface.map(|iface| iface.parse().expect("an interface name")),
        expected_ipv4: expected.iter().map(|text| ip(text)).collect(),
        ..HostEndpoint::default()
    }
}

pub(crate) fn host(name: &str, endpoint: HostEndpoint, policies: &[&str]) -> DesiredUpdate {
    let none: Arc<[TierPolicies]> = Arc::new([]);
    let state = HostEndpointState {
        endpoint: Arc::new(endpoint),
        tiers: tiers(policies),
        untracked_tiers: Arc::clone(&none),
        pre_dnat_tiers: Arc::clone(&none),
        forward_tiers: none,
        qos_policies: [].into(),
    };
    DesiredUpdate::HostEndpoint(name.into(), state)
}

pub(crate) fn up(name: &str, index: u32) -> LinkEvent {
    LinkEvent::Up { name: name.parse().expect("an interface name"), index }
}

pub(crate) fn addresses(name: &str, addresses: &[&str]) -> LinkEvent {
    let addresses: BTreeSet<IpAddr> = addresses.iter().map(|text| ip(text)).collect();
    LinkEvent::Addresses { name: name.parse().expect("an interface name"), addresses }
}

/// A dataplane that has received these updates and events, and for which both datastore and
/// interfaces are in sync.
pub(crate) fn dataplane(
    backend: Backend,
    updates: impl IntoIterator<Item = DesiredUpdate>,
    links: impl IntoIterator<Item = LinkEvent>,
) -> Dataplane {
    let mut dataplane = Dataplane::new(config(backend));
    updates.into_iter().for_each(|update| dataplane.on_update(update));
    links.into_iter().for_each(|event| dataplane.on_link(event));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    dataplane
}

/// Applies until nothing is left to do within a minute: sets are destroyed in batches, and
/// unexpected routes have a grace period.
pub(crate) fn apply_until_in_sync(dataplane: &mut Dataplane, kernel: &mut dyn Kernel) -> ApplyReport {
    let deadline = kernel.now() + std::time::Duration::from_secs(40);
    loop {
        let report = dataplane.apply(kernel);
        let now = kernel.now();
        match report.next {
            Some(pause) if now + pause < deadline => kernel.sleep(pause),
            _ => return report,
        }
    }
}

/// A kernel with the interfaces that most tests use.
pub(crate) fn kernel(backend: Backend) -> FakeKernel {
    FakeKernel::new(backend, ["cali1", "cali2", "cali3", "cali4", "eth0"])
}

/// Problems with their causes, as the agent logs them.
pub(crate) fn texts(problems: &[DataplaneProblem]) -> Vec<String> {
    problems.iter().map(|problem| with_causes(problem)).collect()
}
