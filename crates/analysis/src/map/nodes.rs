//! Nodes of a picture: workloads of a namespace that no policy distinguishes, and networks.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_classes::{Compiled, Party, Reachability, RulingsId};
use tortie_model::{Direction, PolicyId, WorkloadEndpointId};

use crate::map::labels::{is_everything, label};
use crate::map::names::{Group, Names, namespace};

/// Packets that a node allows, as far as they do not depend on its peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Access {
    /// Not evaluated: networks have no policies.
    NotEvaluated,
    /// All packets, regardless of the peer.
    Everything,
    /// No packets.
    Nothing,
    /// These packets, regardless of the peer.
    Some(String),
    /// The packets depend on the peer.
    Depends,
}

/// Workloads of a namespace that no policy distinguishes, or networks. In a folded picture, all
/// workloads of a namespace.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Node {
    /// Its title.
    pub title: String,
    /// Its index in [`Map::groups`](crate::map::Map::groups).
    pub group: usize,
    /// Workloads by name, `namespace/pod` for pods, or networks; in order.
    pub members: Vec<Arc<str>>,
    /// Labels that all workloads have in common.
    pub labels: Vec<(String, String)>,
    /// Policies for ingress in order of evaluation, including staged ones.
    pub ingress_policies: Vec<PolicyId>,
    /// Policies for egress, likewise.
    pub egress_policies: Vec<PolicyId>,
    /// Allowed ingress.
    pub ingress: Access,
    /// Allowed egress.
    pub egress: Access,
    /// True if it is a subject of the picture, false if it is only a peer.
    pub is_wanted: bool,
    /// True if policies distinguish its members, which were folded because of too many nodes.
    pub is_folded: bool,
    /// True if it consists of domain names. They are destinations only.
    pub is_domains: bool,
    pub(crate) parties: Vec<usize>,
}

impl Node {
    /// Reports whether it consists of networks or domain names, and not of workloads.
    #[must_use]
    pub fn is_networks(&self) -> bool {
        self.ingress == Access::NotEvaluated
    }

    /// Returns the allowed ingress or egress.
    #[must_use]
    pub fn access(&self, direction: Direction) -> &Access {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// Returns the number of members: `3 pods`, `2 networks`, `1 name`.
    #[must_use]
    pub fn count(&self) -> String {
        let noun = match self.is_networks() {
            true if self.is_domains => "name",
            true => "network",
            false => "pod",
        };
        let count = self.members.len();
        format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
    }
}

/// Degree to which nodes are folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folding {
    /// No folding.
    None,
    /// In each namespace, all workloads that are not subjects of the picture.
    Others,
    /// All workloads of each namespace.
    All,
}

/// Members of a future node.
struct Draft<'a> {
    group: Group,
    parties: Vec<usize>,
    workloads: Vec<&'a WorkloadEndpointId>,
    networks: String,
    members: Vec<Arc<str>>,
    is_wanted: bool,
}

/// Returns the nodes of all parties in the order of their groups, and the groups.
#[expect(clippy::expect_used, reason = "groups are those of the drafts")]
pub(crate) fn nodes(
    compiled: &Compiled<'_>,
    reachability: &mut Reachability<'_>,
    names: &Names,
    folding: Folding,
    limit: usize,
) -> (Vec<Node>, Vec<Group>) {
    let parties = reachability.parties().to_vec();
    let mut drafts = drafts(&parties, names, folding, limit);
    let mut groups: Vec<Group> = drafts.iter().map(|draft| draft.group.clone()).collect();
    groups.sort_unstable();
    groups.dedup();
    drafts.sort_by(|one, other| (&one.group, &one.members).cmp(&(&other.group, &other.members)));
    let mut nodes: Vec<Node> = drafts
        .into_iter()
        .map(|draft| {
            let group = groups.binary_search(&draft.group).expect("each draft has its group among them");
            node(draft, group, compiled, reachability, names)
        })
        .collect();
    make_titles_unique(&mut nodes);
    (nodes, groups)
}

