use std::sync::Arc;

use tortie_config::Sources;
use tortie_model::desired::ConfigSource;
use tortie_model::desired::{
    self, DesiredUpdate, HostEndpointState, IpSetDelta, IpSetType, IpSetUpdate, Members, RuleSets, Rules, SetIds,
    TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Direction, HostEndpointName, IpSetId, PolicyId, PolicyKind, ProfileName, Rule, RuleAction, TierName,
    WorkloadEndpointId,
};

use super::configuration;
use super::*;

fn policy(name: &str) -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "shop", name)
}

fn tiers(ingress: &[&str], egress: &[&str]) -> desired::TierList {
    let ids = |names: &[&str]| names.iter().map(|name| policy(name)).collect();
    [TierPolicies { name: TierName::new("default"), default_action: None, ingress: ids(ingress), egress: ids(egress) }]
        .into()
}

fn workload(name: &str) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() }
}

/// A rule that needs this set, as one direction of a policy or profile.
fn needs(set: &str) -> Rules {
    let sets = RuleSets { src: [IpSetId::new(set)].into_iter().collect::<SetIds>(), ..RuleSets::default() };
    Rules::new([Rule::new(RuleAction::Allow)].into(), [sets].into()).unwrap()
}

fn nets(nets: &[&str]) -> Members {
    Members::Nets(nets.iter().map(|net| net.parse().unwrap()).collect())
}

fn inventory() -> Inventory {
    let mut inventory = Inventory::default();
    let with = |inbound| desired::Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound,
        outbound: Rules::default(),
    };
    let set = |id: &str, members| IpSetUpdate { id: IpSetId::new(id), set_type: IpSetType::Net, members };
    for update in [
        DesiredUpdate::IpSet(set("s:a", nets(&["10.0.0.1/32", "10.0.0.2/32"]))),
        DesiredUpdate::IpSet(set("s:b", nets(&[]))),
        DesiredUpdate::Policy(policy("db"), Arc::new(with(needs("s:a")))),
        DesiredUpdate::Policy(policy("other-db"), Arc::new(with(Rules::default()))),
        DesiredUpdate::Profile(
            ProfileName::new("kns.shop"),
            Arc::new(desired::Profile { inbound: needs("s:a"), outbound: needs("s:b") }),
        ),
        DesiredUpdate::WorkloadEndpoint(
            workload("shop/db"),
            WorkloadEndpointState { tiers: tiers(&["db", "other-db"], &["db"]), ..WorkloadEndpointState::default() },
        ),
        DesiredUpdate::HostEndpoint(
            HostEndpointName::new("eth0"),
            HostEndpointState { pre_dnat_tiers: tiers(&["db"], &[]), ..HostEndpointState::default() },
        ),
    ] {
        inventory.on_update(&update);
    }
    inventory
}

#[test]
fn policies_know_their_endpoints_of_any_kind_once() {
    let inventory = inventory();
    let named = |name: &str| inventory.policies(Some(name)).into_iter().map(|policy| policy.id).collect::<Vec<_>>();
    assert_eq!(named("db"), ["NetworkPolicy/shop/db"]);
    assert_eq!(named("shop/other-db"), ["NetworkPolicy/shop/other-db"]);
    assert_eq!(named("NetworkPolicy/shop/db"), ["NetworkPolicy/shop/db"]);
    assert!(named("b").is_empty() && named("").is_empty() && named("/db").is_empty());
    let all = inventory.policies(None);
    assert_eq!(all.len(), 2);
    assert_eq!(all[0].endpoints, ["shop/db", "eth0"]);
    assert_eq!(all[1].endpoints, ["shop/db"]);
    assert_eq!(all[0].ip_sets, ["s:a"]);
    let chain = tortie_rules::names::policy_chain(Direction::Ingress, &policy("db")).to_string();
    assert_eq!(all[0].ingress_chain, Some(chain));
}

#[test]
fn sets_know_their_size_and_users() {
    let mut inventory = inventory();
    let sets = inventory.ip_sets(None);
    assert_eq!(sets.iter().map(|set| (set.id.as_str(), set.size)).collect::<Vec<_>>(), [("s:a", 2), ("s:b", 0)]);
    assert_eq!(sets[0].users, ["NetworkPolicy/shop/db", "profile kns.shop"]);
    assert_eq!(sets[1].users, ["profile kns.shop"]);
    assert!(sets[0].kernel_names.iter().all(|name| name.starts_with("cali")));
    let delta = IpSetDelta {
        id: IpSetId::new("s:a"),
        added: nets(&["10.0.0.3/32", "10.0.0.4/32"]),
        removed: nets(&["10.0.0.1/32"]),
    };
    inventory.on_update(&DesiredUpdate::IpSetDelta(delta));
    assert_eq!(inventory.ip_sets(Some("s:a"))[0].size, 3);
    assert!(inventory.ip_sets(Some("s:")).is_empty());
}

