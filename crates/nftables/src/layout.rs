//! Rules laid out so that a packet meets few of them, without a packet faring otherwise.
//!
//! Only rules of policies and profiles are touched, which have an [origin](Rule::origin); all others stay as they are.
//!
//! - **One rule for several.** Rules that follow each other, do and ask the same and differ only in ports, or only in networks
//!   and sets of one side, become one rule. Only rules that decide take part, so that it makes no difference which of them does; a
//!   rule that tells a listener its name does something else than the next one, and stays.
//! - **By port at once.** Where rules that follow each other all ask for single destination ports, a verdict map leads to
//!   those that ask for the packet's port, in their order and with all that they do: no other could have matched.
//!
//! What comes before a rule that sets a mark and returns must leave that mark clear, as it does where policies are asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_net::{Family, IpSetName, PortProtocol};
use tortie_netfilter::{
    Action, AddressUnion, Chain, ChainName, ChainPrefix, DispatchBy, MapKey, MapVerdict, MarkBits, Match, Matches,
    PortList, PortRange, Rule, Side, Table, limited_id,
};

/// From how many rules on a map is worth it: two are asked in its place, and one behind it.
const MIN_DISPATCH: usize = 4;
/// From how many rules on their sets are worth a set that holds all members once more.
const MIN_UNION: usize = 4;
/// A rule with more ports is not led to by port.
const MAX_PORTS: usize = 16;
const PART: ChainPrefix = ChainPrefix::new("cali-pd-");
const MAP: ChainPrefix = ChainPrefix::new("cali-pm-");

/// A chain as it is to be programmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "all that there is to say")]
pub struct LaidOut {
    /// Its rules.
    pub rules: Vec<Rule>,
    /// Chains that only they lead to.
    pub parts: Vec<Chain>,
    /// Maps that only they ask.
    pub maps: Vec<(ChainName, BTreeMap<MapKey, MapVerdict>)>,
    /// Sets that only they ask, and what each holds.
    pub unions: Vec<(IpSetName, Arc<AddressUnion>)>,
}

/// Puts the rules of other chains in the places where these are [included](Action::Include). Openings are numbered anew.
#[must_use]
pub fn expand(chain: &Chain, rules_of: impl Fn(ChainName) -> Vec<Rule>) -> Chain {
    let mut rules = Vec::new();
    let mut openings: BTreeMap<(Option<ChainName>, u32), u32> = BTreeMap::new();
    for rule in &chain.rules {
        let (from, some) = match &rule.action {
            Some(Action::Include(other)) => (Some(*other), rules_of(*other)),
            _ => (None, vec![rule.clone()]),
        };
        for mut rule in some {
            if let Some(number) = rule.opens {
                let next = u32::try_from(openings.len()).unwrap_or(u32::MAX);
                rule.opens = Some(*openings.entry((from, number)).or_insert(next));
            }
            if from.is_some() {
                name_origin(&mut rule);
            }
            rules.push(rule);
        }
    }
    Chain { name: chain.name, full_name: chain.full_name.clone(), rules }
}

/// Has the comment say where a rule comes from, since the chain's name does not.
fn name_origin(rule: &mut Rule) {
    if let Some(origin) = rule.origin.as_ref().filter(|_| rule.comments.is_empty()) {
        rule.add_comment(match origin.part {
            Some(part) => format!("{} {part}", origin.owner),
            None => origin.owner.to_string(),
        });
    }
}

