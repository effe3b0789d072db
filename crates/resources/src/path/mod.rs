//! Datastore paths of keys (`libcalico-go/lib/backend/model/{keys,name}.go`).
//!
//! ```
//! use tortie_resources::path::{self, Parsed};
//! use tortie_model::{Key, PolicyId, PolicyKind};
//!
//! let key = Key::Policy(PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "deny-all"));
//! let text = path::to_path(&key)?;
//! assert_eq!(text, "/calico/v1/policy/GlobalNetworkPolicy//deny-all");
//! assert_eq!(path::parse(&text), Some(Parsed::Key(key)));
//! # Ok::<(), path::PathError>(())
//! ```

mod status;

use tortie_model::{
    Cidr, ConfigName, HostConfigKey, HostEndpointKey, HostEndpointName, Hostname, Key, NamespacedName, NetworkSetName,
    PolicyId, PolicyKind, ProfileName, TierName, WorkloadEndpointKey,
};

pub use status::{endpoint_status_prefixes, host_endpoint_status, process_status, workload_status};

/// Object at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// An object of the model.
    Key(Key),
    /// A policy under a path of releases before 3.32, which contains the tier. The tier of the path
    /// overrides the tier of the value.
    LegacyPolicy {
        /// The policy, with its identity in newer releases.
        id: PolicyId,
        /// The tier.
        tier: TierName,
    },
    /// An object that exists in the datastore but not in the model, such as an IPAM handle.
    NotModelled,
}

/// Error of a key without a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// A required part of the key is empty.
    #[error("{key}: `{field}` is empty")]
    Empty {
        /// The key.
        key: String,
        /// The missing part.
        field: &'static str,
    },
    /// The kind of a policy would be ambiguous in a path.
    #[error("a policy kind called `{kind}` cannot be written in a path")]
    AmbiguousKind {
        /// The kind.
        kind: String,
    },
}

/// Escapes a name for use as one segment of a path.
fn escape(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2f")
}

fn unescape(segment: &str) -> String {
    segment.replace("%2f", "/").replace("%25", "%")
}

/// Returns the path of a key.
///
/// Every name is escaped, also where Calico forgets to; this changes no path of an existing name.
///
/// # Errors
/// [`PathError`] if a part that identifies the object is empty.
pub fn to_path(key: &Key) -> Result<String, PathError> {
    let part = |field: &'static str, value: &str| {
        if value.is_empty() { Err(PathError::Empty { key: key.to_string(), field }) } else { Ok(escape(value)) }
    };
    // Only the names of parameters go into a path unescaped.
    let raw = |value: &ConfigName| part("name", value.as_str()).map(|_| value.to_string());
    let resource = |plural: &str, name: &str| Ok(format!("{RESOURCES}/{plural}/{}", part("name", name)?));
    let namespaced = |plural: &str, name: &NamespacedName| {
        Ok(format!("{RESOURCES}/{plural}/{}/{}", part("namespace", &name.namespace)?, part("name", &name.name)?))
    };
    match key {
        Key::WorkloadEndpoint(k) => Ok(format!(
            "/calico/v1/host/{}/workload/{}/{}/endpoint/{}",
            part("host", k.host())?,
            part("orchestrator", k.orchestrator())?,
            part("workload", k.workload())?,
            part("endpoint", k.endpoint())?
        )),
        Key::HostEndpoint(k) => Ok(format!(
            "/calico/v1/host/{}/endpoint/{}",
            part("host", k.host.as_str())?,
            part("name", k.name.as_str())?
        )),
        Key::Policy(id) => policy_path(id, &part("name", &id.name)?),
        Key::Tier(name) => Ok(format!("/calico/v1/policy/tier/{}/metadata", part("name", name.as_str())?)),
        Key::ProfileRules(name) => Ok(format!("/calico/v1/policy/profile/{}/rules", part("name", name.as_str())?)),
        Key::Profile(name) => resource("profiles", name.as_str()),
        Key::NetworkSet(name) => Ok(format!("/calico/v1/netset/{}", part("name", name.as_str())?)),
        Key::IpPool(cidr) => {
            let net = cidr.masked().to_string().replacen('/', "-", 1);
            Ok(format!("/calico/v1/ipam/v{}/pool/{net}", cidr.family().number()))
        }
        Key::GlobalConfig(name) => Ok(format!("/calico/v1/config/{}", raw(name)?)),
        Key::HostConfig(k) => {
            Ok(format!("/calico/v1/host/{}/config/{}", part("host", k.host.as_str())?, raw(&k.name)?))
        }
        Key::ScopedConfig(name) => resource("felixconfigurations", name.as_str()),
        Key::Ready => Ok("/calico/v1/Ready".into()),
        Key::Node(name) => resource("nodes", name.as_str()),
        Key::Wireguard(name) => Ok(format!("/calico/v1/host/{}/wireguard", part("host", name.as_str())?)),
        Key::Service(name) => namespaced("kubernetesservice", name),
        Key::EndpointSlice(name) => namespaced("kubernetesendpointslices", name),
        Key::BgpConfiguration(name) => resource("bgpconfigurations", name.as_str()),
        Key::Block(cidr) => {
            let net = cidr.masked().to_string().replacen('/', "-", 1);
            Ok(format!("{BLOCKS}ipv{}/block/{net}", cidr.family().number()))
        }
        Key::BgpPeer(name) => resource("bgppeers", name),
        Key::LiveMigration(name) => namespaced("livemigrations", name),
        Key::SyncerObject(path) => part("path", path).map(|_| path.to_string()),
    }
}

