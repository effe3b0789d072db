//! Allowed connections between all pairs of workloads at once.
//!
//! Workloads with the same groups and the same class of address are one class. The peers that a
//! group allows are found once for each of its own rows: one verdict for all peers straight below
//! the same network, and one for each of the few peers with separate rows. A pair is open if
//! the source allows the destination and the destination allows the source.

use ahash::{AHashMap, AHashSet};
use tortie_evaluate::{Packet, Payload, Verdict};
use tortie_model::{Direction, Family, PolicyId, Protocol, WorkloadEndpointId};

use crate::bits::Bits;
use crate::compiled::Compiled;
use crate::each::ByDirection;
use crate::ids::{BucketId, ClassId, EndpointClassId, GroupId, Id, Row, SettingsId, number_of};
use crate::line::{l4_point, source_port_point};
use crate::networks::unspecified;
use crate::owners::OwnerKey;
use crate::program::GroupKey;

/// A kind of packets that a matrix covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Question {
    /// The number of the protocol.
    pub protocol: u8,
    /// Ports or ICMP message.
    pub payload: Payload,
}

impl Question {
    /// Packets of this protocol.
    #[must_use]
    pub fn new(protocol: u8, payload: Payload) -> Self {
        Self { protocol, payload }
    }

    /// Packets to a port. They come from port 50000, which only matters to rules that ask for
    /// source ports.
    #[must_use]
    pub fn port(protocol: Protocol, port: u16) -> Self {
        Self::new(protocol.number(), Payload::Ports { source: 50_000, destination: port })
    }
}

/// Workloads that no rule distinguishes.
#[derive(Clone, Debug)]
struct EndpointClass {
    members: Vec<WorkloadEndpointId>,
    /// Of one of them; the others have the same rows.
    bucket: Option<BucketId>,
    /// Place in the list of sides, for each direction.
    sides: ByDirection<usize>,
}

/// Policies and settings that decide in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Side {
    /// None if everything is denied.
    group: Option<GroupId>,
    /// Row of the group's own end.
    own: Row,
    /// Settings that apply to sent packets.
    settings: SettingsId,
}

/// Classes of workloads, and the allowed connections between them. See [`Compiled::matrix`].
#[derive(Clone, Debug)]
pub struct Matrix<'a> {
    compiled: &'a Compiled<'a>,
    classes: Vec<EndpointClass>,
    by_endpoint: AHashMap<WorkloadEndpointId, EndpointClassId>,
    sides: ByDirection<Sides>,
    /// For each question, direction and side the classes that it allows.
    open: Vec<ByDirection<Vec<Bits>>>,
}

/// The sides of one direction, without duplicates.
#[derive(Clone, Debug, Default)]
struct Sides {
    all: Vec<Side>,
    numbers: AHashMap<Side, usize>,
}

impl Sides {
    fn number(&mut self, side: Side) -> usize {
        *self.numbers.entry(side).or_insert_with(|| {
            self.all.push(side);
            self.all.len() - 1
        })
    }
}

impl Compiled<'_> {
    /// Returns the allowed connections between workloads, by their first addresses of a family, for
    /// each of these questions. Workloads without such an address are left out. Connections of a
    /// workload to itself meet no policy, so the matrix does not describe them. Host endpoints are
    /// left out.
    ///
    /// A workload whose policies refer to a missing object is denied everything.
    #[must_use]
    pub fn matrix(&self, family: Family, questions: &[Question]) -> Matrix<'_> {
        let mut matrix = Matrix::without_answers(self, family);
        let peers = Peers::new(self, family, &matrix.classes);
        for question in questions {
            let answers = |direction| {
                let sides = matrix.sides[direction].all.iter();
                sides.map(|side| peers.open(self, direction, *side, *question)).collect()
            };
            let open = ByDirection { egress: answers(Direction::Egress), ingress: answers(Direction::Ingress) };
            matrix.open.push(open);
        }
        matrix
    }
}

/// The classes of a matrix as peers of others.
struct Peers {
    family: Family,
    count: usize,
    by_bucket: AHashMap<BucketId, Vec<usize>>,
    /// Classes by the bucket of the network straight around their own bucket.
    around: AHashMap<Option<BucketId>, Bits>,
}

