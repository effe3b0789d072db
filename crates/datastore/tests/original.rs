//! Comparison of Typha's output for the objects of a real API server with ours: `testdata/typha`.

#![expect(clippy::unwrap_used, reason = "an unreadable object fails the test")]

use std::collections::BTreeMap;

use serde_json::Value as Json;
use tortie_datastore::Objects;
use tortie_model::{HttpMatch, Interner, Key, Policy, Update, Valid};
use tortie_resources::manifest::{self, BlockSource, Format, Options, PolicyNames, SyncerType, UnknownFields};
use tortie_resources::v1::{self, Decoded};
use tortie_selector::Selector;

const OBJECTS: &str = include_str!("../testdata/typha/objects.jsonl");
const FELIX: &str = include_str!("../testdata/typha/felix.jsonl");

/// Normalizes the selector of an update. Typha combines selectors as texts, which leaves redundant
/// parentheses.
fn normal(update: Update) -> Update {
    let Update::Policy(id, Some(policy)) = &update else { return update };
    let selector = Selector::parse(policy.selector.canonical()).unwrap();
    let policy = Policy { selector, ..Policy::clone(policy) };
    Update::Policy(id.clone(), Some(Valid::new(policy).unwrap()))
}

/// Returns Typha's output, read as an agent reads it.
fn expected(labels: &mut Interner) -> BTreeMap<Key, Update> {
    let mut state = BTreeMap::new();
    for line in FELIX.lines() {
        let (path, text): (String, String) = serde_json::from_str(line).unwrap();
        let Decoded::Update(update) = v1::decode_text(&path, Some(&text), labels).unwrap() else { continue };
        normal(update).apply_to(&mut state);
    }
    state
}

fn ours(labels: &mut Interner) -> BTreeMap<Key, Update> {
    let options =
        Options { unknown_fields: UnknownFields::Ignore, policy_names: PolicyNames::Plain, ..Options::default() };
    let mut objects = Objects::new();
    for line in OBJECTS.lines() {
        let object: Json = serde_json::from_str(line).unwrap();
        for resource in manifest::read(&object.to_string(), Format::Json, &options, labels).resources {
            if let Some(id) = resource.id.clone() {
                objects.set(&id, resource);
            }
        }
    }
    // HTTP is not inspected, and IP-in-IP is reported as untested.
    let known = [HttpMatch::NOT_ENFORCED, "has no effect: ", "is done as Felix does it"];
    let is_known = |message: &str| known.iter().any(|known| message.starts_with(known));
    let problems = objects.problems();
    let problem = problems.iter().find(|problem| !is_known(&problem.problem.message));
    assert_eq!(problem, None);
    objects.take_updates().into_iter().map(|update| (update.key(), normal(update))).collect()
}

/// Policies whose `namespaces` peers select pods here, as the API says, and network sets as well in
/// Calico.
const PEERS_ARE_PODS: [&str; 1] = ["cnp-admin"];

/// Reports whether a policy is different as its peers are pods.
fn has_pods_as_peers(original: &Update, own: Option<&Update>) -> bool {
    let (Update::Policy(id, Some(original)), Some(Update::Policy(_, Some(own)))) = (original, own) else {
        return false;
    };
    let peers = |policy: &Policy| format!("{:?}", policy.inbound).matches("projectcalico.org/orchestrator").count();
    PEERS_ARE_PODS.contains(&&*id.name) && peers(own) > peers(original) && own.selector == original.selector
}

#[test]
fn objects_of_an_api_server_are_converted_as_by_calico() {
    let mut labels = Interner::new();
    let (mut expected, mut ours) = (expected(&mut labels), ours(&mut labels));
    let mut wrong = Vec::new();
    for (key, value) in std::mem::take(&mut expected) {
        match ours.remove(&key) {
            Some(own) if own == value => {}
            own if has_pods_as_peers(&value, own.as_ref()) => {}
            own => wrong.push(format!("{key:?}\n  original {value:?}\n  ours     {own:?}")),
        }
    }
    wrong.extend(ours.into_iter().map(|(key, value)| format!("{key:?} only ours: {value:?}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the recorded objects that Typha's syncers have in common: Felix's has the same pools,
/// nodes and BGP configuration.
fn recorded() -> BTreeMap<String, Json> {
    let mut recorded = BTreeMap::new();
    for line in FELIX.lines() {
        let (path, text): (String, String) = serde_json::from_str(line).unwrap();
        if !["/calico/v1/ipam/v4/pool/", "/calico/v1/ipam/v6/pool/", "/nodes/", "/bgpconfigurations/"]
            .iter()
            .any(|part| path.contains(part))
        {
            continue;
        }
        let mut value: Json = serde_json::from_str(&text).unwrap();
        if let Some(metadata) = value.get_mut("metadata").and_then(Json::as_object_mut) {
            // The version is sent beside the value; readers ignore the other fields, or the
            // recorded objects lack them.
            metadata.retain(|name, _| name != "resourceVersion" && name != "managedFields");
            if let Some(annotations) = metadata.get_mut("annotations").and_then(Json::as_object_mut) {
                annotations.retain(|name, _| !name.starts_with("kubectl.kubernetes.io/"));
                if annotations.is_empty() {
                    metadata.remove("annotations");
                }
            }
        }
        recorded.insert(path, value);
    }
    recorded
}

fn stream_of(syncer: SyncerType) -> BTreeMap<String, (Json, String)> {
    let options = Options {
        syncer,
        unknown_fields: UnknownFields::Ignore,
        policy_names: PolicyNames::Plain,
        block_source: BlockSource::IpamBlocks,
        ..Options::default()
    };
    let mut objects = Objects::of_syncer(syncer);
    for resource in
        OBJECTS.lines().flat_map(|line| manifest::read(line, Format::Json, &options, &mut Interner::new()).resources)
    {
        if let Some(id) = resource.id.clone() {
            objects.set(&id, resource);
        }
    }
    assert_eq!(objects.problems(), []);
    let sent = objects.take_updates().into_iter().map(|update| match update {
        Update::SyncerObject(path, Some(object)) => {
            (path.to_string(), (serde_json::from_str(&object.text).unwrap(), object.resource_version.to_string()))
        }
        other => panic!("{other:?} is none of {syncer}'s"),
    });
    sent.collect()
}

#[test]
fn other_syncers_match_those_of_calico() {
    let mut recorded = recorded();
    assert_eq!(recorded.len(), 7);
    let mut bgp = stream_of(SyncerType::Bgp);
    let affinity = bgp.remove("/calico/ipam/v2/host/node-1/ipv4/block/10.65.1.0-26");
    assert_eq!(affinity, Some((serde_json::json!({"state": "confirmed", "deleted": false}), "388".into())));
    assert_eq!(bgp["/calico/resources/v3/projectcalico.org/nodes/node-1"].1, "404");
    let values: BTreeMap<String, Json> = bgp.into_iter().map(|(path, (value, _))| (path, value)).collect();
    assert_eq!(values, recorded);
    recorded.remove("/calico/resources/v3/projectcalico.org/bgpconfigurations/default");
    let tunnels = stream_of(SyncerType::TunnelIpAllocation).into_iter().map(|(path, (value, _))| (path, value));
    assert_eq!(tunnels.collect::<BTreeMap<_, _>>(), recorded);
    assert_eq!(stream_of(SyncerType::NodeStatus), BTreeMap::new());
}
