//! Policies from a record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use tortie_model::{Cidr, Direction, Protocol, Update};
use tortie_selector::Selector;
use twox_hash::XxHash3_64;

use crate::addresses::{Blocks, External};
use crate::document::{self, Form};
use crate::inventory::Inventory;
use crate::labels::PodSelector;
use crate::options::{Level, Options};
use crate::owner::Owner;
use crate::policy::{Mark, Openings, Peer, RulePort, SuggestedPolicy, grouped};
use crate::proof::{DeniedEdge, Proof, ProofError};
use crate::record::{Edge, EdgeKey, EdgePort, End, Record};
use crate::report::{OwnerReport, Report, Topic};
use crate::selectors::Selectors;

/// Prefixes of the names of namespaces that get policies only if they are named.
const PLATFORM: [&str; 4] = ["kube-", "calico-", "tigera-", "openshift-"];

/// Port of DNS.
const DNS: EdgePort = EdgePort::Port(53);

/// Seconds of a day.
const DAY: u64 = 86_400;

/// Suggested policies. They allow each connection of the record at both ends, unless
/// [`Suggestion::denied`] lists it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Suggestion {
    /// The policies, by namespace and name.
    pub policies: Vec<SuggestedPolicy>,
    /// Edges that the policies, together with those of the cluster, would deny. If there is one,
    /// the policies must not be used.
    pub denied: Vec<DeniedEdge>,
    /// Remarks for people.
    pub report: Report,
    form: Form,
}

impl Suggestion {
    /// Returns the policies as YAML documents, with remarks as comments. The same input gives the
    /// same bytes.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        document::yaml(&self.policies, self.form)
    }

    /// Returns the policies as objects, with the remarks: `policies`, `owners` with their policies,
    /// `notes` by topic, and whether the policies are `incomplete`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let owner = |of: &OwnerReport| {
            json!({
                "owner": of.owner.as_ref().map(ToString::to_string),
                "policy": of.policy,
                "pods": of.pods,
                "edges": of.edges,
                "days": of.days,
            })
        };
        let mut notes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for note in &self.report.notes {
            notes.entry(note.topic.in_words()).or_default().push(&note.subject);
        }
        json!({
            "policies": self.policies.iter().map(|policy| document::value(policy, self.form)).collect::<Vec<_>>(),
            "owners": self.report.owners.iter().map(owner).collect::<Vec<_>>(),
            "notes": notes,
            "incomplete": self.report.is_incomplete(),
        })
    }
}

/// Suggests policies that allow the learned edges of a record and close the rest, and proves it by
/// evaluating each edge at both ends.
///
/// # Errors
/// If the calculation contradicts itself, or no addresses are left for the pods of the proof.
pub fn suggest(cluster: &[Update], record: &Record, options: &Options) -> Result<Suggestion, ProofError> {
    let inventory = Inventory::new(cluster);
    let selectors = Selectors::new(&inventory, record, &options.base.selectors);
    let mut maker = Maker { inventory: &inventory, record, options, selectors: &selectors, report: Report::default() };
    maker.report.span = span(record);
    let targets = maker.targets();
    let openings = maker.openings(&targets);
    let mut policies = Vec::new();
    for (target, directions) in &targets {
        let policy = maker.policy(target, *directions, &openings);
        maker.report.owners.push(maker.owner_report(target, &policy, &openings));
        policies.push(policy);
    }
    policies.extend(maker.default_denies(&targets));
    policies.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let mut report = maker.report;
    report.owners.sort_by(|a, b| a.policy.cmp(&b.policy));
    let is_target = |end: &End| matches!(end, End::Owner(owner) if targets.contains_key(&options.level.target(owner)));
    report.review(record, |key| is_target(&key.source) || is_target(&key.destination));
    let mut proof = Proof::new(cluster, &inventory, &selectors, &policies, options)?;
    let denied = proof.denied(openings.edges.iter())?;
    Ok(Suggestion { policies, denied, report, form: options.form })
}

/// Pods that share a policy: those of an owner, or of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Owner(Owner),
    Namespace(Arc<str>),
}

impl Target {
    fn namespace(&self) -> &Arc<str> {
        match self {
            Self::Owner(owner) => &owner.namespace,
            Self::Namespace(namespace) => namespace,
        }
    }
}

impl Level {
    fn target(self, owner: &Owner) -> Target {
        match self {
            Self::Workload => Target::Owner(owner.clone()),
            Self::Namespace => Target::Namespace(Arc::clone(&owner.namespace)),
        }
    }
}

/// Directions that a policy isolates: ingress, egress.
type Directions = (bool, bool);

