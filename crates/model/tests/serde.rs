//! Updates in JSON. Random ones are written and read in the tests of `tortie-calc` and
//! `tortie-protocol`.
#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used, reason = "a test fails if it panics")]

use proptest::prelude::*;
use serde_json::{Value, json};
use tortie_model::desired::{
    Contested, DesiredUpdate, IpSetDelta, IpSetType, IpSetUpdate, Members, Route, RouteTypes, RuleSets, RuleView,
    Rules, WireguardPeer,
};
use tortie_model::{
    AdminState, DomainPattern, EndpointSlice, EntityExtras, EntityMatch, Labels, NatMapping, NetworkSet, NodeTunnels,
    Order, Policy, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, Tier, Update, Valid, WorkloadEndpoint,
    WorkloadEndpointKey,
};

fn written_and_read<T>(value: &T, json: Value)
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    assert_eq!(serde_json::to_value(value).unwrap(), json);
    assert_eq!(&serde_json::from_value::<T>(json).unwrap(), value);
}

#[test]
fn each_value_has_a_readable_form() {
    let side = EntityMatch {
        nets: ["10.0.0.0/8".parse().unwrap()].into(),
        selector: Some("app == 'web'".parse().unwrap()),
        ports: [PortSpec::single(80), PortSpec::Named("dns".into())].into(),
        extras: EntityExtras { not_nets: ["fd00::1".parse().unwrap()].into(), ..EntityExtras::default() }.into(),
    };
    let sides = serde_json::to_value(&side).unwrap();
    assert_eq!(sides["selector"], json!("app == 'web'"));
    assert_eq!(sides["nets"], json!(["10.0.0.0/8"]));
    assert_eq!(sides["ports"], json!([{"range": {"first": 80, "last": 80}}, {"named": "dns"}]));
    assert_eq!(sides["extras"]["not_nets"], json!(["fd00::1/128"]));
    let rule = Rule { protocol: Some(Protocol::TCP), source: side, ..Rule::new(RuleAction::NextTier) };
    let rule_json = serde_json::to_value(&rule).unwrap();
    assert_eq!((&rule_json["action"], &rule_json["protocol"]), (&json!("next_tier"), &json!("tcp")));
    assert_eq!(rule_json["destination"], json!({"nets": [], "selector": null, "ports": [], "extras": null}));
    let policy = Policy { inbound: [rule].into(), order: Some(5.into()), ..Policy::default() };
    let policy_json = serde_json::to_value(&policy).unwrap();
    let id = PolicyId::new(PolicyKind::NetworkPolicy, "shop", "db");
    let id_json = json!({"kind": "NetworkPolicy", "namespace": "shop", "name": "db"});
    let update = Update::Policy(id, Some(Valid::new(policy).unwrap()));
    assert_eq!(update.to_string(), "policy NetworkPolicy/shop/db");
    written_and_read(&update, json!({"policy": [id_json, policy_json]}));
    written_and_read(&update.key(), json!({"policy": id_json}));
    let gone = Update::delete(update.key());
    assert_eq!(gone.to_string(), "policy NetworkPolicy/shop/db removed");
    written_and_read(&gone, json!({"policy": [id_json, null]}));

    let key = WorkloadEndpointKey::new("node", "k8s", "shop/db-0", "eth0");
    let key_json = json!({"host": "node", "orchestrator": "k8s", "workload": "shop/db-0", "endpoint": "eth0"});
    written_and_read(&Update::WorkloadEndpoint(key, None), json!({"workload_endpoint": [key_json, null]}));
    written_and_read(&Update::Ready(Some(true)), json!({"ready": true}));
    written_and_read(&Labels::from_pairs([("b", "2"), ("a", "1")]).unwrap(), json!({"a": "1", "b": "2"}));

    let route = DesiredUpdate::RouteRemove("10.0.0.0/26".parse().unwrap());
    written_and_read(&route, json!({"route_remove": "10.0.0.0/26"}));
    written_and_read(&DesiredUpdate::InSync, json!("in_sync"));
    let types = RouteTypes::LOCAL_HOST | RouteTypes::REMOTE_HOST;
    written_and_read(&types, json!(["remote_host", "local_host"]));
    let members = Members::IpPorts(vec!["10.0.0.1,tcp:80".parse().unwrap()]);
    let set = DesiredUpdate::IpSet(IpSetUpdate { id: "n:x".into(), set_type: IpSetType::IpAndPort, members });
    let set_json = json!({"id": "n:x", "set_type": "ip_and_port", "members": {"ip_ports": ["10.0.0.1,tcp:80"]}});
    written_and_read(&set, json!({"ip_set": set_json}));
}

