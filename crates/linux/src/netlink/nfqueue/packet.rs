//! Ports and payload of a whole IP packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::netlink::nflog::behind_extensions;

const TCP: u8 = 6;
const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// A datagram of UDP or a segment of TCP with its addresses, from a whole IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportPacket<'a> {
    /// Address and port of the sender, as in the packet at this point.
    pub source: SocketAddr,
    /// Address and port of the receiver.
    pub destination: SocketAddr,
    /// The content.
    pub transport: Transport<'a>,
}

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport<'a> {
    /// The payload of a datagram.
    Udp(&'a [u8]),
    /// A segment.
    Tcp(Segment<'a>),
}

/// A segment of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Sequence number of the first byte, or of the flag SYN.
    pub sequence: u32,
    /// The segment begins the connection.
    pub syn: bool,
    /// It is the last one of this direction.
    pub fin: bool,
    /// It aborts the connection.
    pub rst: bool,
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> TransportPacket<'a> {
    /// Decodes an IP packet; `None` if it is a later fragment, incomplete, malformed, or of another
    /// protocol than UDP and TCP. Checksums are not verified. Bytes behind the length in the IP
    /// header do not belong to the packet.
    ///
    /// ```
    /// use tortie_linux::netlink::{Transport, TransportPacket};
    ///
    /// let mut packet = vec![0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    /// packet.extend([0, 53, 0x14, 0xe9, 0, 10, 0, 0, b'h', b'i']);
    /// let decoded = TransportPacket::parse(&packet).unwrap();
    /// assert_eq!(decoded.source, "10.0.0.1:53".parse().unwrap());
    /// assert_eq!(decoded.transport, Transport::Udp(b"hi"));
    /// ```
    #[must_use]
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        let (source, destination, protocol, behind) = match packet.first()? >> 4 {
            4 => ipv4(packet)?,
            6 => ipv6(packet)?,
            _ => return None,
        };
        let &[s0, s1, d0, d1] = behind.first_chunk()?;
        let transport = match protocol {
            UDP => Transport::Udp(udp(behind)?),
            TCP => Transport::Tcp(tcp(behind)?),
            _ => return None,
        };
        Some(Self {
            source: SocketAddr::new(source, u16::from_be_bytes([s0, s1])),
            destination: SocketAddr::new(destination, u16::from_be_bytes([d0, d1])),
            transport,
        })
    }
}

type Ip<'a> = (IpAddr, IpAddr, u8, &'a [u8]);

fn ipv4(packet: &[u8]) -> Option<Ip<'_>> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let header_length = usize::from(header[0] & 0x0f) * 4;
    // More fragments, or an offset: the kernel puts fragments together before its rules see them.
    if header_length < header.len() || u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let behind = packet.get(header_length..length)?;
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
    let [source, destination] = [[s0, s1, s2, s3], [d0, d1, d2, d3]].map(|octets| Ipv4Addr::from(octets).into());
    Some((source, destination, header[9], behind))
}

fn ipv6(packet: &[u8]) -> Option<Ip<'_>> {
    let (header, behind) = packet.split_first_chunk::<40>()?;
    let (_, addresses) = header.split_first_chunk::<8>()?;
    let (source, destination) = addresses.split_first_chunk::<16>()?;
    let destination: &[u8; 16] = destination.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let behind = behind.get(..length)?;
    let (protocol, behind) = behind_extensions(header[6], behind);
    Some((Ipv6Addr::from(*source).into(), Ipv6Addr::from(*destination).into(), protocol, behind))
}

fn udp(bytes: &[u8]) -> Option<&[u8]> {
    let &[_, _, _, _, high, low] = bytes.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    bytes.get(UDP_HEADER..length)
}

fn tcp(bytes: &[u8]) -> Option<Segment<'_>> {
    let header: &[u8; 20] = bytes.first_chunk()?;
    let header_length = usize::from(header[12] >> 4) * 4;
    if header_length < header.len() {
        return None;
    }
    let flags = header[13];
    Some(Segment {
        sequence: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
        syn: flags & SYN != 0,
        fin: flags & FIN != 0,
        rst: flags & RST != 0,
        payload: bytes.get(header_length..)?,
    })
}

#[cfg(test)]
mod tests;