#[test]
fn removed_objects_leave_the_inventory() {
    let mut inventory = inventory();
    for update in [
        DesiredUpdate::WorkloadEndpointRemove(workload("shop/db")),
        DesiredUpdate::HostEndpointRemove(HostEndpointName::new("eth0")),
        DesiredUpdate::ProfileRemove(ProfileName::new("kns.shop")),
        DesiredUpdate::PolicyRemove(policy("db")),
        DesiredUpdate::PolicyRemove(policy("other-db")),
        DesiredUpdate::IpSetRemove(IpSetId::new("s:a")),
        DesiredUpdate::IpSetRemove(IpSetId::new("s:b")),
    ] {
        inventory.on_update(&update);
    }
    assert!(inventory.endpoints(None, |_| None, |_| None).is_empty());
    assert!(inventory.policies(None).is_empty() && inventory.ip_sets(None).is_empty());
}

#[test]
fn each_parameter_has_its_source_and_the_overridden_values() {
    let mut sources = Sources::default();
    let raw = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    sources.set(
        ConfigSource::DatastoreGlobal,
        raw(&[("RouteRefreshInterval", "60"), ("IptablesRefreshInterval", "80"), ("EtcdCaFile", "/ca")]),
    );
    sources
        .set(ConfigSource::Environment, raw(&[("routerefreshinterval", "17"), ("iptablesrefreshinterval", "often")]));
    let resolved = sources.resolve().unwrap();
    let Configuration { parameters, notices } = configuration::of(&sources, &resolved);
    let find = |name: &str| parameters.iter().find(|parameter| parameter.name == name).unwrap();
    let route = find("RouteRefreshInterval");
    assert_eq!((route.value.as_str(), route.source.as_str()), ("17", "environment variable"));
    assert_eq!(route.overridden, [SetValue { source: "datastore (global)".into(), value: "60".into() }]);
    // The default replaces an invalid value; the next source's value does not.
    let bad = find("IptablesRefreshInterval");
    assert_eq!((bad.value.as_str(), bad.source.as_str()), ("180s", "environment variable"));
    // A parameter that counts only on the node itself has no effect in other sources.
    assert_eq!(find("EtcdCaFile").source, "default");
    assert!(!find("BPFLogLevel").used && find("RouteRefreshInterval").used);
    assert_eq!(notices.len(), 2, "{notices:?}");
    assert!(parameters.len() >= 218 && parameters.is_sorted_by(|a, b| a.name < b.name));
}

#[test]
fn interface_prefixes_are_those_of_workloads_by_address() {
    let with = |value: Option<&str>, by_address| {
        let mut sources = Sources::default().by_address(by_address);
        let raw = value.map(|value| ("interfaceprefix".to_owned(), value.to_owned()));
        sources.set(ConfigSource::Environment, raw.into_iter().collect());
        let resolved = sources.resolve().unwrap();
        let Configuration { parameters, notices } = configuration::of(&sources, &resolved);
        (parameters.into_iter().find(|parameter| parameter.name == "InterfacePrefix").unwrap(), notices)
    };
    let overruled = |parameter: &Parameter, by: &str, value: &str| {
        assert_eq!((parameter.value.as_str(), parameter.source.as_str()), ("veth,cni", "--workloads by-address"));
        assert_eq!(parameter.overridden, [SetValue { source: by.into(), value: value.into() }]);
    };
    let (unset, notices) = with(None, true);
    overruled(&unset, "default", "cali");
    assert_eq!(notices, [""; 0]);
    let (set, notices) = with(Some("cali"), true);
    overruled(&set, "environment variable", "cali");
    let why = "interfaces whose names begin with veth or cni are closed to unknown workloads";
    assert_eq!(
        notices,
        [format!("environment variable: InterfacePrefix: has no effect beside --workloads by-address: {why}")]
    );
    for (value, by_address, shown) in [(Some("lxc"), true, "lxc"), (Some("cali"), false, "cali"), (None, false, "cali")]
    {
        let (parameter, notices) = with(value, by_address);
        assert_eq!((parameter.value.as_str(), parameter.overridden.len(), notices.len()), (shown, 0, 0));
    }
}