fn drafts<'a>(parties: &'a [Party], names: &Names, folding: Folding, limit: usize) -> Vec<Draft<'a>> {
    // Drafts by namespace and, unless folded, by party.
    let mut drafts: BTreeMap<(Group, Option<usize>, bool), Draft<'a>> = BTreeMap::new();
    for (number, party) in parties.iter().enumerate() {
        match party {
            Party::Workloads(workloads) => {
                for workload in workloads {
                    let is_wanted = names.is_wanted(&workload.workload);
                    let is_folded = folding == Folding::All || folding == Folding::Others && !is_wanted;
                    let group = Group::Namespace(namespace(&workload.workload).into());
                    let key = (group.clone(), (!is_folded).then_some(number), is_wanted);
                    let draft = drafts.entry(key).or_insert_with(|| Draft::new(group, is_wanted));
                    if draft.parties.last() != Some(&number) {
                        draft.parties.push(number);
                    }
                    draft.members.push(Arc::clone(&workload.workload));
                    draft.workloads.push(workload);
                }
            }
            Party::Networks(nets) => {
                let is_folded = folding != Folding::None;
                let domains = names.domains(nets);
                let group = if domains.is_some() { Group::Domains } else { Group::Networks };
                let key = (group.clone(), (!is_folded).then_some(number), false);
                let draft = drafts.entry(key).or_insert_with(|| Draft::new(group, false));
                draft.parties.push(number);
                match domains {
                    Some(domains) => {
                        draft.networks = domains.join(", ");
                        draft.members.extend(domains.into_iter().map(Arc::from));
                    }
                    None => {
                        let nets = names.without_domains(nets);
                        draft.members.extend(nets.iter().map(|net| Arc::from(net.to_string())));
                        draft.networks = names.networks(&nets);
                    }
                }
            }
        }
    }
    let mut drafts: Vec<Draft<'a>> = drafts.into_values().collect();
    if folding != Folding::None && drafts.len() > limit {
        // The largest ones stay separate.
        drafts.sort_by(|one, other| {
            (other.is_wanted, other.members.len(), &one.group).cmp(&(one.is_wanted, one.members.len(), &other.group))
        });
        let rest = drafts.split_off(limit.max(1) - 1);
        let mut last = Draft::new(Group::Namespace(format!("{} more namespaces", rest.len()).into()), false);
        for draft in rest {
            last.is_wanted |= draft.is_wanted;
            last.parties.extend(draft.parties);
            last.members.extend(draft.members);
            last.workloads.extend(draft.workloads);
        }
        last.parties.sort_unstable();
        last.parties.dedup();
        drafts.push(last);
    }
    for draft in &mut drafts {
        draft.members.sort_unstable();
        draft.members.dedup();
    }
    drafts
}

impl Draft<'_> {
    fn new(group: Group, is_wanted: bool) -> Self {
        Self {
            group,
            parties: Vec::new(),
            workloads: Vec::new(),
            networks: String::new(),
            members: Vec::new(),
            is_wanted,
        }
    }
}

fn node(
    draft: Draft<'_>,
    group: usize,
    compiled: &Compiled<'_>,
    reachability: &mut Reachability<'_>,
    names: &Names,
) -> Node {
    let Draft { parties, workloads, networks, members, is_wanted, group: of, .. } = draft;
    let is_domains = of == Group::Domains;
    let is_folded = parties.len() > 1;
    let policies = |direction| match &workloads[..] {
        [first, ..] if !is_folded => compiled.policies_of(first, direction).cloned().collect(),
        _ => Vec::new(),
    };
    let title = match (&workloads[..], is_folded) {
        ([], false) => networks,
        ([], true) if is_domains => "all domain names".to_owned(),
        ([], true) => "all networks".to_owned(),
        (_, true) => "all pods".to_owned(),
        (_, false) => names.title(&members),
    };
    let labels = if workloads.is_empty() { Vec::new() } else { names.labels(&members) };
    let access = |direction, reachability: &mut Reachability<'_>| access(&parties, direction, reachability);
    Node {
        title,
        group,
        labels,
        ingress_policies: policies(Direction::Ingress),
        egress_policies: policies(Direction::Egress),
        ingress: access(Direction::Ingress, reachability),
        egress: access(Direction::Egress, reachability),
        members,
        is_wanted,
        is_folded,
        is_domains,
        parties,
    }
}

fn access(parties: &[usize], direction: Direction, reachability: &mut Reachability<'_>) -> Access {
    let mut alike: Option<RulingsId> = None;
    for party in parties {
        if matches!(reachability.parties().get(*party), Some(Party::Networks(_))) {
            return Access::NotEvaluated;
        }
        let Some(rulings_id) = reachability.uniform_rulings_id(*party, direction) else { return Access::Depends };
        let passing = |id| reachability.passing_number(id);
        if alike.is_some_and(|known| passing(known) != passing(rulings_id)) {
            return Access::Depends;
        }
        alike = Some(rulings_id);
    }
    let passing = match direction {
        Direction::Egress => reachability.passing(alike, None),
        Direction::Ingress => reachability.passing(None, alike),
    };
    match () {
        () if passing.is_empty() => Access::Nothing,
        () if is_everything(&passing, reachability.unrestricted()) => Access::Everything,
        () => Access::Some(label(&passing, reachability.unrestricted(), true)),
    }
}

/// Adds a label or a number to the titles of nodes of a group with the same title.
#[expect(clippy::indexing_slicing, reason = "nodes are numbered by their places")]
fn make_titles_unique(nodes: &mut [Node]) {
    let mut same: BTreeMap<(usize, String), Vec<usize>> = BTreeMap::new();
    for (number, node) in nodes.iter().enumerate() {
        same.entry((node.group, node.title.clone())).or_default().push(number);
    }
    for numbers in same.into_values().filter(|numbers| numbers.len() > 1) {
        let labels: Vec<Vec<(String, String)>> = numbers.iter().map(|number| nodes[*number].labels.clone()).collect();
        for (place, number) in numbers.iter().enumerate() {
            let others = || labels.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, labels)| labels);
            let telling = labels[place].iter().find(|label| others().all(|labels| !labels.contains(label)));
            nodes[*number].title += &match telling {
                Some((name, value)) => format!(" {name}={value}"),
                None => format!(" #{}", place + 1),
            };
        }
    }
}
