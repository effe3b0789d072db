//! The nodes of a picture: workloads of a namespace that no policy tells apart, and networks.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_classes::{Compiled, Party, Reachability, RulingsId};
use tortie_model::{Direction, PolicyId, WorkloadEndpointId};

use crate::map::labels::{is_everything, label};
use crate::map::names::{Group, Names, namespace};

/// What a node lets through, as far as that can be said without its peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Access {
    /// It has no policies: networks.
    Unjudged,
    /// Everything, whoever the peer is.
    Everything,
    /// Nothing at all.
    Nothing,
    /// These packets, whoever the peer is.
    Some(String),
    /// It depends on the peer.
    Depends,
}

/// Workloads of a namespace that no policy tells apart, or networks. Where there are too many, all workloads of a namespace.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Node {
    /// What it is called.
    pub title: String,
    /// Its place in [`Map::groups`](crate::map::Map::groups).
    pub group: usize,
    /// Workloads by name, `namespace/pod` for pods, or networks; in order.
    pub members: Vec<Arc<str>>,
    /// Labels that all workloads have in common.
    pub labels: Vec<(String, String)>,
    /// The policies that govern what comes in, in order of evaluation, staged ones included.
    pub ingress_policies: Vec<PolicyId>,
    /// The policies that govern what goes out.
    pub egress_policies: Vec<PolicyId>,
    /// What may come in.
    pub ingress: Access,
    /// What may go out.
    pub egress: Access,
    /// Whether the picture is about it; else it is there as a peer.
    pub is_wanted: bool,
    /// Whether policies tell its members apart: there were too many nodes.
    pub is_folded: bool,
    pub(crate) parties: Vec<usize>,
}

impl Node {
    /// Whether it is networks and no workloads.
    #[must_use]
    pub fn is_networks(&self) -> bool {
        self.ingress == Access::Unjudged
    }

    /// What may come in, or go out.
    #[must_use]
    pub fn access(&self, direction: Direction) -> &Access {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// `3 pods`, `2 networks`.
    #[must_use]
    pub fn count(&self) -> String {
        let what = if self.is_networks() { "network" } else { "pod" };
        let count = self.members.len();
        format!("{count} {what}{}", if count == 1 { "" } else { "s" })
    }
}

/// How far nodes are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folding {
    /// Not at all.
    None,
    /// All of a namespace that the picture is not about.
    Others,
    /// All of each namespace.
    All,
}

/// Members of one node, before it is one.
struct Draft<'a> {
    group: Group,
    parties: Vec<usize>,
    workloads: Vec<&'a WorkloadEndpointId>,
    networks: String,
    members: Vec<Arc<str>>,
    is_wanted: bool,
}

/// The nodes of all parties, in the order of their groups, and the groups.
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
    tell_apart(&mut nodes);
    (nodes, groups)
}

fn drafts<'a>(parties: &'a [Party], names: &Names, folding: Folding, limit: usize) -> Vec<Draft<'a>> {
    // By namespace and, unless they are put together, by party.
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
                let key = (Group::Networks, (!is_folded).then_some(number), false);
                let draft = drafts.entry(key).or_insert_with(|| Draft::new(Group::Networks, false));
                draft.parties.push(number);
                draft.members.extend(nets.iter().map(|net| Arc::from(net.to_string())));
                draft.networks = names.networks(nets);
            }
        }
    }
    let mut drafts: Vec<Draft<'a>> = drafts.into_values().collect();
    if folding != Folding::None && drafts.len() > limit {
        // The largest ones stay.
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
    let Draft { parties, workloads, networks, members, is_wanted, .. } = draft;
    let is_folded = parties.len() > 1;
    let policies = |direction| match &workloads[..] {
        [first, ..] if !is_folded => compiled.policies_of(first, direction).cloned().collect(),
        _ => Vec::new(),
    };
    let title = match (&workloads[..], is_folded) {
        ([], false) => networks,
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
        parties,
    }
}

fn access(parties: &[usize], direction: Direction, reachability: &mut Reachability<'_>) -> Access {
    let mut alike: Option<RulingsId> = None;
    for party in parties {
        if matches!(reachability.parties().get(*party), Some(Party::Networks(_))) {
            return Access::Unjudged;
        }
        let Some(said) = reachability.said_to_all(*party, direction) else { return Access::Depends };
        let passing = |id| reachability.passing_number(id);
        if alike.is_some_and(|known| passing(known) != passing(said)) {
            return Access::Depends;
        }
        alike = Some(said);
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

/// Nodes of a group that are called the same get a label, or a number.
#[expect(clippy::indexing_slicing, reason = "nodes are numbered by their places")]
fn tell_apart(nodes: &mut [Node]) {
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
