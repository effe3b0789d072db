//! Addresses of rules: single ones, or the networks that stand for them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tortie_model::Cidr;

use crate::inventory::Inventory;
use crate::policy::{Mark, Peer};
use crate::record::{End, is_private, network_of, private_networks};

/// Number of addresses of a port that stay as they are.
const SINGLE: usize = 8;

/// Number of addresses from which their network stands for them.
const SHARED: usize = 4;

/// Number of addresses without such a network from which everything public stands for them.
const SCATTERED: usize = 16;

/// Number of public clients of a port from which everything public may be a client.
const CLIENTS: usize = 3;

/// Least prefix lengths of networks of nodes, by family.
const NODES: (u8, u8) = (16, 48);

/// Treatment of addresses outside of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum External {
    /// Networks stand for many addresses.
    #[default]
    Prefix,
    /// Each address by itself.
    Exact,
    /// Everything public, or everything private, stands for any address.
    Any,
}

/// Blocks of the ends outside at a port of a policy.
pub(crate) struct Blocks<'i> {
    pub(crate) inventory: &'i Inventory,
    pub(crate) external: External,
    pub(crate) namespace: &'i str,
    /// Whether the ends open the connections.
    pub(crate) are_clients: bool,
    /// Networks of an earlier output at this place.
    pub(crate) kept: &'i BTreeSet<Cidr>,
}

/// Peers with the ends for which each stands.
pub(crate) type Covering = BTreeMap<Peer, (BTreeSet<Mark>, BTreeSet<End>)>;

impl Blocks<'_> {
    /// Returns the peers that stand for ends outside, each with these ends. Ends that have no
    /// addresses are left out unless `external` is [`External::Any`].
    pub(crate) fn of(&self, ends: &BTreeSet<End>) -> Covering {
        let mut found = Covering::new();
        let mut rest: BTreeSet<Cidr> = BTreeSet::new();
        let mut add = |peer: Peer, mark: Option<Mark>, end: End| {
            let (marks, ends) = found.entry(peer).or_default();
            marks.extend(mark);
            ends.insert(end);
        };
        for end in ends {
            match end {
                End::Network(net) => match self.network_set(*net) {
                    Some(networks) => networks.for_each(|peer| add(peer, None, end.clone())),
                    None => {
                        rest.insert(*net);
                    }
                },
                End::NetworkSet(name) => {
                    let name = tortie_model::NetworkSetName::new(&**name);
                    let networks = self.inventory.network_sets.get(&name).into_iter().flatten();
                    networks.for_each(|net| add(block(*net), None, end.clone()));
                }
                End::Node(_) => {
                    node_networks(self.inventory).iter().for_each(|net| add(block(*net), None, end.clone()));
                }
                End::Public => public(None).into_iter().for_each(|peer| add(peer, None, end.clone())),
                End::Private => self.private().into_iter().for_each(|peer| add(peer, None, end.clone())),
                End::UnknownPrivate | End::UnknownPublic if self.external == External::Any => {
                    let wide = if *end == End::UnknownPublic { public(None) } else { self.private() };
                    wide.into_iter().for_each(|peer| add(peer, None, end.clone()));
                }
                End::UnknownPrivate | End::UnknownPublic | End::Owner(_) => {}
            }
        }
        for (peer, nets) in self.outside(&rest) {
            let is_wide = nets.len() > 1 || !nets.iter().any(|net| peer == block(*net));
            let mark = is_wide.then_some(Mark::Widened(nets.len()));
            nets.into_iter().for_each(|net| add(peer.clone(), mark, End::Network(net)));
        }
        found
    }

    /// Returns the networks of the network set that contains an address.
    fn network_set(&self, net: Cidr) -> Option<impl Iterator<Item = Peer> + use<'_>> {
        let name = self.inventory.network_set(net.address(), self.namespace).filter(|_| net.is_host())?;
        Some(self.inventory.network_sets.get(name)?.iter().map(|net| block(*net)))
    }

    /// Returns the peers that stand for addresses outside, each with these addresses.
    fn outside(&self, nets: &BTreeSet<Cidr>) -> BTreeMap<Peer, BTreeSet<Cidr>> {
        let mut found: BTreeMap<Peer, BTreeSet<Cidr>> = BTreeMap::new();
        let single = |net: &Cidr| (block(*net), [*net].into());
        match self.external {
            External::Exact => return nets.iter().map(single).collect(),
            External::Any => {
                for net in nets {
                    let wide = if is_private(*net) { self.private() } else { public(Some(*net)) };
                    wide.into_iter().filter(|peer| peer.may_contain(*net)).for_each(|peer| {
                        found.entry(peer).or_default().insert(*net);
                    });
                }
                return found;
            }
            External::Prefix => {}
        }
        let (kept, nets): (BTreeSet<Cidr>, BTreeSet<Cidr>) =
            nets.iter().partition(|net| self.kept_for(**net).is_some());
        for net in kept {
            if let Some(wide) = self.kept_for(net) {
                found.entry(self.kept_peer(wide)).or_default().insert(net);
            }
        }
        let is_public = |net: &&Cidr| !is_private(**net);
        if self.are_clients && nets.iter().filter(is_public).count() >= CLIENTS {
            for net in nets.iter().filter(is_public) {
                public(Some(*net)).into_iter().for_each(|peer| {
                    found.entry(peer).or_default().insert(*net);
                });
            }
            let private = nets.iter().copied().filter(|net| is_private(*net)).collect();
            self.networks(&private, &mut found);
        } else {
            self.networks(&nets, &mut found);
        }
        found
    }

    /// Adds the networks of addresses, where enough share one.
    fn networks(&self, nets: &BTreeSet<Cidr>, found: &mut BTreeMap<Peer, BTreeSet<Cidr>>) {
        let mut shared: BTreeMap<Cidr, BTreeSet<Cidr>> = BTreeMap::new();
        for net in nets {
            shared.entry(network_of(*net)).or_default().insert(*net);
        }
        let may_widen = nets.len() > SINGLE;
        shared.retain(|wide, nets| may_widen && nets.len() >= SHARED && !self.inventory.has_pods(*wide));
        let left: Vec<Cidr> = nets.iter().copied().filter(|net| !shared.contains_key(&network_of(*net))).collect();
        found.extend(shared.into_iter().map(|(wide, nets)| (block(wide), nets)));
        let is_scattered = left.len() > SCATTERED;
        for net in left {
            if is_scattered && !is_private(net) {
                for peer in public(Some(net)) {
                    found.entry(peer).or_default().insert(net);
                }
            } else {
                found.entry(block(net)).or_default().insert(net);
            }
        }
    }

    /// Returns the widened network of an earlier output that still stands for an address.
    fn kept_for(&self, net: Cidr) -> Option<Cidr> {
        let holds = |kept: &&Cidr| {
            kept.prefix_len() < net.prefix_len()
                && kept.contains(net.address())
                && if kept.prefix_len() == 0 { !is_private(net) } else { !self.inventory.has_pods(**kept) }
        };
        self.kept.iter().find(holds).copied()
    }

    fn kept_peer(&self, net: Cidr) -> Peer {
        match net.prefix_len() {
            0 => public(Some(net)).pop().unwrap_or_else(|| block(net)),
            _ => block(net),
        }
    }

    /// Returns everything private, without the addresses of pods.
    fn private(&self) -> Vec<Peer> {
        let nets = private_networks().filter(|net| !is_link_local(*net));
        let peers = nets.filter(|net| !self.inventory.pools.iter().any(|pool| contains(*pool, *net)));
        let except = |net: Cidr| {
            let inside = self.inventory.pools.iter().copied().filter(move |pool| contains(net, *pool));
            let mut outermost: Vec<Cidr> = Vec::new();
            for pool in inside {
                if !outermost.iter().any(|other| contains(*other, pool)) {
                    outermost.push(pool);
                }
            }
            outermost
        };
        peers.map(|net| Peer::Block { net, except: except(net) }).collect()
    }
}

