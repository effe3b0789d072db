use serde_json::Value;
use tortie_resources::stored::ResourceKind;

use super::super::columns::aligned;

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

pub(super) fn table<'o>(kind: ResourceKind, objects: impl Iterator<Item = &'o Value>, is_wide: bool) -> String {
    let mut columns: Vec<(&str, &str)> = columns(kind).to_vec();
    if is_wide {
        columns.extend(wide_columns(kind));
        columns.extend([("CREATED", "/metadata/creationTimestamp"), ("LABELS", "/metadata/labels")]);
    }
    columns.insert(0, ("NAME", "/metadata/name"));
    if kind.is_namespaced() {
        columns.insert(0, ("NAMESPACE", "/metadata/namespace"));
    }
    let mut rows: Vec<Vec<String>> = vec![columns.iter().map(|(title, _)| (*title).to_owned()).collect()];
    for object in objects {
        rows.push(columns.iter().map(|(title, at)| cell(title, object.pointer(at))).collect());
    }
    aligned(&rows)
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
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_aligned() {
        let policies = [
            json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"order": 10.0, "selector": "all()"}}),
            json!({"metadata": {"name": "a", "namespace": "x"}, "spec": {"tier": "platform"}}),
        ];
        assert_eq!(
            table(ResourceKind::NetworkPolicy, policies.iter(), false),
            "NAMESPACE   NAME   TIER       ORDER   SELECTOR\n\
             shop        web    default    10      all()\n\
             x           a      platform\n"
        );
        let set = [json!({"metadata": {"name": "a"}, "spec": {"nets": ["10.0.0.0/8", "::/0"]}})];
        assert_eq!(table(ResourceKind::GlobalNetworkSet, set.iter(), false), "NAME   NETS\na      10.0.0.0/8,::/0\n");
    }
    #[test]
    fn wide_tables_have_more_columns() {
        let pool =
            [json!({"metadata": {"name": "pods", "creationTimestamp": "2025-01-02T03:04:05Z", "labels": {"a": "b"}},
            "spec": {"cidr": "10.0.0.0/16", "ipipMode": "Always", "natOutgoing": true, "blockSize": 26}})];
        assert_eq!(
            table(ResourceKind::IpPool, pool.iter(), true),
            "NAME   CIDR          SELECTOR   IPIPMODE   VXLANMODE   NAT    DISABLED   BLOCKSIZE   CREATED                LABELS\n\
             pods   10.0.0.0/16              Always                 true              26          2025-01-02T03:04:05Z   a=b\n"
        );
    }
}
