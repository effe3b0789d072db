//! A layout of rules in which a packet meets few of them, with the same verdicts.
//!
//! Only rules of policies and profiles are changed, which have an [origin](Rule::origin); all
//! others stay as they are.
//!
//! - **One rule for several.** Consecutive rules with the same action and matches that differ only
//!   in ports, or only in networks and sets of one side, become one rule. Only rules that decide
//!   are merged, so it makes no difference which of them does. A rule with its own NFLOG prefix has
//!   another action than the next one, and stays separate.
//! - **Dispatch by port.** Where consecutive rules all match single destination ports, a verdict
//!   map leads to the rules for the packet's port, in their order and with all their actions: no
//!   other could have matched.
//! - **Dispatch by address.** Where the remaining consecutive rules decide and all match an address
//!   of one side, a verdict map leads from each single address in their sets to the rules that have
//!   it ([`Hosts`]).
//!
//! So a group's whole policy takes at most two lookups, and then the rules that may decide, each
//! with its counter and its NFLOG prefix. One lookup of address, protocol and port together would
//! be worse. The kernel's map for ranges has lookups that grow with the map: 5.9 µs a packet with
//! 100,000 elements, against 1.4 µs by hash (`benches/README.md`). A map by hash of single values
//! needs an element for each address and port, which multiplies the changes by a member. Maps of
//! networks are not used either: kernels rebuild the whole map for each changed element, and apply
//! it a moment later than other changes.
//!
//! A packet that reaches a rule which sets a mark and returns must have that mark clear, as it has
//! where policies are evaluated.
//!
//! The names of maps and sets follow from the rules around them (`naming.rs`), so that packets meet
//! neither old rules with new elements, nor new rules with old ones.

mod cost;
mod hosts;
mod merging;
mod naming;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_net::{Cidr, Family, IpSetName, PortProtocol};
use tortie_netfilter::{
    Action, AddressUnion, Chain, ChainName, ChainPrefix, DispatchBy, MapKey, MapVerdict, MarkBits, Match, Matches,
    Rule, Side, Table,
};

use cost::Meter;
pub use cost::OverBudget;
pub(crate) use cost::{MEMBER, RULE};
pub use hosts::{HostChanges, Hosts};
use merging::{addresses, may_merge, merge_addresses, merge_ports};
use naming::{map_name, skeleton};

/// Minimum number of rules for a map: a packet meets two rules in their place, and one behind the
/// map.
const MIN_DISPATCH: usize = 4;
/// Minimum number of rules for a map of addresses, which costs memory, and work for each member.
const MIN_BY_ADDRESS: usize = 8;
/// Maximum number of ports of a rule that is dispatched by port.
const MAX_PORTS: usize = 16;
const PART: ChainPrefix = ChainPrefix::new("cali-pd-");

/// Existing sets of addresses.
pub trait Sets {
    /// Reports whether a set exists. A rule that matches a missing set must be refused, so it stays
    /// separate.
    fn has(&self, set: IpSetName) -> bool;
    /// Passes each member of a set to `take`.
    fn members(&self, set: IpSetName, take: &mut dyn FnMut(Cidr));
}

/// A chain as it is to be programmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "all that there is to say")]
pub struct LaidOut {
    /// Its rules.
    pub rules: Vec<Rule>,
    /// Chains that only these rules and maps refer to.
    pub parts: Vec<Chain>,
    /// Maps that only these rules use.
    pub maps: Vec<(ChainName, BTreeMap<MapKey, MapVerdict>)>,
    /// Sets that only these rules use, and the union of addresses that each has.
    pub unions: Vec<(IpSetName, Arc<AddressUnion>)>,
    /// Rules and members behind maps of addresses, whether or not the maps are used.
    pub hosts: Vec<Hosts>,
    /// Estimated memory of the layout besides the rules of the chain, in bytes.
    pub bytes: usize,
}

