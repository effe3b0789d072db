//! Number of rules that a packet traverses: all rules that the kernel evaluates for it, matching or
//! not.
//!
//! The kernel does not report this number. The counters show the matching rules if the same packet
//! is sent several times, and the order of rules shows the rules between them. A verdict map has no
//! counter, so the packet's values are looked up in it.

use std::collections::BTreeMap;

use crate::node::Node;
use crate::policy::{Policy, STRANGER};
use crate::traffic::{Case, Traffic};
use crate::{Backend, Result};

const PACKETS: u32 = 100;

/// Chains of a listing, with their rules in order.
#[derive(Debug, Default)]
struct Listing {
    chains: BTreeMap<String, Vec<Rule>>,
    /// Verdicts of maps, by name of the map and by key.
    maps: BTreeMap<String, BTreeMap<String, String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    packets: Option<u64>,
    /// Key expression and name of a verdict map.
    map: Option<(String, String)>,
    /// `jump X`, `goto X`, `return`, `accept`, `drop`, or any other text.
    verdict: String,
}

/// Values of a packet, as written in map keys.
struct Keys {
    input: String,
    output: String,
    port: String,
    source: String,
}

enum Flow {
    Return,
    Accept,
    Drop,
}

/// Returns the numbers for a packet that the first rule allows, one that the last rule allows, one
/// that no rule allows, and one of a known connection; `None` for back ends without netfilter
/// rules.
pub(crate) fn count(
    node: &Node,
    traffic: &Traffic<'_>,
    backend: Backend,
    policy: Policy,
) -> Result<Option<[usize; 4]>> {
    let mut counts = [0; 4];
    let cases = [Case::First(policy), Case::Last(policy), Case::NoMatch, Case::Established(policy)];
    let Some(mut before) = list(node, backend)? else { return Ok(None) };
    for (count, case) in counts.iter_mut().zip(cases) {
        traffic.measure(case, PACKETS, 1)?;
        let Some(after) = list(node, backend)? else { return Ok(None) };
        let (source, port) = match case {
            Case::First(policy) => policy.admitted(0),
            Case::Last(policy) | Case::Established(policy) => policy.admitted(policy.rules - 1),
            Case::Open | Case::NoMatch => (STRANGER, 9),
        };
        let (input, output) = ("\"eth0\"".to_owned(), format!("\"{}\"", node.interface()));
        let keys = Keys { input, output, port: format!("udp . {port}"), source: source.to_string() };
        *count = walk_all(&before, &after, &keys, matches!(case, Case::Established(_)))?;
        before = after;
    }
    Ok(Some(counts))
}

fn list(node: &Node, backend: Backend) -> Result<Option<Listing>> {
    Ok(match backend {
        Backend::Ebpf | Backend::EbpfRules => None,
        Backend::Legacy => Some(of_iptables(&node.shell("iptables-legacy-save -c")?)),
        Backend::Nft => Some(of_iptables(&node.shell("iptables-nft-save -c")?)),
        Backend::NftablesFelix | Backend::NftablesFast => Some(of_nft(&node.shell("nft -n list table ip calico")?)),
    })
}

/// Parses the output of `iptables-save -c`. Chain names get the table as prefix, as in nftables
/// tables.
fn of_iptables(text: &str) -> Listing {
    let mut listing = Listing::default();
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let Some((counters, rule)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] -A ")) else { continue };
        let packets = counters.split(':').next().and_then(|packets| packets.parse().ok());
        let (chain, words) = rule.split_once(' ').unwrap_or((rule, ""));
        let words: Vec<&str> = words.split(' ').collect();
        let target = |option| words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1));
        let verdict = match (target("-j"), target("-g")) {
            (_, Some(chain)) => format!("goto {table}-{chain}"),
            (Some(&"ACCEPT"), _) => "accept".to_owned(),
            (Some(&"DROP"), _) => "drop".to_owned(),
            (Some(&"RETURN"), _) => "return".to_owned(),
            (Some(chain), _) if chain.starts_with("cali-") => format!("jump {table}-{chain}"),
            _ => String::new(),
        };
        listing.chains.entry(format!("{table}-{chain}")).or_default().push(Rule { packets, map: None, verdict });
    }
    listing
}