impl Peer {
    /// Reports whether a block has an address.
    pub(crate) fn may_contain(&self, address: Cidr) -> bool {
        match self {
            Self::Block { net, except } => {
                net.contains(address.address()) && !except.iter().any(|hole| hole.contains(address.address()))
            }
            Self::Pods { .. } => false,
        }
    }
}

fn block(net: Cidr) -> Peer {
    Peer::Block { net: net.masked(), except: Vec::new() }
}

fn is_link_local(net: Cidr) -> bool {
    match net.address() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn contains(wide: Cidr, net: Cidr) -> bool {
    wide.prefix_len() <= net.prefix_len() && wide.contains(net.address())
}

/// Returns everything but private and link-local addresses: of the family of an address, or of
/// both.
fn public(of: Option<Cidr>) -> Vec<Peer> {
    let families: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let wanted = families.into_iter().filter(|address| of.is_none_or(|of| of.address().is_ipv4() == address.is_ipv4()));
    let peer = |address: IpAddr| {
        let except = private_networks().filter(|net| net.address().is_ipv4() == address.is_ipv4()).collect();
        Some(Peer::Block { net: Cidr::new(address, 0)?, except })
    };
    wanted.filter_map(peer).collect()
}

/// Returns the fewest networks with all addresses of nodes and none of pods, none wider than /16 or
/// /48. Addresses within pools stay single, as pods get the others there.
pub(crate) fn node_networks(inventory: &Inventory) -> &BTreeSet<Cidr> {
    inventory.node_networks.get_or_init(|| networks_of_nodes(inventory))
}

fn networks_of_nodes(inventory: &Inventory) -> BTreeSet<Cidr> {
    let all: BTreeSet<Cidr> = inventory.nodes.values().flatten().map(|address| Cidr::host(*address)).collect();
    let is_in_pool = |net: &Cidr| inventory.pools.iter().any(|pool| pool.contains(net.address()));
    let (mut found, rest): (BTreeSet<Cidr>, BTreeSet<Cidr>) = all.into_iter().partition(is_in_pool);
    let (v4, v6): (Vec<Cidr>, Vec<Cidr>) = rest.into_iter().partition(|net| net.address().is_ipv4());
    for (nets, least) in [(v4, NODES.0), (v6, NODES.1)] {
        cover(&nets, least, inventory, &mut found);
    }
    found
}

/// Covers sorted addresses of one family with networks.
fn cover(nets: &[Cidr], least: u8, inventory: &Inventory, found: &mut BTreeSet<Cidr>) {
    let (Some(first), Some(last)) = (nets.first(), nets.last()) else { return };
    let common = (first.bits() ^ last.bits()).leading_zeros();
    let length = u8::try_from(common).unwrap_or(u8::MAX).min(first.prefix_len());
    let whole = Cidr::new(first.address(), length).map_or(*first, Cidr::masked);
    if nets.len() == 1 || length >= least && !inventory.has_pods(whole) {
        found.insert(whole);
        return;
    }
    let bit = 1_u128 << (127 - u32::from(length).min(127));
    let split = nets.partition_point(|net| net.bits() & bit == 0);
    let (low, high) = nets.split_at(split);
    cover(low, least, inventory, found);
    cover(high, least, inventory, found);
}
