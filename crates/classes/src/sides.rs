//! The places where policies decide about packets: sides, and the rows in which they see a peer.

use std::net::IpAddr;

use tortie_evaluate::{Layer, Settings};
use tortie_model::{Direction, Family, HostEndpointName, WorkloadEndpointId};

use crate::compiled::Compiled;
use crate::ids::{BucketId, GroupId, Row, SettingsId};
use crate::states::States;
use crate::table::Table;

/// The policies that decide about packets in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Own {
    /// Nothing passes.
    Inactive,
    /// Everything passes: there is no such host endpoint.
    Absent,
    /// A group's table, the row of the group's own end in it, and the settings that decide besides.
    Table(GroupId, Row, SettingsId),
}

impl Own {
    /// A group's table, for endpoints with the address of this bucket.
    pub(crate) fn of_group(
        state: &Compiled<'_>,
        group: GroupId,
        bucket: Option<BucketId>,
        family: Family,
        settings: SettingsId,
    ) -> Self {
        let outwards = state.classes.addresses.outwards(bucket);
        let table = state.table_of(group).and_then(|(_, table)| table.ok());
        let row = table.map_or_else(Row::default, |table| table.own().row_of(outwards, family));
        Self::Table(group, row, settings)
    }

    /// The policies of a workload.
    pub(crate) fn of_workload(
        state: &Compiled<'_>,
        id: &WorkloadEndpointId,
        direction: Direction,
        bucket: Option<BucketId>,
        family: Family,
    ) -> Self {
        match state.classes.workloads.get(id) {
            Some(workload) if workload.is_active => {
                let (group, settings) = match direction {
                    Direction::Ingress => (workload.ingress, SettingsId::default()),
                    Direction::Egress => (workload.egress, state.classes.nodes.settings_of_workload(id)),
                };
                Self::of_group(state, group, bucket, family, settings)
            }
            _ => Self::Inactive,
        }
    }

    /// The policies of a host endpoint for a layer and direction.
    pub(crate) fn of_host(
        state: &Compiled<'_>,
        name: &HostEndpointName,
        stage: (Layer, Direction),
        family: Family,
    ) -> Self {
        let host = state.classes.hosts.get(name);
        let address = host.and_then(|host| host.addresses.iter().find(|address| Family::of(**address) == family));
        let bucket = address.and_then(|address| state.classes.addresses.bucket_of(*address));
        match host {
            Some(host) => {
                let settings = state.classes.nodes.settings_of_host(name);
                Self::of_group(state, host.group(stage), bucket, family, settings)
            }
            None => Self::Absent,
        }
    }

    /// Returns the table of the group; `None` without a group, and if the group has no table.
    pub(crate) fn table<'a>(self, state: &'a Compiled<'_>) -> Option<&'a Table> {
        match self {
            Self::Inactive | Self::Absent => None,
            Self::Table(group, ..) => state.table_of(group)?.1.ok(),
        }
    }

    /// The settings that decide besides policies.
    pub(crate) fn settings<'a>(self, state: &'a Compiled<'_>) -> &'a Settings {
        let id = match self {
            Self::Inactive | Self::Absent => SettingsId::default(),
            Self::Table(_, _, settings) => settings,
        };
        state.classes.nodes.settings(id)
    }

    /// The row of a peer with an address of this bucket.
    pub(crate) fn row_of_peer(self, state: &Compiled<'_>, bucket: Option<BucketId>, family: Family) -> Row {
        let outwards = state.classes.addresses.outwards(bucket);
        self.table(state).map_or_else(Row::default, |table| table.peer().row_of(outwards, family))
    }
}

/// The policies that decide about packets in one direction, before and after.
pub(crate) type Side = States<Own>;

/// The policies of a layer of a host endpoint on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostSide {
    pub(crate) layer: Layer,
    pub(crate) list: u32,
    pub(crate) side: Side,
}

/// A side and the rows in which it sees a peer, before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cell {
    pub(crate) side: Side,
    /// Rows of the peer.
    pub(crate) rows: States<Row>,
}

/// A place on the way of a connection with policies: a workload at its end, or a host endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct End {
    pub(crate) direction: Direction,
    pub(crate) cell: Cell,
    pub(crate) host: Option<HostEnd>,
}

/// The host endpoint of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostEnd {
    pub(crate) layer: Layer,
    /// The peer's address, or one that failsafe ports treat like it.
    pub(crate) peer: IpAddr,
    /// The interface at which a packet comes in, by number on the way. A rule that allows a packet
    /// before DNAT or connection tracking spares it the following layers there.
    pub(crate) list: Option<u32>,
}
