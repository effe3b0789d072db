//! Contents of the manifests: pods, files with policies, and the edit.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use tortie_model::{Cidr, Interner, NamedProtocol, Protocol as Named, Update, WorkloadEndpoint};
use tortie_resources::manifest::{self, Format, Kind, Options, Outcome, Resource};

use super::DemoError;
use crate::pods::{self, LabHost, Port, Protocol};

/// Name of the demo's node.
pub(super) const NODE: &str = "demo-node";

/// The edit while the agent runs: file, old text, new text.
const EDIT: (&str, &str, &str) = ("policy-db.yaml", "role == 'api'", "role in {'api', 'web'}");

/// A pod of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    /// Namespace and name.
    pub(super) place: LabHost,
    /// Addresses, IPv4 first.
    pub(super) addresses: Vec<IpAddr>,
    /// Served ports, each with its name.
    pub(super) ports: Vec<(String, Port)>,
}

impl Pod {
    /// Returns the pod for a laboratory.
    pub(super) fn in_lab(&self) -> pods::Pod {
        let ports = self.ports.iter().map(|(_, port)| *port).collect();
        pods::Pod { place: self.place.clone(), addresses: self.addresses.clone(), ports, node: 0 }
    }
}

/// Formats a port as in `80/tcp`.
pub(super) fn number_and_protocol(port: Port) -> String {
    format!("{}/{}", port.number, port.protocol.to_string().to_lowercase())
}

/// A manifest file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    /// Name in the directory.
    pub(super) name: String,
    /// Contents.
    pub(super) text: String,
}

/// An edit of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edit {
    /// The manifest after the edit.
    pub(super) file: File,
    /// The replaced line.
    pub(super) old_line: String,
    /// The new line.
    pub(super) new_line: String,
}

/// Contents of a directory of manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifests {
    /// Pods of [`NODE`], in the order of the files.
    pub(super) pods: Vec<Pod>,
    /// Files without policies.
    pub(super) cluster: Vec<File>,
    /// Files with policies.
    pub(super) policies: Vec<File>,
    /// The edit, if the directory has the file with the old text.
    pub(super) edit: Option<Edit>,
    /// Problems of the manifests, a line each.
    pub(super) problems: Vec<String>,
}

impl Manifests {
    /// Reads the manifests in `directory`, but not in its subdirectories.
    pub(super) fn read(directory: &Path) -> Result<Self, DemoError> {
        let failed = DemoError::io(format!("{} (see --manifests)", directory.display()));
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory).map_err(&failed)? {
            let path = entry.map_err(&failed)?.path();
            if path.is_file() && format_of(&path).is_some() {
                paths.push(path);
            }
        }
        paths.sort();
        let mut manifests = Self::default();
        let mut labels = Interner::new();
        for path in &paths {
            manifests.add(path, &mut labels)?;
        }
        if manifests.pods.is_empty() {
            return Err(DemoError::NoPods { directory: directory.to_owned() });
        }
        manifests.edit = manifests.policies.iter().find_map(planned_edit);
        Ok(manifests)
    }

    fn add(&mut self, path: &PathBuf, labels: &mut Interner) -> Result<(), DemoError> {
        let text = fs::read_to_string(path).map_err(DemoError::io(path.display().to_string()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let format = format_of(path).unwrap_or(Format::Yaml);
        let read = manifest::read(&text, format, &Options::default(), labels);
        self.problems
            .extend(read.unreadable.iter().map(|error| format!("{name}:{}: {}", error.position, error.message)));
        let (mut policies, mut others) = (0, 0);
        for resource in &read.resources {
            self.problems.extend(
                resource
                    .problems
                    .iter()
                    .map(|problem| format!("{name}:{}: {}: {problem}", problem.position, resource.subject)),
            );
            if is_policy(resource) {
                policies += 1;
            } else {
                others += 1;
            }
            if let Outcome::Valid(contributions) = &resource.outcome {
                self.pods.extend(contributions.iter().filter_map(pod));
            }
        }
        match (policies, others) {
            (0, _) => self.cluster.push(File { name, text }),
            (_, 0) => self.policies.push(File { name, text }),
            (_, _) => {
                return Err(DemoError::Mixed { file: name });
            }
        }
        Ok(())
    }
}

fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "yaml" | "yml" => Some(Format::Yaml),
        "json" => Some(Format::Json),
        _ => None,
    }
}

fn is_policy(resource: &Resource) -> bool {
    resource.id.as_ref().is_some_and(|id| {
        matches!(id.kind, Kind::NetworkPolicy | Kind::GlobalNetworkPolicy | Kind::KubernetesNetworkPolicy | Kind::Tier)
    })
}

fn pod(update: &Update) -> Option<Pod> {
    let Update::WorkloadEndpoint(key, Some(endpoint)) = update else { return None };
    if key.host() != NODE {
        return None;
    }
    Some(Pod {
        place: key.workload().parse().ok()?,
        addresses: endpoint.nets().map(Cidr::address).collect(),
        ports: ports(endpoint),
    })
}

fn ports(endpoint: &WorkloadEndpoint) -> Vec<(String, Port)> {
    let protocol = |protocol| match protocol {
        Named::Named(NamedProtocol::Tcp) => Some(Protocol::Tcp),
        Named::Named(NamedProtocol::Udp) => Some(Protocol::Udp),
        Named::Named(NamedProtocol::Sctp) => Some(Protocol::Sctp),
        _ => None,
    };
    let port = |port: &tortie_model::EndpointPort| {
        Some((port.name.to_string(), Port { protocol: protocol(port.protocol)?, number: port.port }))
    };
    endpoint.ports.iter().filter_map(port).collect()
}

fn planned_edit(file: &File) -> Option<Edit> {
    let (name, old, new) = EDIT;
    // A comment may quote the text; the edited line is not a comment.
    let old_line = file.text.lines().find(|line| line.contains(old) && !line.trim_start().starts_with('#'))?;
    if file.name != name {
        return None;
    }
    let new_line = old_line.replace(old, new);
    let text = file.text.lines().map(|line| if line == old_line { &new_line } else { line }).flat_map(|l| [l, "\n"]);
    Some(Edit {
        file: File { name: file.name.clone(), text: text.collect() },
        old_line: old_line.trim().to_owned(),
        new_line: new_line.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests;