/// Prefix of the paths of all IPAM blocks.
pub const BLOCKS: &str = "/calico/ipam/v2/assignment/";

/// Reports whether a path is that of an IPAM block, by its prefix alone.
#[must_use]
pub fn is_block(path: &str) -> bool {
    path.starts_with(BLOCKS)
}

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";

fn policy_path(id: &PolicyId, name: &str) -> Result<String, PathError> {
    let needs_namespace = matches!(
        id.kind,
        PolicyKind::NetworkPolicy | PolicyKind::StagedNetworkPolicy | PolicyKind::StagedKubernetesNetworkPolicy
    );
    if needs_namespace && id.namespace.is_empty() {
        return Err(PathError::Empty { key: id.to_string(), field: "namespace" });
    }
    match id.kind.as_str() {
        "" => Err(PathError::Empty { key: id.to_string(), field: "kind" }),
        kind @ ("tier" | "profile") => Err(PathError::AmbiguousKind { kind: kind.into() }),
        kind => Ok(format!("/calico/v1/policy/{}/{}/{name}", escape(kind), escape(&id.namespace))),
    }
}

/// Parses a path; `None` if it is not a path of the datastore.
///
/// The leading `/` may be missing, except from v3 resources and the ready flag.
#[must_use]
pub fn parse(path: &str) -> Option<Parsed> {
    let absolute = path.starts_with('/');
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    if !identifies(&parts) {
        return None;
    }
    let key = match *parts {
        ["calico", "v1", "Ready"] if absolute => Key::Ready,
        ["calico", "v1", "config", ref name @ ..] => Key::GlobalConfig(config_name(name)?),
        ["calico", "v1", "host", host, ref rest @ ..] => return parse_host(host, rest),
        ["calico", "v1", "ipam", version, "pool", net] if matches!(version.as_bytes(), [b'v', _]) => {
            let (address, length) = net.split_once('-')?;
            Key::IpPool(format!("{address}/{length}").parse::<Cidr>().ok()?.masked())
        }
        ["calico", "ipam", "v2", "assignment", version, "block", net]
            if matches!(version.as_bytes(), [b'i', b'p', b'v', _]) =>
        {
            let (address, length) = net.split_once('-')?;
            Key::Block(format!("{address}/{length}").parse::<Cidr>().ok()?.masked())
        }
        ["calico", "v1", "netset", name] => Key::NetworkSet(NetworkSetName::new(unescape(name))),
        ["calico", "v1", "policy", "tier", tier, "metadata"] => Key::Tier(TierName::new(unescape(tier))),
        ["calico", "v1", "policy", "tier", tier, "policy", name] => {
            return Some(Parsed::LegacyPolicy {
                id: legacy_policy(&unescape(name)),
                tier: TierName::new(unescape(tier)),
            });
        }
        ["calico", "v1", "policy", "profile", name, "rules", ..] => Key::ProfileRules(ProfileName::new(unescape(name))),
        ["calico", "v1", "policy", kind, namespace, name] if !matches!(kind, "tier" | "profile") => {
            Key::Policy(PolicyId::new(PolicyKind::from_name(&unescape(kind)), unescape(namespace), unescape(name)))
        }
        ["calico", "resources", "v3", "projectcalico.org", ref rest @ ..] if absolute => return parse_resource(rest),
        ["calico", "v1", "policy", "profile", _, "labels", ..]
        | ["calico", "ipam", "v2", "handle" | "host", _, ..]
        | ["calico", "bgp", "v1", "global" | "host", _, ..]
        | ["calico", "felix", "v1" | "v2", _, _, ..] => return Some(Parsed::NotModelled),
        _ => return None,
    };
    Some(Parsed::Key(key))
}

/// Reports whether all parts are present, except those that may be empty: the namespace of a
/// policy, and parts of a parameter name.
fn identifies(parts: &[&str]) -> bool {
    match parts {
        ["calico", "v1", "config", ..] | ["calico", "v1", "host", _, "config", ..] => true,
        ["calico", "v1", "policy", kind, _namespace, rest @ ..] if !matches!(*kind, "tier" | "profile") => {
            !kind.is_empty() && rest.iter().all(|part| !part.is_empty())
        }
        _ => parts.iter().all(|part| !part.is_empty()),
    }
}

fn config_name(parts: &[&str]) -> Option<ConfigName> {
    let name = parts.join("/");
    (!name.is_empty()).then(|| ConfigName::new(name))
}

