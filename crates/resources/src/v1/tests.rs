use serde_json::{Value as Json, json};
use tortie_model::{Interner, PolicyTypes, Update};

use super::{DecodeError, Decoded, decode, decode_text};

fn value(path: &str, value: &Json) -> Result<Update, DecodeError> {
    match decode(path, Some(value), &mut Interner::new())? {
        Decoded::Update(update) => Ok(update),
        Decoded::Ignored => panic!("{path} was ignored"),
    }
}

fn error(path: &str, json: &Json) -> String {
    value(path, json).unwrap_err().to_string()
}

const POLICY: &str = "/calico/v1/policy/GlobalNetworkPolicy//p";
const HOST: &str = "/calico/v1/host/h/endpoint/e";
const WORKLOAD: &str = "/calico/v1/host/h/workload/k8s/ns%2fpod/endpoint/eth0";

#[test]
fn null_is_deletion() {
    let decoded = decode(POLICY, Some(&Json::Null), &mut Interner::new()).unwrap();
    assert!(matches!(decoded, Decoded::Update(u) if !u.exists()));
}

#[test]
fn text_values_of_a_datastore() {
    let mut labels = Interner::new();
    let mut decode = |path: &str, text: &str| match decode_text(path, Some(text), &mut labels) {
        Ok(Decoded::Update(update)) => update,
        other => panic!("{other:?}"),
    };
    assert_eq!(decode("/calico/v1/config/X", "10"), Update::GlobalConfig("X".into(), Some("10".into())));
    assert_eq!(decode("/calico/v1/Ready", "True"), Update::Ready(Some(false)));
    assert_eq!(decode("/calico/v1/Ready", "true"), Update::Ready(Some(true)));
    assert!(matches!(decode("/calico/v1/policy/tier/t/metadata", "{}"), Update::Tier(_, Some(_))));
    assert!(decode_text("/calico/v1/policy/tier/t/metadata", Some("{"), &mut labels).is_err());
}

#[test]
fn a_legacy_path_overrides_the_tier() {
    let json = json!({"selector": "", "tier": "other"});
    let decoded = decode("/calico/v1/policy/tier/sec/policy/ns%2fp", Some(&json), &mut Interner::new()).unwrap();
    let Decoded::Update(Update::Policy(id, Some(policy))) = decoded else { panic!() };
    assert_eq!((&*id.to_string(), policy.tier.as_str()), ("NetworkPolicy/ns/p", "sec"));
}

#[test]
fn domains_of_rules_and_network_sets() {
    let rule =
        |list: &str, domains: &Json| json!({list: [{"action": "allow", "dst_domains": domains}], "selector": ""});
    let json = rule("outbound_rules", &json!(["*.A.io", "b.io."]));
    let Update::Policy(_, Some(policy)) = value(POLICY, &json).unwrap() else { panic!() };
    let domains = policy.outbound[0].destination.extras.domains.iter().map(ToString::to_string);
    assert_eq!(domains.collect::<Vec<_>>(), ["*.a.io", "b.io"]);
    for (json, reason) in [
        (rule("inbound_rules", &json!(["a.io"])), "only as destinations of egress rules"),
        (rule("outbound_rules", &json!([])), "names no domain"),
        (rule("outbound_rules", &json!(["a..io"])), "a label is empty"),
    ] {
        let error = error(POLICY, &json);
        assert!(error.contains(reason), "{error}");
    }
    let set = json!({"nets": [], "labels": {}, "allowedEgressDomains": ["b.io", "a.io"]});
    let Update::NetworkSet(_, Some(set)) = value("/calico/v1/netset/s", &set).unwrap() else { panic!() };
    assert_eq!(set.domains.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a.io", "b.io"]);
}

#[test]
fn policies_without_types_govern_both_directions() {
    let Update::Policy(_, Some(policy)) = value(POLICY, &json!({"selector": "all()"})).unwrap() else { panic!() };
    assert_eq!(policy.types, PolicyTypes::BOTH);
    let Update::Policy(_, Some(policy)) = value(POLICY, &json!({"selector": "", "types": ["egress"]})).unwrap() else {
        panic!()
    };
    assert_eq!(policy.types, PolicyTypes { ingress: false, egress: true });
}

#[test]
fn bad_values_name_key_field_and_reason() {
    for (path, json, expected) in [
        (POLICY, json!([]), "must be a mapping, is a list"),
        (POLICY, json!({"order": "x"}), "order: must be a number, is text"),
        (POLICY, json!({"inbound_rules": [{"action": "pass"}]}), "inbound_rules[0].action: `pass` is not an action"),
        (
            POLICY,
            json!({"outbound_rules": [{"protocol": 0}]}),
            "outbound_rules[0].protocol: must be between 1 and 255, is 0",
        ),
        (
            POLICY,
            json!({"inbound_rules": [{"dst_ports": ["90:80"]}]}),
            "inbound_rules[0].dst_ports[0]: port range `90:80` ends before it begins",
        ),
        (
            POLICY,
            json!({"inbound_rules": [{"!src_nets": ["10.0.0.0/33"]}]}),
            "inbound_rules[0].!src_nets[0]: `10.0.0.0/33` is neither an IP address nor a network in CIDR notation",
        ),
        (WORKLOAD, json!({"name": ""}), "name: a workload endpoint needs an interface"),
        (WORKLOAD, json!({"name": 1}), "name: must be text (put it in quotes), is a number"),
        (
            HOST,
            json!({"name": "!A"}),
            "name: interface name \"!A\" must be 1 to 15 printable ASCII characters that need no quoting",
        ),
        (HOST, json!({"name": "veth@1"}), "name: `veth@1` is not the name of an interface"),
        (WORKLOAD, json!({"mac": "aa:bb"}), "mac: `aa:bb` is not an Ethernet address"),
        (WORKLOAD, json!({"ipv4_nets": ["::1"]}), "ipv4_nets[0]: `::1/128` is not an IPv4 network"),
        (WORKLOAD, json!({"labels": {"a": 1}}), "labels.a: must be text (put it in quotes), is a number"),
    ] {
        assert_eq!(error(path, &json), format!("{path}: {expected}"));
    }
}

#[test]
fn dscp_names() {
    for (dscp, expected) in [(json!("AF11"), 10), (json!("cs6"), 48), (json!("EF"), 46), (json!(5), 5), (json!("7"), 7)]
    {
        let json = json!({"qosControls": {"dscp": dscp}});
        let Update::HostEndpoint(_, Some(endpoint)) = value("/calico/v1/host/h/endpoint/e", &json).unwrap() else {
            panic!()
        };
        assert_eq!(endpoint.dscp, Some(expected));
    }
}

/// As in Felix: another node's endpoint must not be missing from IP sets of rules that deny it.
#[test]
fn content_that_felix_accepts_is_decoded() {
    for name in ["an interface of 28 characters", "0123456789abcdef", "a b", "cali+", "a/b", "*", "!A", "é"] {
        let json = json!({"state": "active", "name": name, "labels": {"bad key": "x"}});
        let Update::WorkloadEndpoint(_, Some(endpoint)) = value(WORKLOAD, &json).unwrap() else { panic!() };
        assert_eq!(endpoint.iface, None, "{name}");
        assert!(tortie_model::Valid::<tortie_model::WorkloadEndpoint>::new(endpoint.into_arc()).is_err());
    }
    let json = json!({"selector": "has(x)", "untracked": true, "pre_dnat": true});
    let Update::Policy(_, Some(policy)) = value(POLICY, &json).unwrap() else { panic!() };
    assert!(policy.untracked && policy.pre_dnat);
}
