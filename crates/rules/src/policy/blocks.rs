//! Conditions as rules.
//!
//! One iptables rule holds one network for each end, 15 ports in a match, and only conjunctions.
//! Any other condition becomes a *match block*: rules before the main rule that compute one
//! condition and leave the result in a mark bit.
//!
//! - Scratch 0 means "all blocks so far pass"; the main rule matches it.
//! - A block of alternatives sets a bit if one of them matches. The first such block sets scratch 0
//!   itself. Each later one sets scratch 1, after which scratch 0 is cleared unless scratch 1 is
//!   set.
//! - A block of exclusions clears scratch 0 if one of them matches.
//!
//! Felix clears scratch 1 once, before the first block. From the third block of alternatives on,
//! the result of the second would count for the others too; here, scratch 1 is cleared before each.
//!
//! In the fast layout, a rule matches any number of networks and ports, and blocks are needed only
//! for numeric and named ports together.

use std::collections::BTreeSet;

use tortie_model::{Cidr, Family};
use tortie_netfilter::{Action, AddressUnion, MaskedMark, Match, Matches, PortList, Rule, Side};

use super::conditions::{Conditions, EndConditions};
use crate::marks::Marks;

/// Appends the match blocks that the conditions need, and returns the matches of the main rule.
pub(super) fn render(
    conditions: Conditions,
    marks: &Marks,
    family: Family,
    is_fast: bool,
    rules: &mut Vec<Rule>,
) -> Matches {
    let Conditions { protocol, not_protocol, mut source, mut destination, icmp, not_icmp } = conditions;
    let mut blocks = Blocks { marks, rules, is_fast, positive: 0, started: false };

    let with_protocol = || Matches::new().and_maybe(protocol, Matches::protocol);
    let source_ports = blocks.ports(&mut source, Side::Source, with_protocol);
    let destination_ports = blocks.ports(&mut destination, Side::Destination, with_protocol);
    let source_net = blocks.nets(&mut source, Side::Source);
    let destination_net = blocks.nets(&mut destination, Side::Destination);
    let not_source_net = blocks.not_nets(&mut source, source_net.as_ref(), Side::Source);
    let not_destination_net = blocks.not_nets(&mut destination, destination_net.as_ref(), Side::Destination);

    with_protocol()
        .and_all(positive(&source, Side::Source, source_net, source_ports))
        .and_all(positive(&destination, Side::Destination, destination_net, destination_ports))
        .and_maybe(icmp, |all, icmp| all.icmp(family, icmp))
        .and_maybe(not_protocol, Matches::not_protocol)
        .and_all(negative(&source, Side::Source, not_source_net))
        .and_all(negative(&destination, Side::Destination, not_destination_net))
        .and_maybe(not_icmp, |all, icmp| all.not_icmp(family, icmp))
        .and_maybe(blocks.started.then_some(marks.scratch0), Matches::mark_set)
}

/// Returns the positive matches of the main rule for one end.
fn positive(end: &EndConditions, side: Side, net: Option<Match>, ports: Option<PortList>) -> Matches {
    let mut all = Matches::new().and_maybe(net, Matches::and);
    for set in &end.sets {
        all = all.ip_set(side, *set);
    }
    for set in &end.ip_port_sets {
        all = all.ip_port_set(side, *set);
    }
    all = all.and_maybe(ports, |all, ports| all.ports(side, ports));
    for set in &end.named_ports {
        all = all.ip_port_set(side, *set);
    }
    all
}

/// Returns the negated matches of the main rule for one end.
fn negative(end: &EndConditions, side: Side, net: Option<Match>) -> Matches {
    let mut all = Matches::new().and_maybe(net, Matches::and);
    for set in &end.not_sets {
        all = all.not_ip_set(side, *set);
    }
    for ports in PortList::split(&end.not_ports) {
        all = all.not_ports(side, ports);
    }
    for set in &end.not_named_ports {
        all = all.not_ip_port_set(side, *set);
    }
    all
}

