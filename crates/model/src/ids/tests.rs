use super::*;

#[test]
fn workload_keys_keep_their_parts() {
    let key = WorkloadEndpointKey::new("node", "k8s", "ns/pod", "eth0");
    assert_eq!((key.host(), key.orchestrator(), key.workload(), key.endpoint()), ("node", "k8s", "ns/pod", "eth0"));
    assert_ne!(key, WorkloadEndpointKey::new("nodek8s", "", "ns/pod", "eth0"));
    assert_eq!(key.id().to_string(), "k8s/ns/pod/eth0");
}

#[test]
fn every_kind_keeps_its_name() {
    for name in ["NetworkPolicy", "StagedKubernetesNetworkPolicy", "KubernetesClusterNetworkPolicy", "Something"] {
        assert_eq!(PolicyKind::from_name(name).as_str(), name);
    }
}
