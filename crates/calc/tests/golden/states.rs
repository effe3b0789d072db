//! States and sequences of states from Felix's own tests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use serde_json::Value as Json;
use tortie_calc::{Demand, GraphConfig, Overlap, ReadyFlag, RouteSource};
use tortie_model::Hostname;
use tortie_testkit::golden::assert_count;

use crate::feed::{Feed, UpdateOutcome, reports_not_ready};
use crate::recording;
use crate::replay::State;

/// Returns the configuration in which Felix ran a state or sequence. Routes and tunnel ends were
/// recorded for any pools.
pub(crate) fn config(recorded: &Json, route_source: &Json) -> GraphConfig {
    let hostname = Hostname::new(recorded["config"]["FelixHostname"].as_str().unwrap());
    let route_source = if route_source == "WorkloadIPs" { RouteSource::WorkloadIps } else { RouteSource::CalicoIpam };
    GraphConfig {
        ready_flag: ReadyFlag::Required,
        overlap: Overlap::Suppress,
        istio_ambient_mode: recorded["config"]["IstioAmbientMode"] == "Enabled",
        routes: Demand::Always,
        vteps: Demand::Always,
        route_source,
        ..GraphConfig::new(hostname)
    }
}

/// Returns the differences. Both sides are first brought into one form; all other allowed
/// differences are listed here, with their reasons.
fn differences(ours: &State, peer: &State) -> Vec<String> {
    let (mut ours, mut peer) = (ours.clone(), peer.clone());
    // Recorded were the messages of objects alone.
    ours.forget("in sync");
    ours.forget("config");
    spell_actions_alike(&mut [&mut ours, &mut peer]);
    for state in [&mut ours, &mut peer] {
        name_pools_by_value(state);
        // Felix passes addresses of tunnel ends on as they are written.
        for (_, message) in state.of_kind_mut("vtep") {
            if let Ok(address) = message["ipv6_addr"].as_str().unwrap_or_default().parse::<Ipv6Addr>() {
                message["ipv6_addr"] = address.to_string().into();
            }
        }
    }
    ours.differences(&peer)
}

/// Brings actions to one form. Some policies have the action `Allow`, which Felix passes on though
/// no dataplane supports it. Ids of rules are hashes of all rules of the policy, actions included,
/// so only those of other policies can be equal.
fn spell_actions_alike(states: &mut [&mut State]) {
    let mut misspelt = BTreeSet::new();
    for state in &mut *states {
        for (id, message) in state.of_kind_mut("policy") {
            for rule in rules_mut(message).filter(|rule| rule["action"] == "Allow") {
                rule["action"] = "allow".into();
                misspelt.insert(id.to_owned());
            }
        }
    }
    for state in states {
        for (_, message) in state.of_kind_mut("policy").filter(|(id, _)| misspelt.contains(*id)) {
            rules_mut(message).for_each(|rule| rule["rule_id"] = Json::Null);
        }
    }
}

/// Renames pools. Felix names a pool by its key, which in two states is another network than the
/// value's; see [`path_of_value`].
fn name_pools_by_value(state: &mut State) {
    for id in state.of_kind_mut("pool").map(|(id, _)| id.to_owned()).collect::<Vec<_>>() {
        let mut message = state.take("pool", &id);
        let by_value = message["pool"]["cidr"].as_str().unwrap().replacen('/', "-", 1);
        message["id"] = by_value.as_str().into();
        state.insert("pool", by_value, message);
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
    // Three states have parameters that are pointers to booleans, which is not a valid type for a
    // parameter. Felix treats them as missing.
    entries
        .filter(|entry| entry["key_type"] != "GlobalConfigKey" || entry["value_type"] == "string")
        .map(|entry| {
            let value = entry.get("value_raw").or(entry.get("value")).cloned().unwrap_or_default();
            (path_of_value(entry["path"].as_str().unwrap(), &value), value)
        })
        .collect()
}

/// Returns the path that fits the value. Two states have a pool whose value contradicts its key, as
/// no datastore has. Tortie goes by the key, but Felix's routes go by the value, so the pool gets
/// the key that fits.
fn path_of_value(path: &str, value: &Json) -> String {
    match (path.split_once("/pool/"), value["cidr"].as_str()) {
        (Some((before, _)), Some(cidr)) => format!("{before}/pool/{}", cidr.replacen('/', "-", 1)),
        _ => path.to_owned(),
    }
}

fn feed_entries<'a>(feed: &mut Feed, entries: impl IntoIterator<Item = (&'a String, &'a Json)>) {
    for (path, value) in entries {
        assert_ne!(feed.update(path, value), UpdateOutcome::Ignored, "{path}");
    }
}

/// Reports whether the datastore may be used, with these entries.
fn is_ready(entries: &Entries) -> bool {
    entries.get("/calico/v1/Ready") == Some(&Json::Bool(true))
}

#[test]
fn each_state_from_empty() {
    let Some(text) = recording("calc_states.json.gz") else { return };
    let recorded: Json = serde_json::from_str(&text).unwrap();
    let (mut failures, mut compared) = (Vec::new(), [0; 3]);
    for (name, state) in recorded["states"].as_object().unwrap() {
        let mut feed = Feed::new(&config(&recorded, &state["route_source"]));
        let entries = entries(state);
        feed_entries(&mut feed, entries.iter().map(|(path, value)| (path, value)));
        feed.in_sync();
        feed.flush();
        let mut peer = State::default();
        let messages = &state["actual_messages_from_empty"];
        messages.as_array().unwrap().iter().for_each(|message| peer.apply_recorded(message));
        assert_eq!(feed.not_ready, reports_not_ready(messages), "{name}");
        failures.extend(differences(&feed.state, &peer).into_iter().map(|d| format!("{name}: {d}")));
        let routes_and_vteps = ["route", "vtep"].map(|kind| peer.of_kind_mut(kind).count());
        compared = [compared[0] + 1, compared[1] + routes_and_vteps[0], compared[2] + routes_and_vteps[1]];
    }
    assert!(failures.is_empty(), "{} differences:\n{}", failures.len(), failures[..failures.len().min(5)].join("\n"));
    assert_count("states, routes, tunnel ends", compared, [148, 496, 49]);
}

#[test]
fn sequences_of_states() {
    let Some(text) = recording("calc_states.json.gz") else { return };
    let recorded: Json = serde_json::from_str(&text).unwrap();
    let (mut failures, mut compared) = (Vec::new(), 0);
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
            feed_entries(&mut feed, wanted.iter().map(|(path, value)| (path, value)));
            let wanted: Entries = wanted.into_iter().collect();
            let gone = current.keys().filter(|path| !wanted.contains_key(*path));
            feed_entries(&mut feed, gone.map(|path| (path, &Json::Null)));
            current = wanted;
            feed.flush();
            messages.as_array().unwrap().iter().for_each(|message| peer.apply_recorded(message));
            // Felix decides at the first changed parameter, even if the ready flag comes in the
            // same batch.
            let peer_not_ready = reports_not_ready(messages) && !is_ready(&current);
            assert_eq!(feed.not_ready, peer_not_ready, "sequence {i}, {name}");
            let differences = differences(&feed.state, &peer);
            failures.extend(differences.into_iter().map(|d| format!("sequence {i}, {name}: {d}")));
            compared += 1;
        }
    }
    assert!(failures.is_empty(), "{} differences:\n{}", failures.len(), failures[..failures.len().min(5)].join("\n"));
    assert_count("steps", compared, 322);
}