/// Replaces [includes](Action::Include) by the rules of these chains. Openings are renumbered.
#[must_use]
#[expect(clippy::expect_used, reason = "2^32 rules do not fit into memory")]
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
                let next = u32::try_from(openings.len()).expect("2^32 rules do not fit into memory");
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

/// Replaces [includes](Action::Include) by jumps to these chains: the same verdicts without a copy
/// of their rules.
#[must_use]
pub fn jumps(chain: &Chain, rules_of: impl Fn(ChainName) -> Vec<Rule>) -> Chain {
    let mut rules = Vec::new();
    for rule in &chain.rules {
        let Some(Action::Include(other)) = rule.action else {
            rules.push(rule.clone());
            continue;
        };
        rules.push(Rule { action: Some(Action::Jump(other)), ..rule.clone() });
        rules.extend(return_on_verdict(&rules_of(other)));
    }
    Chain { name: chain.name, full_name: chain.full_name.clone(), rules }
}

/// Adds the origin of a rule to its comment, since the chain's name does not have it.
fn name_origin(rule: &mut Rule) {
    if let Some(origin) = rule.origin.as_ref().filter(|_| rule.comments.is_empty()) {
        rule.add_comment(match origin.part {
            Some(part) => format!("{} {part}", origin.owner),
            None => origin.owner.to_string(),
        });
    }
}

/// Lays out a chain. Only existing sets are merged into unions or split by member.
///
/// # Errors
/// [`OverBudget`] if the layout takes more than `room` bytes besides the rules of the chain. It is
/// then not completed.
pub fn lay_out(
    chain: &Chain,
    layer: Table,
    family: Family,
    sets: &impl Sets,
    room: usize,
) -> Result<LaidOut, OverBudget> {
    let id = format!("{}/{}", layer.as_str(), chain.name);
    let mut layout = Layout { id, family, sets, meter: Meter::new(room), out: LaidOut::default() };
    let merged = merge_addresses(merge_ports(chain.rules.clone()), sets);
    let (mut body, mut plain) = (Body::default(), Vec::new());
    let mut rest = &merged[..];
    while !rest.is_empty() {
        let run = rest.iter().take_while(|rule| ports_of(rule).is_some()).count();
        let (these, behind) = rest.split_at(run.max(1));
        let keys: BTreeSet<_> = these.iter().filter_map(ports_of).flatten().collect();
        if run < MIN_DISPATCH || keys.len() < 2 {
            plain.extend_from_slice(these);
        } else {
            layout.by_address(&std::mem::take(&mut plain), false, &mut body)?;
            layout.by_port(these, behind.is_empty(), &mut body)?;
        }
        rest = behind;
    }
    layout.by_address(&plain, true, &mut body)?;
    let id = layout.id.clone();
    layout.out.rules = layout.finish(&id, body);
    let mut known = BTreeSet::new();
    layout.out.unions.retain(|(name, _)| known.insert(*name));
    for (_, of) in &layout.out.unions {
        layout.meter.union(of, sets)?;
    }
    layout.out.bytes = layout.meter.spent;
    Ok(layout.out)
}

/// Rules of one chain whose maps have no names yet.
#[derive(Default)]
struct Body {
    rules: Vec<Rule>,
    maps: Vec<MapTargets>,
}

/// Targets of a map.
enum MapTargets {
    Ports(BTreeMap<MapKey, MapVerdict>),
    Hosts(Hosts),
}

/// Returns a layout that keeps the rules as they are.
#[must_use]
pub fn in_order(chain: &Chain, layer: Table, family: Family, sets: &impl Sets) -> LaidOut {
    let id = format!("{}/{}", layer.as_str(), chain.name);
    let mut layout = Layout { id: id.clone(), family, sets, meter: Meter::new(0), out: LaidOut::default() };
    layout.out.rules = layout.finish(&id, Body { rules: chain.rules.clone(), maps: Vec::new() });
    layout.out
}

struct Layout<'a, S> {
    id: String,
    family: Family,
    sets: &'a S,
    meter: Meter,
    out: LaidOut,
}

