//! Random edit sequences.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};
use tortie_calc::{GraphConfig, Overlap, ReadyFlag};
use tortie_model::Hostname;
use tortie_selector::unique_id;
use tortie_testkit::golden::assert_count;

use crate::feed::{Feed, UpdateOutcome, reports_not_ready};
use crate::recording;
use crate::replay::{State, id_text};

fn scenarios(name: &str) -> Vec<Json> {
    let text = recording(name).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn config(scenario: &Json) -> GraphConfig {
    let overlap = if scenario["config"]["NFTablesMode"] == "Disabled" { Overlap::Keep } else { Overlap::Suppress };
    GraphConfig {
        overlap,
        ready_flag: ReadyFlag::Required,
        ..GraphConfig::new(Hostname::new(scenario["hostname"].as_str().unwrap()))
    }
}

/// Returns the parameters in force: those of the datastore, overridden by those of the environment.
fn with_environment(state: &State, environment: &Json) -> State {
    let mut state = state.clone();
    let mut parameters = environment.as_object().unwrap().clone();
    for (_, message) in state.of_kind_mut("config") {
        for (name, value) in message["config"].as_object().into_iter().flatten() {
            parameters.entry(name.clone()).or_insert(value.clone());
        }
    }
    state.insert("config", String::new(), Json::Object(parameters));
    state
}

fn run_steps(scenario: &Json, feed: &mut Feed, mut after_step: impl FnMut(usize, &Json, &Feed)) {
    let name = &scenario["name"];
    for (i, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
        for update in step["updates"].as_array().unwrap() {
            let path = update["key"].as_str().unwrap();
            let outcome = feed.update(path, &update["value"]);
            let dropped = update.get("dropped").is_some();
            if outcome != UpdateOutcome::Ignored {
                assert_eq!(outcome == UpdateOutcome::Rejected, dropped, "{name} step {i}: {update}");
            }
        }
        if step.get("status").is_some_and(|status| status == "in-sync") {
            feed.in_sync();
        }
        feed.flush();
        after_step(i, step, feed);
    }
}

/// Data of removed objects that Felix keeps until a restart. It is removed from both sides.
#[derive(Default)]
struct Leftovers {
    tiers: BTreeSet<String>,
    /// The service and the addresses of each slice of endpoints.
    slices: BTreeMap<String, (String, BTreeSet<String>)>,
    /// Addresses that slices have left in the IP sets of services.
    members: BTreeMap<String, BTreeSet<String>>,
}

impl Leftovers {
    fn note(&mut self, update: &Json) {
        let (path, value) = (update["key"].as_str().unwrap(), &update["value"]);
        let is_there = !value.is_null() && update.get("dropped").is_none();
        if let Some(tier) = path.strip_prefix("/calico/v1/policy/tier/").and_then(|rest| rest.strip_suffix("/metadata"))
        {
            if is_there {
                self.tiers.insert(tier.to_owned());
            } else {
                self.tiers.remove(tier);
            }
        } else if path.contains("/kubernetesendpointslices/") && is_there {
            let endpoints = value["endpoints"].as_array().into_iter().flatten();
            let addresses = endpoints.flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten());
            let addresses = addresses.map(|address| format!("{}/32", address.as_str().unwrap())).collect();
            let metadata = &value["metadata"];
            let name = metadata["labels"]["kubernetes.io/service-name"].as_str().unwrap_or_default();
            let service = format!("{}/{name}", metadata["namespace"].as_str().unwrap());
            let was = self.slices.insert(path.to_owned(), (service.clone(), addresses));
            if let Some((before, addresses)) = was.filter(|(before, _)| *before != service) {
                self.members.entry(unique_id("svcnoport", &before)).or_default().extend(addresses);
            }
        }
    }

    fn take_out(&self, state: &mut State) {
        // A deleted tier keeps its default action.
        for kind in ["workload endpoint", "host endpoint"] {
            for (_, message) in state.of_kind_mut(kind) {
                for list in ["tiers", "forward_tiers"] {
                    for tier in message["endpoint"].get_mut(list).and_then(Json::as_array_mut).into_iter().flatten() {
                        if !self.tiers.contains(tier["name"].as_str().unwrap()) {
                            tier.as_object_mut().unwrap().remove("default_action");
                        }
                    }
                }
            }
        }
        // In Felix, a slice that moves to another service leaves its members in the set.
        for (id, message) in state.of_kind_mut("ip set") {
            if let (Some(left), Some(members)) = (self.members.get(id), message["members"].as_array_mut()) {
                members.retain(|member| !left.contains(member.as_str().unwrap()));
            }
        }
    }
}

