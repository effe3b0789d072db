//! Byte-for-byte comparison of Tortie's output with Felix's recorded output.
//!
//! Each deliberate difference is listed in a test, with place, reason and count. A difference that
//! is not listed, or a listed one that no longer occurs, fails the test.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod chains;
mod load;
mod names;
mod policies;
mod restore;

use serde_json::Value;
use tortie_iptables::{Chain, Features, HookPosition, RenderedChain, Renderer as Lines, Rule};

/// Features of a system without `--random-fully`.
const OLD_FEATURES: Features = Features { snat_random_fully: false, masquerade_random_fully: false, ..Features::ALL };

fn lines_of(rendered: &RenderedChain) -> Vec<String> {
    rendered.append_lines().collect()
}

/// Reports whether name, lines and hashes equal those of the recorded chain.
fn equals(rendered: &RenderedChain, recorded: &Value) -> bool {
    let hashes: Vec<String> = rendered.hashes().map(|hash| hash.to_string()).collect();
    rendered.name().as_str() == recorded["name"]
        && load::strings(&recorded["lines"]) == lines_of(rendered)
        && load::strings(&recorded["hashes"]) == hashes
}

#[track_caller]
fn assert_chain(case_name: &str, chain: &Chain, recorded: &Value) {
    assert_chain_for(case_name, chain, recorded, Features::ALL);
}

#[track_caller]
fn assert_chain_for(case_name: &str, chain: &Chain, recorded: &Value, features: Features) {
    let rendered = Lines::new(features).chain(chain);
    assert_eq!(rendered.name().as_str(), recorded["name"], "{case_name}");
    assert_eq!(lines_of(&rendered), load::strings(&recorded["lines"]), "{case_name}");
    assert!(equals(&rendered, recorded), "{case_name}: hashes");
}

/// Compares chains in any order.
#[track_caller]
fn assert_chains(case_name: &str, chains: &[Chain], recorded: &[Value]) {
    let mut names: Vec<&str> = chains.iter().map(|chain| chain.name.as_str()).collect();
    let mut expected: Vec<&str> = recorded.iter().filter_map(|chain| chain["name"].as_str()).collect();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected, "{case_name}");
    for chain in chains {
        let recorded = recorded.iter().find(|recorded| recorded["name"] == chain.name.as_str());
        assert_chain(case_name, chain, recorded.unwrap());
    }
}

/// Compares the rules of a set of chains, but for the names of these and the hashes that follow
/// from the names.
#[track_caller]
fn assert_same_rules(case_name: &str, chains: &[Chain], recorded: &[Value]) {
    let plain = |lines: Vec<String>, name: &str| -> Vec<String> {
        let without_hash = |line: &String| {
            let (before, hash) = line.split_once("\"cali:").unwrap();
            [before, &hash[16..]].concat()
        };
        lines.iter().map(|line| without_hash(line).replace(name, "")).collect()
    };
    assert_eq!(chains.len(), recorded.len(), "{case_name}");
    for chain in chains {
        let kind = &chain.name.as_str()[.."cali-xx-".len()];
        let recorded = recorded.iter().find(|recorded| load::text(&recorded["name"]).starts_with(kind)).unwrap();
        let ours = lines_of(&Lines::new(Features::ALL).chain(chain));
        let theirs = plain(load::strings(&recorded["lines"]), load::text(&recorded["name"]));
        assert_eq!(plain(ours, chain.name.as_str()), theirs, "{case_name}");
    }
}

fn hook(kernel_chain: &str, position: HookPosition, rules: &[Rule]) -> RenderedChain {
    Lines::new(Features::ALL).hook(kernel_chain.parse().unwrap(), position, rules)
}