fn parse_host(host: &str, rest: &[&str]) -> Option<Parsed> {
    let hostname = || Hostname::new(unescape(host));
    let key = match *rest {
        ["workload", orchestrator, workload, "endpoint", endpoint] => Key::WorkloadEndpoint(WorkloadEndpointKey::new(
            &unescape(host),
            &unescape(orchestrator),
            &unescape(workload),
            &unescape(endpoint),
        )),
        ["endpoint", name] => {
            Key::HostEndpoint(HostEndpointKey { host: hostname(), name: HostEndpointName::new(unescape(name)) })
        }
        ["config", ref name @ ..] => Key::HostConfig(HostConfigKey { host: hostname(), name: config_name(name)? }),
        ["wireguard"] => Key::Wireguard(hostname()),
        ["metadata" | "bird_ip"] => return Some(Parsed::NotModelled),
        _ => return None,
    };
    Some(Parsed::Key(key))
}

fn parse_resource(rest: &[&str]) -> Option<Parsed> {
    let (plural, namespace, name) = match *rest {
        [plural, name] => (plural, None, unescape(name)),
        [plural, namespace, name] => (plural, Some(unescape(namespace)), unescape(name)),
        _ => return None,
    };
    let plural = unescape(plural).to_ascii_lowercase();
    let in_namespace = NAMESPACED.contains(&&*plural);
    if !in_namespace && !CLUSTER_WIDE.contains(&&*plural) || in_namespace != namespace.is_some() {
        return None;
    }
    let namespaced = |name: String| NamespacedName::new(namespace.unwrap_or_default(), name);
    let key = match &*plural {
        "profiles" => Key::Profile(ProfileName::new(name)),
        "nodes" => Key::Node(Hostname::new(name)),
        "felixconfigurations" => Key::ScopedConfig(ConfigName::new(name)),
        "bgpconfigurations" => Key::BgpConfiguration(ConfigName::new(name)),
        "kubernetesservice" => Key::Service(namespaced(name)),
        "kubernetesendpointslices" => Key::EndpointSlice(namespaced(name)),
        "bgppeers" => Key::BgpPeer(name.into()),
        "livemigrations" => Key::LiveMigration(namespaced(name)),
        _ => return Some(Parsed::NotModelled),
    };
    Some(Parsed::Key(key))
}

/// Namespaced resources (`libcalico-go/lib/namespace/resource.go`). The singular
/// `kubernetesservice` is a historical accident.
const NAMESPACED: [&str; 9] = [
    "kubernetesendpointslices",
    "kubernetesnetworkpolicies",
    "kubernetesservice",
    "livemigrations",
    "networkpolicies",
    "networksets",
    "stagedkubernetesnetworkpolicies",
    "stagednetworkpolicies",
    "workloadendpoints",
];

/// Cluster-scoped resources (`libcalico-go/lib/backend/model/resource.go`).
const CLUSTER_WIDE: [&str; 20] = [
    "bgpconfigurations",
    "bgpfilters",
    "bgppeers",
    "blockaffinities",
    "caliconodestatuses",
    "clusterinformations",
    "felixconfigurations",
    "globalnetworkpolicies",
    "globalnetworksets",
    "hostendpoints",
    "ipamconfigs",
    "ipamconfigurations",
    "ippools",
    "ipreservations",
    "kubecontrollersconfigurations",
    "kubernetesclusternetworkpolicies",
    "nodes",
    "profiles",
    "stagedglobalnetworkpolicies",
    "tiers",
];

/// Returns the identity of a policy from its name in releases before 3.32, which contains kind and
/// namespace.
fn legacy_policy(name: &str) -> PolicyId {
    const KUBERNETES: &str = "knp.default.";
    const STAGED: &str = "staged:";
    let strip = |name: &str, prefix: &str| name.strip_prefix(prefix).map(str::to_owned);
    let (namespace, kind, name) = match name.split_once('/') {
        Some((namespace, name)) => {
            let (kind, name) = if let Some(name) = strip(name, KUBERNETES) {
                (PolicyKind::KubernetesNetworkPolicy, name)
            } else if let Some(name) = name.strip_prefix(STAGED).and_then(|name| strip(name, KUBERNETES)) {
                (PolicyKind::StagedKubernetesNetworkPolicy, name)
            } else if let Some(name) = strip(name, STAGED) {
                (PolicyKind::StagedNetworkPolicy, name)
            } else {
                (PolicyKind::NetworkPolicy, name.to_owned())
            };
            (namespace, kind, name)
        }
        None => {
            let (kind, name) = if let Some(name) = strip(name, STAGED) {
                (PolicyKind::StagedGlobalNetworkPolicy, name)
            } else if let Some(name) = strip(name, "kcnp.") {
                (PolicyKind::KubernetesClusterNetworkPolicy, name)
            } else {
                (PolicyKind::GlobalNetworkPolicy, name.to_owned())
            };
            ("", kind, name)
        }
    };
    PolicyId::new(kind, namespace, name)
}

#[cfg(test)]
mod tests;
