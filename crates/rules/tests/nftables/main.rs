//! Byte-for-byte comparison of Tortie's nftables output with Felix's recorded output.
//!
//! Each deliberate difference is listed in a test, with place, reason and count. A difference that
//! is not listed, or a listed one that no longer occurs, fails the test.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod arp;
mod chains;
mod defects;
mod kernel;
#[path = "../golden/load.rs"]
#[allow(dead_code, reason = "shared with the tests against recorded iptables output")]
mod load;
mod packets;
mod pair;
mod policies;
mod tables;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;
use tortie_iptables::{Chain, Rule, Table};
use tortie_model::{Family, HostInterface};
use tortie_nftables::{Context, Features, FullNames, LayeredName, RenderedRule, deviations};
use tortie_rules::{Renderer, RulesConfig};

fn nftables_json() -> Option<&'static Value> {
    static JSON: LazyLock<Option<Value>> = LazyLock::new(|| load::recorded("nftables.json.gz"));
    JSON.as_ref()
}

/// Reason for a deliberate difference from the recorded text. `D` and a number is a defect of
/// Felix; its test on a kernel is `dN_…` in `defects`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Divergence {
    /// An ICMP type in the table of the other family: Felix writes a rule for which nft refuses the
    /// whole transaction. Tortie writes nothing, as no packet there can match.
    IcmpOfOtherFamily,
    /// Three or more match blocks of alternatives: in Felix, the second block decides for the later
    /// ones.
    LaterMatchBlocks,
    /// A profile with a pass rule: Felix takes an earlier pass mark for one of the profile itself.
    EarlierPass,
    /// A network without prefix length, which the message allows and the model does not.
    BareAddress,
    /// D2: type and code of ICMP.
    IcmpCode,
    /// D1: connections whose destination was not translated.
    NotDnat,
    /// D11: an IPv4 address for masqueraded packets in an IPv6 table.
    NatAddress,
    /// An unreferenced chain, which sets no bits.
    WithoutWireguard,
}

type Divergences = BTreeMap<Divergence, usize>;

/// Features of a system that cannot choose ports at random.
const OLD_FEATURES: Features = Features { masquerade_fully_random: false, snat_fully_random: false, queue: true };

struct Rendered {
    name: LayeredName,
    rules: Vec<RenderedRule>,
    /// Number of deviations that each of them lists.
    deviations: Vec<usize>,
}

fn render_for(chain: &Chain, layer: Table, family: Family, features: Features) -> Rendered {
    let mut names = FullNames::default();
    let (any, renderer) = (HostInterface::All, Renderer::new(RulesConfig::default()));
    renderer.host_endpoint_filter(any, &[], &[], &[]).iter().for_each(|chain| names.define(chain));
    names.define(chain);
    let name = LayeredName::new(layer, names.get(&chain.name));
    let context = Context { family, layer, names: &names, features };
    let rules = tortie_nftables::rules(name.as_str(), &chain.rules, context).collect();
    let deviations = chain.rules.iter().map(|rule| deviations(rule).count()).collect();
    Rendered { name, rules, deviations }
}

fn render(chain: &Chain, layer: Table, family: Family) -> Rendered {
    render_for(chain, layer, family, Features::ALL)
}

impl Rendered {
    fn texts(&self) -> Vec<String> {
        self.rules.iter().map(|rule| rule.text.clone()).collect()
    }

    /// Reports whether name, texts, comments and hashes equal those of the recorded chain.
    fn equals(&self, recorded: &Value) -> bool {
        let comments: Vec<String> = self.rules.iter().map(|rule| rule.comment.clone()).collect();
        let hashes: Vec<String> = self.rules.iter().map(|rule| rule.hash.to_string()).collect();
        self.name.as_str() == recorded["name"]
            && load::strings(&recorded["rules"]) == self.texts()
            && load::strings(&recorded["comments"]) == comments
            && load::strings(&recorded["hashes"]) == hashes
    }
}

