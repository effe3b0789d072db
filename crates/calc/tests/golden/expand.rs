//! Felix's way to test: every sequence of states, rearranged and flushed in every way, must end in
//! the same state as the last state alone (`felix/calc/calc_graph_fv_test.go`).

use std::collections::BTreeMap;

use serde_json::Value as Json;
use tortie_calc::GraphConfig;

use crate::feed::Feed;
use crate::recording;

/// The entries of a state, in the order of the recording.
type State = Vec<(String, Json)>;

/// When to flush.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flush {
    AfterEachEntry,
    AfterEachEntryTwice,
    AfterEachState,
    AtTheEnd,
}

fn reversed_entries(states: &[State]) -> Vec<State> {
    states.iter().map(|state| state.iter().rev().cloned().collect()).collect()
}

fn with_empty_between(states: &[State]) -> Vec<State> {
    states.iter().flat_map(|state| [state.clone(), State::new()]).collect()
}

/// Returns the states forth and back, and the last one again: asymmetric, unlike a reversal alone.
fn there_and_back(states: &[State]) -> Vec<State> {
    let back = states.iter().rev().skip(1);
    states.iter().chain(back).chain(states.iter().skip(1).rev().take(1)).cloned().collect()
}

fn expansions(states: &[State]) -> Vec<(&'static str, Vec<State>)> {
    vec![
        ("as it is", states.to_vec()),
        ("entries reversed", reversed_entries(states)),
        ("states reversed", states.iter().rev().cloned().collect()),
        ("empty between", with_empty_between(states)),
        ("there and back", there_and_back(states)),
    ]
}

/// Returns the updates that lead from one state to the next: new and changed entries in order, then
/// deletions.
fn changes(from: &BTreeMap<String, Json>, to: &State) -> Vec<(String, Json)> {
    let wanted: BTreeMap<_, _> = to.iter().map(|(path, value)| (path, value)).collect();
    let set = to.iter().filter(|(path, value)| from.get(path) != Some(value)).cloned();
    let gone = from.keys().filter(|path| !wanted.contains_key(path)).map(|path| (path.clone(), Json::Null));
    set.chain(gone).collect()
}

fn walk(config: &GraphConfig, states: &[State], flush: Flush, in_sync_first: bool) -> Feed {
    let mut feed = Feed::new(config);
    if in_sync_first {
        feed.in_sync();
    }
    let mut current = BTreeMap::new();
    for state in states {
        for (path, value) in changes(&current, state) {
            feed.update(&path, &value);
            if flush == Flush::AfterEachEntryTwice {
                feed.update(&path, &value);
            }
            if matches!(flush, Flush::AfterEachEntry | Flush::AfterEachEntryTwice) {
                feed.flush_quickly();
            }
        }
        if flush == Flush::AfterEachState {
            feed.flush_quickly();
        }
        current = state.iter().cloned().collect();
    }
    feed.in_sync();
    feed.flush_quickly();
    feed
}

#[test]
fn sequences_in_every_order() {
    let Some(text) = recording("calc_states.json.gz") else { return };
    let recorded: Json = serde_json::from_str(&text).unwrap();
    let state = |name: &Json| crate::states::entries(&recorded["states"][name.as_str().unwrap()]);
    let mut ends = 0;
    for (i, sequence) in recorded["base_tests"].as_array().unwrap().iter().enumerate() {
        let config = crate::states::config(&recorded, &sequence["route_source"]);
        let states: Vec<State> = sequence["states"].as_array().unwrap().iter().map(state).collect();
        for (expansion, states) in expansions(&states) {
            let Some(last) = states.last() else { continue };
            let alone = walk(&config, std::slice::from_ref(last), Flush::AtTheEnd, true);
            let strategies =
                [Flush::AfterEachState, Flush::AtTheEnd, Flush::AfterEachEntry, Flush::AfterEachEntryTwice];
            let strategies = match expansion {
                "as it is" => &strategies[..],
                "entries reversed" => &strategies[..3],
                _ => &strategies[..2],
            };
            for (n, &flush) in strategies.iter().enumerate() {
                let feed = walk(&config, &states, flush, n % 2 == 0);
                assert_eq!(feed.dataplane, alone.dataplane, "sequence {i}, {expansion}, {flush:?}");
                ends += 1;
            }
            let emptied = walk(&config, &[states, vec![State::new()]].concat(), Flush::AfterEachState, true);
            assert!(emptied.is_empty(), "sequence {i}, {expansion}: something is left");
        }
    }
    tortie_testkit::golden::assert_count("ends", ends, 82 * (4 + 3 + 3 * 2));
}
