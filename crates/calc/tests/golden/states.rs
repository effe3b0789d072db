//! The states and sequences of states of the original's own tests.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use serde_json::Value as Json;
use tortie_calc::{Demand, GraphConfig, Overlap, RouteSource};
use tortie_model::Hostname;
use tortie_testkit::golden::assert_count;

use crate::feed::{Fate, Feed, says_not_ready};
use crate::recording;
use crate::replay::State;

/// The configuration in which the original ran a state or sequence. Routes and tunnel ends were recorded whatever the pools
/// were.
pub(crate) fn config(recorded: &Json, route_source: &Json) -> GraphConfig {
    let hostname = Hostname::new(recorded["config"]["FelixHostname"].as_str().unwrap());
    let route_source = if route_source == "WorkloadIPs" { RouteSource::WorkloadIps } else { RouteSource::CalicoIpam };
    GraphConfig {
        overlap: Overlap::Suppress,
        istio_ambient_mode: recorded["config"]["IstioAmbientMode"] == "Enabled",
        routes: Demand::Always,
        vteps: Demand::Always,
        route_source,
        ..GraphConfig::new(hostname)
    }
}

/// What was left out of the comparison, and how often.
#[derive(Debug, Default)]
struct Exclusions(BTreeMap<String, usize>);

impl Exclusions {
    fn count(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    fn check(&self, expected: &[(&str, usize)]) {
        let found: Vec<_> = self.0.iter().map(|(what, count)| (&**what, *count)).collect();
        assert_count("left out", &found[..], expected);
    }

    /// Strips what is not calculated here, and the sync marker, which the recordings do not have.
    fn compare(&mut self, ours: &State, peer: &State) -> Vec<String> {
        let (mut ours, mut peer) = (ours.clone(), peer.clone());
        ours.forget("in sync");
        ours.forget("config");
        self.align_misspelt_actions(&mut ours, &mut peer);
        for id in peer.of_kind_mut("pool").map(|(id, _)| id.to_owned()).collect::<Vec<_>>() {
            let mut message = peer.take("pool", &id);
            let by_value = message["pool"]["cidr"].as_str().unwrap().replacen('/', "-", 1);
            if id != by_value {
                message["id"] = by_value.as_str().into();
                self.count("pool with another network than its key");
            }
            peer.insert("pool", by_value, message);
        }
        for (_, message) in peer.of_kind_mut("vtep") {
            // The original passes the text on, in whichever form it is.
            let text = message["ipv6_addr"].as_str().unwrap_or_default();
            if let Ok(address) = text.parse::<Ipv6Addr>() {
                message["ipv6_addr"] = address.to_string().into();
            }
        }
        ours.differences(&peer)
    }

    /// Some policies have the action `Allow`, which the original passes on as it is though no dataplane knows it. It
    /// changes the ids of the rules.
    fn align_misspelt_actions(&mut self, ours: &mut State, peer: &mut State) {
        let mut misspelt = Vec::new();
        for (id, message) in peer.of_kind_mut("policy") {
            for rule in rules_mut(message).filter(|rule| rule["action"] == "Allow") {
                rule["action"] = "allow".into();
                misspelt.push(id.to_owned());
                self.count("action Allow");
            }
        }
        for state in [ours, peer] {
            for (_, message) in state.of_kind_mut("policy").filter(|(id, _)| misspelt.iter().any(|m| m == id)) {
                for rule in rules_mut(message) {
                    rule["rule_id"] = Json::Null;
                }
            }
        }
    }
}

fn rules_mut(policy_update: &mut Json) -> impl Iterator<Item = &mut Json> {
    let policy = policy_update["policy"].as_object_mut().unwrap();
    let lists = policy.iter_mut().filter(|(field, _)| field.ends_with("bound_rules")).map(|(_, list)| list);
    lists.flat_map(|list| list.as_array_mut().unwrap())
}

/// The entries of a state: values by path.
type Entries = BTreeMap<String, Json>;

pub(crate) fn entries(state: &Json) -> Vec<(String, Json)> {
    let entries = state["kvs"].as_array().unwrap().iter();
    entries
        .map(|entry| {
            let value = entry.get("value_raw").or(entry.get("value")).cloned().unwrap_or_default();
            (path_of_value(entry["path"].as_str().unwrap(), &value), value)
        })
        .collect()
}

/// Two states have a pool whose value contradicts its key, which no datastore has. Here the key would decide, while routes
/// of the original go by the value, so it gets the key that fits.
fn path_of_value(path: &str, value: &Json) -> String {
    match (path.split_once("/pool/"), value["cidr"].as_str()) {
        (Some((before, _)), Some(cidr)) => format!("{before}/pool/{}", cidr.replacen('/', "-", 1)),
        _ => path.to_owned(),
    }
}

fn feed_entries<'a>(
    feed: &mut Feed,
    entries: impl IntoIterator<Item = (&'a String, &'a Json)>,
    ignored: &mut Exclusions,
) {
    for (path, value) in entries {
        if feed.update(path, value) == Fate::Ignored {
            let kind: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).take(5).collect();
            let kind = if path.starts_with("/calico/resources") {
                kind[..].join("/")
            } else {
                kind[..3.min(kind.len())].join("/")
            };
            ignored.count(format!("ignored /{kind}"));
        }
    }
}

