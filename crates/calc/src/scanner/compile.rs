//! From a rule to the IP sets that embody it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ahash::AHashMap;
use smallvec::smallvec;
use tortie_labelindex::{NamedPort, SetDefinition};
use tortie_model::desired::{PortProtocol, RuleSets, SetIds};
use tortie_model::{DomainPattern, EntityMatch, IpSetId, PortSpec, Protocol, Rule, RuleAction};
use tortie_selector::{Selector, unique_id};

use crate::domain_sets::{self, Admitted};

use super::{SelectorSpelling, ServiceSet, SetSource, Spelling, UsedSet, WrittenSelector};

/// Returns the sets of each rule.
pub(super) fn rule_sets(
    rules: &[Rule],
    domains: Option<&BTreeMap<IpSetId, Admitted>>,
    (spellings, sets, touched): (&mut AHashMap<Spelling, IpSetId>, &mut AHashMap<IpSetId, UsedSet>, &mut Vec<IpSetId>),
) -> Vec<RuleSets> {
    let mut compiler = Compiler { domains, spellings, sets, touched };
    rules.iter().map(|rule| compiler.rule(rule)).collect()
}

struct Compiler<'a> {
    /// Sets of domains of network sets that the rules may have.
    domains: Option<&'a BTreeMap<IpSetId, Admitted>>,
    spellings: &'a mut AHashMap<Spelling, IpSetId>,
    sets: &'a mut AHashMap<IpSetId, UsedSet>,
    touched: &'a mut Vec<IpSetId>,
}

/// The sets of one side of a rule.
struct SideSets {
    matched: SetIds,
    named_ports: SetIds,
    not_matched: SetIds,
    not_named_ports: SetIds,
}

impl Compiler<'_> {
    fn rule(&mut self, rule: &Rule) -> RuleSets {
        let src = self.side(&rule.source, rule.protocol);
        let dst = self.side(&rule.destination, rule.protocol);
        let mut sets = RuleSets {
            src: src.matched,
            src_named_ports: src.named_ports,
            not_src: src.not_matched,
            not_src_named_ports: src.not_named_ports,
            dst: dst.matched,
            dst_named_ports: dst.named_ports,
            not_dst: dst.not_matched,
            not_dst_named_ports: dst.not_named_ports,
            dst_ip_ports: SetIds::new(),
            dst_domains: SetIds::new(),
        };
        if let Some(service) = &rule.source.extras.service {
            sets.src.push(self.service(ServiceSet { service: (**service).clone(), with_ports: false }));
        }
        if let Some(service) = &rule.destination.extras.service {
            sets.dst_ip_ports.push(self.service(ServiceSet { service: (**service).clone(), with_ports: true }));
        }
        let domains = &rule.destination.extras.domains;
        if !domains.is_empty() {
            sets.dst_domains.push(self.set(Spelling::Domains(domains.clone()), &mut None));
        }
        if let Some(domains) = self.domains
            && let Some(selector) = selector_of_domains(rule)
            && domains.contains_key(&domain_sets::set_id(&selector.resolve()))
        {
            sets.dst_domains.push(self.set(Spelling::SelectedDomains(selector), &mut None));
        }
        sets
    }

    fn service(&mut self, set: ServiceSet) -> IpSetId {
        self.set(Spelling::Service(set), &mut None)
    }

    fn side(&mut self, side: &EntityMatch, protocol: Option<Protocol>) -> SideSets {
        let written = |selector: &Option<Selector>| selector.clone().map(WrittenSelector);
        let (positive, negated) = match (written(&side.selector), written(&side.extras.not_selector)) {
            (None, negated) => (None, negated.map(|selected| SelectorSpelling { selected, and_not: None })),
            (Some(selected), and_not) => (Some(SelectorSpelling { selected, and_not }), None),
        };
        // The positive selector also narrows the negated ports: where it does not match, neither
        // does the rule.
        let mut resolved = None;
        let named_ports = self.named_ports(&side.ports, positive.as_ref(), &mut resolved, protocol);
        let not_named_ports = self.named_ports(&side.extras.not_ports, positive.as_ref(), &mut resolved, protocol);
        // Sets of named ports embody the selector, unless numeric ports are the alternative to
        // them.
        let needs_selector = named_ports.is_empty() || side.numeric_ports().next().is_some();
        let matched = match positive {
            Some(selector) if needs_selector => [self.set(Spelling::Selector(selector), &mut None)].into(),
            _ => SetIds::new(),
        };
        let not_matched = match negated {
            Some(selector) => [self.set(Spelling::Selector(selector), &mut None)].into(),
            None => SetIds::new(),
        };
        SideSets { matched, named_ports, not_matched, not_named_ports }
    }

    fn named_ports(
        &mut self,
        ports: &[PortSpec],
        selector: Option<&SelectorSpelling>,
        resolved: &mut Option<Selector>,
        protocol: Option<Protocol>,
    ) -> SetIds {
        let mut ids = SetIds::new();
        for port in ports {
            let PortSpec::Named(name) = port else { continue };
            // Rules that are valid have ports with protocols that have some.
            let protocol = protocol.and_then(PortProtocol::of);
            let port = NamedPort { protocol, name: Arc::clone(name) };
            ids.push(self.set(Spelling::NamedPort(selector.cloned(), port), resolved));
        }
        ids
    }

    /// Returns the set of a spelling. `resolved` is the selector of a side with named ports, once
    /// it is known. All named ports share it, so a long selector is built once.
    fn set(&mut self, spelling: Spelling, resolved: &mut Option<Selector>) -> IpSetId {
        if let Some(id) = self.spellings.get(&spelling) {
            return id.clone();
        }
        let (id, source) = resolve(&spelling, resolved);
        let touched = &mut *self.touched;
        let set = self.sets.entry(id.clone()).or_insert_with_key(|id| {
            touched.push(id.clone());
            UsedSet { source, references: 0, reported: false, spellings: smallvec![] }
        });
        set.spellings.push(spelling.clone());
        self.spellings.insert(spelling, id.clone());
        id
    }
}