/// Lays a chain out. Only sets that are there become parts of others: what asks for one that is not must be refused.
#[must_use]
pub fn lay_out(chain: &Chain, layer: Table, family: Family, is_there: impl Fn(IpSetName) -> bool) -> LaidOut {
    let mut out = LaidOut::default();
    let merged = merge_addresses(merge_ports(chain.rules.clone()), &is_there);
    let mut rest = &merged[..];
    while !rest.is_empty() {
        let run = rest.iter().take_while(|rule| ports_of(rule).is_some()).count();
        let (these, behind) = rest.split_at(run.max(1));
        let keys: BTreeSet<_> = these.iter().filter_map(ports_of).flatten().collect();
        if run < MIN_DISPATCH || keys.len() < 2 {
            out.rules.extend_from_slice(these);
        } else {
            dispatch(chain.name, these, behind.is_empty(), &is_there, &mut out);
        }
        rest = behind;
    }
    let LaidOut { rules, parts, unions, .. } = &mut out;
    for rule in rules.iter_mut().chain(parts.iter_mut().flat_map(|part| &mut part.rules)) {
        name_unions(rule, &format!("{}/{}", layer.as_str(), chain.name), family, unions);
    }
    out
}

/// Whether a rule, if a packet passes it, is the last one that the packet meets in this chain.
fn decides(rule: &Rule) -> bool {
    let last = rule.action.as_ref().map(Action::last);
    matches!(last, Some(Action::Return | Action::Accept | Action::Drop | Action::Reject(_)))
}

fn may_merge(rule: &Rule) -> bool {
    rule.origin.is_some() && decides(rule) && !rule.matches.iter().any(|it| matches!(it, Match::Limit { .. }))
}

/// Runs of neighbours that are equal but for one match, as one rule each. `part` takes a rule apart: where the match is, and what
/// it may be instead; `join` makes one of several.
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

fn is_equal_but_for(a: &Rule, b: &Rule, at: usize) -> bool {
    let equal = |(place, (a, b)): (usize, (&Match, &Match))| place == at || a == b;
    a.action == b.action
        && a.opens.is_some() == b.opens.is_some()
        && a.matches.len() == b.matches.len()
        && a.matches.iter().zip(b.matches.iter()).enumerate().all(equal)
}

