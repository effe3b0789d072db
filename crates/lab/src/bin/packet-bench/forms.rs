//! Cost of the same rules in other nftables forms: `--forms`.
//!
//! A chain with the earliest priority holds the rules, loaded by `nft`; no other chain of the node
//! is active.

use std::fmt::{self, Write as _};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Result;
use crate::node::Node;
use crate::policy::{Peers, Policy};
use crate::traffic::{Case, Cost, Traffic};

/// Most rules in sequence; with more, a packet takes milliseconds.
const MOST_IN_LINE: u16 = 1000;

/// Form of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A sequence of rules, each with its set.
    InLine,
    /// A hash map of addresses that leads to the rules with this address.
    Address,
    /// As `Address`, with a range map.
    AddressRange,
    /// A hash map of address, protocol and port.
    Together,
    /// As `Together`, with a range map.
    TogetherRange,
}

impl Form {
    const ALL: [Self; 5] = [Self::InLine, Self::Address, Self::AddressRange, Self::Together, Self::TogetherRange];

    const fn is_of_ranges(self) -> bool {
        matches!(self, Self::AddressRange | Self::TogetherRange)
    }

    const fn is_together(self) -> bool {
        matches!(self, Self::Together | Self::TogetherRange)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InLine => "one behind the other",
            Self::Address => "map of addresses, hash",
            Self::AddressRange => "map of addresses, ranges",
            Self::Together => "map of address . protocol . port, hash",
            Self::TogetherRange => "map of address . protocol . port, ranges",
        })
    }
}

pub(crate) fn measure(peers: &[Peers], rules: &[u16], packets: u32, times: u32) -> Result<()> {
    println!("| peers | form | rules | first rule | last rule | no rule | loaded in | one element more in |");
    println!("|---|---|---|---|---|---|---|---|");
    for peers in peers {
        for form in Form::ALL {
            for rules in rules.iter().copied().filter(|rules| form != Form::InLine || *rules <= MOST_IN_LINE) {
                let policy = Policy { peers: *peers, rules, are_policies: true };
                let node = Node::new()?;
                let traffic = Traffic::new(&node)?;
                let loaded = load(&node, &ruleset(form, policy))?;
                let packets =
                    if form == Form::InLine { (packets / u32::from(rules.div_ceil(100))).max(500) } else { packets };
                let [first, last, none] = [Case::First(policy), Case::Last(policy), Case::NoMatch]
                    .map(|case| traffic.measure(case, packets, times));
                let (first, last, none) = (first?, last?, none?);
                let added = match form {
                    Form::InLine => Duration::ZERO,
                    _ if form.is_together() => {
                        load(&node, "add element ip forms m { 198.51.100.1 . udp . 9 : goto c0 }\n")?
                    }
                    _ => load(&node, "add element ip forms m { 198.51.100.1 : goto c0 }\n")?,
                };
                let cost = |Cost(nanoseconds): Cost| format!("{nanoseconds:.0} ns");
                let milliseconds = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
                println!(
                    "| {peers} | {form} | {rules} | {} | {} | {} | {} | {} |",
                    cost(first),
                    cost(last),
                    cost(none),
                    milliseconds(loaded),
                    milliseconds(added),
                );
            }
        }
    }
    Ok(())
}

/// Loads a ruleset with `nft` and returns the elapsed time.
fn load(node: &Node, text: &str) -> Result<Duration> {
    let begin = Instant::now();
    let output = node.namespace().output(Command::new("nft").args(["-f", "-"]), text)?;
    if !output.status.success() {
        return Err(format!("nft: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(begin.elapsed())
}

/// Returns the rules of a policy in a form; packets that no rule allows are dropped.
fn ruleset(form: Form, policy: Policy) -> String {
    let mut text = String::from("table ip forms {\n");
    let members = |rule| -> Vec<String> {
        match policy.peers {
            // The program has rejected subnets before.
            Peers::Networks | Peers::Subnets => vec![policy.admitted(rule).0.to_string()],
            Peers::Sets | Peers::SetsOnePort | Peers::SetsPortRange => {
                policy.members(rule).map(|member| member.to_string()).collect()
            }
        }
    };
    let rules = 0..policy.rules;
    // Writing to a string cannot fail.
    if form == Form::InLine {
        for rule in rules.clone() {
            let members = members(rule).join(", ");
            let _ = writeln!(text, "set s{rule} {{ type ipv4_addr; flags interval; elements = {{ {members} }}; }}");
        }
    } else {
        for rule in rules.clone() {
            let port = policy.admitted(rule).1;
            let port_match = if form.is_together() { String::new() } else { format!("udp dport {port} ") };
            let _ = writeln!(text, "chain c{rule} {{\n{port_match}counter accept\n}}");
        }
        let kind = if form.is_together() { "ipv4_addr . inet_proto . inet_service" } else { "ipv4_addr" };
        let flags = if form.is_of_ranges() { "flags interval; " } else { "" };
        let port =
            |rule| if form.is_together() { format!(" . udp . {}", policy.admitted(rule).1) } else { String::new() };
        let elements: Vec<String> = rules
            .clone()
            .flat_map(|rule| {
                let port = port(rule);
                members(rule).into_iter().map(move |member| format!("{member}{port} : goto c{rule}"))
            })
            .collect();
        let _ = writeln!(text, "map m {{ type {kind} : verdict; {flags}elements = {{ {} }}; }}", elements.join(", "));
    }
    text.push_str("chain asked {\n");
    match form {
        Form::InLine => {
            for rule in rules {
                let _ = writeln!(text, "ip saddr @s{rule} udp dport {} counter accept", policy.admitted(rule).1);
            }
        }
        _ if form.is_together() => text.push_str("ip saddr . meta l4proto . th dport vmap @m\n"),
        _ => text.push_str("ip saddr vmap @m\n"),
    }
    text.push_str("}\nchain in {\ntype filter hook prerouting priority -300;\njump asked\ndrop\n}\n}\n");
    text
}