#[test]
fn each_state_from_empty() {
    let Some(text) = recording("calc_states.json.gz") else { return };
    let recorded: Json = serde_json::from_str(&text).unwrap();
    let (mut exclusions, mut failures, mut compared) = (Exclusions::default(), Vec::new(), [0; 3]);
    for (name, state) in recorded["states"].as_object().unwrap() {
        let mut feed = Feed::new(&config(&recorded, &state["route_source"]));
        let entries = entries(state);
        feed_entries(&mut feed, entries.iter().map(|(path, value)| (path, value)), &mut exclusions);
        feed.in_sync();
        feed.flush();
        let mut peer = State::default();
        let messages = &state["actual_messages_from_empty"];
        messages.as_array().unwrap().iter().for_each(|message| peer.apply_recorded(message));
        assert_eq!(feed.not_ready, says_not_ready(messages), "{name}");
        failures.extend(exclusions.compare(&feed.state, &peer).into_iter().map(|d| format!("{name}: {d}")));
        let routes_and_vteps = ["route", "vtep"].map(|kind| peer.of_kind_mut(kind).count());
        compared = [compared[0] + 1, compared[1] + routes_and_vteps[0], compared[2] + routes_and_vteps[1]];
    }
    assert!(failures.is_empty(), "{} differences:\n{}", failures.len(), failures[..failures.len().min(5)].join("\n"));
    assert_count("states, routes, tunnel ends", compared, [148, 496, 49]);
    exclusions.check(&[("action Allow", 8), ("pool with another network than its key", 2)]);
}

#[test]
fn sequences_of_states() {
    let Some(text) = recording("calc_states.json.gz") else { return };
    let recorded: Json = serde_json::from_str(&text).unwrap();
    let (mut exclusions, mut failures, mut compared) = (Exclusions::default(), Vec::new(), 0);
    for (i, sequence) in recorded["base_tests"].as_array().unwrap().iter().enumerate() {
        let mut feed = Feed::new(&config(&recorded, &sequence["route_source"]));
        let mut peer = State::default();
        let mut current = Entries::new();
        feed.in_sync();
        let steps =
            sequence["states"].as_array().unwrap().iter().zip(sequence["actual_messages_per_step"].as_array().unwrap());
        for (name, messages) in steps {
            let name = name.as_str().unwrap();
            let wanted = entries(&recorded["states"][name]);
            feed_entries(&mut feed, wanted.iter().map(|(path, value)| (path, value)), &mut exclusions);
            let wanted: Entries = wanted.into_iter().collect();
            let gone = current.keys().filter(|path| !wanted.contains_key(*path));
            feed_entries(&mut feed, gone.map(|path| (path, &Json::Null)), &mut exclusions);
            current = wanted;
            feed.flush();
            messages.as_array().unwrap().iter().for_each(|message| peer.apply_recorded(message));
            if feed.not_ready != says_not_ready(messages) {
                exclusions.count(if current.get("/calico/v1/Ready") == Some(&Json::Bool(true)) {
                    // The original judges at the first changed parameter, not at the flush.
                    "not ready before the ready flag of the same batch"
                } else {
                    // The original's test has a pointer where text belongs, which is taken for no change.
                    assert!(name.starts_with("wireguard"), "sequence {i}, {name}");
                    "changed parameter of a wrong type"
                });
            }
            let differences = exclusions.compare(&feed.state, &peer);
            failures.extend(differences.into_iter().map(|d| format!("sequence {i}, {name}: {d}")));
            compared += 1;
        }
    }
    assert!(failures.is_empty(), "{} differences:\n{}", failures.len(), failures[..failures.len().min(5)].join("\n"));
    assert_count("steps", compared, 322);
    exclusions.check(&[
        ("action Allow", 15),
        ("changed parameter of a wrong type", 2),
        ("not ready before the ready flag of the same batch", 2),
        ("pool with another network than its key", 5),
    ]);
}
