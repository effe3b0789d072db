//! Short descriptions of the ends of connections.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_classes::Party;
use tortie_model::{Cidr, Update, WorkloadEndpoint};

use crate::plan::name_rows::NameRows;

/// Number of listed names; further ones are only counted.
const NAMES: usize = 5;

/// Parties at one end of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Ends {
    /// Workloads by name, `namespace/pod` for pods, in order.
    pub workloads: Vec<Arc<str>>,
    /// Networks without the longer networks in them that policies distinguish; `0.0.0.0/0` and
    /// `::/0` are the addresses outside all others.
    pub networks: Vec<Cidr>,
    /// Domain names, each text for the names that the same lists of patterns match: `*.a.io but
    /// not x.a.io`. The description leaves them out beside the addresses outside all others.
    pub domains: Vec<String>,
    text: String,
}

impl fmt::Display for Ends {
    /// Writes a short description: `shop/web-*, team-a/* (37 pods)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Ends {
    pub(crate) fn is_empty(&self) -> bool {
        self.workloads.is_empty() && self.networks.is_empty() && self.domains.is_empty()
    }

    /// Adds the parties of the other family, which have the same description.
    pub(crate) fn add(&mut self, other: &Self) {
        self.workloads.extend(other.workloads.iter().cloned());
        self.networks.extend(&other.networks);
        self.domains.extend(other.domains.iter().cloned());
        self.domains.sort_unstable();
        self.domains.dedup();
        self.workloads.sort_unstable();
        self.workloads.dedup();
        self.networks.sort_unstable();
        self.networks.dedup();
    }
}

/// Names of workloads and networks.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Number of pods of each namespace.
    namespaces: AHashMap<Arc<str>, usize>,
    /// The generated-name prefix of each pod, and the number of pods with it.
    families: AHashMap<Arc<str>, Arc<str>>,
    family_sizes: AHashMap<Arc<str>, usize>,
    networks: AHashMap<Cidr, String>,
    rows: NameRows,
    workloads: usize,
}

fn namespace(workload: &str) -> &str {
    workload.split_once('/').map_or("", |(namespace, _)| namespace)
}

