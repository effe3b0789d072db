use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DatastoreUrl {
    Directory(PathBuf),
    /// `etcd://HOST:PORT,…`; `None` for `etcd:`, which takes the endpoints from the environment.
    Etcd(Option<String>),
    /// The Kubernetes API server, by a kubeconfig; `None` takes the settings of the environment.
    Kubernetes(Option<PathBuf>),
    Fanout(Vec<String>),
    /// Typha: host and port of each server; `None` takes the servers from the environment.
    Typha(Option<Vec<String>>),
}

pub(super) const FORMS: &str =
    "file:DIR, etcd://HOST[:PORT],..., kubernetes:[KUBECONFIG], fanout://HOST:PORT,... or typha://HOST[:PORT],...";

/// Default port of Typha's servers (`typha/pkg/config/config_params.go`).
const TYPHA_PORT: u16 = 5473;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DatastoreUrlError {
    #[error("must be {forms}", forms = FORMS)]
    Scheme,
    #[error("`file:` needs a directory, as in file:/etc/tortie")]
    NoDirectory,
    #[error("`kubernetes:` takes the path of a kubeconfig, or nothing")]
    Kubeconfig,
    #[error("must be {0}://HOST:PORT, or several of them with commas between")]
    NoServers(&'static str),
    #[error("`{0}` is not HOST:PORT")]
    Server(String),
    #[error("`{0}` is not HOST or HOST:PORT")]
    TyphaServer(String),
    #[error(transparent)]
    NotBuilt(#[from] NotBuilt),
}

/// A kind of datastores that this build lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} datastores are missing from this build: built without `{feature}` (see `tortie version`)")]
pub(super) struct NotBuilt {
    pub(super) name: &'static str,
    /// The feature that adds them.
    pub(super) feature: &'static str,
}

impl NotBuilt {
    #[cfg(not(feature = "etcd"))]
    pub(super) const ETCD: Self = Self { name: "etcd", feature: "etcd" };
    #[cfg(not(feature = "kubernetes"))]
    pub(super) const KUBERNETES: Self = Self { name: "Kubernetes", feature: "kubernetes" };
}

impl FromStr for DatastoreUrl {
    type Err = DatastoreUrlError;

    fn from_str(text: &str) -> Result<Self, DatastoreUrlError> {
        let Some((scheme, rest)) = text.split_once(':') else { return Err(DatastoreUrlError::Scheme) };
        let authority = || rest.strip_prefix("//").filter(|rest| !rest.is_empty());
        match scheme {
            "file" if rest.is_empty() => Err(DatastoreUrlError::NoDirectory),
            "file" => Ok(Self::Directory(rest.into())),
            "etcd" => {
                built_with(cfg!(feature = "etcd"), "etcd", "etcd")?;
                match rest {
                    "" => Ok(Self::Etcd(None)),
                    _ if rest.starts_with("//") => Ok(Self::Etcd(Some(text.into()))),
                    _ => Err(DatastoreUrlError::NoServers("etcd")),
                }
            }
            "kubernetes" => {
                built_with(cfg!(feature = "kubernetes"), "Kubernetes", "kubernetes")?;
                if rest.starts_with("//") {
                    return Err(DatastoreUrlError::Kubeconfig);
                }
                Ok(Self::Kubernetes((!rest.is_empty()).then(|| rest.into())))
            }
            "fanout" => {
                built_with(cfg!(feature = "fanout"), "fanout", "fanout")?;
                servers(authority().ok_or(DatastoreUrlError::NoServers("fanout"))?, None).map(Self::Fanout)
            }
            "typha" => {
                built_with(cfg!(feature = "fanout"), "typha", "fanout")?;
                match authority() {
                    None if rest.is_empty() => Ok(Self::Typha(None)),
                    None => Err(DatastoreUrlError::NoServers("typha")),
                    Some(list) => typha_servers(list).map(|servers| Self::Typha(Some(servers))),
                }
            }
            _ => Err(DatastoreUrlError::Scheme),
        }
    }
}

fn built_with(feature_is_there: bool, name: &'static str, feature: &'static str) -> Result<(), DatastoreUrlError> {
    if feature_is_there { Ok(()) } else { Err(NotBuilt { name, feature }.into()) }
}

pub(super) fn typha_servers(list: &str) -> Result<Vec<String>, DatastoreUrlError> {
    servers(list, Some(TYPHA_PORT))
}

fn servers(list: &str, usual_port: Option<u16>) -> Result<Vec<String>, DatastoreUrlError> {
    list.trim_end_matches('/').split(',').map(|server| host_and_port(server, usual_port)).collect()
}

fn host_and_port(server: &str, usual_port: Option<u16>) -> Result<String, DatastoreUrlError> {
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
        _ if usual_port.is_some() => Err(DatastoreUrlError::TyphaServer(server.to_owned())),
        _ => Err(DatastoreUrlError::Server(server.to_owned())),
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
