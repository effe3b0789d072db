//! What an item contributes to the sets that it is in.

use tortie_model::desired::PortProtocol;
use tortie_model::{Cidr, EndpointPort};

use super::member_deltas::Member;
use crate::types::NamedPort;

/// The networks and named ports of an item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ItemMembers {
    nets: Nets,
    ports: Box<[EndpointPort]>,
}

/// Networks without host bits, sorted, each once. Nearly always one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Nets {
    One(Cidr),
    Many(Box<[Cidr]>),
}

impl Default for Nets {
    fn default() -> Self {
        Self::Many(Box::default())
    }
}

impl Nets {
    fn new(mut nets: impl Iterator<Item = Cidr>) -> Self {
        let mut list = match (nets.next(), nets.next()) {
            (None, _) => return Self::default(),
            (Some(net), None) if net.is_host() => return Self::One(net),
            (Some(net), None) => vec![net],
            (Some(first), Some(second)) => {
                let mut list = Vec::with_capacity(2 + nets.size_hint().0);
                list.extend([first, second]);
                list.extend(nets);
                list
            }
        };
        if !list.iter().all(|net| net.is_host()) {
            list = list.into_iter().flat_map(|net| net.masked().split_default_route()).collect();
        }
        if !list.is_sorted() {
            list.sort_unstable();
        }
        list.dedup();
        if let [net] = list[..] { Self::One(net) } else { Self::Many(list.into()) }
    }
}

impl ItemMembers {
    pub(super) fn new(nets: impl IntoIterator<Item = Cidr>, ports: &[EndpointPort]) -> Self {
        Self { nets: Nets::new(nets.into_iter()), ports: ports.into() }
    }

    /// The networks, sorted.
    pub(super) fn nets(&self) -> &[Cidr] {
        match &self.nets {
            Nets::One(net) => std::slice::from_ref(net),
            Nets::Many(nets) => nets,
        }
    }

    /// Calls `with` for each member, each once, of a set for networks or for a named port.
    pub(super) fn each_member(&self, named: Option<&NamedPort>, mut with: impl FnMut(Member)) {
        let Some(named) = named else {
            return self.nets().iter().for_each(|&net| with(Member::of_net(net)));
        };
        let meant = |port: &EndpointPort| Some((named.member_protocol(port)?, port.port));
        for (place, port) in self.ports.iter().enumerate() {
            let Some(port) = meant(port) else { continue };
            if self.ports[..place].iter().any(|earlier| meant(earlier) == Some(port)) {
                continue;
            }
            let mut last = None;
            for address in self.nets().iter().map(|net| net.to_host()) {
                // Networks of the same address and different length stand side by side.
                if last.replace(address) != Some(address) {
                    with(Member::of_port(address, port));
                }
            }
        }
    }

    /// Whether `each_member` would tell this member.
    pub(super) fn contributes(&self, named: Option<&NamedPort>, member: Member) -> bool {
        let Some(named) = named else { return self.nets().binary_search(&member.net()).is_ok() };
        let meant = |port: &EndpointPort| {
            named.member_protocol(port).is_some_and(|protocol| member.has_port((protocol, port.port)))
        };
        self.ports.iter().any(meant) && self.nets().iter().any(|net| net.to_host() == member.net())
    }
}

/// A protocol and port.
pub(super) type Port = (PortProtocol, u16);