impl Peers {
    fn new(compiled: &Compiled<'_>, family: Family, classes: &[EndpointClass]) -> Self {
        let mut peers = Self { family, count: classes.len(), by_bucket: AHashMap::new(), around: AHashMap::new() };
        for (number, class) in classes.iter().enumerate() {
            if let Some(bucket) = class.bucket {
                peers.by_bucket.entry(bucket).or_default().push(number);
            }
            let around = class.bucket.and_then(|bucket| compiled.classes.addresses.around(bucket));
            peers.around.entry(around).or_insert_with(|| Bits::new(classes.len())).insert(number);
        }
        peers
    }

    /// Returns the peers that a side allows.
    fn open(&self, compiled: &Compiled<'_>, direction: Direction, side: Side, question: Question) -> Bits {
        let mut open = Bits::new(self.count);
        let unspecified = unspecified(self.family);
        let Ok(packet) = Packet::new(unspecified, unspecified, question.protocol, question.payload) else {
            return open;
        };
        let settings = compiled.classes.nodes.settings(side.settings);
        let is_guarded = || settings.guards(&packet).any(|(_, denies)| denies);
        if direction == Direction::Egress && is_guarded() {
            return open;
        }
        let Some((_, Ok(table))) = side.group.and_then(|group| compiled.table_of(group)) else { return open };
        let (l4, source_port) = (table.l4().of(l4_point(&packet)), table.source_ports().of(source_port_point(&packet)));
        let mut rows: AHashMap<Row, bool> = AHashMap::new();
        let mut lets_through = |row: Row| {
            *rows.entry(row).or_insert_with(|| {
                let decision = table.decision_at(side.own, row, l4, source_port);
                decision.is_some_and(|(verdict, _)| *verdict == Verdict::Allow)
            })
        };
        let addresses = &compiled.classes.addresses;
        for (around, classes) in &self.around {
            if lets_through(table.peer().row_of(addresses.outwards(*around), self.family)) {
                open.add(classes);
            }
        }
        for (bucket, row) in table.peer().buckets() {
            let Some(numbers) = self.by_bucket.get(&bucket) else { continue };
            if lets_through(row) {
                numbers.iter().for_each(|number| open.insert(*number));
            } else {
                numbers.iter().for_each(|number| open.remove(*number));
            }
        }
        open
    }
}

impl Side {
    fn new(compiled: &Compiled<'_>, group: Option<GroupId>, bucket: Option<BucketId>, family: Family) -> Self {
        let table = group.and_then(|group| compiled.table_of(group)?.1.ok());
        let outwards = compiled.classes.addresses.outwards(bucket);
        let own = table.map_or_else(Row::default, |table| table.own().row_of(outwards, family));
        Self { group, own, settings: SettingsId::default() }
    }
}

impl<'a> Matrix<'a> {
    #[expect(clippy::indexing_slicing, reason = "classes are numbered by their places")]
    fn without_answers(compiled: &'a Compiled<'a>, family: Family) -> Self {
        let mut matrix = Self {
            compiled,
            classes: Vec::new(),
            by_endpoint: AHashMap::new(),
            sides: ByDirection::default(),
            open: Vec::new(),
        };
        let mut workloads: Vec<_> = compiled.classes.workloads.iter().collect();
        workloads.sort_unstable_by_key(|(id, _)| *id);
        let mut known: AHashMap<(ByDirection<usize>, ClassId), EndpointClassId> = AHashMap::new();
        for (id, workload) in workloads {
            let Some(net) = workload.addresses.iter().find(|net| net.family() == family) else { continue };
            let (address, bucket) =
                (compiled.class_of(net.address()), compiled.classes.addresses.bucket_of(net.address()));
            let side = |group| Side::new(compiled, workload.is_active.then_some(group), bucket, family);
            let sides = ByDirection {
                egress: matrix.sides.egress.number(Side {
                    settings: compiled.classes.nodes.settings_of_workload(id),
                    ..side(workload.egress)
                }),
                ingress: matrix.sides.ingress.number(side(workload.ingress)),
            };
            let class = *known.entry((sides, address)).or_insert_with(|| {
                let class = numbered(matrix.classes.len());
                matrix.classes.push(EndpointClass { members: Vec::new(), bucket, sides });
                class
            });
            matrix.classes[class.number() as usize].members.push(id.clone());
            matrix.by_endpoint.insert(id.clone(), class);
        }
        matrix
    }