#[test]
fn states_after_each_step_match_felix() {
    let (mut compared, mut failures) = (0, Vec::new());
    for scenario in scenarios("calc_random.jsonl.gz") {
        let environment = &scenario["config"];
        let mut feed = Feed::new(&config(&scenario));
        let (mut peer, mut leftovers) = (State::default(), Leftovers::default());
        run_steps(&scenario, &mut feed, |i, step, feed| {
            for message in step["messages"].as_array().unwrap() {
                peer.apply_recorded(message);
            }
            step["updates"].as_array().unwrap().iter().for_each(|update| leftovers.note(update));
            assert_eq!(feed.not_ready, reports_not_ready(&step["messages"]), "{} step {i}", scenario["name"]);
            let [mut ours, mut theirs] = [&feed.state, &peer].map(|state| with_environment(state, environment));
            ours.forget("in sync");
            // Felix decides at its start whether there are any, and there were no pools then.
            ours.forget("route");
            ours.forget("vtep");
            leftovers.take_out(&mut ours);
            leftovers.take_out(&mut theirs);
            compared += 1;
            failures
                .extend(ours.differences(&theirs).into_iter().map(|d| format!("{} step {i}: {d}", scenario["name"])));
        });
    }
    let first = failures[..failures.len().min(5)].join("\n");
    assert!(failures.is_empty(), "{} differences in {compared} states:\n{first}", failures.len());
    assert_count("states", compared, 876);
}

#[test]
fn final_states_match_a_fresh_felix() {
    compare_final("calc_random.jsonl.gz");
}

#[test]
fn final_states_with_overlap_suppression() {
    compare_final("calc_random_overlap.jsonl.gz");
}

/// Compares the final states. Only the file without overlap suppression has the steps.
fn compare_final(name: &str) {
    let steps: BTreeMap<String, Json> = scenarios("calc_random.jsonl.gz")
        .into_iter()
        .map(|mut scenario| (scenario["name"].to_string(), scenario["steps"].take()))
        .collect();
    let mut failures = Vec::new();
    for mut scenario in scenarios(name) {
        // Elsewhere one of the files may be missing.
        let Some(steps) = steps.get(&scenario["name"].to_string()) else { continue };
        scenario["steps"] = steps.clone();
        let mut feed = Feed::new(&config(&scenario));
        run_steps(&scenario, &mut feed, |_, _, _| {});
        let expected = scenario.get("final_fresh").unwrap_or(&scenario["final"]);
        let ours = with_environment(&feed.state, &scenario["config"]);
        for difference in summary(ours).differences(&from_summary(expected)) {
            failures.push(format!("{}: {difference}", scenario["name"]));
        }
    }
    assert!(failures.is_empty(), "{} differences:\n{}", failures.len(), failures[..failures.len().min(5)].join("\n"));
}

/// Returns Tortie's state with only the inner objects of the messages, as in the recorded
/// summaries.
fn summary(mut state: State) -> State {
    state.forget("in sync");
    state.forget("route");
    state.forget("vtep");
    for (kind, field) in
        [("policy", "policy"), ("profile", "profile"), ("workload endpoint", "endpoint"), ("host endpoint", "endpoint")]
    {
        for (_, message) in state.of_kind_mut(kind) {
            *message = message[field].take();
        }
    }
    state
}

fn from_summary(summary: &Json) -> State {
    let mut state = State::default();
    let objects = |name: &str| summary[name].as_object().cloned().unwrap_or_default();
    for (id, members) in objects("ipsets") {
        let set_type = summary["ipset_types"].get(&id).cloned().unwrap_or_default();
        state.apply("ipset_update", &json!({"id": id, "members": members, "type": set_type}));
    }
    for (id, policy) in objects("policies") {
        let parts: Vec<&str> = id.splitn(3, '/').collect();
        let mut key = serde_json::Map::new();
        for (field, text) in [("name", parts[2]), ("namespace", parts[1]), ("kind", parts[0])] {
            if !text.is_empty() {
                key.insert(field.into(), text.into());
            }
        }
        state.insert("policy", id_text(&Json::Object(key)), policy);
    }
    for (name, profile) in objects("profiles") {
        state.insert("profile", id_text(&json!({"name": name})), profile);
    }
    for (id, endpoint) in objects("workload_endpoints") {
        let (orchestrator, rest) = id.split_once('/').unwrap();
        let (workload, endpoint_id) = rest.rsplit_once('/').unwrap();
        let id = json!({"orchestrator_id": orchestrator, "workload_id": workload, "endpoint_id": endpoint_id});
        state.insert("workload endpoint", id_text(&id), endpoint);
    }
    for (id, endpoint) in objects("host_endpoints") {
        state.insert("host endpoint", id_text(&json!({"endpoint_id": id})), endpoint);
    }
    for (list, field) in [
        ("service_accounts", "service_account_update"),
        ("namespaces", "namespace_update"),
        ("host_metadata", "host_metadata_update"),
        ("ip_pools", "ipam_pool_update"),
        ("wireguard", "wireguard_endpoint_update"),
        ("wireguard_v6", "wireguard_endpoint_v6_update"),
        ("services", "service_update"),
    ] {
        for (_, message) in objects(list) {
            state.apply(field, &message);
        }
    }
    state.apply("encapsulation", &summary["encapsulation"]);
    state.insert("config", String::new(), summary["config"].clone());
    state
}