fn texts(rules: &[Rule], layer: Table, family: Family) -> Vec<String> {
    let chain = Chain::new("cali-x".parse().unwrap(), rules.to_vec());
    render(&chain, layer, family).texts()
}

/// Returns the recorded text, with each defect corrected, and the defect.
fn corrected(text: &str) -> (String, Option<Divergence>) {
    if text.contains("ct status != dnat") {
        return (text.replace("ct status != dnat", "ct status & dnat == 0"), Some(Divergence::NotDnat));
    }
    let Some(at) = text.find(" code ") else { return (text.to_owned(), None) };
    let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let is_negated = text[at..].starts_with(" code != ");
    let code = words.iter().position(|word| word == "code").unwrap();
    let (begin, number) = if is_negated { (code - 4, code + 2) } else { (code - 3, code + 1) };
    assert!(words[begin].starts_with("icmp"), "{text}");
    let value = words[code - 1].parse::<u16>().unwrap() << 8 | words[number].parse::<u16>().unwrap();
    let operator = if is_negated { "!= " } else { "" };
    words.splice(begin..=number, [format!("@th,0,16 {operator}{value:#06x}")]);
    let (text, _) = corrected(&words.join(" "));
    (text, Some(Divergence::IcmpCode))
}

/// Compares a chain with the recorded one, after it is [`corrected`].
#[track_caller]
fn assert_chain_for(case_name: &str, rendered: &Rendered, recorded: &Value, divergences: &mut Divergences) {
    if rendered.equals(recorded) {
        return;
    }
    assert_eq!(rendered.name.as_str(), recorded["name"], "{case_name}");
    let theirs = load::strings(&recorded["rules"]);
    let mut differ = 0;
    for ((ours, their), deviations) in rendered.texts().iter().zip(&theirs).zip(&rendered.deviations) {
        let (corrected, why) = corrected(their);
        assert_eq!(*ours, corrected, "{case_name}");
        assert_eq!(why.is_some(), *deviations > 0, "{case_name}: {ours}");
        if let Some(why) = why {
            *divergences.entry(why).or_default() += 1;
            differ += 1;
        }
    }
    assert_eq!(rendered.rules.len(), theirs.len(), "{case_name}");
    assert!(differ > 0, "{case_name}: same texts, but other comments or hashes: {recorded}");
}

/// Compares chains in any order.
#[track_caller]
fn assert_chains(
    case_name: &str,
    chains: &[Chain],
    recorded: &[Value],
    layer: Table,
    family: Family,
    divergences: &mut Divergences,
) {
    let rendered: Vec<Rendered> = chains.iter().map(|chain| render(chain, layer, family)).collect();
    let mut names: Vec<&str> = rendered.iter().map(|chain| chain.name.as_str()).collect();
    let mut expected: Vec<&str> = recorded.iter().filter_map(|chain| chain["name"].as_str()).collect();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected, "{case_name}");
    for chain in &rendered {
        let recorded = recorded.iter().find(|recorded| recorded["name"] == chain.name.as_str());
        assert_chain_for(&format!("{case_name} {}", chain.name), chain, recorded.unwrap(), divergences);
    }
}

/// Compares the rules of a set of chains of the filter layer, but for the names of these and the
/// hashes that follow from the names.
#[track_caller]
fn assert_same_rules(case_name: &str, chains: &[Chain], recorded: &[Value]) {
    assert_eq!(chains.len(), recorded.len(), "{case_name}");
    for chain in chains {
        let rendered = render(chain, Table::Filter, Family::V4);
        let kind = &rendered.name.as_str()[.."filter-cali-xx-".len()];
        let recorded = recorded.iter().find(|recorded| load::text(&recorded["name"]).starts_with(kind)).unwrap();
        assert_eq!(rendered.texts(), load::strings(&recorded["rules"]), "{case_name}");
    }
}
