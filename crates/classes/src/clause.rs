//! Rules as clauses: conditions on the classes of a packet.
//!
//! A rule is one clause. If it asks for ports by name, it is several alternatives: a named port is
//! an atom of the address together with a point on the line of ports. So there is an alternative
//! for each port in its sets.

use std::sync::Arc;

use smallvec::SmallVec;
use tortie_evaluate::Missing;
use tortie_model::desired::{PortProtocol, RuleSets, RuleView};
use tortie_model::{Cidr, EntityMatch, Family, IpSetId, NamedProtocol, Protocol, Rule, RuleAction};

use crate::addresses::Addresses;
use crate::ids::AtomId;
use crate::line::{Intervals, L4_END, PORTS_END};
use crate::sets::{NetList, NetLists, Set, Sets};

/// Condition on an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressCondition {
    /// Ascending.
    pub(crate) all: SmallVec<[AtomId; 2]>,
    /// Ascending.
    pub(crate) none: SmallVec<[AtomId; 2]>,
}

/// Condition on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clause {
    pub(crate) families: [bool; 2],
    pub(crate) source: AddressCondition,
    pub(crate) destination: AddressCondition,
    pub(crate) l4: Intervals,
    pub(crate) source_port: Intervals,
    /// Whether only learned addresses can satisfy it.
    pub(crate) is_learned: bool,
}

/// Action of a rule on matching packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Allow,
    Deny,
    Pass,
    /// Only logging. Such rules are left out unless unused rules are searched for.
    Log,
}

/// A rule with its clauses, which are alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompiledRule {
    /// Its place in the list of its direction.
    pub(crate) index: usize,
    pub(crate) action: Action,
    pub(crate) clauses: Arc<[Clause]>,
}

impl CompiledRule {
    /// Returns the rule at another place.
    pub(crate) fn at(&self, index: usize) -> Self {
        Self { index, ..self.clone() }
    }

    /// Returns the part of [`Compiler::room`] that the rule takes.
    pub(crate) fn weight(&self) -> usize {
        self.clauses.iter().map(Clause::weight).sum()
    }
}

impl Clause {
    fn weight(&self) -> usize {
        1 + (self.l4.len() + self.source_port.len()) / INTERVALS_A_CLAUSE
    }
}

/// Compiles rules, and notes the lists of networks that they use.
pub(crate) struct Compiler<'a> {
    pub(crate) sets: &'a Sets,
    pub(crate) lists: &'a mut NetLists,
    pub(crate) addresses: &'a mut Addresses,
    /// Lists of networks that the last rule uses.
    pub(crate) used: SmallVec<[NetList; 1]>,
    /// Whether to compile rules that only log.
    pub(crate) logs: bool,
    /// Whether rules match learned addresses.
    pub(crate) learns: bool,
    /// Clauses that the rules of a policy and direction may still become.
    pub(crate) room: usize,
    /// The error if they become more.
    pub(crate) over: Missing,
    /// Maximum number of alternatives of a rule so far, before those that cannot match are left
    /// out.
    pub(crate) widest: usize,
}

/// Conditions of a rule that do not depend on a side. A rule that cannot match has no draft.
struct Draft {
    families: [bool; 2],
    protocol: Option<Protocol>,
    l4: Intervals,
    /// Whether the rule has a condition that cannot be enforced. It is left out of the clauses.
    is_odd: bool,
}

/// One side of a rule.
struct Side<'a> {
    rule: &'a EntityMatch,
    sets: &'a [IpSetId],
    not_sets: &'a [IpSetId],
    named_ports: &'a [IpSetId],
    not_named_ports: &'a [IpSetId],
    services: &'a [IpSetId],
}

/// One of the conditions on the address of a destination.
struct DestinationAlternative {
    address: AddressCondition,
    is_learned: bool,
}

/// One combined condition on the port and the address of a side.
struct PortAlternative {
    protocols: Intervals,
    /// On the line of source ports, whichever side it is.
    ports: Intervals,
    /// The only protocol, if there are conditions on ports.
    protocol: Option<u8>,
    address: AddressCondition,
}

type Compiled<T> = Result<T, Missing>;

/// Number of intervals that take as much memory as a clause.
const INTERVALS_A_CLAUSE: usize = 32;