impl<S: Sets> Layout<'_, S> {
    /// Dispatches to rules by port, in their order.
    #[expect(clippy::expect_used, reason = "runs consist of rules with ports")]
    fn by_port(&mut self, run: &[Rule], is_last: bool, body: &mut Body) -> Result<(), OverBudget> {
        let mut by_port: BTreeMap<(PortProtocol, u16), Vec<Rule>> = BTreeMap::new();
        for rule in run {
            for port in ports_of(rule).expect("the rules of the run ask for ports") {
                self.meter.spend(1, RULE)?;
                by_port.entry(port).or_default().push(rule.clone());
            }
        }
        let mut map = BTreeMap::new();
        for ((protocol, port), rules) in by_port {
            let mut rules: Vec<Rule> = rules.into_iter().map(without_port).collect();
            rules.iter_mut().for_each(name_origin);
            let mut part = Body::default();
            self.by_address(&merge_addresses(rules, self.sets), true, &mut part)?;
            let id = format!("{}/{}/{protocol}/{port}", self.id, body.maps.len());
            let mut rules = self.finish(&id, part);
            if let Some(first) = rules.first_mut() {
                first.add_comment(format!("of {protocol} {port}"));
            }
            let name = ChainName::limited(PART, &id);
            let verdict = if is_last { MapVerdict::Goto(name) } else { MapVerdict::Jump(name) };
            map.insert(MapKey::Port(protocol, port), verdict);
            self.out.parts.push(Chain::new(name, rules));
        }
        body.dispatch(DispatchBy::DestinationPort, "By protocol and port", MapTargets::Ports(map));
        body.return_on_verdict(run, is_last);
        Ok(())
    }

    /// Appends rules to the body, with dispatch by address where there are enough rules.
    #[expect(clippy::expect_used, reason = "hosts are made of these rules")]
    fn by_address(&mut self, rules: &[Rule], is_last: bool, body: &mut Body) -> Result<(), OverBudget> {
        let mut rest = rules;
        while !rest.is_empty() {
            let [source, destination] = [Side::Source, Side::Destination]
                .map(|side| rest.iter().map_while(|rule| address_match(rule, side, self.sets)).collect::<Vec<_>>());
            let (run, side) = if source.len() > destination.len() {
                (source, Side::Source)
            } else {
                (destination, Side::Destination)
            };
            let (these, behind) = rest.split_at(run.len().max(1));
            rest = behind;
            if run.len() < MIN_BY_ADDRESS {
                body.rules.extend_from_slice(these);
                continue;
            }
            let is_end = is_last && rest.is_empty();
            self.meter.spend(these.len(), RULE)?;
            let (places, wanted): (Vec<usize>, Vec<AddressUnion>) = run.into_iter().unzip();
            let mut led_to: Vec<Rule> =
                these.iter().zip(places).map(|(rule, at)| hosts::without_question(rule, at)).collect();
            led_to.iter_mut().for_each(name_origin);
            let unions = self.out.unions.len();
            for rule in &mut led_to {
                // The rules of a dispatched chain never change, so their unions are named by their
                // content.
                naming::name_unions(rule, self.family, &mut self.out.unions, |these| format!("{}/{these:?}", self.id));
            }
            let (hosts, spent) = Hosts::new(led_to, &wanted, is_end, self.sets, self.meter.left());
            self.meter.spend(1, spent)?;
            if !hosts.is_used() {
                self.out.unions.truncate(unions);
                body.rules.extend_from_slice(these);
                self.out.hosts.push(hosts);
                continue;
            }
            let of_these = |at: usize| these.get(at).expect("hosts know the places of these rules").clone();
            let behind_map: Vec<Rule> = hosts.with_networks().map(of_these).collect();
            body.dispatch(DispatchBy::Address(side), "By address", MapTargets::Hosts(hosts));
            body.return_on_verdict(these, is_end);
            body.rules.extend(behind_map);
        }
        Ok(())
    }

    /// Names the maps and sets of a chain.
    fn finish(&mut self, id: &str, mut body: Body) -> Vec<Rule> {
        let around = format!("{id}/{}", skeleton(&body.rules));
        let mut maps = body.maps.into_iter().enumerate();
        let asks = body.rules.iter_mut().filter_map(|rule| match &mut rule.action {
            Some(Action::Dispatch { map, .. }) => Some(map),
            _ => None,
        });
        for (place, (number, targets)) in asks.zip(&mut maps) {
            let name = map_name(&format!("{around}/{number}"));
            *place = name;
            match targets {
                MapTargets::Ports(members) => self.out.maps.push((name, members)),
                MapTargets::Hosts(mut hosts) => {
                    hosts.name(name);
                    self.out.maps.push((name, hosts.members()));
                    self.out.parts.extend(hosts.chains());
                    self.out.hosts.push(hosts);
                }
            }
        }
        let mut number = 0;
        for rule in &mut body.rules {
            naming::name_unions(rule, self.family, &mut self.out.unions, |_| {
                number += 1;
                format!("{around}/{number}")
            });
        }
        body.rules
    }
}

