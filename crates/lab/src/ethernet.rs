//! Ethernet frames from a namespace, as a virtual machine sends them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, eth, netdevice, recvfrom, send, socket_with,
};

use crate::netns::{Namespace, NetnsError};

const ALL: [u8; 6] = [0xff; 6];
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends frames on an interface of a namespace.
#[derive(Debug)]
pub struct FrameSender(OwnedFd);

impl FrameSender {
    /// Opens an interface that is up.
    ///
    /// # Errors
    /// If the kernel refuses, or no frame leaves the interface.
    pub fn open(namespace: &Namespace, interface: &str) -> Result<Self, NetnsError> {
        let error = |source| NetnsError::Socket { description: format!("send frames by {interface}"), source };
        namespace.run(|| Self::open_here(interface))?.map_err(error)
    }

    fn open_here(interface: &str) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, Some(eth::ALL))?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(100)))?;
        let index = netdevice::name_to_index(&socket, interface)?;
        let nudge = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
        let end = Instant::now() + PATIENCE;
        // The source address of an outgoing frame is the interface's.
        let address = loop {
            // Fails until the interface has a link-local address.
            let _ = nudge.send_to(&[], SocketAddrV6::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 9, 0, index));
            match recvfrom(&socket, &mut [0; 64][..], RecvFlags::empty()) {
                Ok((_, _, Some(address))) => break address,
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) if Instant::now() < end => {}
                Ok(_) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        };
        bind(&socket, &address)?;
        Ok(Self(socket))
    }

    /// Sends a complete frame.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(&self.0, frame, SendFlags::empty())?;
        Ok(())
    }
}

/// Returns a gratuitous ARP request, with which a guest announces its address.
#[must_use]
pub fn gratuitous_arp(mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    arp(0x0806, 1, (mac, address), ([0; 6], address))
}

/// Returns an ARP request for the Ethernet address of `of`.
#[must_use]
pub fn arp_request(mac: [u8; 6], address: Ipv4Addr, of: Ipv4Addr) -> Vec<u8> {
    arp(0x0806, 1, (mac, address), ([0; 6], of))
}

/// Returns a reverse ARP request, with which a hypervisor announces the location of its guest.
#[must_use]
pub fn reverse_arp(mac: [u8; 6]) -> Vec<u8> {
    let unknown = Ipv4Addr::UNSPECIFIED;
    arp(0x8035, 3, (mac, unknown), (mac, unknown))
}

fn arp(kind: u16, operation: u16, sender: ([u8; 6], Ipv4Addr), target: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    let mut frame = [ALL, sender.0].concat();
    for part in [kind, 1, 0x0800, 0x0604, operation] {
        frame.extend(part.to_be_bytes());
    }
    for (mac, address) in [sender, target] {
        frame.extend(mac);
        frame.extend(address.octets());
    }
    frame.resize(60, 0);
    frame
}
