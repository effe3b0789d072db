//! Where a datastore is, in one word.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where the datastore is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DatastoreUrl {
    /// A directory of manifests.
    Directory(PathBuf),
    /// `etcd://HOST:PORT,…`; without anything after `etcd:`, what the environment says.
    Etcd(Option<String>),
    /// The API server of Kubernetes, by a kubeconfig or else by what the environment says.
    Kubernetes(Option<PathBuf>),
    /// Tortie's own fan-out: the servers, each host and port.
    Fanout(Vec<String>),
    /// Typha: the servers, each host and port, or what the environment says.
    Typha(Option<Vec<String>>),
}

/// The forms that a URL may have.
pub(super) const FORMS: &str =
    "file:DIR, etcd://HOST:PORT,..., kubernetes:[KUBECONFIG], fanout://HOST:PORT,... or typha://HOST[:PORT],...";

/// The port of Typha's servers where none is given (`typha/pkg/config/config_params.go`).
const TYPHA_PORT: u16 = 5473;

impl FromStr for DatastoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once(':') else { return Err(format!("must be {FORMS}")) };
        let authority = || rest.strip_prefix("//").filter(|rest| !rest.is_empty());
        match scheme {
            "file" if rest.is_empty() => Err("`file:` needs a directory, as in file:/etc/tortie".into()),
            "file" => Ok(Self::Directory(rest.into())),
            "etcd" => {
                built_with(cfg!(feature = "etcd"), "etcd", "etcd")?;
                match authority() {
                    None if rest.is_empty() => Ok(Self::Etcd(None)),
                    None => Err("must be etcd://HOST:PORT, or several of them with commas between".into()),
                    Some(_) => Ok(Self::Etcd(Some(text.into()))),
                }
            }
            "kubernetes" => {
                built_with(cfg!(feature = "kubernetes"), "Kubernetes", "kubernetes")?;
                if rest.starts_with("//") {
                    return Err("`kubernetes:` takes the path of a kubeconfig, or nothing".into());
                }
                Ok(Self::Kubernetes((!rest.is_empty()).then(|| rest.into())))
            }
            "fanout" | "typha" => {
                built_with(cfg!(feature = "fanout"), scheme, "fanout")?;
                match (scheme, authority()) {
                    ("typha", None) if rest.is_empty() => Ok(Self::Typha(None)),
                    ("typha", Some(list)) => typha_servers(list).map(|servers| Self::Typha(Some(servers))),
                    ("fanout", Some(list)) => servers(list, None).map(Self::Fanout),
                    _ => Err(format!("must be {scheme}://HOST:PORT, or several of them with commas between")),
                }
            }
            _ => Err(format!("must be {FORMS}")),
        }
    }
}

/// A build without something says so, and how to get one with it.
fn built_with(feature_is_there: bool, what: &str, feature: &str) -> Result<(), String> {
    if feature_is_there {
        return Ok(());
    }
    Err(format!("this build has no {what} support; build with --features {feature}"))
}

/// The servers of Typha in a list such as `a,b:5474`.
pub(super) fn typha_servers(list: &str) -> Result<Vec<String>, String> {
    servers(list, Some(TYPHA_PORT))
}

/// The servers in a list with commas, each as host and port.
fn servers(list: &str, usual_port: Option<u16>) -> Result<Vec<String>, String> {
    list.trim_end_matches('/').split(',').map(|server| host_and_port(server, usual_port)).collect()
}

fn host_and_port(server: &str, usual_port: Option<u16>) -> Result<String, String> {
    let wrong = || match usual_port {
        Some(_) => format!("`{server}` is not HOST or HOST:PORT"),
        None => format!("`{server}` is not HOST:PORT"),
    };
    // The colons of an IPv6 address are within brackets.
    let end_of_host = if server.starts_with('[') { server.find(']').map(|at| at + 1) } else { server.find(':') };
    let (host, port) = server.split_at(end_of_host.unwrap_or(server.len()));
    let host_is_good = match host.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')),
    };
    let port = match (port.strip_prefix(':'), usual_port) {
        (Some(port), _) => port.parse::<u16>().ok().filter(|port| *port != 0),
        (None, usual) if port.is_empty() => usual,
        (None, _) => None,
    };
    match port {
        Some(port) if host_is_good => Ok(format!("{host}:{port}")),
        _ => Err(wrong()),
    }
}

impl fmt::Display for DatastoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => write!(f, "file:{}", directory.display()),
            Self::Etcd(url) => f.write_str(url.as_deref().unwrap_or("etcd:")),
            Self::Kubernetes(file) => write!(f, "kubernetes:{}", file.as_deref().unwrap_or("".as_ref()).display()),
            Self::Fanout(servers) => write!(f, "fanout://{}", servers.join(",")),
            Self::Typha(Some(servers)) => write!(f, "typha://{}", servers.join(",")),
            Self::Typha(None) => f.write_str("typha:"),
        }
    }
}

#[cfg(test)]
mod tests;