impl<'a> Compiler<'a> {
    /// Compiles a rule; `None` if it does not affect verdicts.
    pub(crate) fn rule(&mut self, index: usize, view: RuleView<'_>) -> Compiled<Option<CompiledRule>> {
        if view.action() == RuleAction::Log && !self.logs {
            return Ok(None);
        }
        let Some(mut draft) = draft(view) else { return Ok(None) };
        draft.is_odd |= view.is_by_domains_only() && !self.learns_by(view);
        let (source, destination) = sides(view.rule, view.sets);
        let Some(source_address) = self.address(&source, &mut draft)? else { return Ok(None) };
        let destination_addresses = self.destinations(&destination, view, &mut draft)?;
        let source_ports = self.ports(&source, &mut draft)?;
        let destination_ports = self.ports(&destination, &mut draft)?;
        let action = match view.action() {
            // Without that condition, the rule would allow or log too many packets.
            RuleAction::Allow | RuleAction::Unspecified | RuleAction::Log if draft.is_odd => return Ok(None),
            RuleAction::Log => Action::Log,
            RuleAction::Allow | RuleAction::Unspecified => Action::Allow,
            // A pass that covers more than the rule does could let packets skip the denials of its
            // tier.
            RuleAction::NextTier if draft.is_odd => Action::Deny,
            RuleAction::NextTier => Action::Pass,
            RuleAction::Deny => Action::Deny,
        };
        let alternatives = source_ports.len().saturating_mul(destination_ports.len());
        self.bound(alternatives.saturating_mul(destination_addresses.len()))?;
        let mut clauses = Vec::new();
        for destination in &destination_addresses {
            self.clauses((&draft, &source_address, destination), (&source_ports, &destination_ports), &mut clauses)?;
        }
        Ok((!clauses.is_empty()).then(|| CompiledRule { index, action, clauses: clauses.into() }))
    }

    /// Adds a clause for each pair of ports.
    fn clauses(
        &mut self,
        (draft, source, destination): (&Draft, &AddressCondition, &DestinationAlternative),
        (source_ports, destination_ports): (&[PortAlternative], &[PortAlternative]),
        clauses: &mut Vec<Clause>,
    ) -> Compiled<()> {
        for from in source_ports {
            for to in destination_ports {
                let mut l4 = draft.l4.and(&from.protocols).and(&to.protocols);
                if let Some(protocol) = to.protocol {
                    l4 = l4.and(&to.ports.as_destination(protocol));
                }
                if l4.is_empty() || from.ports.is_empty() || !draft.families.contains(&true) {
                    continue;
                }
                let clause = Clause {
                    families: draft.families,
                    source: source.and(&from.address),
                    destination: destination.address.and(&to.address),
                    l4,
                    source_port: from.ports.clone(),
                    is_learned: destination.is_learned,
                };
                self.room = self.room.checked_sub(clause.weight()).ok_or_else(|| self.over.clone())?;
                clauses.push(clause);
            }
        }
        Ok(())
    }

    /// Refuses more alternatives of a rule than there is room for.
    fn bound(&mut self, alternatives: usize) -> Compiled<()> {
        self.widest = self.widest.max(alternatives);
        if alternatives > self.room { Err(self.over.clone()) } else { Ok(()) }
    }

    /// Reports whether the sets of domains of a rule can match.
    fn learns_by(&self, view: RuleView<'_>) -> bool {
        self.learns && matches!(view.action(), RuleAction::Allow | RuleAction::Unspecified)
    }

    /// Returns the conditions on the address of the destination, which are alternatives: each set
    /// of domains stands for itself, beside the other sets.
    fn destinations(
        &mut self,
        side: &Side<'_>,
        view: RuleView<'_>,
        draft: &mut Draft,
    ) -> Compiled<Vec<DestinationAlternative>> {
        let plain = |address| DestinationAlternative { address, is_learned: false };
        let domains = &view.sets.dst_domains;
        if domains.is_empty() || !self.learns_by(view) {
            return Ok(self.address(side, draft)?.map(plain).into_iter().collect());
        }
        let mut alternatives = Vec::new();
        if !side.sets.is_empty() {
            alternatives.extend(self.address(side, draft)?.map(plain));
        }
        let Some(others) = self.address(&Side { sets: &[], ..*side }, draft)? else { return Ok(alternatives) };
        for id in domains {
            if let Some(Set::Nets(atom)) = self.set(id, draft)? {
                let mut address = others.clone();
                address.all.push(*atom);
                address.tidy();
                alternatives.push(DestinationAlternative { address, is_learned: true });
            }
        }
        Ok(alternatives)
    }

