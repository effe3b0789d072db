//! The rule scanner: turns the selectors, named ports and services of active rules into IP sets,
//! and counts who uses which set (`felix/calc/rule_scanner.go`).

mod compile;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ahash::AHashMap;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use tortie_labelindex::{NamedPort, SetDefinition};
use tortie_model::desired::{RuleSets, Rules};
use tortie_model::{DomainPattern, IpSetId, List, NamespacedName, Rule, RuleAction};
use tortie_selector::{Selector, unique_id};

use crate::domain_sets::DomainSets;
use crate::slot_table::Slot;

/// Members of an IP set, by definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SetSource {
    /// Nodes, or endpoints and network sets, that a selector picks.
    Selected(SetDefinition),
    /// Endpoints of a service.
    Service(ServiceSet),
    /// Domain names that these match.
    Domains(Arc<[DomainPattern]>),
    /// Domain names that those of selected network sets match.
    SelectedDomains,
}

/// A set of a service's endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServiceSet {
    pub(crate) service: NamespacedName,
    /// Whether members are addresses with ports, or addresses alone.
    pub(crate) with_ports: bool,
}

/// IP sets that have become active or inactive since the last flush, sorted by id.
#[derive(Debug, Default)]
pub(crate) struct ScannerOut {
    pub(crate) activated: Vec<(IpSetId, SetSource)>,
    pub(crate) deactivated: Vec<(IpSetId, SetSource)>,
}

/// A set as rules spell it. Finding a known spelling costs one look-up; printing and hashing the
/// canonical selector is only done for a spelling that no active rule has used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Spelling {
    Selector(SelectorSpelling),
    NamedPort(Option<SelectorSpelling>, NamedPort),
    Service(ServiceSet),
    Domains(List<DomainPattern>),
    SelectedDomains(SelectorSpelling),
}

/// A positive and a negated selector of one side of a rule, or either alone. With a positive
/// selector both are one set: then the rule matches only known endpoints, and the negated selector
/// excludes some of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SelectorSpelling {
    selected: WrittenSelector,
    and_not: Option<WrittenSelector>,
}

/// A selector that is compared by its text alone.
#[derive(Clone, Debug)]
struct WrittenSelector(Selector);

impl PartialEq for WrittenSelector {
    fn eq(&self, other: &Self) -> bool {
        self.0.text() == other.0.text()
    }
}

impl Eq for WrittenSelector {}

impl Hash for WrittenSelector {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text().hash(state);
    }
}

#[derive(Debug)]
struct UsedSet {
    source: SetSource,
    references: usize,
    /// Whether `ScannerOut` last reported the set as active.
    reported: bool,
    spellings: SmallVec<[Spelling; 1]>,
}

/// The sets of some rules, in order. The rules of many policies have the same sets.
#[derive(Debug)]
struct UsedList {
    sets: Arc<[RuleSets]>,
    users: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RuleScanner {
    lists: AHashMap<Arc<[RuleSets]>, UsedList>,
    spellings: AHashMap<Spelling, IpSetId>,
    sets: AHashMap<IpSetId, UsedSet>,
    /// Sets that are new or have lost their last reference since the last flush.
    touched: Vec<IpSetId>,
    http_by_proxy: bool,
    pub(crate) domains: DomainSets,
    /// Services whose endpoints are needed while rules match domain names.
    dns_services: Vec<ServiceSet>,
}

/// Returns the id of the set of a service's endpoints with their ports.
#[must_use]
pub fn service_set_id(service: &NamespacedName) -> IpSetId {
    ServiceSet { service: service.clone(), with_ports: true }.id()
}

impl RuleScanner {
    pub(crate) fn new(http_by_proxy: bool, dns_services: &[NamespacedName]) -> Self {
        let services = dns_services.iter().cloned().collect::<BTreeSet<_>>().into_iter();
        let dns_services = services.map(|service| ServiceSet { service, with_ports: true }).collect();
        Self { http_by_proxy, dns_services, ..Self::default() }
    }

    /// Joins rules with their sets, which are in use until the rules are released.
    pub(crate) fn acquire(&mut self, rules: &Arc<[Rule]>) -> Rules {
        let sets = compile::rule_sets(rules, None, (&mut self.spellings, &mut self.sets, &mut self.touched));
        self.join(rules, sets)
    }

    /// As [`RuleScanner::acquire`], for the rules of a policy for traffic from endpoints: the
    /// domains of network sets count as well, as far as they have room in its budget.
    pub(crate) fn acquire_egress(&mut self, policy: Slot, rules: &Arc<[Rule]>) -> Rules {
        let domains = self.domains.admitted(policy);
        let sets = compile::rule_sets(rules, domains, (&mut self.spellings, &mut self.sets, &mut self.touched));
        self.join(rules, sets)
    }

    #[expect(clippy::expect_used, reason = "the compiler gives each rule a set for each field that needs one")]
    fn join(&mut self, rules: &Arc<[Rule]>, sets: Vec<RuleSets>) -> Rules {
        let sets = self.use_list(sets);
        let rules = Rules::new(Arc::clone(rules), sets).expect("rules were compiled with all their sets");
        rules.with_http_by_proxy(self.http_by_proxy)
    }

