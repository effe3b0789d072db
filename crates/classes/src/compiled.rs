//! Compilation of changes, and questions to tables.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_evaluate::{Answer, DecidedBy, Layer, Missing, Packet, Settings, Verdict};
use tortie_model::{Cidr, Direction, Family, HostEndpointName, WorkloadEndpointId};

use crate::addresses::{BucketChanges, ClassChange};
use crate::axis::Axis;
use crate::classes::Classes;
use crate::ids::{ClassId, GroupId, L4ClassId};
use crate::line::{L4Detail, l4_point, source_port_point, source_port_stretches, stretches};
use crate::program::{GroupName, StagedRuling};
use crate::table::{Point, Table};
use crate::view::TableView;

/// Classes and tables that are up to date. As long as it lives, nothing can be applied.
#[derive(Clone, Debug)]
pub struct Compiled<'a> {
    pub(crate) classes: &'a Classes,
    changed: Vec<GroupId>,
    nets: Vec<Cidr>,
    changed_classes: Vec<ClassChange>,
}

impl Classes {
    /// Compiles the changes since the last flush; the cost is that of the change. What comes back answers for all that was
    /// applied.
    pub fn flush(&mut self) -> Compiled<'_> {
        let groups = self.owners.flush(&mut self.sets, &mut self.addresses, self.groups.budget());
        self.groups.set_pending(groups);
        let buckets = self.addresses.flush();
        let changed = self.groups.flush(&buckets, &self.owners, &self.addresses);
        self.flushes += 1;
        let BucketChanges { nets, classes: changed_classes, .. } = buckets;
        Compiled { classes: self, changed, nets, changed_classes }
    }
}

impl<'a> Compiled<'a> {
    /// Which flush this is of all: whoever keeps up with changes must see each one.
    #[must_use]
    pub fn flush_number(&self) -> u64 {
        self.classes.flushes
    }

    /// What the policies of a workload say about a packet to it (ingress) or from it (egress).
    ///
    /// # Errors
    /// If the workload, or something that its policies refer to, does not exist.
    pub fn workload(&self, id: &WorkloadEndpointId, direction: Direction, packet: &Packet) -> Result<Answer, Missing> {
        let workload = self.classes.workloads.get(id).ok_or_else(|| Missing::Workload(id.clone()))?;
        if !workload.is_active {
            return Ok(Answer { verdict: Verdict::Deny, decided_by: DecidedBy::EndpointInactive });
        }
        if direction == Direction::Egress
            && let Some((guard, _)) = self.guards_of(id).guards(packet).find(|(_, denies)| *denies)
        {
            return Ok(Answer { verdict: Verdict::Deny, decided_by: DecidedBy::Guard(guard) });
        }
        let group = match direction {
            Direction::Ingress => workload.ingress,
            Direction::Egress => workload.egress,
        };
        self.answer(group, direction, packet).unwrap_or_else(|| Err(Missing::Workload(id.clone())))
    }

    /// What one layer of a host endpoint says about a packet that comes in by it (ingress) or leaves by it (egress).
    ///
    /// # Errors
    /// If the endpoint, or something that its policies refer to, does not exist.
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
            return Ok(Answer { verdict: Verdict::Allow, decided_by: DecidedBy::Failsafe(port) });
        }
        self.answer(group, direction, packet).unwrap_or_else(|| Err(Missing::Host(name.clone())))
    }

    /// What the staged policies of a group say about a packet, of those that come before what decides.
    ///
    /// # Errors
    /// If something is missing that the policies refer to.
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

    /// By what it is judged what a workload sends, besides policies.
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
        Some(Ok(Answer { verdict: *verdict, decided_by: by.clone() }))
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

    /// All networks that tell addresses apart, each before what it covers, with their classes. Of those that cover an address
    /// the longest tells its class; without any, addresses of a family have the class of this family's [`Self::rest`].
    pub fn prefixes(&self) -> impl Iterator<Item = (Cidr, ClassId)> + '_ {
        self.classes.addresses.prefixes()
    }

    /// How many networks tell addresses apart.
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

    /// Networks that have all addresses whose class may be another than at the flush before, in order; none is within another.
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

    /// How many address classes there are, those of [`Self::rest`] included.
    #[must_use]
    pub fn class_count(&self) -> usize {
        self.classes.addresses.class_count()
    }

    /// Numbers of address classes are below.
    #[must_use]
    pub fn class_extent(&self) -> usize {
        self.classes.addresses.class_extent()
    }

    /// The L4 class of a packet: what all rules together can tell of its protocol, destination port and ICMP message.
    #[must_use]
    pub fn l4_class_of(&self, packet: &Packet) -> L4ClassId {
        self.classes.owners.l4.class_of(l4_point(packet))
    }

    /// Where each stretch of one L4 class begins, in order: with this protocol and detail, and on to the next one.
    pub fn l4_classes(&self) -> impl Iterator<Item = (u8, L4Detail, L4ClassId)> + '_ {
        stretches(self.classes.owners.l4.iter())
    }

    /// The class of a packet's source port: what all rules together can tell of it.
    #[must_use]
    pub fn source_port_class_of(&self, packet: &Packet) -> L4ClassId {
        self.classes.owners.source_ports.class_of(source_port_point(packet))
    }

    /// The first port of each class of source ports, in order; `None` stands for packets without ports.
    pub fn source_port_classes(&self) -> impl Iterator<Item = (Option<u16>, L4ClassId)> + '_ {
        source_port_stretches(self.classes.owners.source_ports.iter())
    }

    /// All groups of endpoints with equal policies, each for one direction, ascending.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.classes.groups.iter()
    }

    /// Whether a group is asked about packets to its endpoints (ingress) or from them (egress); `None` if there is no such group.
    #[must_use]
    pub fn direction_of(&self, group: GroupId) -> Option<Direction> {
        Some(self.classes.groups.key(group)?.direction)
    }

    /// The policies and profiles of a group; `None` if there is no such group.
    #[must_use]
    pub fn group_name(&self, group: GroupId) -> Option<GroupName> {
        self.classes.groups.name(group)
    }

    /// The groups whose tables may be others than at the flush before, in order. Those that are gone have no table any more.
    /// A class that is new may have a row in a table that has not changed: see [`Self::changed_rows`].
    #[must_use]
    pub fn changed_groups(&self) -> &[GroupId] {
        &self.changed
    }

    /// The groups whose tables have not changed, but that give some classes other rows than at the flush before, with these
    /// classes, in order: a number stands for another class, or for none any more, which then has the row of
    /// [`TableView::own_rest`] and [`TableView::peer_rest`].
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
    /// If something is missing that its policies refer to. Such a group must be denied everything.
    #[must_use]
    pub fn table(&self, group: GroupId) -> Option<Result<TableView<'a>, Missing>> {
        let (_, table) = self.table_of(group)?;
        Some(table.map(|table| TableView::new(self.classes, table)))
    }
}