    /// Returns the condition on the address of a side, whatever its port; `None` if no address can
    /// match.
    fn address(&mut self, side: &Side<'_>, draft: &mut Draft) -> Compiled<Option<AddressCondition>> {
        let mut condition = AddressCondition::default();
        let not_nets = &side.rule.extras.not_nets;
        for (nets, atoms) in [(&side.rule.nets, &mut condition.all), (not_nets, &mut condition.none)] {
            if nets.is_empty() {
                continue;
            }
            // A list of networks of one family makes the rule one for that family, negated or not.
            for (allowed, family) in draft.families.iter_mut().zip(Family::ALL) {
                *allowed &= nets.iter().any(|net| net.family() == family);
            }
            atoms.push(self.list(nets));
        }
        for id in side.sets {
            match self.set(id, draft)? {
                Some(Set::Nets(atom)) => condition.all.push(*atom),
                Some(Set::Ports(_)) => return Ok(None),
                None => {}
            }
        }
        for id in side.not_sets {
            if let Some(Set::Nets(atom)) = self.set(id, draft)? {
                condition.none.push(*atom);
            }
        }
        condition.tidy();
        Ok(Some(condition))
    }

    fn list(&mut self, nets: &[Cidr]) -> AtomId {
        let list = self.lists.acquire(nets, self.addresses);
        let atom = list.atom;
        self.used.push(list);
        atom
    }

    /// `None` for a set that cannot exist, since its id is no name.
    fn set(&self, id: &IpSetId, draft: &mut Draft) -> Compiled<Option<&'a Set>> {
        let sets: &'a Sets = self.sets;
        match sets.get(id) {
            Some(set) => Ok(Some(set)),
            None if is_name(id) => Err(Missing::IpSet(id.clone())),
            None => {
                draft.is_odd = true;
                Ok(None)
            }
        }
    }

    fn ports(&mut self, side: &Side<'_>, draft: &mut Draft) -> Compiled<Vec<PortAlternative>> {
        let mut conditions = PortConditions::new(side.rule, draft);
        conditions.by_name = !side.named_ports.is_empty();
        for id in side.named_ports {
            match self.set(id, draft)? {
                Some(Set::Ports(ports)) => conditions.named.push(ports),
                Some(Set::Nets(_)) => {}
                None => conditions.is_enforced = false,
            }
        }
        // The ports are alternatives: if one cannot be enforced, all are dropped.
        if !conditions.is_enforced {
            conditions.numeric = None;
            conditions.named.clear();
            conditions.by_name = false;
        }
        for id in side.services {
            match self.set(id, draft)? {
                Some(Set::Ports(ports)) => conditions.services.push(ports),
                Some(Set::Nets(_)) => conditions.is_impossible = true,
                None => {}
            }
        }
        for id in side.not_named_ports {
            if let Some(Set::Ports(ports)) = self.set(id, draft)? {
                conditions.not_named.push(ports);
            }
        }
        self.bound(conditions.most_alternatives())?;
        Ok(conditions.alternatives(draft.protocol))
    }
}

type SetPorts = ahash::AHashMap<(PortProtocol, u16), AtomId>;

/// Conditions of a side on ports.
#[derive(Default)]
struct PortConditions<'a> {
    /// One of these; any port if `None` and without named ports.
    numeric: Option<Intervals>,
    /// None of these, and a port.
    not_numeric: Option<Intervals>,
    is_enforced: bool,
    by_name: bool,
    named: Vec<&'a SetPorts>,
    not_named: Vec<&'a SetPorts>,
    services: Vec<&'a SetPorts>,
    is_impossible: bool,
}

impl<'a> PortConditions<'a> {
    fn new(rule: &EntityMatch, draft: &mut Draft) -> Self {
        let numeric = enforced(rule.numeric_ports(), draft).map(Intervals::ports);
        let is_enforced = numeric.is_some();
        let numeric = numeric.filter(|ports| !ports.is_empty());
        let not_numeric = enforced(rule.not_numeric_ports(), draft).map(Intervals::ports);
        let not_numeric = not_numeric.filter(|ports| !ports.is_empty());
        Self { numeric, not_numeric, is_enforced, ..Self::default() }
    }

