//! Where a datastore is, in one word.

use std::fmt;
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
    /// Tortie's own fan-out: host and port, or several with commas between.
    Fanout(String),
    /// Typha: host and port, or several with commas between, or what the environment says.
    Typha(Option<String>),
}

/// The forms that a URL may have.
pub(super) const FORMS: &str =
    "file:DIR, etcd://HOST:PORT,..., kubernetes:[KUBECONFIG], fanout://HOST:PORT,... or typha://HOST:PORT,...";

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
                    (_, Some(address)) if address.split(',').all(is_host_and_port) => Ok(match scheme {
                        "typha" => Self::Typha(Some(address.into())),
                        _ => Self::Fanout(address.into()),
                    }),
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

fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    !host.is_empty() && !host.contains(['/', '@']) && port.parse::<u16>().is_ok_and(|port| port != 0)
}

impl fmt::Display for DatastoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => write!(f, "file:{}", directory.display()),
            Self::Etcd(url) => f.write_str(url.as_deref().unwrap_or("etcd:")),
            Self::Kubernetes(file) => write!(f, "kubernetes:{}", file.as_deref().unwrap_or("".as_ref()).display()),
            Self::Fanout(address) => write!(f, "fanout://{address}"),
            Self::Typha(Some(address)) => write!(f, "typha://{address}"),
            Self::Typha(None) => f.write_str("typha:"),
        }
    }
}

#[cfg(test)]
mod tests;