    #[expect(clippy::expect_used, reason = "the compiler makes the sets that rules refer to")]
    fn use_list(&mut self, sets: Vec<RuleSets>) -> Arc<[RuleSets]> {
        if let Some(known) = self.lists.get_mut(&*sets) {
            known.users += 1;
            return Arc::clone(&known.sets);
        }
        for id in sets.iter().flat_map(RuleSets::iter) {
            self.sets.get_mut(id).expect("the sets of compiled rules are known").references += 1;
        }
        if has_domains(&sets) {
            self.use_dns_services();
        }
        let sets: Arc<[RuleSets]> = sets.into();
        self.lists.insert(Arc::clone(&sets), UsedList { sets: Arc::clone(&sets), users: 1 });
        sets
    }

    /// Learned addresses come from answers of these services.
    fn use_dns_services(&mut self) {
        for service in &self.dns_services {
            let id = service.id();
            let set = self.sets.entry(id.clone()).or_insert_with(|| {
                let source = SetSource::Service(service.clone());
                UsedSet { source, references: 0, reported: false, spellings: SmallVec::new() }
            });
            set.references += 1;
            self.touched.push(id);
        }
    }

    /// Returns the selectors of the sets of acquired rules, without duplicate sets, in the order of
    /// the rules. Sets of services and of domains have none.
    #[expect(clippy::expect_used, reason = "only a flush forgets sets, after the release of all rules that have them")]
    pub(crate) fn selectors(&self, rules: [&Rules; 2]) -> Vec<Selector> {
        let ids = rules.into_iter().flat_map(|rules| rules.sets().iter()).flat_map(RuleSets::iter);
        let sets = ids.map(|id| self.sets.get(id).expect("the sets of acquired rules are known"));
        let mut known = FxHashSet::default();
        let sets = sets.filter(|set| known.insert(std::ptr::from_ref(*set)));
        let selector = |set: &UsedSet| match &set.source {
            SetSource::Selected(definition) => Some(definition.selector.clone()),
            SetSource::Service(_) | SetSource::Domains(_) | SetSource::SelectedDomains => None,
        };
        sets.filter_map(selector).collect()
    }

    /// Releases rules that [`RuleScanner::acquire`] joined with their sets.
    #[expect(clippy::expect_used, reason = "the nodes of policies and profiles release acquired rules, once")]
    pub(crate) fn release(&mut self, rules: &Rules) {
        let list = self.lists.get_mut(&**rules.sets()).expect("rules are released that were acquired");
        list.users -= 1;
        if list.users > 0 {
            return;
        }
        self.lists.remove(&**rules.sets());
        if self.lists.is_empty() {
            self.lists = AHashMap::new();
        }
        let dns_services: Vec<IpSetId> = match has_domains(rules.sets()) {
            true => self.dns_services.iter().map(ServiceSet::id).collect(),
            false => Vec::new(),
        };
        for id in rules.iter().flat_map(|rule| rule.sets.iter()).chain(&dns_services) {
            let set = self.sets.get_mut(id).expect("the sets of acquired rules are known");
            set.references -= 1;
            if set.references == 0 {
                self.touched.push(id.clone());
            }
        }
    }

    /// Reports sets whose use began or ended since the last flush. A set that did both is not
    /// reported.
    #[expect(clippy::expect_used, reason = "only a flush forgets sets")]
    pub(crate) fn flush(&mut self, out: &mut ScannerOut) {
        self.touched.sort_unstable();
        self.touched.dedup();
        for id in self.touched.drain(..) {
            let set = self.sets.get_mut(&id).expect("touched sets are known");
            match (set.reported, set.references > 0) {
                (false, true) => {
                    set.reported = true;
                    out.activated.push((id, set.source.clone()));
                }
                (reported, false) => {
                    let set = self.sets.remove(&id).expect("touched sets are known");
                    for spelling in &set.spellings {
                        self.spellings.remove(spelling);
                    }
                    if reported {
                        out.deactivated.push((id, set.source));
                    }
                }
                (true, true) => {}
            }
        }
    }

    /// Reports whether a set is in the dataplane, or will be with the last flush.
    pub(crate) fn has_reported(&self, id: &IpSetId) -> bool {
        self.sets.get(id).is_some_and(|set| set.reported)
    }

    /// Returns the number of distinct sets in use.
    pub(crate) fn len(&self) -> usize {
        self.sets.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lists.is_empty()
            && self.spellings.is_empty()
            && self.sets.is_empty()
            && self.touched.is_empty()
            && self.domains.is_empty()
    }
}

fn has_domains(sets: &[RuleSets]) -> bool {
    sets.iter().any(|sets| !sets.dst_domains.is_empty())
}

/// Returns the number of references of rules to sets.
pub(crate) fn count_sets(rules: [&Rules; 2]) -> u64 {
    rules.into_iter().flat_map(|rules| rules.sets().iter()).map(|sets| sets.iter().count() as u64).sum()
}

/// Returns the destination selectors of egress rules for which the domains of network sets count.
pub(crate) fn selectors_of_domains(rules: &[Rule]) -> impl Iterator<Item = Selector> {
    rules.iter().filter_map(compile::selector_of_domains).map(|spelling| spelling.resolve())
}

/// Returns a list with one rule, which denies everything.
pub(crate) fn deny_all() -> Arc<[Rule]> {
    [Rule::new(RuleAction::Deny)].into()
}

impl ServiceSet {
    fn id(&self) -> IpSetId {
        let prefix = if self.with_ports { "svc" } else { "svcnoport" };
        IpSetId::new(unique_id(prefix, &self.service.to_string()))
    }
}

#[cfg(test)]
mod tests;
