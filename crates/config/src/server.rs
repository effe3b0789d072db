//! Addresses of gRPC servers.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Text that is no address of a gRPC server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not HOST:PORT or unix:PATH")]
pub struct ServerError;

/// The address of a gRPC server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcServer {
    /// A socket of the file system.
    Socket(PathBuf),
    /// `HOST:PORT`.
    Address(String),
}

impl FromStr for GrpcServer {
    type Err = ServerError;

    /// Parses an address such as gRPC takes it: `HOST:PORT`, with or without `dns:///` or
    /// `passthrough:///` before it, or `unix:PATH`.
    fn from_str(address: &str) -> Result<Self, ServerError> {
        if let Some(path) = address.strip_prefix("unix:") {
            let path = Path::new(path.strip_prefix("//").unwrap_or(path));
            return if path.has_root() { Ok(Self::Socket(path.into())) } else { Err(ServerError) };
        }
        let prefixes = ["dns:///", "passthrough:///"];
        let address = prefixes.iter().find_map(|prefix| address.strip_prefix(prefix)).unwrap_or(address);
        let (host, port) = address.rsplit_once(':').ok_or(ServerError)?;
        port.parse::<u16>().map_err(|_| ServerError)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match bracketed {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)),
        };
        if is_host { Ok(Self::Address(address.to_owned())) } else { Err(ServerError) }
    }
}

impl fmt::Display for GrpcServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
            Self::Address(address) => f.write_str(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_grpc_reads_them() {
        let server = |address: &str| Ok(GrpcServer::Address(address.to_owned()));
        let socket = |path: &str| Ok(GrpcServer::Socket(path.into()));
        let cases = [
            ("goldmane.calico-system.svc:7443", server("goldmane.calico-system.svc:7443")),
            ("dns:///goldmane:7443", server("goldmane:7443")),
            ("passthrough:///10.0.0.1:7443", server("10.0.0.1:7443")),
            ("[fd00::1]:7443", server("[fd00::1]:7443")),
            ("unix:///run/flows.sock", socket("/run/flows.sock")),
            ("unix:/run/flows.sock", socket("/run/flows.sock")),
            ("unix:flows.sock", Err(ServerError)),
            ("goldmane", Err(ServerError)),
            ("goldmane:", Err(ServerError)),
            ("goldmane:70000", Err(ServerError)),
            (":7443", Err(ServerError)),
            ("fd00::1:7443", Err(ServerError)),
            ("http://goldmane:7443", Err(ServerError)),
            ("a b:7443", Err(ServerError)),
        ];
        for (address, expected) in cases {
            assert_eq!(address.parse(), expected, "{address}");
        }
    }
}
