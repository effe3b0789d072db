//! Established connections as `/proc/net/tcp` and `/proc/net/tcp6` list them
//! (`Documentation/networking/proc_net_tcp.rst`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a connection that is established.
const ESTABLISHED: &str = "01";

/// Line that does not have the kernel's format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the kernel's list of connections is malformed")]
pub struct Malformed {
    /// The number of the line, from 1.
    pub line: usize,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The end on this host.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

/// Returns the established connections to one of these local ports, in the order of the list.
/// IPv4-mapped IPv6 addresses are converted to IPv4 addresses.
///
/// # Errors
/// If any line is malformed, since it may be a relevant one.
pub fn established(list: &str, ports: &[u16]) -> Result<Vec<Ends>, Malformed> {
    let mut found = Vec::new();
    for (index, line) in list.lines().enumerate().skip(1) {
        let mut fields = line.split_whitespace().skip(1);
        let malformed = || Malformed { line: index + 1 };
        let mut field = || fields.next().ok_or_else(malformed);
        let (local, remote, state) = (field()?, field()?, field()?);
        let (local, remote) = address(local).zip(address(remote)).ok_or_else(malformed)?;
        if state.len() != ESTABLISHED.len() {
            return Err(malformed());
        }
        if state == ESTABLISHED && ports.contains(&local.port()) {
            found.push(Ends { local, remote });
        }
    }
    Ok(found)
}

/// Parses an end such as `0100007F:0016`: words of the address in the byte order of the machine,
/// and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = address.get(8 * at..8 * at + 8).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut octets = [0; 16];
            for (octet, byte) in octets.iter_mut().zip(words.into_iter().flatten()) {
                *octet = byte;
            }
            IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    const V4: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 21 1 0 100 0 0 10 0
   1: 010200C0:0016 076433C6:D431 01 00000000:00000000 02:000A7214 00000000     0        0 22 2 0 20 4 30 10 -1
   2: 010200C0:0050 076433C6:D432 01 00000000:00000000 02:000A7214 00000000     0        0 23 2 0 20 4 30 10 -1
   3: 010200C0:0016 076433C6:D433 08 00000000:00000000 02:000A7214 00000000     0        0 24 2 0 20 4 30 10 -1
";
    const V6: &str = "  sl  local_address                         remote_address                        st tx_queue
   0: 0000000000000000FFFF0000010200C0:08AE 0000000000000000FFFF0000076433C6:D431 01 00000000:00000000 00:0 0 0 0 1
   1: B80D0120000000000000000001000000:0016 B80D0120000000000000000007000000:D432 01 00000000:00000000 00:0 0 0 0 1
";

    fn shown(list: &str, ports: &[u16]) -> Vec<String> {
        established(list, ports).unwrap().iter().map(|ends| format!("{} {}", ends.local, ends.remote)).collect()
    }

    #[test]
    fn established_connections_to_the_ports_are_found_and_no_others() {
        assert_eq!(shown(V4, &[22]), ["192.0.2.1:22 198.51.100.7:54321"]);
        assert_eq!(shown(V4, &[22, 80]).len(), 2);
        assert!(shown(V4, &[]).is_empty());
        assert_eq!(
            shown(V6, &[22, 2222]),
            ["192.0.2.1:2222 198.51.100.7:54321", "[2001:db8::1]:22 [2001:db8::7]:54322"]
        );
        assert!(shown("", &[22]).is_empty());
    }

    #[test]
    fn an_invalid_line_is_an_error_that_names_it() {
        for torn in [V4.replace("010200C0:0016 0764", "010200C0:0016"), V4.replace(" 01 ", " "), V4.replace("D431", "")]
        {
            assert_eq!(established(&torn, &[22]).unwrap_err(), Malformed { line: 3 }, "{torn}");
        }
        assert!(established(&V6.replace("B80D", "Ä80D"), &[22]).is_err());
        assert!(established(&V6.replace("B80D", "+80D"), &[22]).is_err());
    }
}
