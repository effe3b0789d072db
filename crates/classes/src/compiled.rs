//! Compilation of changes, and questions to tables.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_evaluate::{Answer, DecidedBy, Layer, Missing, Packet, Settings, Verdict};
use tortie_model::{Cidr, Direction, Family, HostEndpointName, WorkloadEndpointId};

use crate::addresses::{BucketChanges, ClassChange};
use crate::axis::Axis;
use crate::classes::Classes;
use crate::ids::{ClassId, GroupId, L4ClassId, LearnedId};
use crate::line::{L4Detail, l4_point, source_port_point, source_port_stretches, stretches};
use crate::program::{GroupName, StagedRuling};
use crate::table::{Point, Table};
use crate::view::TableView;

/// Classes and tables, up to date. While it is borrowed, no update can be applied.
#[derive(Clone, Debug)]
pub struct Compiled<'a> {
    pub(crate) classes: &'a Classes,
    changed: Vec<GroupId>,
    nets: Vec<Cidr>,
    changed_classes: Vec<ClassChange>,
}

impl Classes {
    /// Compiles the changes since the last flush, at a cost proportional to them. The result
    /// answers for all applied updates.
    pub fn flush(&mut self) -> Compiled<'_> {
        let groups = self.owners.flush(&mut self.sets, &mut self.addresses, self.groups.budget());
        self.groups.set_pending(groups);
        self.learned.follow(&self.sets, &mut self.addresses);
        let buckets = self.addresses.flush();
        let changed = self.groups.flush(&buckets, &self.owners, &self.addresses);
        self.flushes += 1;
        let BucketChanges { nets, classes: changed_classes, .. } = buckets;
        Compiled { classes: self, changed, nets, changed_classes }
    }
}

impl<'a> Compiled<'a> {
    /// Returns the class of a learned address; `None` for an unknown one.
    #[must_use]
    pub fn learned_class(&self, id: LearnedId) -> Option<ClassId> {
        self.classes.learned_class(id)
    }

    /// Number of this flush. A caller that follows changes must see each flush.
    #[must_use]
    pub fn flush_number(&self) -> u64 {
        self.classes.flushes
    }

    /// Evaluates the policies of a workload for a packet to it (ingress) or from it (egress).
    ///
    /// # Errors
    /// If the workload, or an object that its policies refer to, does not exist.
    pub fn workload(&self, id: &WorkloadEndpointId, direction: Direction, packet: &Packet) -> Result<Answer, Missing> {
        let workload = self.classes.workloads.get(id).ok_or_else(|| Missing::Workload(id.clone()))?;
        if !workload.is_active {
            return Ok(Answer::new(Verdict::Deny, DecidedBy::EndpointInactive));
        }
        if direction == Direction::Egress
            && let Some((guard, _)) = self.guards_of(id).guards(packet).find(|(_, denies)| *denies)
        {
            return Ok(Answer::new(Verdict::Deny, DecidedBy::Guard(guard)));
        }
        let group = match direction {
            Direction::Ingress => workload.ingress,
            Direction::Egress => workload.egress,
        };
        self.answer(group, direction, packet).unwrap_or_else(|| Err(Missing::Workload(id.clone())))
    }

    /// Evaluates one layer of a host endpoint for a packet that comes in by it (ingress) or leaves
    /// by it (egress).
    ///
    /// # Errors
    /// If the endpoint, or an object that its policies refer to, does not exist.
    pub fn host(
        &self,
        name: &HostEndpointName,
        layer: Layer,
        direction: Direction,
        packet: &Packet,
    ) -> Result<Answer, Missing> {
        let group = self.host_group(name, layer, direction).ok_or_else(|| Missing::Host(name.clone()))?;
        let nodes = &self.classes.nodes;
        if let Some(port) = nodes.settings(nodes.settings_of_host(name)).failsafe(layer, direction, packet) {
            return Ok(Answer::new(Verdict::Allow, DecidedBy::Failsafe(port)));
        }
        self.answer(group, direction, packet).unwrap_or_else(|| Err(Missing::Host(name.clone())))
    }

