use std::sync::Arc;

use serde_json::json;
use tortie_model::desired::{
    DesiredUpdate, IpSetDelta, IpSetType, IpSetUpdate, Members, Policy, Profile, RuleSets, Rules,
};
use tortie_model::{
    Direction, IpSetId, NamedProtocol, PolicyId, PolicyKind, PortSpec, ProfileName, Protocol, Rule, RuleAction,
};

use super::rule_id::{RuleIdSeed, rule_ids};
use super::{to_bytes, to_json};

fn denies() -> Rules {
    let rule = Rule::new(RuleAction::Deny);
    Rules::new([rule].into(), [RuleSets::default()].into()).unwrap()
}

#[test]
fn envelope_leaves_out_defaults() {
    let update = DesiredUpdate::IpSetRemove(IpSetId::new("s:x"));
    assert_eq!(to_json(&update, 0).unwrap(), json!({"ipset_remove": {"id": "s:x"}}));
    assert_eq!(to_json(&update, 7).unwrap(), json!({"sequence_number": "7", "ipset_remove": {"id": "s:x"}}));
    assert_eq!(to_json(&DesiredUpdate::InSync, 0).unwrap(), json!({"in_sync": {}}));
    assert_eq!(to_json(&DesiredUpdate::DatastoreNotReady, 0), None);
}

#[test]
fn bytes_are_protobuf() {
    let update = DesiredUpdate::IpSetRemove(IpSetId::new("s:x"));
    assert_eq!(to_bytes(&update, 300).unwrap(), b"\x78\xac\x02\x22\x05\x0a\x03s:x");
    assert_eq!(to_bytes(&DesiredUpdate::InSync, 0).unwrap(), [0x0a, 0x00]);
}

#[test]
fn members_print_as_text() {
    let delta = IpSetDelta {
        id: IpSetId::new("s:x"),
        added: Members::Nets(vec!["10.0.0.1".parse().unwrap()]),
        removed: Members::Nets(vec!["fd00::/64".parse().unwrap()]),
    };
    let json = to_json(&DesiredUpdate::IpSetDelta(delta), 0).unwrap();
    let expected = json!({"id": "s:x", "added_members": ["10.0.0.1/32"], "removed_members": ["fd00::/64"]});
    assert_eq!(json["ipset_delta_update"], expected);
}

#[test]
fn rules_by_domains_alone_are_left_out() {
    let by = |dst: &[&str], domains: &[&str]| RuleSets {
        dst: dst.iter().map(|id| IpSetId::new(*id)).collect(),
        dst_domains: domains.iter().map(|id| IpSetId::new(*id)).collect(),
        ..RuleSets::default()
    };
    let sets = [by(&[], &["d:x"]), by(&["s:y"], &["d:x"]), by(&[], &[])];
    let outbound = Rules::new(vec![Rule::new(RuleAction::Allow); 3].into(), sets.into()).unwrap();
    let profile = Profile { outbound, ..Profile::default() };
    let json = to_json(&DesiredUpdate::Profile(ProfileName::new("p"), profile.into()), 0).unwrap();
    let rules = json["active_profile_update"]["profile"]["outbound_rules"].as_array().unwrap();
    let sets: Vec<_> = rules.iter().map(|rule| &rule["dst_ip_set_ids"]).collect();
    assert_eq!(sets, [&json!(["s:y"]), &json!(null)]);
    assert!(!json.to_string().contains("d:x"), "{json}");

    let members = Members::Domains(["a.io".parse().unwrap()].into());
    let set = IpSetUpdate { id: "d:x".into(), set_type: IpSetType::Domains, members };
    assert_eq!(to_bytes(&DesiredUpdate::IpSet(set), 1), None);
    assert_eq!(to_bytes(&DesiredUpdate::IpSetRemove("d:x".into()), 1), None);
}

/// The expected ids are those of Felix for unknown profiles.
#[test]
fn rule_ids_match_felix() {
    let name = ProfileName::new("prof-missing");
    assert_eq!(rule_ids(&denies(), RuleIdSeed::Profile(&name, Direction::Ingress)), ["6LGosV28VFRfSdmm"]);
    assert_eq!(rule_ids(&denies(), RuleIdSeed::Profile(&name, Direction::Egress)), ["Z5gY86OrLYox_ui8"]);

    let sets =
        RuleSets { src: [IpSetId::new("s:5y5I3VdRZfDU01O--xXAPx2yxCQQqMf0M6IWug")].into(), ..RuleSets::default() };
    let rules = Rules::new([Rule::new(RuleAction::Unspecified)].into(), [sets].into()).unwrap();
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "pol-1");
    assert_eq!(rule_ids(&rules, RuleIdSeed::Policy(&id, Direction::Ingress)), ["7gbRx_56xo2uXxPe"]);
}

#[test]
fn profile_message_carries_ids() {
    let profile = Profile { inbound: denies(), outbound: denies() };
    let update = DesiredUpdate::Profile(ProfileName::new("prof-missing"), Arc::new(profile));
    let expected = json!({"active_profile_update": {
        "id": {"name": "prof-missing"},
        "profile": {
            "inbound_rules": [{"action": "deny", "rule_id": "6LGosV28VFRfSdmm"}],
            "outbound_rules": [{"action": "deny", "rule_id": "Z5gY86OrLYox_ui8"}],
        },
    }});
    assert_eq!(to_json(&update, 0).unwrap(), expected);
}

#[test]
fn policy_message_shows_numeric_ports_and_implied_family() {
    let mut rule = Rule { protocol: Some(Protocol::Named(NamedProtocol::Icmpv6)), ..Rule::new(RuleAction::Allow) };
    rule.extras.icmp_type = Some(0);
    rule.source.ports = [PortSpec::single(80), PortSpec::Named("http".into())].into();
    let sets = RuleSets { src_named_ports: [IpSetId::new("n:http")].into(), ..RuleSets::default() };
    let policy = Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound: Rules::new([rule].into(), [sets].into()).unwrap(),
        outbound: Rules::default(),
    };
    let id = PolicyId::new(PolicyKind::NetworkPolicy, "ns", "p");
    let json = to_json(&DesiredUpdate::Policy(id, Arc::new(policy)), 0).unwrap();
    let rule = &json["active_policy_update"]["policy"]["inbound_rules"][0];
    assert_eq!(rule["ip_version"], "IPV6");
    assert_eq!(rule["icmp_type"], 0);
    assert_eq!(rule["src_ports"], json!([{"first": 80, "last": 80}]));
}
