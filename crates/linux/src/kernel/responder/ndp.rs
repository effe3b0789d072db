//! Neighbour discovery (RFC 4861).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, ipproto, sendto, socket_with, sockopt};
use tortie_model::Mac;

/// Length of the evaluated part of a solicitation in bytes.
pub(super) const SOLICITATION_LEN: usize = 24;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const TARGET_LINK_ADDRESS: u8 = 2;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Maximum number of groups per socket, below the kernel's limit.
const GROUPS_PER_SOCKET: usize = 64;
/// Hop limit of all messages. A host on another network cannot send messages that arrive with it.
const HOP_LIMIT: u8 = 255;

/// Returns the address that a solicitation asks for; `None` for any other message.
pub(super) fn target(message: &[u8]) -> Option<Ipv6Addr> {
    let (header, rest) = message.split_first_chunk::<8>()?;
    let target = rest.first_chunk::<16>()?;
    let [kind, code, ..] = *header;
    ((kind, code) == (SOLICITATION, 0)).then(|| Ipv6Addr::from(*target))
}

/// Encodes an advertisement; the kernel adds the checksum.
fn advertisement(mac: Mac, target: Ipv6Addr, flags: u8) -> Vec<u8> {
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    message.extend([TARGET_LINK_ADDRESS, 1]);
    message.extend(mac.0);
    message
}

/// Returns the multicast group to which solicitations for an address are sent.
fn solicited_node_group(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Receiver of the solicitations on one interface.
#[derive(Debug)]
pub(super) struct Listener {
    interface: u32,
    pub(super) socket: Arc<OwnedFd>,
    pub(super) addresses: BTreeSet<Ipv6Addr>,
    /// For each group, the index of the socket that has joined it, and the number of addresses that
    /// need it.
    groups: BTreeMap<Ipv6Addr, (usize, usize)>,
    /// Sockets that join groups, with the number of groups of each.
    members: Vec<(OwnedFd, usize)>,
}

impl Listener {
    pub(super) fn open(interface: u32) -> Result<Self, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET6, SocketType::RAW, flags, Some(ipproto::ICMPV6))?;
        // Bound to a multicast address, the socket receives all groups on the interface and nothing
        // else, hence no messages from other networks.
        bind(&socket, &SocketAddrV6::new(ALL_NODES, 0, 0, interface))?;
        sockopt::set_ipv6_unicast_hops(&socket, Some(HOP_LIMIT))?;
        sockopt::set_ipv6_multicast_hops(&socket, HOP_LIMIT.into())?;
        sockopt::set_ipv6_multicast_loop(&socket, false)?;
        Ok(Self {
            interface,
            socket: Arc::new(socket),
            addresses: BTreeSet::new(),
            groups: BTreeMap::new(),
            members: Vec::new(),
        })
    }

    pub(super) fn add(&mut self, address: Ipv6Addr) -> Result<(), Errno> {
        if self.addresses.contains(&address) {
            return Ok(());
        }
        let group = solicited_node_group(address);
        match self.groups.get_mut(&group) {
            Some((_, count)) => *count += 1,
            None => {
                let member = self.join(group)?;
                self.groups.insert(group, (member, 1));
            }
        }
        self.addresses.insert(address);
        Ok(())
    }

    /// Joins a group and returns the index of the socket.
    fn join(&mut self, group: Ipv6Addr) -> Result<usize, Errno> {
        let free = self.members.iter().position(|(_, groups)| *groups < GROUPS_PER_SOCKET);
        let position = free.unwrap_or(self.members.len());
        if free.is_none() {
            let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            self.members.push((socket, 0));
        }
        if let Some((socket, groups)) = self.members.get_mut(position) {
            sockopt::set_ipv6_add_membership(&*socket, &group, self.interface)?;
            *groups += 1;
        }
        Ok(position)
    }

    /// Removes an address; reports whether it was present.
    pub(super) fn remove(&mut self, address: Ipv6Addr) -> bool {
        if !self.addresses.remove(&address) {
            return false;
        }
        let group = solicited_node_group(address);
        let Some((member, count)) = self.groups.get_mut(&group) else { return true };
        *count = count.saturating_sub(1);
        if *count == 0 {
            if let Some((socket, groups)) = self.members.get_mut(*member) {
                // If the interface is gone, the membership is gone, too.
                let _ = sockopt::set_ipv6_drop_membership(&*socket, &group, self.interface);
                *groups = groups.saturating_sub(1);
            }
            self.groups.remove(&group);
        }
        true
    }

    pub(super) fn announce(&self, mac: Mac, address: Ipv6Addr) -> Result<(), Errno> {
        send(&self.socket, self.interface, ALL_NODES, &advertisement(mac, address, OVERRIDE))
    }
}

/// Sends an advertisement that a target has this Ethernet address to the host that asked. It goes
/// to all hosts if that host has no address yet and wants this one.
pub(super) fn reply(socket: &OwnedFd, interface: u32, mac: Mac, target: Ipv6Addr, asking: IpAddr) -> Result<(), Errno> {
    match asking {
        IpAddr::V6(asking) if !asking.is_unspecified() => {
            send(socket, interface, asking, &advertisement(mac, target, SOLICITED | OVERRIDE))
        }
        _ => send(socket, interface, ALL_NODES, &advertisement(mac, target, OVERRIDE)),
    }
}

fn send(socket: &OwnedFd, interface: u32, to: Ipv6Addr, message: &[u8]) -> Result<(), Errno> {
    sendto(socket, message, SendFlags::NOSIGNAL, &SocketAddrV6::new(to, 0, 0, interface)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_solicitations_are_parsed() {
        let asked: Ipv6Addr = "fd00::12:3456".parse().unwrap();
        let mut message = vec![SOLICITATION, 0, 0xab, 0xcd, 0, 0, 0, 0];
        message.extend(asked.octets());
        assert_eq!(message.len(), SOLICITATION_LEN);
        assert_eq!(target(&message), Some(asked));
        for length in 0..SOLICITATION_LEN {
            assert_eq!(target(&message[..length]), None, "{length}");
        }
        for at in 0..2 {
            message[at] ^= 1;
            assert_eq!(target(&message), None);
            message[at] ^= 1;
        }
        assert_eq!(solicited_node_group(asked), "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
    }
}