#[test]
fn a_field_may_be_missing_where_its_type_has_a_default_value() {
    assert_eq!(serde_json::from_str::<Route>("{}").unwrap(), Route::default());
    assert_eq!(serde_json::from_str::<Rule>(r#"{"action": "deny"}"#).unwrap(), Rule::new(RuleAction::Deny));
    let nets = serde_json::from_str::<NetworkSet>(r#"{"nets": ["10.0.0.0/8"]}"#).unwrap();
    assert_eq!(nets.nets.len(), 1);
}

#[test]
fn members_are_sorted_and_unique() {
    let members: Members = serde_json::from_value(json!({"nets": ["10.0.0.2", "10.0.0.1", "10.0.0.2"]})).unwrap();
    assert_eq!(members, Members::Nets(["10.0.0.1", "10.0.0.2"].map(|net| net.parse().unwrap()).into()));
}

#[test]
fn values_that_are_not_valid_are_refused() {
    let error = |update: Value| serde_json::from_value::<Update>(update).unwrap_err().to_string();
    let id = json!({"kind": "NetworkPolicy", "namespace": "shop", "name": "db"});
    let rule = json!({"action": "allow", "source": {"ports": [{"range": {"first": 80, "last": 80}}]}});
    let reason = "Policy: inbound_rules[0].src_ports[0]: numeric ports need the protocol TCP, UDP or SCTP";
    assert_eq!(error(json!({"policy": [id, {"inbound": [rule]}]})), reason);
    // A misspelt field is not accepted as one that may be missing.
    let rule = json!({"action": "allow", "sauce": {}});
    assert!(error(json!({"policy": [id, {"inbound": [rule]}]})).starts_with("unknown field `sauce`"));
    let reason = "a =".parse::<tortie_selector::Selector>().unwrap_err().to_string();
    assert_eq!(error(json!({"policy": [id, {"selector": "a ="}]})), reason);
    assert!(error(json!({"ip_pool": ["10.0.0.0/33", null]})).contains("`10.0.0.0/33` is neither"));

    // Without the IP set of its selector the rule would allow all sources.
    let rules = json!([{"rule": {"action": "allow", "source": {"selector": "has(a)"}}, "sets": {}}]);
    let update = json!({"profile": ["p", {"inbound": rules, "outbound": []}]});
    let error = serde_json::from_value::<DesiredUpdate>(update).unwrap_err();
    assert_eq!(error.to_string(), "rule 0: src_selector has no IP set");
}

#[test]
fn members_of_a_set_are_of_its_type() {
    let read = |json: Value| serde_json::from_value::<IpSetUpdate>(json);
    let nets = json!({"nets": ["10.0.0.1"]});
    let ports = json!({"ip_ports": ["10.0.0.1,tcp:80"]});
    for (set_type, members, fits) in [
        ("ip", &nets, true),
        ("net", &nets, true),
        ("ip_and_port", &nets, false),
        ("ip_and_port", &ports, true),
        ("ip", &ports, false),
        ("net", &ports, false),
    ] {
        let result = read(json!({"id": "s:x", "set_type": set_type, "members": members}));
        assert_eq!(result.is_ok(), fits, "{set_type}: {members}");
    }
    let error = read(json!({"id": "s:x", "set_type": "net", "members": ports})).unwrap_err().to_string();
    assert_eq!(error, "IP set s:x: its members are not of its type");
    let error = read(json!({"id": "s:x", "set_type": "net", "members": nets, "size": 1})).unwrap_err().to_string();
    assert!(error.starts_with("unknown field `size`"), "{error}");
}

#[test]
fn a_change_of_members_is_of_one_type_and_of_each_member_once() {
    let read = |added: Value, removed: Value| {
        let json = json!({"id": "s:x", "added": added, "removed": removed});
        serde_json::from_value::<IpSetDelta>(json).map_err(|error| error.to_string())
    };
    let nets = |nets: &[&str]| json!({ "nets": nets });
    let delta = read(nets(&["10.0.0.1"]), nets(&["10.0.0.2"])).unwrap();
    assert_eq!((delta.added.len(), delta.removed.len()), (1, 1));
    let both = read(nets(&["10.0.0.1", "10.0.0.3"]), nets(&["10.0.0.3/32"])).unwrap_err();
    assert_eq!(both, "IP set s:x: 10.0.0.3/32 is both added and removed");
    let ports = json!({"ip_ports": ["10.0.0.1,tcp:80"]});
    let both = read(ports.clone(), ports.clone()).unwrap_err();
    assert_eq!(both, "IP set s:x: 10.0.0.1,tcp:80 is both added and removed");
    let mixed = read(nets(&[]), ports).unwrap_err();
    assert_eq!(mixed, "IP set s:x: added and removed members are of two types");
}

#[test]
fn addresses_are_read_in_canonical_form() {
    let mapped = "::ffff:10.0.0.1";
    let nat: NatMapping = serde_json::from_value(json!({"internal": mapped, "external": mapped})).unwrap();
    assert_eq!((nat.internal.to_string(), nat.external.to_string()), ("10.0.0.1".into(), "10.0.0.1".into()));
    let slice = json!({"service": null, "addresses": [mapped, "fd00::1"], "ports": []});
    let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
    assert_eq!(slice.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.1", "fd00::1"]);
    let tunnels: NodeTunnels = serde_json::from_value(json!({ "ipip": mapped })).unwrap();
    assert_eq!(tunnels, NodeTunnels { ipip: "10.0.0.1".parse().ok(), ..NodeTunnels::default() });
    let contested: Contested = serde_json::from_value(json!({ "address": mapped })).unwrap();
    assert_eq!(contested, Contested::Address("10.0.0.1".parse().unwrap()));
    let peer: WireguardPeer = serde_json::from_value(json!({"public_key": "x"})).unwrap();
    assert_eq!(peer.address, None);
}

#[test]
fn an_endpoint_without_a_state_carries_no_traffic() {
    let key = WorkloadEndpointKey::new("node", "k8s", "shop/db-0", "eth0");
    let endpoint = WorkloadEndpoint { iface: Some("cali1".parse().unwrap()), ..WorkloadEndpoint::default() };
    let update = Update::WorkloadEndpoint(key, Some(Valid::stored(endpoint).unwrap()));
    let mut json = serde_json::to_value(&update).unwrap();
    json["workload_endpoint"][1].as_object_mut().unwrap().remove("state").unwrap();
    let Update::WorkloadEndpoint(_, Some(read)) = serde_json::from_value(json).unwrap() else { panic!("another kind") };
    assert_eq!(read.state, AdminState::Inactive);
}

#[test]
fn a_range_of_ports_has_no_other_fields_and_ends_last() {
    let range = json!({"range": {"first": 80, "last": 80, "protocol": "udp"}});
    let error = serde_json::from_value::<PortSpec>(range).unwrap_err().to_string();
    assert!(error.starts_with("unknown field `protocol`"), "{error}");
    let range = json!({"range": {"first": 81, "last": 80}});
    let error = serde_json::from_value::<PortSpec>(range).unwrap_err().to_string();
    assert_eq!(error, "ports 81:80 end before they begin");
}

#[test]
fn values_valid_in_a_datastore_are_valid_in_json() {
    let endpoint = WorkloadEndpoint { iface: None, ..WorkloadEndpoint::default() };
    let key = WorkloadEndpointKey::new("node", "k8s", "shop/db-0", "eth0");
    let update = Update::WorkloadEndpoint(key, Some(Valid::stored(endpoint).unwrap()));
    let text = serde_json::to_string(&update).unwrap();
    assert_eq!(serde_json::from_str::<Update>(&text).unwrap(), update);
}

#[test]
fn domains_are_sorted_and_belong_to_sets_of_their_own() {
    let json = json!({"action": "allow", "destination": {"extras": {"domains": ["b.io", "*.A.io.", "b.io"]}}});
    let rule: Rule = serde_json::from_value(json).unwrap();
    let domains = ["*.a.io", "b.io"].map(|text| text.parse::<DomainPattern>().unwrap());
    assert_eq!(rule.destination.extras.domains, domains.clone().into());
    let written = serde_json::to_value(&rule).unwrap();
    assert_eq!(written["destination"]["extras"]["domains"], json!(["*.a.io", "b.io"]));
    let bad = json!({"action": "allow", "destination": {"extras": {"domains": ["w*.io"]}}});
    assert!(serde_json::from_value::<Rule>(bad).unwrap_err().to_string().contains("`*` must be a whole label"));

    let members = json!({"domains": ["b.io", "*.a.io"]});
    let read = |id: &str, set_type: &str, members: &Value| {
        serde_json::from_value::<IpSetUpdate>(json!({"id": id, "set_type": set_type, "members": members}))
    };
    let set = read("d:x", "domains", &members).unwrap();
    assert_eq!(set.members, Members::Domains(domains.into()));
    let nets = json!({"nets": []});
    for (id, set_type, members) in
        [("s:x", "domains", &members), ("d:x", "net", &nets), ("d:x", "domains", &nets), ("d:x", "net", &members)]
    {
        assert!(read(id, set_type, members).is_err(), "{id} {set_type} {members}");
    }
}

#[test]
fn a_rule_by_domains_needs_their_set_and_allows() {
    let read = |action: &str, domains: Value, sets: Value| {
        let rule = json!({"action": action, "destination": {"extras": {"domains": domains}}});
        serde_json::from_value::<Rules>(json!([{"rule": rule, "sets": sets}])).map_err(|error| error.to_string())
    };
    let error = read("allow", json!(["a.io"]), json!({})).unwrap_err();
    assert_eq!(error, "rule 0: dst_domains has no IP set");
    let error = read("deny", json!([]), json!({"dst_domains": ["d:x"]})).unwrap_err();
    assert_eq!(error, "rule 0: only a rule that allows can have sets of domains");
    let rules = read("allow", json!(["a.io"]), json!({"dst_domains": ["d:x"]})).unwrap();
    assert!(rules.iter().all(RuleView::is_by_domains_only));
    assert!(rules.sets()[0].iter().eq([&"d:x".into()]));
}

proptest! {
    #[test]
    fn an_order_is_read_exactly(order in any::<f64>().prop_filter_map("NaN", Order::new)) {
        let tier = Tier { order: Some(order), default_action: None };
        let text = serde_json::to_string(&tier).unwrap();
        prop_assert_eq!(serde_json::from_str::<Tier>(&text).unwrap(), tier);
    }
}

#[test]
fn rules_keep_that_a_proxy_enforces_http_matches() {
    let mut rule = Rule::new(RuleAction::Allow);
    rule.extras.http = Some(Box::default());
    let rules = Rules::new([rule, Rule::new(RuleAction::Deny)].into(), vec![RuleSets::default(); 2].into()).unwrap();
    for rules in [rules.clone().with_http_by_proxy(true), rules] {
        let json = serde_json::to_value(&rules).unwrap();
        assert_eq!(serde_json::from_value::<Rules>(json).unwrap(), rules);
    }
    let without = Rules::default();
    assert_eq!(without.clone().with_http_by_proxy(true), without, "there is nothing for a proxy");
}
