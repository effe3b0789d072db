//! Titles of groups of pods and networks.

use std::collections::BTreeMap;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_model::{Cidr, Labels, Profile, ProfileName, Update, Valid, WorkloadEndpoint};
use tortie_selector::Selector;

use crate::plan::name_rows::NameRows;

/// Number of names in a title.
const IN_TITLE: usize = 2;

/// Group of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Group {
    /// All peers other than workloads.
    Networks,
    /// Destinations by domain name.
    Domains,
    /// Workloads of a namespace. Workloads of other orchestrators, whose names have no namespace,
    /// are in the group with an empty name.
    Namespace(Arc<str>),
}

impl Group {
    /// Returns its title.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Networks => "networks".to_owned(),
            Self::Domains => "domain names".to_owned(),
            Self::Namespace(name) if name.is_empty() => "workloads without a namespace".to_owned(),
            Self::Namespace(name) => name.to_string(),
        }
    }
}

/// Properties of a workload.
#[derive(Debug)]
struct WorkloadProperties {
    owner: Option<Arc<str>>,
    labels: BTreeMap<Arc<str>, Arc<str>>,
    is_wanted: bool,
}

/// Names of all workloads and networks.
#[derive(Debug, Default)]
pub(crate) struct Names {
    workloads: AHashMap<Arc<str>, WorkloadProperties>,
    networks: AHashMap<Cidr, String>,
    rows: NameRows,
}

/// Labels that describe a pod best, in order of preference.
const DESCRIPTIVE_LABELS: [&str; 6] = ["app.kubernetes.io/name", "app", "k8s-app", "name", "role", "component"];

pub(crate) fn namespace(workload: &str) -> &str {
    workload.split_once('/').map_or("", |(namespace, _)| namespace)
}

fn short(workload: &str) -> &str {
    workload.split_once('/').map_or(workload, |(_, name)| name)
}

impl Names {
    pub(crate) fn new(updates: &[Update], subject: &Subject<'_>, rows: NameRows) -> Self {
        let mut names = Self { rows, ..Self::default() };
        let mut profiles: AHashMap<&ProfileName, &Valid<Profile>> = AHashMap::new();
        for update in updates {
            if let Update::Profile(name, Some(profile)) = update {
                profiles.insert(name, profile);
            }
        }
        for update in updates {
            match update {
                Update::WorkloadEndpoint(key, Some(endpoint)) => {
                    let inherited = endpoint.profiles.iter().rev().filter_map(|name| profiles.get(name));
                    let inherited = inherited.map(|profile| &profile.labels).chain([&endpoint.labels]);
                    let is_wanted = subject.holds(key.workload(), inherited.flat_map(Labels::iter));
                    names.workloads.insert(key.workload().into(), WorkloadProperties::new(endpoint, is_wanted));
                }
                Update::NetworkSet(id, Some(set)) => {
                    for net in &set.nets {
                        names.networks.insert(net.masked(), id.to_string());
                    }
                }
                Update::HostEndpoint(key, Some(endpoint)) => {
                    for address in endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6) {
                        names.networks.insert(Cidr::host(*address), format!("node {}", key.host));
                    }
                }
                _ => {}
            }
        }
        names
    }

    /// Reports whether a workload is a subject of the picture.
    pub(crate) fn is_wanted(&self, workload: &str) -> bool {
        self.workloads.get(workload).is_some_and(|properties| properties.is_wanted)
    }

    /// Returns the title of workloads of a namespace.
    pub(crate) fn title(&self, workloads: &[Arc<str>]) -> String {
        if let [one] = workloads {
            return short(one).to_owned();
        }
        let mut owners: Vec<&str> = Vec::new();
        for workload in workloads {
            let owner = self.workloads.get(workload).and_then(|properties| properties.owner.as_deref());
            let owner = owner.unwrap_or_else(|| short(workload));
            if !owners.contains(&owner) {
                owners.push(owner);
            }
            if owners.len() > IN_TITLE {
                break;
            }
        }
        if owners.len() <= IN_TITLE {
            return owners.join(", ");
        }
        let common = self.labels(workloads);
        let telling = DESCRIPTIVE_LABELS.iter().find_map(|name| common.iter().find(|(label, _)| label == name));
        match (telling.or_else(|| common.first()), owners.first()) {
            (Some((label, value)), _) => format!("{label}={value}"),
            (None, Some(first)) => format!("{first} and others"),
            (None, None) => String::new(),
        }
    }

    /// Returns the labels that all these workloads have in common.
    pub(crate) fn labels(&self, workloads: &[Arc<str>]) -> Vec<(String, String)> {
        let mut all = workloads.iter().filter_map(|workload| self.workloads.get(workload));
        let Some(first) = all.next() else { return Vec::new() };
        let mut common: Vec<(&Arc<str>, &Arc<str>)> = first.labels.iter().collect();
        for properties in all {
            if common.is_empty() {
                break;
            }
            common.retain(|(name, value)| properties.labels.get(*name) == Some(*value));
        }
        common.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    /// Returns the texts of the domain names for which addresses of a party stand; `None` if it has
    /// other networks as well.
    pub(crate) fn domains(&self, nets: &[Cidr]) -> Option<Vec<&str>> {
        nets.iter().map(|net| self.rows.text(net)).collect()
    }

    /// Returns the networks of a party that are no domain names.
    pub(crate) fn without_domains(&self, nets: &[Cidr]) -> Vec<Cidr> {
        nets.iter().filter(|net| self.rows.text(net).is_none()).copied().collect()
    }

    /// Returns the title of networks. The network of prefix length 0 stands for the addresses
    /// outside all others.
    pub(crate) fn networks(&self, nets: &[Cidr]) -> String {
        let mut titles: Vec<String> = Vec::new();
        for net in nets {
            let title = match self.networks.get(net) {
                _ if net.prefix_len() == 0 => "elsewhere".to_owned(),
                Some(name) => name.clone(),
                None => net.to_string(),
            };
            if !titles.contains(&title) {
                titles.push(title);
            }
        }
        let mut text = titles.iter().take(IN_TITLE).cloned().collect::<Vec<_>>().join(", ");
        if titles.len() > IN_TITLE {
            text += &format!(" and {} more", titles.len() - IN_TITLE);
        }
        text
    }
}