fn any_of(nets: Vec<Cidr>, side: Side, negated: bool) -> Match {
    let nets = nets.into_iter().map(Cidr::masked).collect();
    Match::AnyOf { side, these: AddressUnion { nets, sets: BTreeSet::new() }.into(), negated }
}

struct Blocks<'a> {
    marks: &'a Marks,
    rules: &'a mut Vec<Rule>,
    /// Whether a rule can match any number of networks and ports.
    is_fast: bool,
    /// Number of blocks of alternatives.
    positive: usize,
    started: bool,
}

impl Blocks<'_> {
    /// Appends the block for alternatives of numeric and named ports. Returns the numeric ports if
    /// the main rule can match the condition itself.
    fn ports(&mut self, end: &mut EndConditions, side: Side, with_protocol: impl Fn() -> Matches) -> Option<PortList> {
        if self.is_fast && end.named_ports.is_empty() {
            return PortList::unsplit(&end.ports);
        }
        let mut lists = PortList::split(&end.ports);
        if lists.len() + end.named_ports.len() <= 1 {
            return lists.pop();
        }
        let numeric = lists.into_iter().map(|ports| with_protocol().ports(side, ports));
        // A set of named ports includes the protocol.
        let named = std::mem::take(&mut end.named_ports);
        let named = named.into_iter().map(|set| Matches::new().ip_port_set(side, set));
        self.alternatives(numeric.chain(named));
        None
    }

    /// Appends the block for alternatives of networks. Returns the match if the main rule can match
    /// the condition itself.
    fn nets(&mut self, end: &mut EndConditions, side: Side) -> Option<Match> {
        let nets = std::mem::take(&mut end.nets);
        match nets.as_slice() {
            [] => None,
            [net] => Some(Match::Net { side, net: (*net).into(), negated: false }),
            _ if self.is_fast => Some(any_of(nets, side, false)),
            _ => {
                self.alternatives(nets.into_iter().map(|net| Matches::new().net(side, net)));
                None
            }
        }
    }

    /// Appends the block for excluded networks. Returns the match if the main rule can match the
    /// condition itself: it has one place, which `net` may take.
    fn not_nets(&mut self, end: &mut EndConditions, net: Option<&Match>, side: Side) -> Option<Match> {
        let nets = std::mem::take(&mut end.not_nets);
        match (nets.as_slice(), net) {
            ([], _) => None,
            ([net], None) => Some(Match::Net { side, net: (*net).into(), negated: true }),
            _ if self.is_fast => Some(any_of(nets, side, true)),
            _ => {
                self.start(self.marks.scratch0.get());
                self.rules.extend(
                    nets.into_iter()
                        .map(|net| Rule::when(Matches::new().net(side, net), Action::ClearMark(self.marks.scratch0))),
                );
                None
            }
        }
    }

    fn alternatives(&mut self, alternatives: impl Iterator<Item = Matches>) {
        let (all_pass, this_passes) = (self.marks.scratch0, self.marks.scratch1);
        self.start(0);
        if self.positive >= 2 {
            self.rules.push(Rule::new(Action::ClearMark(this_passes)));
        }
        let result = if self.positive == 0 { all_pass } else { this_passes };
        self.rules.extend(alternatives.map(|matches| Rule::when(matches, Action::SetMark(result))));
        if self.positive > 0 {
            self.rules.push(Rule::when(Matches::new().mark_clear(this_passes), Action::ClearMark(all_pass)));
        }
        self.positive += 1;
    }

    /// Initializes both scratch bits, before the first block.
    fn start(&mut self, value: u32) {
        if !self.started {
            self.started = true;
            let scratch = MaskedMark::new(value, self.marks.scratch());
            self.rules.push(Rule::new(Action::SetMaskedMark(scratch)));
        }
    }
}
