//! Networks and named ports that an item contributes to its sets.

use tortie_model::{Cidr, CidrIter, CidrList, EndpointPort};

use super::member::Member;
use crate::types::NamedPort;

/// Networks and named ports of an item; nearly always a single address, often without ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ItemMembers {
    #[default]
    Nothing,
    Net(Cidr),
    /// Sorted, each once, without host bits; the two halves in place of a default route.
    Nets(CidrList),
    WithPorts(Box<(ItemMembers, Box<[EndpointPort]>)>),
}

/// Networks of an item, sorted, each once.
#[derive(Clone, Debug, Default)]
pub struct ItemNets(ItemMembers);

impl ItemNets {
    /// Returns the networks in order.
    #[must_use]
    pub fn iter(&self) -> CidrIter<'_> {
        self.0.nets()
    }
}

impl From<ItemMembers> for ItemNets {
    fn from(item_members: ItemMembers) -> Self {
        Self(item_members)
    }
}

impl<'i> IntoIterator for &'i ItemNets {
    type Item = Cidr;
    type IntoIter = CidrIter<'i>;

    fn into_iter(self) -> CidrIter<'i> {
        self.iter()
    }
}

impl ItemMembers {
    pub(super) fn new(nets: impl IntoIterator<Item = Cidr>, ports: &[EndpointPort]) -> Self {
        let mut nets = nets.into_iter();
        let nets = match (nets.next(), nets.next()) {
            (None, _) => Vec::new(),
            (Some(net), None) if net.is_host() && ports.is_empty() => return Self::Net(net),
            (Some(net), None) => canonical(vec![net]),
            (Some(first), Some(second)) => {
                let mut list = Vec::with_capacity(2 + nets.size_hint().0);
                list.extend([first, second]);
                list.extend(nets);
                canonical(list)
            }
        };
        match nets[..] {
            [] => Self::Nothing,
            [net] if ports.is_empty() => Self::Net(net),
            [net] => Self::WithPorts(Box::new((Self::Net(net), ports.into()))),
            _ if ports.is_empty() => Self::Nets(nets.into()),
            _ => Self::WithPorts(Box::new((Self::Nets(nets.into()), ports.into()))),
        }
    }

    /// Returns networks without ports. The list is shared if it is already in canonical form.
    pub(super) fn sharing(nets: &CidrList) -> Self {
        let is_plain = |net: Cidr| net.prefix_len() > 0 && net.masked() == net;
        if nets.len() > 1 && nets.iter().is_sorted_by(|a, b| a < b) && nets.iter().all(is_plain) {
            return Self::Nets(nets.clone());
        }
        Self::new(nets, &[])
    }

    /// Returns the networks, sorted.
    pub(super) fn nets(&self) -> CidrIter<'_> {
        match self {
            Self::Nothing => CidrIter::default(),
            Self::Net(net) => CidrIter::once(*net),
            Self::Nets(nets) => nets.iter(),
            Self::WithPorts(both) => both.0.nets(),
        }
    }

    /// Returns the number of networks.
    pub(super) fn net_count(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Net(_) => 1,
            Self::Nets(nets) => nets.len(),
            Self::WithPorts(both) => both.0.net_count(),
        }
    }

    /// Reports whether the item has this network.
    pub(super) fn has_net(&self, net: Cidr) -> bool {
        match self {
            Self::Nothing => false,
            Self::Net(only) => *only == net,
            Self::Nets(nets) => nets.sorted_contains(net),
            Self::WithPorts(both) => both.0.has_net(net),
        }
    }

    fn ports(&self) -> &[EndpointPort] {
        match self {
            Self::Nothing | Self::Net(_) | Self::Nets(_) => &[],
            Self::WithPorts(both) => &both.1,
        }
    }

    /// Calls `with` once for each member that the item contributes to a set: of its networks, or of
    /// a named port.
    pub(super) fn each_member(&self, named: Option<&NamedPort>, mut with: impl FnMut(Member)) {
        let Some(named) = named else {
            return self.nets().for_each(|net| with(Member::of_net(net)));
        };
        let member_port = |port: &EndpointPort| Some((named.member_protocol(port)?, port.port));
        for (place, port) in self.ports().iter().enumerate() {
            let Some(port) = member_port(port) else { continue };
            if self.ports().iter().take(place).any(|earlier| member_port(earlier) == Some(port)) {
                continue;
            }
            let mut last = None;
            for address in self.nets().map(Cidr::to_host) {
                // Networks with the same address and different lengths are adjacent.
                if last.replace(address) != Some(address) {
                    with(Member::of_port(address, port));
                }
            }
        }
    }

    /// Reports whether `each_member` would return this member.
    pub(super) fn contributes(&self, named: Option<&NamedPort>, member: Member) -> bool {
        let Some(named) = named else { return self.has_net(member.net()) };
        let member_port = |port: &EndpointPort| {
            named.member_protocol(port).is_some_and(|protocol| member.has_port((protocol, port.port)))
        };
        self.ports().iter().any(member_port) && self.nets().any(|net| net.to_host() == member.net())
    }
}

/// Returns networks in canonical form: sorted, each once, without host bits, and the two halves in
/// place of a default route.
fn canonical(mut nets: Vec<Cidr>) -> Vec<Cidr> {
    if !nets.iter().all(|net| net.is_host()) {
        nets = nets.into_iter().flat_map(|net| net.masked().split_default_route()).collect();
    }
    if !nets.is_sorted() {
        nets.sort_unstable();
    }
    nets.dedup();
    nets
}