fn resolve(spelling: &Spelling, resolved: &mut Option<Selector>) -> (IpSetId, SetSource) {
    match spelling {
        Spelling::Selector(selector) => {
            let selector = selector.resolve();
            let id = IpSetId::new(selector.id().as_str());
            (id, SetSource::Selected(SetDefinition { selector, named_port: None }))
        }
        Spelling::NamedPort(selector, port) => {
            let whole = || selector.as_ref().map_or_else(Selector::all, SelectorSpelling::resolve);
            let selector = resolved.get_or_insert_with(whole).clone();
            let protocol = port.protocol.map_or("any", PortProtocol::as_str);
            let id = IpSetId::new(unique_id("n", &format!("{},{protocol},{}", selector.id(), port.name)));
            (id, SetSource::Selected(SetDefinition { selector, named_port: Some(port.clone()) }))
        }
        Spelling::Service(set) => (set.id(), SetSource::Service(set.clone())),
        Spelling::Domains(patterns) => (domain_set_id(patterns), SetSource::Domains(patterns[..].into())),
        Spelling::SelectedDomains(selector) => (domain_sets::set_id(&selector.resolve()), SetSource::SelectedDomains),
    }
}

/// Returns the destination selector of an egress rule, if the domains of network sets count: the
/// rule allows, and not only named ports, which network sets do not have.
pub(super) fn selector_of_domains(rule: &Rule) -> Option<SelectorSpelling> {
    let side = &rule.destination;
    let is_named_only = !side.ports.is_empty() && side.numeric_ports().next().is_none();
    if rule.action != RuleAction::Allow || is_named_only {
        return None;
    }
    let written = |selector: &Option<Selector>| selector.clone().map(WrittenSelector);
    Some(SelectorSpelling { selected: written(&side.selector)?, and_not: written(&side.extras.not_selector) })
}

/// Returns the id of the set of these patterns.
fn domain_set_id(patterns: &[DomainPattern]) -> IpSetId {
    let text: Vec<&str> = patterns.iter().map(DomainPattern::as_str).collect();
    IpSetId::new(unique_id("d", &text.join(" ")))
}

impl SelectorSpelling {
    pub(super) fn resolve(&self) -> Selector {
        match &self.and_not {
            None => self.selected.0.clone(),
            Some(WrittenSelector(excepted)) => self.selected.0.and_not(excepted),
        }
    }
}