/// Parses the output of `nft list table`.
fn of_nft(text: &str) -> Listing {
    let mut listing = Listing::default();
    let mut chain: Option<String> = None;
    let mut map: Option<String> = None;
    for line in text.lines().map(str::trim) {
        let named = |kind: &str| line.strip_prefix(kind).and_then(|rest| rest.strip_suffix(" {")).map(str::to_owned);
        if let Some(name) = named("chain ") {
            listing.chains.entry(name.clone()).or_default();
            (chain, map) = (Some(name), None);
        } else if let Some(name) = named("map ").or_else(|| named("set ")) {
            (chain, map) = (None, Some(name));
        } else if let Some(name) = &map {
            let elements = line.trim_start_matches("elements = {").trim_end_matches('}');
            for (key, verdict) in elements.split(',').filter_map(|element| element.split_once(" : ")) {
                let (key, verdict) = (key.trim().to_owned(), verdict.trim().to_owned());
                listing.maps.entry(name.clone()).or_default().insert(key, verdict);
            }
        } else if let Some(name) =
            chain.as_ref().filter(|_| !line.is_empty() && line != "}" && !line.starts_with("type "))
        {
            let rule = line.split(" comment \"").next().unwrap_or_default();
            let packets =
                rule.split_once("counter packets ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
            let map = rule.split_once(" vmap @").map(|(selector, name)| {
                let selector =
                    if selector.ends_with("dport") { "port" } else { selector.rsplit(' ').next().unwrap_or_default() };
                (selector.to_owned(), name.to_owned())
            });
            let words: Vec<&str> = rule.split(' ').collect();
            let verdict = match words[..] {
                [.., kind @ ("jump" | "goto"), to] => format!("{kind} {to}"),
                [.., last @ ("return" | "accept" | "drop")] => last.to_owned(),
                _ => String::new(),
            };
            listing.chains.entry(name.clone()).or_default().push(Rule { packets, map, verdict });
        }
    }
    listing
}

/// Walks all tables in hook order; only the first packet of a connection traverses those of address
/// translation.
fn walk_all(before: &Listing, after: &Listing, keys: &Keys, is_established: bool) -> Result<usize> {
    let hooks = [
        "raw-PREROUTING",
        "mangle-PREROUTING",
        "nat-PREROUTING",
        "mangle-FORWARD",
        "filter-FORWARD",
        "mangle-POSTROUTING",
        "nat-POSTROUTING",
    ];
    let mut met = 0;
    for hook in hooks.into_iter().filter(|hook| !is_established || !hook.starts_with("nat")) {
        if matches!(walk(hook, before, after, keys, &mut met)?, Flow::Drop) {
            break;
        }
    }
    Ok(met)
}

fn walk(chain: &str, before: &Listing, after: &Listing, keys: &Keys, met: &mut usize) -> Result<Flow> {
    let none = Vec::new();
    let rules = after.chains.get(chain).unwrap_or(&none);
    let old = before.chains.get(chain).unwrap_or(&none);
    if rules.len() != old.len() {
        return Err(format!("chain {chain} has changed meanwhile").into());
    }
    for (rule, old) in rules.iter().zip(old) {
        *met += 1;
        let passed = rule.packets.unwrap_or(0).saturating_sub(old.packets.unwrap_or(0));
        if rule.packets.is_some() && passed < u64::from(PACKETS) {
            continue;
        }
        let verdict = match &rule.map {
            None => rule.verdict.clone(),
            Some((selector, map)) => {
                let key = match selector.as_str() {
                    "iifname" => &keys.input,
                    "oifname" => &keys.output,
                    "saddr" => &keys.source,
                    _ => &keys.port,
                };
                let found = after.maps.get(map).and_then(|map| map.get(key).or_else(|| map.get(&numbered(key))));
                found.cloned().unwrap_or_default()
            }
        };
        let flow = match verdict.split_once(' ').unwrap_or((&verdict, "")) {
            ("jump", to) => walk(to, before, after, keys, met)?,
            ("goto", to) => return walk(to, before, after, keys, met),
            ("return", _) => return Ok(Flow::Return),
            ("accept", _) => return Ok(Flow::Accept),
            ("drop", _) => return Ok(Flow::Drop),
            _ => Flow::Return,
        };
        if !matches!(flow, Flow::Return) {
            return Ok(flow);
        }
    }
    Ok(Flow::Return)
}

/// Returns the key with the number of the protocol.
fn numbered(key: &str) -> String {
    key.replace("udp", "17")
}
