//! Pod fields that address garbage collection uses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;
use tortie_net::Cidr;

use crate::json::field;

/// Node and addresses of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodFacts {
    /// Empty until the pod is scheduled.
    pub(crate) node: Box<str>,
    pub(crate) addresses: PodAddresses,
}

/// Addresses of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodAddresses {
    /// Not yet reported, or invalid.
    Unknown,
    /// These; none once the pod has finished.
    Known(Box<[IpAddr]>),
}

const POD_IP: &str = "cni.projectcalico.org/podIP";
const POD_IPS: &str = "cni.projectcalico.org/podIPs";
const AWS_POD_IPS: &str = "vpc.amazonaws.com/pod-ips";
/// Addresses on further networks, as reported by Multus.
const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

impl PodFacts {
    /// Reads a pod. In doubt, an address counts as the pod's (`allocationIsValid` of
    /// `kube-controllers/pkg/controllers/node/ipam.go`, and `IsFinished` of
    /// `libcalico-go/lib/backend/k8s/conversion`).
    pub(crate) fn read(pod: &Value) -> Self {
        let node = field(pod, &["spec", "nodeName"]).as_str().unwrap_or_default().into();
        Self { node, addresses: addresses(pod) }
    }

    /// Reports whether the pod may have an address that was allocated on this node; `None`: on an
    /// unknown node.
    pub(crate) fn may_have(&self, address: IpAddr, node: Option<&str>) -> bool {
        match &self.addresses {
            PodAddresses::Known(addresses) => addresses.contains(&address),
            // A pod with this name on another node is another pod.
            PodAddresses::Unknown => node.is_none_or(|node| self.node.is_empty() || *self.node == *node),
        }
    }
}

fn addresses(pod: &Value) -> PodAddresses {
    let annotation = |name| field(pod, &["metadata", "annotations", name]).as_str();
    let has_ip = field(pod, &["status", "podIP"]).as_str().is_some_and(|ip| !ip.is_empty());
    let Some(listed) = field(pod, &["status", "podIPs"]).as_array().filter(|listed| has_ip && !listed.is_empty())
    else {
        return PodAddresses::Unknown;
    };
    let is_deleted = !field(pod, &["metadata", "deletionTimestamp"]).is_null();
    let released = is_deleted && (annotation(POD_IP) == Some("") || annotation(AWS_POD_IPS) == Some(""));
    let phase = field(pod, &["status", "phase"]).as_str().unwrap_or_default();
    if released || matches!(phase, "Failed" | "Succeeded" | "Completed") {
        return PodAddresses::Known(Box::default());
    }
    let listed = listed.iter().map(|entry| field(entry, &["ip"]).as_str().unwrap_or_default());
    let annotated = [POD_IP, POD_IPS, AWS_POD_IPS].into_iter().filter_map(annotation).flat_map(|text| text.split(','));
    let annotated = annotated.map(str::trim).filter(|text| !text.is_empty());
    let status: Value = annotation(NETWORK_STATUS).map(serde_json::from_str).and_then(Result::ok).unwrap_or_default();
    let further = status.as_array().into_iter().flatten().filter_map(|network| field(network, &["ips"]).as_array());
    let further = further.flatten().filter_map(Value::as_str);
    let all = listed.chain(annotated).chain(further);
    let all: Option<Box<[IpAddr]>> = all.map(|text| text.parse::<Cidr>().ok().map(Cidr::address)).collect();
    all.map_or(PodAddresses::Unknown, PodAddresses::Known)
}

/// Returns the addresses of Calico's interface of a pod: those that the kubelet has reported, or
/// else those that the plugin has noted.
pub(crate) fn assigned_addresses(pod: &Value) -> Vec<IpAddr> {
    let listed = field(pod, &["status", "podIPs"]).as_array().into_iter().flatten();
    let reported = listed.map(|entry| field(entry, &["ip"])).chain([field(pod, &["status", "podIP"])]);
    let noted = [POD_IPS, POD_IP].map(|name| field(pod, &["metadata", "annotations", name]));
    let address = |text: &str| text.trim().parse::<Cidr>().ok().map(Cidr::address);
    let of = |values: Vec<&Value>| -> BTreeSet<IpAddr> {
        values.into_iter().filter_map(Value::as_str).flat_map(|text| text.split(',')).filter_map(address).collect()
    };
    let reported = of(reported.collect());
    let found = if reported.is_empty() { of(noted.into()) } else { reported };
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn may_have(pod: &Value, node: Option<&str>) -> bool {
        PodFacts::read(pod).may_have("10.0.0.1".parse().expect("an address"), node)
    }

    #[test]
    fn pods_that_may_have_an_address() {
        let pod = json!({"spec": {"nodeName": "n1"}, "status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}});
        // A reported address belongs to the pod, whatever node the block names.
        assert!(may_have(&pod, Some("n1")) && may_have(&pod, None) && may_have(&pod, Some("n2")));
        let edited = |path: &[&str], value: Value| {
            let mut pod = pod.clone();
            crate::json::set(&mut pod, path, value);
            may_have(&pod, Some("n1"))
        };
        // The addresses are not reported yet, or invalid.
        assert!(edited(&["status"], json!({})) && edited(&["status", "podIP"], json!("")));
        assert!(edited(&["status", "podIPs"], json!([{"ip": "nonsense"}])));
        assert!(edited(&["spec", "nodeName"], json!("")));
        let waiting = json!({"spec": {"nodeName": "n1"}});
        assert!(may_have(&waiting, Some("n1")) && may_have(&waiting, None) && !may_have(&waiting, Some("n2")));
        // The pod has another address, or none any more.
        assert!(!edited(&["status", "podIPs"], json!([{"ip": "10.0.0.2"}])));
        assert!(!edited(&["status", "phase"], json!("Succeeded")));
        let mut other = pod.clone();
        other["status"]["podIPs"] = json!([{"ip": "10.0.0.2"}]);
        for (name, value) in [
            (POD_IPS, "10.0.0.1/32,fd00::1/128"),
            (NETWORK_STATUS, r#"[{"name": "a", "ips": ["10.0.0.9"]}, {"name": "b", "ips": ["10.0.0.1"]}]"#),
        ] {
            other["metadata"] = json!({"annotations": {name: value}});
            assert!(may_have(&other, Some("n1")), "{name}");
        }
        // A pod in deletion keeps its address until the CNI plugin has removed it.
        let mut deleted = pod.clone();
        deleted["metadata"] =
            json!({"deletionTimestamp": "2030-01-01T00:00:00Z", "annotations": {POD_IP: "10.0.0.1/32"}});
        assert!(may_have(&deleted, Some("n1")));
        deleted["metadata"]["annotations"][POD_IP] = json!("");
        assert!(!may_have(&deleted, Some("n1")));
    }
}