fn merge_ports(rules: Vec<Rule>) -> Vec<Rule> {
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

fn merge_addresses(rules: Vec<Rule>, is_there: &impl Fn(IpSetName) -> bool) -> Vec<Rule> {
    let merge_side = |rules, side: Side| {
        let part = |rule: &Rule| {
            let addresses = |(at, question): (usize, &Match)| match question {
                Match::Net { side: of, net, negated: false } if *of == side => {
                    Some((at, AddressUnion { nets: [net.cidr()].into(), sets: BTreeSet::new() }))
                }
                Match::IpSet { side: of, set, with_port: false, negated: false } if *of == side && is_there(*set) => {
                    Some((at, AddressUnion { nets: BTreeSet::new(), sets: [*set].into() }))
                }
                Match::AnyOf { side: of, these, negated: false } if *of == side => {
                    Some((at, AddressUnion::clone(these)))
                }
                _ => None,
            };
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

/// The protocol and the destination ports that a rule asks for, if it can be led to by these.
fn ports_of(rule: &Rule) -> Option<BTreeSet<(PortProtocol, u16)>> {
    rule.origin.as_ref()?;
    let mut protocol = None;
    let mut ports = BTreeSet::new();
    for question in rule.matches.iter() {
        match question {
            Match::Protocol { protocol: wanted, negated: false } => protocol = Some(PortProtocol::of(*wanted)?),
            Match::Ports { side: Side::Destination, ports: list, negated: false } if ports.is_empty() => {
                for range in list.ranges() {
                    if range.first() != range.last() {
                        return None;
                    }
                    ports.insert(range.first());
                }
            }
            Match::Ports { side: Side::Destination, negated: false, .. } | Match::Limit { .. } => return None,
            _ => {}
        }
    }
    let leaves = match rule.action.as_ref()? {
        Action::Jump(_) | Action::Goto(_) | Action::Dispatch { .. } | Action::Include(_) => false,
        action => !matches!(action.last(), Action::Return) || returns_with(action).is_some(),
    };
    let (protocol, is_some) = (protocol?, !ports.is_empty() && ports.len() <= MAX_PORTS);
    (leaves && is_some).then(|| ports.into_iter().map(|port| (protocol, port)).collect())
}

/// The bits that the packet has when the rule returns; `None` if it does not return, or without a mark.
fn returns_with(action: &Action) -> Option<MarkBits> {
    let Action::Several(actions) = action else { return None };
    let set = actions.iter().find_map(|action| match action {
        Action::SetMark(bits) => Some(*bits),
        _ => None,
    });
    set.filter(|_| *action.last() == Action::Return)
}

fn dispatch(chain: ChainName, run: &[Rule], is_last: bool, is_there: &impl Fn(IpSetName) -> bool, out: &mut LaidOut) {
    let id = format!("{chain}/{}", out.maps.len());
    let mut by_port: BTreeMap<(PortProtocol, u16), Vec<Rule>> = BTreeMap::new();
    for rule in run {
        for port in ports_of(rule).unwrap_or_default() {
            by_port.entry(port).or_default().push(rule.clone());
        }
    }
    let mut map = BTreeMap::new();
    for ((protocol, port), rules) in by_port {
        let name = ChainName::limited(PART, &format!("{id}/{protocol}/{port}"));
        let mut rules: Vec<Rule> = rules.into_iter().map(without_port).collect();
        rules.iter_mut().for_each(name_origin);
        let mut rules = merge_addresses(rules, is_there);
        if let Some(first) = rules.first_mut() {
            first.add_comment(format!("of {protocol} {port}"));
        }
        let verdict = if is_last { MapVerdict::Goto(name) } else { MapVerdict::Jump(name) };
        map.insert(MapKey::Port(protocol, port), verdict);
        out.parts.push(Chain::new(name, rules));
    }
    let name = ChainName::limited(MAP, &id);
    out.maps.push((name, map));
    let ask = Action::Dispatch { by: DispatchBy::DestinationPort, map: name };
    out.rules.push(Rule { origin: None, ..Rule::new(ask).comment("By protocol and port") });
    let bits =
        run.iter().filter_map(|rule| returns_with(rule.action.as_ref()?)).map(MarkBits::get).fold(0, |a, b| a | b);
    if !is_last && let Some(bits) = MarkBits::new(bits) {
        let decided = Matches::new().mark_not_clear(bits);
        out.rules.push(Rule::when(decided, Action::Return).comment("Return on verdict"));
    }
}

/// A rule where protocol and port are known already; the protocol is asked for where other matches need it.
fn without_port(mut rule: Rule) -> Rule {
    let needs_protocol = rule.matches.iter().any(|question| {
        matches!(
            question,
            Match::Ports { side: Side::Source, .. } | Match::Ports { negated: true, .. } | Match::Icmp { .. }
        )
    });
    let is_kept = |question: &&Match| match question {
        Match::Ports { side: Side::Destination, negated: false, .. } => false,
        Match::Protocol { negated: false, .. } => needs_protocol,
        _ => true,
    };
    rule.matches = rule.matches.iter().filter(is_kept).cloned().collect();
    rule
}

/// Puts a set in the place of each union.
fn name_unions(rule: &mut Rule, chain: &str, family: Family, unions: &mut Vec<(IpSetName, Arc<AddressUnion>)>) {
    if !rule.matches.iter().any(|question| matches!(question, Match::AnyOf { .. })) {
        return;
    }
    let prefix = match family {
        Family::V4 => "cali4u-",
        Family::V6 => "cali6u-",
    };
    let mut named = |question: &Match| match question {
        Match::AnyOf { side, these, negated } => {
            let known = unions.iter().find(|(_, others)| others == these).map(|(name, _)| *name);
            let set = known.or_else(|| {
                let id = limited_id(prefix, &format!("{chain}/{}", unions.len()), IpSetName::MAX_LEN);
                let name = IpSetName::new(&id).ok()?;
                unions.push((name, Arc::clone(these)));
                Some(name)
            });
            match set {
                Some(set) => Match::IpSet { side: *side, set, with_port: false, negated: *negated },
                None => question.clone(),
            }
        }
        other => other.clone(),
    };
    rule.matches = rule.matches.iter().map(&mut named).collect();
}

#[cfg(test)]
mod tests;