    /// Returns the rulings on a packet by the staged policies of a group that precede the deciding
    /// rule.
    ///
    /// # Errors
    /// If an object that the policies refer to is missing.
    pub fn staged(&self, group: GroupId, packet: &Packet) -> Result<Vec<StagedRuling>, Missing> {
        let Some((direction, table)) = self.table_of(group) else { return Ok(Vec::new()) };
        let table = table?;
        Ok(table.staged(&self.point(table, direction, packet)))
    }

    /// The group of a workload for a direction.
    #[must_use]
    pub fn workload_group(&self, id: &WorkloadEndpointId, direction: Direction) -> Option<GroupId> {
        let workload = self.classes.workloads.get(id)?;
        Some(match direction {
            Direction::Ingress => workload.ingress,
            Direction::Egress => workload.egress,
        })
    }

    /// The group of a host endpoint for a layer and direction.
    #[must_use]
    pub fn host_group(&self, name: &HostEndpointName, layer: Layer, direction: Direction) -> Option<GroupId> {
        Some(self.classes.hosts.get(name)?.group((layer, direction)))
    }

    /// Returns the settings that apply to packets from a workload, before policies.
    fn guards_of(&self, id: &WorkloadEndpointId) -> &Settings {
        let nodes = &self.classes.nodes;
        nodes.settings(nodes.settings_of_workload(id))
    }

    fn answer(&self, group: GroupId, direction: Direction, packet: &Packet) -> Option<Result<Answer, Missing>> {
        let (_, table) = self.table_of(group)?;
        let table = match table {
            Ok(table) => table,
            Err(missing) => return Some(Err(missing)),
        };
        let (verdict, by) = table.decision(&self.point(table, direction, packet))?;
        Some(Ok(Answer::new(*verdict, by.clone())))
    }

    pub(crate) fn table_of(&self, group: GroupId) -> Option<(Direction, Result<&'a Table, Missing>)> {
        let groups = &self.classes.groups;
        Some((groups.key(group)?.direction, groups.table(group)?.map_err(Clone::clone)))
    }

    fn point(&self, table: &Table, direction: Direction, packet: &Packet) -> Point {
        let (own, peer) = match direction {
            Direction::Ingress => (packet.destination(), packet.source()),
            Direction::Egress => (packet.source(), packet.destination()),
        };
        let addresses = &self.classes.addresses;
        let row = |axis: &Axis, address| axis.row_of(addresses.outwards(addresses.bucket_of(address)), packet.family());
        Point {
            own: row(table.own(), own),
            peer: row(table.peer(), peer),
            l4: l4_point(packet),
            source_port: source_port_point(packet),
        }
    }

    /// The class of an address.
    #[must_use]
    pub fn class_of(&self, address: IpAddr) -> ClassId {
        self.classes.addresses.class_of(address)
    }