/// Ends at each port of a target and direction, with the remarks on their edges.
type Ends = BTreeMap<RulePort, BTreeMap<End, BTreeSet<Mark>>>;

#[derive(Debug, Default)]
struct Found {
    ends: BTreeMap<(Target, Direction), Ends>,
    /// Edges that policies allow, with the directions that they isolate.
    edges: Vec<(EdgeKey, Directions)>,
    /// Numbers of edges and most days, by target.
    counts: BTreeMap<Target, (usize, u32)>,
}

struct Maker<'m> {
    inventory: &'m Inventory,
    record: &'m Record,
    options: &'m Options,
    selectors: &'m Selectors,
    report: Report,
}

impl Maker<'_> {
    /// Returns the pods that get policies, with the directions that these isolate.
    fn targets(&mut self) -> BTreeMap<Target, Directions> {
        let mut targets: BTreeMap<Target, Directions> = BTreeMap::new();
        for owner in self.selectors.label_sets.keys() {
            if !self.is_wanted(owner) {
                continue;
            }
            let is_free = |direction| self.options.all || !self.is_isolated(owner, direction);
            let free = (is_free(Direction::Ingress), is_free(Direction::Egress));
            if free != (true, true) {
                self.report.note(Topic::Isolated, owner);
            }
            let entry = targets.entry(self.options.level.target(owner)).or_insert((true, true));
            *entry = (entry.0 && free.0, entry.1 && free.1);
        }
        targets.retain(|_, directions| *directions != (false, false));
        targets
    }

    fn is_wanted(&self, owner: &Owner) -> bool {
        let namespaces = &self.options.namespaces;
        let is_platform = PLATFORM.iter().any(|prefix| owner.namespace.starts_with(prefix));
        let is_named = if namespaces.is_empty() { !is_platform } else { namespaces.contains(&owner.namespace) };
        let has_selected = |selector: &Selector| {
            let sets = self.selectors.label_sets.get(owner).into_iter().flatten();
            sets.into_iter().any(|labels| selector.matches(labels))
        };
        is_named && self.options.selector.as_ref().is_none_or(has_selected)
    }

    fn is_isolated(&self, owner: &Owner, direction: Direction) -> bool {
        let names = self.inventory.owners.get(owner).into_iter().flatten();
        names.filter_map(|name| self.inventory.pods.get(name)).any(|pod| self.inventory.is_isolated(pod, direction))
    }

    /// Returns the ends that targets have to reach, or be reached by.
    fn openings(&mut self, targets: &BTreeMap<Target, Directions>) -> Found {
        let mut found = Found::default();
        let is_long = self.report.span.is_some_and(|(first, last)| first / DAY != last / DAY);
        for (key, edge) in self.record.edges().filter(|(_, edge)| !edge.learned.is_empty()) {
            let target = |end: &End| match end {
                End::Owner(owner) => Some(self.options.level.target(owner)),
                _ => None,
            };
            let governed = |target: &Option<Target>, pick: fn(&Directions) -> bool| {
                target.as_ref().and_then(|target| targets.get(target)).is_some_and(pick)
            };
            if [&key.source, &key.destination].iter().any(|end| self.is_unknown(end)) {
                self.report.note(Topic::NoLabels, key);
            }
            let (from, to) = (target(&key.source), target(&key.destination));
            let directions = (governed(&to, |directions| directions.0), governed(&from, |directions| directions.1));
            if directions == (false, false) || !self.can_write(key, edge, directions) {
                continue;
            }
            let port = RulePort { protocol: key.protocol, port: key.port };
            let marks = marks(edge, key, is_long);
            if marks.contains(&Mark::SeenOnce) {
                self.report.note(Topic::SeenOnce, key);
            }
            let sides = [
                (directions.0, to, Direction::Ingress, &key.source),
                (directions.1, from, Direction::Egress, &key.destination),
            ];
            for (_, target, direction, end) in sides.into_iter().filter(|(is_governed, ..)| *is_governed) {
                let Some(target) = target else { continue };
                let counts = found.counts.entry(target.clone()).or_default();
                *counts = (counts.0 + 1, counts.1.max(edge.learned.days()));
                let ends = found.ends.entry((target, direction)).or_default().entry(port).or_default();
                ends.entry(end.clone()).and_modify(|known| *known = &*known & &marks).or_insert_with(|| marks.clone());
            }
            found.edges.push((key.clone(), directions));
        }
        found
    }

    /// Reports whether an end should get a policy, but the labels of its pods are not known.
    fn is_unknown(&self, end: &End) -> bool {
        matches!(end, End::Owner(owner) if self.is_wanted(owner) && self.selectors.of(owner).is_none())
    }

    /// Reports whether rules can allow an edge; notes the reason otherwise.
    fn can_write(&mut self, key: &EdgeKey, edge: &Edge, directions: Directions) -> bool {
        let has_no_labels = |end: &End| matches!(end, End::Owner(owner) if self.options.level == Level::Workload && self.selectors.of(owner).is_none());
        let has_no_address = |end: &End| match end {
            End::UnknownPrivate | End::UnknownPublic => self.options.external != External::Any,
            End::NetworkSet(name) => {
                !self.inventory.network_sets.contains_key(&tortie_model::NetworkSetName::new(&**name))
            }
            End::Node(_) => self.inventory.nodes.values().all(BTreeSet::is_empty),
            End::Owner(_) | End::Network(_) | End::Private | End::Public => false,
        };
        let others = [(directions.0, &key.source), (directions.1, &key.destination)];
        let any_other = |lacks: &dyn Fn(&End) -> bool| others.iter().any(|(governed, end)| *governed && lacks(end));
        let reason = if edge.learned.days() < self.options.min_days {
            Topic::TooRare
        } else if !self.options.form.can_write(RulePort { protocol: key.protocol, port: key.port }) {
            Topic::Protocol
        } else if any_other(&has_no_labels) {
            Topic::NoLabels
        } else if any_other(&has_no_address) {
            Topic::NoAddress
        } else {
            return true;
        };
        self.report.note(reason, key);
        false
    }

    fn policy(&mut self, target: &Target, directions: Directions, found: &Found) -> SuggestedPolicy {
        let namespace = target.namespace();
        let (owner, selector) = match target {
            Target::Namespace(_) => (None, PodSelector::default()),
            Target::Owner(owner) => (Some(owner.clone()), self.selector(owner)),
        };
        let name = self.name(target, &selector);
        let place = (namespace, &name);
        let mut rules = |direction, is_isolated: bool| {
            is_isolated.then(|| {
                let ends = found.ends.get(&(target.clone(), direction));
                ends.map(|ends| grouped(&self.peers(place, direction, ends))).unwrap_or_default()
            })
        };
        let (ingress, egress) = (rules(Direction::Ingress, directions.0), rules(Direction::Egress, directions.1));
        SuggestedPolicy { namespace: Arc::clone(namespace), name, owner, selector, ingress, egress }
    }

    /// Returns the selector of an owner, and notes others that it picks as well.
    fn selector(&mut self, owner: &Owner) -> PodSelector {
        let Some(choice) = self.selectors.of(owner) else { return PodSelector::default() };
        if !choice.also.is_empty() {
            let also: Vec<String> = choice.also.iter().map(ToString::to_string).collect();
            self.report.note(Topic::EqualLabels, format!("{owner}: {}", also.join(", ")));
        }
        choice.selector.clone()
    }

    fn name(&self, target: &Target, selector: &PodSelector) -> Arc<str> {
        let Target::Owner(owner) = target else { return "suggest-namespace".into() };
        if let Some(name) = self.options.base.name(&owner.namespace, selector) {
            return Arc::clone(name);
        }
        let range = self.selectors.label_sets.range(Owner::first_of(&owner.namespace)..);
        let others = range.map(|(other, _)| other).take_while(|other| other.namespace == owner.namespace);
        let is_shared =
            owner.name == DEFAULT_DENY.into() || others.filter(|other| other.name == owner.name).count() > 1;
        let kind = if is_shared { format!("-{}", owner.kind.as_str()) } else { String::new() };
        shortened(format!("suggest-{}{kind}", owner.name)).into()
    }

    /// Returns the peers at each port.
    fn peers(&mut self, place: (&Arc<str>, &Arc<str>), direction: Direction, ends: &Ends) -> Openings {
        let mut openings = Openings::new();
        for (port, ends) in ends {
            let peers = openings.entry(*port).or_default();
            let outside: BTreeSet<End> = ends.keys().filter(|end| !matches!(end, End::Owner(_))).cloned().collect();
            for (end, marks) in ends {
                let End::Owner(owner) = end else { continue };
                let peer = self.pods(place.0, owner);
                peers.entry(peer).and_modify(|known| *known = &*known & marks).or_insert_with(|| marks.clone());
            }
            let kept: BTreeSet<Cidr> = self.options.base.networks(place, direction, *port);
            let blocks = Blocks {
                inventory: self.inventory,
                external: self.options.external,
                namespace: place.0,
                are_clients: direction == Direction::Ingress,
                kept: &kept,
            };
            for (peer, (mut marks, covered)) in blocks.of(&outside) {
                let of_ends = covered.iter().filter_map(|end| ends.get(end)).cloned().reduce(|all, one| &all & &one);
                marks.extend(of_ends.unwrap_or_default());
                peers.insert(peer, marks);
            }
        }
        if !self.options.exact {
            add_dns_over_tcp(&mut openings);
        }
        openings
    }

    fn pods(&mut self, own: &Arc<str>, owner: &Owner) -> Peer {
        let namespace = (owner.namespace != *own).then(|| Arc::clone(&owner.namespace));
        let selector = match self.options.level {
            Level::Workload => self.selector(owner),
            Level::Namespace => PodSelector::default(),
        };
        Peer::Pods { namespace, selector }
    }

    fn owner_report(&self, target: &Target, policy: &SuggestedPolicy, found: &Found) -> OwnerReport {
        let is_of = |owner: &Owner| self.options.level.target(owner) == *target;
        let (edges, days) = found.counts.get(target).copied().unwrap_or_default();
        OwnerReport {
            owner: policy.owner.clone(),
            policy: format!("{}/{}", policy.namespace, policy.name),
            pods: self.inventory.owners.iter().filter(|(owner, _)| is_of(owner)).map(|(_, pods)| pods.len()).sum(),
            edges,
            days,
        }
    }

    /// Returns the policies that isolate whole namespaces.
    fn default_denies(&self, targets: &BTreeMap<Target, Directions>) -> Vec<SuggestedPolicy> {
        let mut namespaces: BTreeSet<&Arc<str>> = targets.keys().map(Target::namespace).collect();
        if !self.options.default_deny {
            namespaces.clear();
        }
        let is_complete = |owner: &Owner| {
            targets.get(&self.options.level.target(owner)) == Some(&(true, true))
                && self.selectors.of(owner).is_some_and(|choice| choice.also.is_empty())
        };
        namespaces.retain(|namespace| {
            let owners = self.selectors.label_sets.keys().filter(|owner| owner.namespace == **namespace);
            owners.into_iter().all(is_complete)
        });
        let policy = |namespace: &Arc<str>| SuggestedPolicy {
            namespace: Arc::clone(namespace),
            name: format!("suggest-{DEFAULT_DENY}").into(),
            owner: None,
            selector: PodSelector::default(),
            ingress: Some(Vec::new()),
            egress: Some(Vec::new()),
        };
        namespaces.into_iter().map(policy).collect()
    }
}