impl WorkloadProperties {
    fn new(endpoint: &WorkloadEndpoint, is_wanted: bool) -> Self {
        let labels: BTreeMap<Arc<str>, Arc<str>> = endpoint
            .labels
            .iter()
            .filter(|(name, _)| !is_given(name))
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let hash = endpoint.labels.iter().find(|(name, _)| *name == "pod-template-hash").map(|(_, value)| value);
        let owner = endpoint.generate_name.as_deref().map(|prefix| prefix.trim_end_matches('-'));
        let owner = owner.map(|owner| {
            let trimmed = hash.and_then(|hash| owner.strip_suffix(hash)).map(|owner| owner.trim_end_matches('-'));
            trimmed.unwrap_or(owner)
        });
        Self { owner: owner.filter(|owner| !owner.is_empty()).map(Into::into), labels, is_wanted }
    }
}

/// Reports whether a label is set by programs and does not describe the pod.
fn is_given(name: &str) -> bool {
    name.starts_with("projectcalico.org/")
        || name.starts_with("pcns.")
        || matches!(name, "pod-template-hash" | "controller-revision-hash" | "pod-template-generation")
}

/// Subject of the picture.
pub(crate) struct Subject<'a> {
    pub(crate) namespaces: &'a [String],
    pub(crate) selector: Option<&'a Selector>,
}

impl Subject<'_> {
    pub(crate) fn is_everything(&self) -> bool {
        self.namespaces.is_empty() && self.selector.is_none()
    }

    fn holds<'l>(&self, workload: &str, labels: impl Iterator<Item = (&'l str, &'l str)>) -> bool {
        (self.namespaces.is_empty() || self.namespaces.iter().any(|name| name == namespace(workload)))
            && self.selector.is_none_or(|selector| {
                let labels: BTreeMap<String, String> =
                    labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                selector.matches(&labels)
            })
    }
}