    /// All classes, in the order of their first workloads.
    pub fn classes(&self) -> impl ExactSizeIterator<Item = EndpointClassId> + use<> {
        (0..self.classes.len()).map(numbered)
    }

    /// The class of a workload; `None` if it has no address of the family.
    #[must_use]
    pub fn class_of(&self, workload: &WorkloadEndpointId) -> Option<EndpointClassId> {
        self.by_endpoint.get(workload).copied()
    }

    /// The workloads of a class, in order.
    #[must_use]
    pub fn members(&self, class: EndpointClassId) -> &[WorkloadEndpointId] {
        self.class(class).map_or(&[], |class| &class.members)
    }

    /// Reports whether workloads of one class may open connections to those of another. `question`
    /// is the place in the list of questions.
    #[must_use]
    pub fn allows(&self, question: usize, from: EndpointClassId, to: EndpointClassId) -> bool {
        self.lets(question, Direction::Egress, from, to) && self.lets(question, Direction::Ingress, to, from)
    }

    /// The classes to which a class may open connections, in order.
    pub fn reachable_from(&self, question: usize, from: EndpointClassId) -> impl Iterator<Item = EndpointClassId> + '_ {
        let let_out = self.open(question, Direction::Egress, from).into_iter().flat_map(Bits::iter);
        let_out.map(numbered).filter(move |to| self.lets(question, Direction::Ingress, *to, from))
    }

    /// The classes that may open connections to a class, in order.
    pub fn reaches(&self, question: usize, to: EndpointClassId) -> impl Iterator<Item = EndpointClassId> + '_ {
        let let_in = self.open(question, Direction::Ingress, to).into_iter().flat_map(Bits::iter);
        let_in.map(numbered).filter(move |from| self.lets(question, Direction::Egress, *from, to))
    }

    /// The policies that govern a class in a direction, in order of evaluation, staged ones
    /// included.
    pub fn policies_of(
        &self,
        class: EndpointClassId,
        direction: Direction,
    ) -> impl Iterator<Item = &'a PolicyId> + use<'a> {
        let workload = self.members(class).first();
        let group = workload.and_then(|workload| self.compiled.workload_group(workload, direction));
        let key = group.and_then(|group| self.compiled.classes.groups.key(group));
        key.into_iter().flat_map(GroupKey::policies)
    }

    /// The classes that a policy governs in either direction, in order.
    #[must_use]
    pub fn endpoints_of(&self, policy: &PolicyId) -> Vec<EndpointClassId> {
        let groups: AHashSet<GroupId> =
            self.compiled.classes.owners.groups_of(&OwnerKey::Policy(policy.clone())).collect();
        let is_governed = |class: &EndpointClassId| {
            let workload = self.members(*class).first();
            [Direction::Ingress, Direction::Egress].into_iter().any(|direction| {
                let group = workload.and_then(|workload| self.compiled.workload_group(workload, direction));
                group.is_some_and(|group| groups.contains(&group))
            })
        };
        self.classes().filter(is_governed).collect()
    }

    fn class(&self, class: EndpointClassId) -> Option<&EndpointClass> {
        self.classes.get(class.number() as usize)
    }

    /// Returns the peers that a class allows.
    fn open(&self, question: usize, direction: Direction, class: EndpointClassId) -> Option<&Bits> {
        let side = self.class(class)?.sides[direction];
        self.open.get(question)?[direction].get(side)
    }

    fn lets(&self, question: usize, direction: Direction, class: EndpointClassId, peer: EndpointClassId) -> bool {
        self.open(question, direction, class).is_some_and(|open| open.contains(peer.number() as usize))
    }
}

fn numbered(number: usize) -> EndpointClassId {
    EndpointClassId::new(number_of(number))
}