/// Name of the policies that isolate whole namespaces, after the prefix.
const DEFAULT_DENY: &str = "default-deny";

/// Opens DNS over TCP to the peers of DNS over UDP: clients repeat a question over TCP if its
/// answer is long.
fn add_dns_over_tcp(openings: &mut Openings) {
    let [udp, tcp] = [Protocol::UDP, Protocol::TCP].map(|protocol| RulePort { protocol: protocol.number(), port: DNS });
    let Some(peers) = openings.get(&udp) else { return };
    let peers: Vec<Peer> = peers.keys().cloned().collect();
    let over_tcp = openings.entry(tcp).or_default();
    for peer in peers {
        over_tcp.entry(peer).or_insert_with(|| [Mark::NotSeen].into());
    }
}

/// Returns a name of an object of at most 253 bytes; a longer one ends with a hash of all of it.
fn shortened(name: String) -> String {
    const LONGEST: usize = 253;
    const KEPT: usize = LONGEST - 17;
    match name.get(..KEPT) {
        Some(kept) if name.len() > LONGEST => format!("{kept}-{:016x}", XxHash3_64::oneshot(name.as_bytes())),
        _ => name,
    }
}

fn marks(edge: &Edge, key: &EdgeKey, is_long: bool) -> BTreeSet<Mark> {
    let mut marks = BTreeSet::new();
    if edge.learned.is_single() {
        marks.insert(Mark::SeenOnce);
    } else if is_long && edge.learned.days() == 1 {
        marks.insert(Mark::OneDay);
    }
    if edge.is_counted && !edge.has_replies && key.protocol != Protocol::TCP.number() {
        marks.insert(Mark::OneWay);
    }
    marks
}

/// Returns the first and the last time of a record.
fn span(record: &Record) -> Option<(u64, u64)> {
    let spans = record.edges().flat_map(|(_, edge)| [&edge.learned, &edge.attempts, &edge.denied, &edge.open]);
    let spans = spans.filter_map(crate::record::Sightings::span);
    spans.reduce(|(first, last), (other_first, other_last)| (first.min(other_first), last.max(other_last)))
}