    /// Returns all networks that distinguish addresses with their classes, each before the networks
    /// that it covers. The longest network that covers an address determines its class. Addresses
    /// that none covers have the class [`Self::rest`] of their family.
    pub fn prefixes(&self) -> impl Iterator<Item = (Cidr, ClassId)> + '_ {
        self.classes.addresses.prefixes()
    }

    /// Number of networks that distinguish addresses.
    #[must_use]
    pub fn prefix_count(&self) -> usize {
        self.classes.addresses.prefix_count()
    }

    /// Of [`Self::prefixes`] those that a network covers, itself included.
    pub fn prefixes_within(&self, net: Cidr) -> impl Iterator<Item = (Cidr, ClassId)> + '_ {
        self.classes.addresses.prefixes_within(net.masked())
    }

    /// The class of the addresses in a network that no longer one of [`Self::prefixes`] covers.
    #[must_use]
    pub fn class_of_network(&self, net: Cidr) -> ClassId {
        self.classes.addresses.class_of_net(net.masked())
    }

    /// Networks that cover all addresses whose class may differ from the previous flush, in order;
    /// none is within another.
    #[must_use]
    pub fn changed_networks(&self) -> &[Cidr] {
        &self.nets
    }

    /// The family of a class's addresses; `None` if there is no such class.
    #[must_use]
    pub fn family_of(&self, class: ClassId) -> Option<Family> {
        self.classes.addresses.find_family(class)
    }

    /// The class of addresses that no network covers.
    #[must_use]
    pub fn rest(&self, family: Family) -> ClassId {
        crate::addresses::unknown(family)
    }

    /// All address classes, ascending.
    pub fn classes(&self) -> impl Iterator<Item = ClassId> + '_ {
        self.classes.addresses.classes()
    }

    /// Number of address classes, including those of [`Self::rest`].
    #[must_use]
    pub fn class_count(&self) -> usize {
        self.classes.addresses.class_count()
    }

    /// Numbers of address classes are below.
    #[must_use]
    pub fn class_extent(&self) -> usize {
        self.classes.addresses.class_extent()
    }

    /// Returns the L4 class of a packet: protocol, destination port and ICMP message as far as any
    /// rule distinguishes them.
    #[must_use]
    pub fn l4_class_of(&self, packet: &Packet) -> L4ClassId {
        self.classes.owners.l4.class_of(l4_point(packet))
    }

    /// Returns the start of each stretch of one L4 class, in order, as protocol and detail. A
    /// stretch ends at the next one.
    pub fn l4_classes(&self) -> impl Iterator<Item = (u8, L4Detail, L4ClassId)> + '_ {
        stretches(self.classes.owners.l4.iter())
    }

    /// Returns the class of a packet's source port, as far as any rule distinguishes source ports.
    #[must_use]
    pub fn source_port_class_of(&self, packet: &Packet) -> L4ClassId {
        self.classes.owners.source_ports.class_of(source_port_point(packet))
    }

    /// The first port of each class of source ports, in order; `None` stands for packets without
    /// ports.
    pub fn source_port_classes(&self) -> impl Iterator<Item = (Option<u16>, L4ClassId)> + '_ {
        source_port_stretches(self.classes.owners.source_ports.iter())
    }

    /// All groups of endpoints with equal policies, each for one direction, ascending.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.classes.groups.iter()
    }

    /// Returns whether a group is for packets to its endpoints (ingress) or from them (egress);
    /// `None` if there is no such group.
    #[must_use]
    pub fn direction_of(&self, group: GroupId) -> Option<Direction> {
        Some(self.classes.groups.key(group)?.direction)
    }

    /// The policies and profiles of a group; `None` if there is no such group.
    #[must_use]
    pub fn group_name(&self, group: GroupId) -> Option<GroupName> {
        self.classes.groups.name(group)
    }

    /// The groups whose tables may differ from the previous flush, in order. Removed groups have no
    /// table any more. A new class may have a row in an unchanged table: see
    /// [`Self::changed_rows`].
    #[must_use]
    pub fn changed_groups(&self) -> &[GroupId] {
        &self.changed
    }

    /// The groups whose tables have not changed, but that have other rows for some classes than at
    /// the previous flush, with these classes, in order. Such a number stands for another class, or
    /// for none any more. A number without class has the row of [`TableView::own_rest`] and
    /// [`TableView::peer_rest`].
    #[must_use]
    pub fn changed_rows(&self) -> BTreeMap<GroupId, Vec<ClassId>> {
        let mut rows: BTreeMap<GroupId, Vec<ClassId>> = BTreeMap::new();
        for ClassChange { class, atoms } in &self.changed_classes {
            for group in atoms.iter().flat_map(|atom| self.classes.groups.asking(*atom)) {
                if self.changed.binary_search(&group).is_err() {
                    let classes = rows.entry(group).or_default();
                    if classes.last() != Some(class) {
                        classes.push(*class);
                    }
                }
            }
        }
        rows
    }

    /// The table of a group; `None` if there is no such group.
    ///
    /// # Errors
    /// If an object that its policies refer to is missing. Such a group must be denied everything.
    #[must_use]
    pub fn table(&self, group: GroupId) -> Option<Result<TableView<'a>, Missing>> {
        let (_, table) = self.table_of(group)?;
        Some(table.map(|table| TableView::new(self.classes, table)))
    }
}