    /// Returns a bound on the atoms in all alternatives.
    fn most_alternatives(&self) -> usize {
        let sets = || self.named.iter().chain(&self.not_named).chain(&self.services);
        let ports: usize = sets().map(|ports| ports.len()).sum();
        let others = 1 + self.not_named.len() + self.services.len();
        ports.saturating_mul(self.named.len().max(1)).saturating_mul(others)
    }

    fn alternatives(&self, wanted: Option<Protocol>) -> Vec<PortAlternative> {
        if self.is_impossible {
            return Vec::new();
        }
        let mut alternatives = Vec::new();
        let named_sets = || self.named.iter().chain(&self.not_named).chain(&self.services);
        if let Some(wanted) = wanted {
            self.of_protocol(wanted.number(), &mut alternatives);
            return alternatives;
        }
        // Ports by number are not enforced without a protocol.
        let mut others = Intervals::between(0, L4_END);
        for protocol in PortProtocol::ALL {
            let number = NamedProtocol::from(protocol).number();
            if named_sets().any(|ports| ports.keys().any(|(of, _)| *of == protocol)) {
                others = others.and(&Intervals::protocol(number).not(L4_END));
                self.of_protocol(number, &mut alternatives);
            }
        }
        if self.services.is_empty() && !self.by_name {
            alternatives.push(PortAlternative {
                protocols: others,
                ports: Intervals::between(0, PORTS_END),
                protocol: None,
                address: AddressCondition::default(),
            });
        }
        alternatives
    }

    fn of_protocol(&self, protocol: u8, alternatives: &mut Vec<PortAlternative>) {
        let all = || Intervals::between(0, PORTS_END);
        let listed = match (&self.numeric, self.by_name) {
            (Some(ports), _) => ports.clone(),
            (None, true) => Intervals::none(),
            (None, false) => all(),
        };
        let not_excluded = match &self.not_numeric {
            Some(ports) => ports.not(PORTS_END).and(&Intervals::between(1, PORTS_END)),
            None => all(),
        };
        let plain = if self.services.is_empty() { listed.and(&not_excluded) } else { Intervals::none() };
        let mut push = |ports: Intervals, mut address: AddressCondition| {
            address.tidy();
            let protocols = Intervals::protocol(protocol);
            alternatives.push(PortAlternative { protocols, ports, protocol: Some(protocol), address });
        };
        let mut named: Vec<(u32, u32)> = Vec::new();
        for key @ (_, port) in self.named_keys(protocol) {
            let point = Intervals::point(1 + u32::from(port));
            if !not_excluded.contains(1 + u32::from(port)) {
                continue;
            }
            let find = |ports: &&SetPorts| ports.get(&key).copied();
            let services: Option<SmallVec<[AtomId; 2]>> = self.services.iter().map(find).collect();
            let Some(services) = services else { continue };
            let none: SmallVec<[AtomId; 2]> = self.not_named.iter().filter_map(find).collect();
            if listed.contains(1 + u32::from(port)) {
                if services.is_empty() && none.is_empty() {
                    continue;
                }
                named.push((1 + u32::from(port), 2 + u32::from(port)));
                push(point, AddressCondition { all: services, none });
                continue;
            }
            for atom in self.named.iter().filter_map(find) {
                let mut all = services.clone();
                all.push(atom);
                push(point.clone(), AddressCondition { all, none: none.clone() });
            }
        }
        let plain = plain.and(&Intervals::ascending(named.into_iter()).not(PORTS_END));
        if !plain.is_empty() {
            push(plain, AddressCondition::default());
        }
    }

