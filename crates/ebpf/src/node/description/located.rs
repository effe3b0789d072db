//! Position of a packet in the table of a group.

use std::net::IpAddr;

use tortie_classes::evaluate::{DecidedBy, Layer, Packet, Verdict};
use tortie_model::Direction;

use super::{Description, InterfaceEndpoint, layer_text};
use crate::node::EndpointName;

/// Numbered item of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Numbered {
    /// The number.
    pub number: usize,
    /// Text of the item.
    pub text: String,
}

/// Cell of a table that decides about a packet; numbers are those of the [`Description`]'s text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Located {
    /// Evaluated group, with its layer and direction.
    pub group: Numbered,
    /// The class of the address at the group's own end, and its addresses.
    pub own_class: Numbered,
    /// The class of the peer's address, and its addresses.
    pub peer_class: Numbered,
    /// The row of the group's own end; `None` if it has only one.
    pub own_row: Option<Numbered>,
    /// The row of the peer's end.
    pub row: Numbered,
    /// The column of the protocol, the destination port or the ICMP message.
    pub column: Numbered,
    /// The column of the source port; `None` if it does not matter.
    pub source_port: Option<Numbered>,
    /// Verdict of the cell.
    pub verdict: Verdict,
    /// Rule or default that gives the verdict.
    pub decided_by: DecidedBy,
}

impl Description {
    /// Returns the cell by which an endpoint's group decides about a packet. `None` without such a
    /// cell: the endpoint is at no interface, has no group for the layer and direction, or its
    /// group denies everything.
    pub fn locate(
        &mut self,
        endpoint: &EndpointName,
        layer: Layer,
        direction: Direction,
        packet: &Packet,
    ) -> Option<Located> {
        let Self { interfaces, all_interfaces, groups, classes, compiled, class_numbers, group_ids, .. } = self;
        let place = interfaces.iter().chain(&*all_interfaces).find(|place| place.endpoint == *endpoint)?;
        let number = group_at(place, layer, direction)?;
        let compiled = compiled.flush();
        let text = groups.get(number - 1)?.table.as_ref().ok()?;
        let table = compiled.table(*group_ids.get(number - 1)?)?.ok()?;
        let (own, peer) = match direction {
            Direction::Ingress => (packet.destination(), packet.source()),
            Direction::Egress => (packet.source(), packet.destination()),
        };
        let class = |address: IpAddr| {
            let class = compiled.class_of(address);
            let number = *class_numbers.get(&class)?;
            let text = classes.get(number)?.text(number);
            Some((class, Numbered { number, text }))
        };
        let ((own, own_class), (peer, peer_class)) = (class(own)?, class(peer)?);
        let (own, peer) = (table.own_row(own)?, table.peer_row(peer)?);
        let column = table.l4_column(compiled.l4_class_of(packet));
        let source_port = table.source_port_column(compiled.source_port_class_of(packet));
        let (verdict, decided_by) = table.cell(own, peer, column, source_port)?;
        Some(Located {
            group: Numbered { number, text: layer_text(layer, direction) },
            own_class,
            peer_class,
            own_row: text.own_row(own).filter(|_| table.own_rows().nth(1).is_some()).map(numbered),
            row: numbered(text.peer_row(peer)?),
            column: numbered(text.column(column)?),
            source_port: text.source_port(source_port).map(numbered),
            verdict,
            decided_by: decided_by.clone(),
        })
    }
}

fn group_at(place: &InterfaceEndpoint, layer: Layer, direction: Direction) -> Option<usize> {
    let group = place.groups.iter().find(|(of, way, _)| (*of, *way) == (layer, direction));
    group.map(|(.., number)| *number)
}

fn numbered((number, text): (usize, &str)) -> Numbered {
    Numbered { number, text: text.to_owned() }
}