impl Body {
    fn dispatch(&mut self, by: DispatchBy, comment: &'static str, targets: MapTargets) {
        let ask = Action::Dispatch { by, map: naming::UNNAMED };
        self.rules.push(Rule { origin: None, ..Rule::new(ask).comment(comment) });
        self.maps.push(targets);
    }

    /// A packet that returns with a verdict must not meet the rules behind.
    fn return_on_verdict(&mut self, run: &[Rule], is_last: bool) {
        if !is_last {
            self.rules.extend(return_on_verdict(run));
        }
    }
}

/// Returns a rule that returns packets to which one of these rules has given a verdict.
fn return_on_verdict(rules: &[Rule]) -> Option<Rule> {
    let bits = rules.iter().filter_map(|rule| returns_with(rule.action.as_ref()?)).map(MarkBits::get);
    let decided = Matches::new().mark_not_clear(MarkBits::new(bits.fold(0, |a, b| a | b))?);
    Some(Rule::when(decided, Action::Return).comment("Return on verdict"))
}

/// Returns the protocol and the destination ports that a rule matches, if it can be dispatched by
/// these.
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
    let (protocol, is_some) = (protocol?, !ports.is_empty() && ports.len() <= MAX_PORTS);
    (comes_back_with_a_mark(rule)? && is_some).then(|| ports.into_iter().map(|port| (protocol, port)).collect())
}

/// Returns the place of the match on an address, and its addresses, if a rule can be dispatched by
/// it.
fn address_match(rule: &Rule, side: Side, sets: &impl Sets) -> Option<(usize, AddressUnion)> {
    if !may_merge(rule) || !comes_back_with_a_mark(rule)? {
        return None;
    }
    let asked = |(at, question)| Some((at, addresses(question, side, sets)?));
    rule.matches.iter().enumerate().find_map(asked)
}

/// Reports whether a rule, if it returns, does so with a mark, so that the calling chain can detect
/// it.
fn comes_back_with_a_mark(rule: &Rule) -> Option<bool> {
    Some(match rule.action.as_ref()? {
        Action::Jump(_) | Action::Goto(_) | Action::Dispatch { .. } | Action::Include(_) => false,
        action => !matches!(action.last(), Action::Return) || returns_with(action).is_some(),
    })
}

/// The bits that the packet has when the rule returns; `None` if it does not return, or without a
/// mark.
fn returns_with(action: &Action) -> Option<MarkBits> {
    let Action::Several(actions) = action else { return None };
    let set = actions.iter().find_map(|action| match action {
        Action::SetMark(bits) => Some(*bits),
        _ => None,
    });
    set.filter(|_| *action.last() == Action::Return)
}

/// Returns a rule without its matches on protocol and port, which the dispatch has checked. The
/// protocol stays where other matches need it.
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

#[cfg(test)]
mod tests;