    /// The ports of a protocol that some set of the side has, ascending.
    fn named_keys(&self, protocol: u8) -> Vec<(PortProtocol, u16)> {
        let Some(protocol) = PortProtocol::of(Protocol::Number(protocol)) else { return Vec::new() };
        let sets = self.named.iter().chain(&self.not_named).chain(&self.services);
        let mut keys: Vec<_> = sets.flat_map(|ports| ports.keys()).filter(|(of, _)| *of == protocol).copied().collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

impl AddressCondition {
    fn tidy(&mut self) {
        self.all.sort_unstable();
        self.all.dedup();
        self.none.sort_unstable();
        self.none.dedup();
    }

    fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.all.extend_from_slice(&other.all);
        both.none.extend_from_slice(&other.none);
        both.tidy();
        both
    }
}

/// Returns the conditions on family, protocol and ICMP message; `None` if no packet can match.
fn draft(view: RuleView<'_>) -> Option<Draft> {
    let RuleView { rule, .. } = view;
    let mut draft = Draft {
        families: Family::ALL.map(|family| view.ip_version().is_none_or(|only| only == family)),
        protocol: None,
        l4: Intervals::between(0, L4_END),
        is_odd: view.has_unenforced_http(),
    };
    let excluded = rule.extras.not_protocol;
    draft.is_odd |= [rule.protocol, excluded].into_iter().flatten().any(|protocol| protocol.number() == 0);
    let nonzero = |protocol: &Protocol| protocol.number() != 0;
    draft.protocol = rule.protocol.filter(nonzero);
    match (draft.protocol, excluded.filter(nonzero)) {
        (Some(wanted), Some(excluded)) if wanted.number() == excluded.number() => return None,
        (Some(wanted), _) => draft.l4 = Intervals::protocol(wanted.number()),
        (None, Some(excluded)) => draft.l4 = Intervals::protocol(excluded.number()).not(L4_END),
        (None, None) => {}
    }
    icmp(rule, &mut draft);
    Some(draft)
}

fn icmp(rule: &Rule, draft: &mut Draft) {
    let extras = &*rule.extras;
    let conditions = [(extras.icmp_type, extras.icmp_code), (extras.not_icmp_type, extras.not_icmp_code)];
    draft.is_odd |= conditions.iter().any(|(icmp_type, code)| icmp_type.is_none() && code.is_some());
    if conditions.iter().all(|(icmp_type, _)| icmp_type.is_none()) {
        return;
    }
    let protocol = draft.protocol.map(Protocol::number);
    let families = match protocol {
        Some(number) if number == Protocol::ICMP.number() => [true, false],
        Some(number) if number == Protocol::ICMPV6.number() => [false, true],
        _ => {
            draft.is_odd = true;
            return;
        }
    };
    for (allowed, family) in draft.families.iter_mut().zip(families) {
        *allowed &= family;
    }
    let Some(protocol) = protocol else { return };
    let [wanted, excluded] = conditions.map(|(icmp_type, code)| icmp_type.map(|icmp_type| (icmp_type, code)));
    draft.l4 = Intervals::icmp(protocol, wanted);
    if excluded.is_some() {
        draft.l4 = draft.l4.and(&Intervals::icmp(protocol, excluded).not(L4_END));
    }
}

/// Returns the ports if they can be enforced. Otherwise the rule is marked as odd.
fn enforced<T: Iterator<Item = (u16, u16)> + Clone>(ports: T, draft: &mut Draft) -> Option<T> {
    /// TCP, UDP, DCCP, SCTP and UDP-Lite.
    const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];

    let has_ports = draft.protocol.is_some_and(|protocol| WITH_PORTS.contains(&protocol.number()));
    let mut all = ports.clone();
    let is_odd = ports.clone().any(|(first, last)| first > last) || !has_ports && all.next().is_some();
    draft.is_odd |= is_odd;
    (!is_odd).then_some(ports)
}

fn sides<'a>(rule: &'a Rule, sets: &'a RuleSets) -> (Side<'a>, Side<'a>) {
    let source = Side {
        rule: &rule.source,
        sets: &sets.src,
        not_sets: &sets.not_src,
        named_ports: &sets.src_named_ports,
        not_named_ports: &sets.not_src_named_ports,
        services: &[],
    };
    let destination = Side {
        rule: &rule.destination,
        sets: &sets.dst,
        not_sets: &sets.not_dst,
        named_ports: &sets.dst_named_ports,
        not_named_ports: &sets.not_dst_named_ports,
        services: &sets.dst_ip_ports,
    };
    (source, destination)
}

/// Whether a rule can name the set.
pub(crate) fn is_name(id: &IpSetId) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'#' | b'\\');
    !id.as_str().is_empty() && id.as_str().bytes().all(is_plain)
}
