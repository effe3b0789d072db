use serde_json::Value;
use tortie_resources::stored::ResourceKind;

use super::super::columns::aligned_to;

/// Columns and lines of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) is_wide: bool,
    pub(super) has_labels: bool,
    pub(super) has_titles: bool,
    /// Whether names begin with the kind, as there are several tables.
    pub(super) names_kinds: bool,
}

fn columns(kind: ResourceKind) -> &'static [(&'static str, &'static str)] {
    match kind {
        ResourceKind::NetworkPolicy
        | ResourceKind::GlobalNetworkPolicy
        | ResourceKind::StagedNetworkPolicy
        | ResourceKind::StagedGlobalNetworkPolicy => {
            &[("TIER", "/spec/tier"), ("ORDER", "/spec/order"), ("SELECTOR", "/spec/selector")]
        }
        ResourceKind::Tier => &[("ORDER", "/spec/order"), ("DEFAULTACTION", "/spec/defaultAction")],
        ResourceKind::NetworkSet | ResourceKind::GlobalNetworkSet => &[("NETS", "/spec/nets")],
        ResourceKind::HostEndpoint => &[
            ("NODE", "/spec/node"),
            ("INTERFACE", "/spec/interfaceName"),
            ("IPS", "/spec/expectedIPs"),
            ("PROFILES", "/spec/profiles"),
        ],
        ResourceKind::WorkloadEndpoint => &[
            ("WORKLOAD", "/spec/pod"),
            ("NODE", "/spec/node"),
            ("NETWORKS", "/spec/ipNetworks"),
            ("INTERFACE", "/spec/interfaceName"),
        ],
        ResourceKind::IpPool => &[("CIDR", "/spec/cidr"), ("SELECTOR", "/spec/nodeSelector")],
        ResourceKind::IpReservation => &[("CIDRS", "/spec/reservedCIDRs")],
        ResourceKind::Node => {
            &[("ASN", "/spec/bgp/asNumber"), ("IPV4", "/spec/bgp/ipv4Address"), ("IPV6", "/spec/bgp/ipv6Address")]
        }
        ResourceKind::ClusterInformation => &[
            ("CLUSTERGUID", "/spec/clusterGUID"),
            ("CALICOVERSION", "/spec/calicoVersion"),
            ("DATASTOREREADY", "/spec/datastoreReady"),
        ],
        ResourceKind::Profile => &[("LABELS", "/spec/labelsToApply")],
        ResourceKind::IpamConfiguration => {
            &[("STRICTAFFINITY", "/spec/strictAffinity"), ("AUTOALLOCATEBLOCKS", "/spec/autoAllocateBlocks")]
        }
        ResourceKind::BgpPeer => &[("PEERIP", "/spec/peerIP"), ("NODE", "/spec/node"), ("ASN", "/spec/asNumber")],
        _ => &[],
    }
}

fn wide_columns(kind: ResourceKind) -> &'static [(&'static str, &'static str)] {
    match kind {
        ResourceKind::NetworkPolicy | ResourceKind::StagedNetworkPolicy => {
            &[("TYPES", "/spec/types"), ("SERVICEACCOUNTS", "/spec/serviceAccountSelector")]
        }
        ResourceKind::GlobalNetworkPolicy | ResourceKind::StagedGlobalNetworkPolicy => &[
            ("TYPES", "/spec/types"),
            ("NAMESPACES", "/spec/namespaceSelector"),
            ("SERVICEACCOUNTS", "/spec/serviceAccountSelector"),
            ("PREDNAT", "/spec/preDNAT"),
            ("UNTRACKED", "/spec/doNotTrack"),
            ("FORWARD", "/spec/applyOnForward"),
        ],
        ResourceKind::KubernetesNetworkPolicy => {
            &[("POD-SELECTOR", "/spec/podSelector/matchLabels"), ("TYPES", "/spec/policyTypes")]
        }
        ResourceKind::WorkloadEndpoint => &[("PROFILES", "/spec/profiles")],
        ResourceKind::IpPool => &[
            ("IPIPMODE", "/spec/ipipMode"),
            ("VXLANMODE", "/spec/vxlanMode"),
            ("NAT", "/spec/natOutgoing"),
            ("DISABLED", "/spec/disabled"),
            ("BLOCKSIZE", "/spec/blockSize"),
        ],
        ResourceKind::BgpPeer => &[("NODES", "/spec/nodeSelector"), ("PEERS", "/spec/peerSelector")],
        _ => &[],
    }
}

/// A table that grows, as its objects become known.
pub(super) struct Table {
    kind: ResourceKind,
    layout: Layout,
    columns: Vec<(&'static str, &'static str)>,
    /// Widths of the rows so far.
    widths: Vec<usize>,
}

impl Table {
    pub(super) fn new(kind: ResourceKind, layout: Layout) -> Self {
        let mut columns = columns(kind).to_vec();
        if layout.is_wide {
            columns.extend(wide_columns(kind));
            columns.push(("CREATED", "/metadata/creationTimestamp"));
        }
        if layout.is_wide || layout.has_labels {
            columns.push(("LABELS", "/metadata/labels"));
        }
        columns.insert(0, ("NAME", "/metadata/name"));
        if kind.is_namespaced() {
            columns.insert(0, ("NAMESPACE", "/metadata/namespace"));
        }
        Self { kind, layout, columns, widths: Vec::new() }
    }

    /// Returns the rows of objects, below the titles if they are the first rows.
    pub(super) fn rows<'o>(&mut self, objects: impl Iterator<Item = &'o Value>) -> String {
        let titles = || self.columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        let has_titles = self.layout.has_titles && self.widths.is_empty();
        let mut rows: Vec<Vec<String>> = has_titles.then(titles).into_iter().collect();
        for object in objects {
            rows.push(self.columns.iter().map(|(title, at)| cell(title, object.pointer(at))).collect());
            let name = self.columns.iter().position(|(title, _)| *title == "NAME").filter(|_| self.layout.names_kinds);
            if let Some(name) = name.and_then(|place| rows.last_mut()?.get_mut(place)) {
                name.insert_str(0, &format!("{}/", self.kind.qualified()));
            }
        }
        aligned_to(&rows, &mut self.widths)
    }
}

fn cell(title: &str, value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) if title == "TIER" => "default".into(),
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        // Whole numbers are printed without a fraction.
        Some(Value::Number(number)) => number.as_f64().map_or_else(|| number.to_string(), |number| number.to_string()),
        Some(Value::Array(items)) => items.iter().map(|item| cell("", Some(item))).collect::<Vec<_>>().join(","),
        Some(Value::Object(fields)) => {
            fields.iter().map(|(name, value)| format!("{name}={}", cell("", Some(value)))).collect::<Vec<_>>().join(",")
        }
        Some(Value::Bool(value)) => value.to_string(),
    }
}

#[cfg(test)]
mod tests;