impl Names {
    pub(crate) fn new<'a>(updates: impl Iterator<Item = &'a Update>, rows: NameRows) -> Self {
        let mut names = Self { rows, ..Self::default() };
        for update in updates {
            match update {
                Update::WorkloadEndpoint(key, Some(endpoint)) => names.add_workload(key.workload(), endpoint),
                Update::NetworkSet(id, Some(set)) => {
                    for net in &set.nets {
                        names.networks.insert(net.masked(), format!("network set {id}"));
                    }
                }
                Update::HostEndpoint(key, Some(endpoint)) => {
                    for address in endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6) {
                        names.networks.insert(Cidr::host(*address), format!("node {}", key.host));
                    }
                }
                Update::Node(host, Some(node)) => {
                    for address in node.own_addresses() {
                        names.networks.insert(Cidr::host(address), format!("node {host}"));
                    }
                }
                _ => {}
            }
        }
        names
    }

    fn add_workload(&mut self, name: &str, endpoint: &WorkloadEndpoint) {
        self.workloads += 1;
        let namespace = namespace(name);
        *self.namespaces.entry(namespace.into()).or_default() += 1;
        if let Some(prefix) = endpoint.generate_name.as_deref().filter(|prefix| !prefix.is_empty()) {
            let family: Arc<str> = format!("{namespace}/{prefix}*").into();
            *self.family_sizes.entry(Arc::clone(&family)).or_default() += 1;
            self.families.insert(name.into(), family);
        }
    }

    /// Reports whether an address stands for domain names.
    pub(crate) fn is_of_name(&self, net: &Cidr) -> bool {
        self.rows.text(net).is_some()
    }

    /// Returns the ends that consist of these parties, without domain names.
    pub(crate) fn sources<'a>(&self, parties: impl Iterator<Item = &'a Party>, all_networks: usize) -> Ends {
        let mut ends = self.named(parties);
        ends.domains.clear();
        ends.text = self.text(&ends, all_networks);
        ends
    }

    /// Returns the ends that consist of these parties.
    pub(crate) fn ends<'a>(&self, parties: impl Iterator<Item = &'a Party>, all_networks: usize) -> Ends {
        let mut ends = self.named(parties);
        ends.text = self.text(&ends, all_networks);
        ends
    }

    fn named<'a>(&self, parties: impl Iterator<Item = &'a Party>) -> Ends {
        let mut ends = Ends::default();
        for party in parties {
            match party {
                Party::Workloads(members) => ends.workloads.extend(members.iter().map(|id| Arc::clone(&id.workload))),
                Party::Networks(networks) => {
                    for net in networks {
                        match self.rows.text(net) {
                            Some(text) => ends.domains.push(text.to_owned()),
                            None => ends.networks.push(*net),
                        }
                    }
                }
            }
        }
        ends.workloads.sort_unstable();
        ends.networks.sort_unstable();
        ends.domains.sort_unstable();
        ends
    }

    fn text(&self, ends: &Ends, all_networks: usize) -> String {
        let has_all_networks = all_networks > 0 && ends.networks.len() == all_networks;
        let has_all_workloads = ends.workloads.len() >= self.workloads;
        if has_all_networks && has_all_workloads {
            return "anywhere".into();
        }
        let mut parts = self.workload_parts(&ends.workloads, has_all_workloads);
        if has_all_networks {
            parts.push("everything outside".into());
        } else {
            parts.extend(ends.networks.iter().map(|net| self.network(*net)));
        }
        // The addresses outside all others have any name.
        if ends.networks.iter().all(|net| net.prefix_len() > 0) {
            parts.extend(ends.domains.iter().cloned());
        }
        let more = parts.len().saturating_sub(NAMES);
        if more > 1 {
            parts.truncate(NAMES);
            parts.push(format!("{more} more"));
        }
        let mut text = parts.join(", ");
        if ends.workloads.len() > 1 {
            text += &format!(" ({} pods)", ends.workloads.len());
        }
        text
    }

    fn network(&self, net: Cidr) -> String {
        match self.networks.get(&net) {
            _ if net.prefix_len() == 0 => "elsewhere".to_owned(),
            Some(name) => format!("{net} ({name})"),
            None => net.to_string(),
        }
    }

    fn workload_parts(&self, workloads: &[Arc<str>], has_all: bool) -> Vec<String> {
        if workloads.is_empty() {
            return Vec::new();
        }
        if has_all && self.namespaces.len() > 1 {
            return vec!["all pods".into()];
        }
        let mut by_namespace: BTreeMap<&str, Vec<&Arc<str>>> = BTreeMap::new();
        for workload in workloads {
            by_namespace.entry(namespace(workload)).or_default().push(workload);
        }
        let mut parts = Vec::new();
        for (namespace, members) in by_namespace {
            if members.len() > 1 && self.namespaces.get(namespace) == Some(&members.len()) {
                parts.push(format!("{namespace}/*"));
                continue;
            }
            let mut by_family: BTreeMap<&str, Vec<&Arc<str>>> = BTreeMap::new();
            for member in members {
                let family = self.families.get(member).map_or(&**member, |family| family);
                by_family.entry(family).or_default().push(member);
            }
            for (family, members) in by_family {
                if members.len() > 1 && self.family_sizes.get(family) == Some(&members.len()) {
                    parts.push(family.to_owned());
                } else {
                    parts.extend(members.iter().map(ToString::to_string));
                }
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use tortie_model::{Valid, WorkloadEndpointId, WorkloadEndpointKey};

    use super::*;

    fn pod(name: &str, prefix: Option<&str>) -> Update {
        let endpoint = WorkloadEndpoint {
            iface: Some("cali1".parse().unwrap()),
            generate_name: prefix.map(Into::into),
            ..WorkloadEndpoint::default()
        };
        Update::WorkloadEndpoint(WorkloadEndpointKey::new("n", "k8s", name, "eth0"), Valid::new(endpoint).ok())
    }

    fn text(names: &Names, workloads: &[&str], networks: &[&str]) -> String {
        let id = |name: &&str| WorkloadEndpointId {
            orchestrator: "k8s".into(),
            workload: (*name).into(),
            endpoint: "eth0".into(),
        };
        let parties = [
            Party::Workloads(workloads.iter().map(id).collect()),
            Party::Networks(networks.iter().filter_map(|net| net.parse().ok()).collect()),
        ];
        names.ends(parties.iter(), 2).to_string()
    }

    #[test]
    fn ends_are_formatted_briefly() {
        let pods = [
            pod("shop/web-1", Some("web-")),
            pod("shop/web-2", Some("web-")),
            pod("shop/db", None),
            pod("team/a", None),
            pod("team/b", None),
        ];
        let names = Names::new(pods.iter(), NameRows::default());
        assert_eq!(text(&names, &["shop/db"], &[]), "shop/db");
        assert_eq!(text(&names, &["shop/web-1", "shop/web-2"], &["10.0.0.0/8"]), "shop/web-*, 10.0.0.0/8 (2 pods)");
        assert_eq!(text(&names, &["shop/web-1", "shop/db"], &[]), "shop/db, shop/web-1 (2 pods)");
        assert_eq!(text(&names, &["team/a", "team/b"], &["0.0.0.0/0"]), "team/*, elsewhere (2 pods)");
        let all = ["shop/web-1", "shop/web-2", "shop/db", "team/a", "team/b"];
        assert_eq!(text(&names, &all, &[]), "all pods (5 pods)");
        assert_eq!(text(&names, &[], &["0.0.0.0/0", "10.0.0.0/8"]), "everything outside");
        assert_eq!(text(&names, &all, &["0.0.0.0/0", "10.0.0.0/8"]), "anywhere");
    }
}
