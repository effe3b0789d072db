//! DNS servers whose answers count.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use tortie_model::{NamespacedName, parse_address};

/// A server in `DNSTrustedServers`: `ADDRESS`, `ADDRESS:PORT`, `[IPV6]:PORT`, or
/// `k8s-service:[NAMESPACE/]NAME[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "readers of the parameter must handle every form")]
pub enum DnsServer {
    /// A server by address and port.
    Address(SocketAddr),
    /// A Kubernetes Service.
    Service {
        /// Its name, by default in `kube-system`.
        name: NamespacedName,
        /// Port of its cluster addresses; its first one if `None`.
        port: Option<u16>,
    },
}

/// A text that is no DNS server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be ADDRESS, ADDRESS:PORT, [IPV6]:PORT or k8s-service:[NAMESPACE/]NAME[:PORT]")]
#[non_exhaustive]
pub struct DnsServerError;

const SERVICE: &str = "k8s-service:";
const NAMESPACE: &str = "kube-system";
const PORT: u16 = 53;

impl FromStr for DnsServer {
    type Err = DnsServerError;

    fn from_str(text: &str) -> Result<Self, DnsServerError> {
        if let Some(service) = text.strip_prefix(SERVICE) {
            return service_of(service).ok_or(DnsServerError);
        }
        if let Some(address) = parse_address(text) {
            return Ok(Self::Address(SocketAddr::new(address, PORT)));
        }
        let socket = text.parse::<SocketAddr>().ok().filter(|socket| socket.port() != 0);
        socket.map(Self::Address).ok_or(DnsServerError)
    }
}

fn service_of(text: &str) -> Option<DnsServer> {
    let (name, port) = match text.split_once(':') {
        None => (text, None),
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (name, Some(port.parse().ok().filter(|port| *port != 0)?))
        }
        Some(_) => return None,
    };
    let (namespace, name) = name.split_once('/').unwrap_or((NAMESPACE, name));
    let is_name = |text: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&text.len()) && text.bytes().all(is_plain)
    };
    let name = (is_name(namespace) && is_name(name)).then(|| NamespacedName::new(namespace, name))?;
    Some(DnsServer::Service { name, port })
}

impl fmt::Display for DnsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(socket) if socket.port() == PORT => socket.ip().fmt(f),
            Self::Address(socket) => socket.fmt(f),
            Self::Service { name, port } => {
                write!(f, "{SERVICE}")?;
                if &*name.namespace != NAMESPACE {
                    write!(f, "{}/", name.namespace)?;
                }
                write!(f, "{}", name.name)?;
                port.map_or(Ok(()), |port| write!(f, ":{port}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_and_written() {
        let service = |namespace: &str, port| DnsServer::Service { name: NamespacedName::new(namespace, "dns"), port };
        let address = |text: &str| DnsServer::Address(text.parse().unwrap());
        for (text, expected) in [
            ("192.0.2.1", address("192.0.2.1:53")),
            ("192.0.2.1:5353", address("192.0.2.1:5353")),
            ("2001:db8::1", address("[2001:db8::1]:53")),
            ("[2001:db8::1]:5353", address("[2001:db8::1]:5353")),
            ("k8s-service:dns", service("kube-system", None)),
            ("k8s-service:openshift-dns/dns:5353", service("openshift-dns", Some(5353))),
        ] {
            let read: DnsServer = text.parse().unwrap();
            assert_eq!(read, expected);
            assert_eq!(read.to_string(), text);
        }
        for text in [
            "",
            "dns",
            "192.0.2.1:0",
            "192.0.2.1:x",
            "192.0.2.300",
            "k8s-service:",
            "k8s-service:a/",
            "k8s-service:/a",
            "k8s-service:a/b/c",
            "k8s-service:a:0",
            "k8s-service:a:",
            "k8s-service:a:+1",
            "k8s-service:A",
            "k8s-service:a b",
        ] {
            assert_eq!(text.parse::<DnsServer>(), Err(DnsServerError), "{text}");
        }
    }
}
