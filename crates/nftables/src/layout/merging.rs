//! Merging of consecutive rules that differ in one match only.

use std::collections::BTreeSet;

use tortie_netfilter::{Action, AddressUnion, Match, MergedOrigins, Origin, PortList, PortRange, Rule, Side};

use super::{Sets, name_origin};

/// Minimum number of rules with sets for a union, which stores all members once more.
const MIN_UNION: usize = 4;

/// Whether a rule, if a packet passes it, is the last one that the packet meets in this chain.
fn decides(rule: &Rule) -> bool {
    let last = rule.action.as_ref().map(Action::last);
    matches!(last, Some(Action::Return | Action::Accept | Action::Drop | Action::Reject(_) | Action::Goto(_)))
}

pub(super) fn may_merge(rule: &Rule) -> bool {
    rule.origin.is_some() && decides(rule) && !rule.matches.iter().any(|it| matches!(it, Match::Limit { .. }))
}

/// Merges runs of consecutive rules that are equal but for one match. `part` returns the place of
/// that match, and its value; `join` makes one match of several values.
fn merge<T>(
    rules: Vec<Rule>,
    part: impl Fn(&Rule) -> Option<(usize, T)>,
    join: impl Fn(&[T], &Match) -> Option<Match>,
) -> Vec<Rule> {
    let mut merged = Vec::with_capacity(rules.len());
    let mut rules = rules.into_iter().peekable();
    while let Some(mut rule) = rules.next() {
        let Some((at, first)) = part(&rule).filter(|_| may_merge(&rule)) else {
            merged.push(rule);
            continue;
        };
        let (mut values, mut others) = (vec![first], Vec::new());
        while let Some(next) = rules.peek().filter(|next| may_merge(next) && is_equal_but_for(&rule, next, at)) {
            let Some((_, value)) = part(next).filter(|(place, _)| *place == at) else { break };
            values.push(value);
            others.extend(rules.next());
        }
        let joined = rule.matches.get(at).and_then(|question| join(&values, question));
        match joined.filter(|_| !others.is_empty()) {
            Some(joined) => {
                let with =
                    |(place, question): (usize, &Match)| if place == at { joined.clone() } else { question.clone() };
                rule.matches = rule.matches.iter().enumerate().map(with).collect();
                name_origin(&mut rule);
                rule.merged = origins(&rule, &others);
                rule.add_comment(format!("and {} more", others.len()));
                merged.push(rule);
            }
            None => {
                merged.push(rule);
                merged.append(&mut others);
            }
        }
    }
    merged
}

/// Returns the origins of all these rules, without the first rule's own.
fn origins(first: &Rule, others: &[Rule]) -> MergedOrigins {
    let all = others.iter().flat_map(|rule| rule.origin.iter().chain(rule.merged.as_slice()));
    let mut origins: Vec<Origin> = first.merged.as_slice().iter().chain(all).cloned().collect();
    // One rule of a policy is several here where it has many ports.
    origins.dedup();
    origins.retain(|origin| Some(origin) != first.origin.as_ref());
    origins.into_iter().collect()
}

/// Returns the addresses of one side that satisfy a match; `None` for any other match.
pub(super) fn addresses(question: &Match, side: Side, sets: &impl Sets) -> Option<AddressUnion> {
    match question {
        Match::Net { side: of, net, negated: false } if *of == side => {
            Some(AddressUnion { nets: [net.cidr()].into(), sets: BTreeSet::new() })
        }
        Match::IpSet { side: of, set, with_port: false, negated: false } if *of == side && sets.has(*set) => {
            Some(AddressUnion { nets: BTreeSet::new(), sets: [*set].into() })
        }
        Match::AnyOf { side: of, these, negated: false } if *of == side => Some(AddressUnion::clone(these)),
        _ => None,
    }
}

fn is_equal_but_for(a: &Rule, b: &Rule, at: usize) -> bool {
    let equal = |(place, (a, b)): (usize, (&Match, &Match))| place == at || a == b;
    a.action == b.action
        && a.opens.is_some() == b.opens.is_some()
        && a.matches.len() == b.matches.len()
        && a.matches.iter().zip(b.matches.iter()).enumerate().all(equal)
}

pub(super) fn merge_ports(rules: Vec<Rule>) -> Vec<Rule> {
    let side_of = |question: &Match| match question {
        Match::Ports { side, negated: false, .. } => Some(*side),
        _ => None,
    };
    let part = |side: Side| {
        move |rule: &Rule| {
            rule.matches.iter().enumerate().find_map(|(at, question)| match question {
                Match::Ports { side: of, ports, negated: false } if *of == side => Some((at, ports.ranges().to_vec())),
                _ => None,
            })
        }
    };
    let join = |values: &[Vec<PortRange>], question: &Match| {
        let ports = PortList::unsplit(&values.concat())?;
        side_of(question).map(|side| Match::Ports { side, ports, negated: false })
    };
    merge(rules, part(Side::Destination), join)
}

pub(super) fn merge_addresses(rules: Vec<Rule>, sets: &impl Sets) -> Vec<Rule> {
    let merge_side = |rules, side: Side| {
        let part = |rule: &Rule| {
            let addresses = |(at, question)| Some((at, addresses(question, side, sets)?));
            rule.matches.iter().enumerate().find_map(addresses)
        };
        let join = |values: &[AddressUnion], _: &Match| {
            let mut all = AddressUnion::default();
            for value in values {
                all.nets.extend(&value.nets);
                all.sets.extend(&value.sets);
            }
            let is_worth_it = all.sets.is_empty() || values.len() >= MIN_UNION;
            is_worth_it.then(|| Match::AnyOf { side, these: all.into(), negated: false })
        };
        merge(rules, part, join)
    };
    merge_side(merge_side(rules, Side::Source), Side::Destination)
}
