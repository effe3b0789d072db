mod arbitrary;

use proptest::prelude::*;
use prost::Message;
use tortie_model::desired::{DesiredUpdate, Members};
use tortie_model::{PolicyId, PolicyKind, RuleAction};

use super::*;
use crate::felix::to_dataplane::Payload;
use crate::{encode, encode_config};

fn bytes(payload: Payload) -> Vec<u8> {
    felix::ToDataplane { sequence_number: 1, payload: Some(payload) }.encode_to_vec()
}

fn policy(rules: Vec<felix::Rule>) -> Payload {
    let id = felix::PolicyId { name: "p".into(), namespace: "ns".into(), kind: "NetworkPolicy".into() };
    let policy = felix::Policy { inbound_rules: rules, untracked: true, ..Default::default() };
    Payload::ActivePolicyUpdate(felix::ActivePolicyUpdate { id: Some(id), policy: Some(policy) })
}

proptest! {
    #[test]
    fn encoded_messages_are_decoded(update in arbitrary::update(), number in any::<u64>()) {
        let bytes = encode(&update, number).unwrap();
        match (receive(&bytes).unwrap(), update) {
            (Received::Config(config), DesiredUpdate::Config(update)) => {
                prop_assert_eq!(datastore_config(&config), update);
                prop_assert_eq!(receive(&encode_config(config.clone(), number)), Ok(Received::Config(config)));
            }
            (received, update) => {
                prop_assert_eq!(&received, &Received::Update(update));
                let Received::Update(update) = received else { panic!("not an update") };
                prop_assert_eq!(encode(&update, number).unwrap(), bytes);
            }
        }
    }

    /// A test of crate `model`; it is here because `arbitrary` generates most kinds of updates.
    #[test]
    fn json_messages_are_read_back(update in arbitrary::update()) {
        let text = serde_json::to_string(&update).unwrap();
        prop_assert_eq!(serde_json::from_str::<DesiredUpdate>(&text).unwrap(), update);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = receive(&bytes);
    }

    #[test]
    fn damaged_messages_do_not_panic(
        update in arbitrary::update(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = encode(&update, 0).unwrap();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let _ = receive(&bytes);
    }
}

#[test]
fn a_rule_that_is_not_understood_makes_its_policy_deny() {
    let spoilt: [fn(&mut felix::Rule); 8] = [
        |rule| rule.action = "permit".into(),
        |rule| rule.ip_version = 5,
        |rule| rule.protocol = Some(felix::Protocol { number_or_name: None }),
        |rule| rule.src_net = vec!["10.0.0.0/33".into()],
        |rule| rule.dst_ports = vec![felix::PortRange { first: 10, last: 9 }],
        |rule| rule.not_dst_ports = vec![felix::PortRange { first: 10, last: 65_536 }],
        |rule| rule.icmp = Some(felix::rule::Icmp::IcmpType(256)),
        |rule| rule.original_dst_service = "without a set".into(),
    ];
    for spoil in spoilt {
        let mut rule = felix::Rule { action: "allow".into(), ..Default::default() };
        spoil(&mut rule);
        let received = receive(&bytes(policy(vec![felix::Rule::default(), rule]))).unwrap();
        let Received::Denied { update: DesiredUpdate::Policy(id, policy), why } = received else {
            panic!("{received:?}");
        };
        assert_eq!(id, PolicyId::new(PolicyKind::NetworkPolicy, "ns", "p"));
        assert!(why.to_string().starts_with("NetworkPolicy/ns/p: "), "{why}");
        assert!(policy.source.untracked);
        for rules in [&policy.inbound, &policy.outbound] {
            assert_eq!(
                rules.iter().map(tortie_model::desired::RuleView::action).collect::<Vec<_>>(),
                [RuleAction::Deny]
            );
        }
    }
}

#[test]
fn a_profile_that_is_not_understood_denies() {
    let rule = felix::Rule { action: "permit".into(), ..Default::default() };
    let profile = felix::Profile { outbound_rules: vec![rule], ..Default::default() };
    let id = Some(felix::ProfileId { name: "kns.x".into() });
    let update = felix::ActiveProfileUpdate { id, profile: Some(profile) };
    let received = receive(&bytes(Payload::ActiveProfileUpdate(update))).unwrap();
    let Received::Denied { update: DesiredUpdate::Profile(_, profile), why } = received else { panic!("{received:?}") };
    assert_eq!(why.to_string(), "profile kns.x: action: `permit` is not understood");
    assert_eq!((profile.inbound.len(), profile.outbound.len()), (1, 1));
}

#[test]
fn members_are_sorted_and_unique() {
    let members = vec!["10.0.0.2".into(), "10.0.0.1/32".into(), "10.0.0.2/32".into()];
    let update = felix::IpSetUpdate { id: "s:x".into(), members, r#type: 2 };
    let received = receive(&bytes(Payload::IpsetUpdate(update))).unwrap();
    let Received::Update(DesiredUpdate::IpSet(set)) = received else { panic!("{received:?}") };
    assert_eq!(set.members, Members::Nets(vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()]));
}

#[test]
fn a_member_that_is_added_and_removed_is_removed() {
    let update = felix::IpSetDeltaUpdate {
        id: "n:x".into(),
        added_members: vec!["fd00::1,udp:53".into(), "10.0.0.1,tcp:80".into()],
        removed_members: vec!["10.0.0.1,TCP:80".into()],
    };
    let received = receive(&bytes(Payload::IpsetDeltaUpdate(update))).unwrap();
    let Received::Update(DesiredUpdate::IpSetDelta(delta)) = received else { panic!("{received:?}") };
    let shown = |members: &Members| match members {
        Members::IpPorts(members) => members.iter().map(ToString::to_string).collect::<Vec<_>>(),
        Members::Domains(_) => panic!("not sent"),
        Members::Nets(_) => panic!("{members:?}"),
    };
    assert_eq!(shown(&delta.added), ["fd00::1,udp:53"]);
    assert_eq!(shown(&delta.removed), ["10.0.0.1,tcp:80"]);
}

#[test]
fn unusable_messages_are_reported_with_the_field() {
    let set = felix::IpSetUpdate { id: "s:x".into(), members: vec!["10.0.0.0/8/".into()], r#type: 2 };
    let error = receive(&bytes(Payload::IpsetUpdate(set))).unwrap_err();
    assert_eq!(error.to_string(), "IP set s:x: members: `10.0.0.0/8/` is not understood");
    let endpoint = felix::WorkloadEndpointUpdate::default();
    let error = receive(&bytes(Payload::WorkloadEndpointUpdate(endpoint))).unwrap_err();
    assert_eq!(error.to_string(), "a workload endpoint: id is missing");
    let set = felix::IpSetUpdate { id: "s:x".into(), members: vec!["ä".repeat(200)], r#type: 2 };
    assert!(receive(&bytes(Payload::IpsetUpdate(set))).unwrap_err().to_string().len() < 300);
}

#[test]
fn payloads_of_later_versions_are_unknown_not_errors() {
    assert_eq!(receive(b"\xfa\x07\x00"), Ok(Received::Unknown));
    assert_eq!(receive(&[]), Ok(Received::Unknown));
    assert!(matches!(receive(&[0xff]), Err(ReceiveError::NotProtobuf(_))));
}

#[test]
fn an_endpoint_in_no_known_state_is_inactive() {
    let id = Some(felix::WorkloadEndpointId::default());
    let endpoint = felix::WorkloadEndpoint { mac: "00-11-22-aa-bb-cc".into(), ..Default::default() };
    let update = felix::WorkloadEndpointUpdate { id, endpoint: Some(endpoint) };
    let received = receive(&bytes(Payload::WorkloadEndpointUpdate(update))).unwrap();
    let Received::Update(DesiredUpdate::WorkloadEndpoint(_, state)) = received else { panic!("{received:?}") };
    assert_eq!(state.endpoint.state, tortie_model::AdminState::Inactive);
    assert_eq!(state.endpoint.mac, Some(tortie_model::Mac([0, 0x11, 0x22, 0xaa, 0xbb, 0xcc])));
}

#[test]
fn all_config_sources_are_received() {
    let mut config = felix::ConfigUpdate::default();
    for source in [1, 3, 5] {
        let raw = felix::RawConfig { source: format!("{source}"), config: [("A".into(), source.to_string())].into() };
        config.source_to_raw_config.insert(source, raw);
    }
    let received = receive(&encode_config(config.clone(), 7)).unwrap();
    assert_eq!(received, Received::Config(config.clone()));
    let datastore = datastore_config(&config);
    assert_eq!((&*datastore.global["A"], &*datastore.host["A"], datastore.selector.len()), ("1", "3", 0));
}
