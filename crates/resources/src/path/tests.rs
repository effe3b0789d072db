use proptest::prelude::*;
use tortie_model::{
    Cidr, ConfigName, HostConfigKey, HostEndpointKey, Hostname, Key, NamespacedName, PolicyId, PolicyKind,
    WorkloadEndpointKey,
};

use super::{Parsed, is_block, parse, to_path};

fn key(path: &str) -> Option<Key> {
    match parse(path) {
        Some(Parsed::Key(key)) => Some(key),
        _ => None,
    }
}

#[test]
fn known_paths() {
    let host = Hostname::new("n1");
    for (path, expected) in [
        (
            "/calico/v1/host/n1/workload/k8s/ns1%2fpod/endpoint/eth0",
            Key::WorkloadEndpoint(WorkloadEndpointKey::new("n1", "k8s", "ns1/pod", "eth0")),
        ),
        (
            "/calico/v1/host/n1/endpoint/hep",
            Key::HostEndpoint(HostEndpointKey { host: host.clone(), name: "hep".into() }),
        ),
        ("/calico/v1/policy/tier/t/metadata", Key::Tier("t".into())),
        ("/calico/v1/policy/profile/kns.a/rules", Key::ProfileRules("kns.a".into())),
        ("/calico/v1/netset/ns%2fset", Key::NetworkSet("ns/set".into())),
        ("/calico/v1/ipam/v4/pool/10.0.0.0-16", Key::IpPool("10.0.0.0/16".parse().unwrap())),
        ("/calico/v1/ipam/v6/pool/fd00::-122", Key::IpPool("fd00::/122".parse().unwrap())),
        ("/calico/v1/config/a/b", Key::GlobalConfig(ConfigName::new("a/b"))),
        ("/calico/v1/host/n1/config/X", Key::HostConfig(HostConfigKey { host: host.clone(), name: "X".into() })),
        ("/calico/v1/Ready", Key::Ready),
        ("/calico/v1/host/n1/wireguard", Key::Wireguard(host.clone())),
        ("/calico/resources/v3/projectcalico.org/nodes/n1", Key::Node(host)),
        (
            "/calico/resources/v3/projectcalico.org/kubernetesservice/ns/svc",
            Key::Service(NamespacedName::new("ns", "svc")),
        ),
    ] {
        assert_eq!(key(path).as_ref(), Some(&expected), "{path}");
        assert_eq!(to_path(&expected).as_deref(), Ok(path));
    }
}

#[test]
fn legacy_policies() {
    for (name, expected) in [
        ("ns%2fknp.default.a.b", PolicyId::new(PolicyKind::KubernetesNetworkPolicy, "ns", "a.b")),
        ("ns%2fstaged:knp.default.a", PolicyId::new(PolicyKind::StagedKubernetesNetworkPolicy, "ns", "a")),
        ("ns%2fstaged:a", PolicyId::new(PolicyKind::StagedNetworkPolicy, "ns", "a")),
        ("ns%2fa%2fb", PolicyId::new(PolicyKind::NetworkPolicy, "ns", "a/b")),
        ("staged:a", PolicyId::new(PolicyKind::StagedGlobalNetworkPolicy, "", "a")),
        ("kcnp.a", PolicyId::new(PolicyKind::KubernetesClusterNetworkPolicy, "", "a")),
        ("a", PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "a")),
    ] {
        let parsed = parse(&format!("/calico/v1/policy/tier/sec/policy/{name}"));
        assert_eq!(parsed, Some(Parsed::LegacyPolicy { id: expected, tier: "sec".into() }), "{name}");
    }
}

#[test]
fn paths_that_name_nothing() {
    for path in [
        "",
        "/",
        "/calico",
        "/calico/v1",
        "calico/v1/Ready",
        "/calico/v1/Ready/x",
        "/calico/v1/config/",
        "/calico/v1/host/h",
        "/calico/v1/host/h/workload/a/b/c/d",
        "/calico/v1/policy/tier/t",
        "/calico/v1/policy/profile/p",
        "/calico/v1/policy/K/ns",
        "/calico/v1/ipam/v4/pool/10.0.0.0/16",
        "/calico/resources/v3/projectcalico.org/nodes/ns/n1",
        "/calico/resources/v3/projectcalico.org/networksets/n1",
        "/calico/resources/v3/projectcalico.org/unheardof/n1",
        "calico/resources/v3/projectcalico.org/nodes/n1",
        "/other/v1/Ready",
        "/calico/v1/host/h/endpoint/",
        "/calico/v1/host//endpoint/e",
        "/calico/v1/policy/GlobalNetworkPolicy//",
        "/calico/v1/policy//ns/p",
        "/calico/v1/policy/tier//metadata",
        "/calico/resources/v3/projectcalico.org/nodes/",
    ] {
        assert_eq!(parse(path), None, "{path}");
    }
}

#[test]
fn objects_outside_the_model() {
    for path in [
        "/calico/ipam/v2/handle/h",
        "/calico/ipam/v2/host/h/ipv4/block/10.0.0.0-26",
        "/calico/v1/policy/profile/p/labels",
        "/calico/v1/host/h/metadata",
        "/calico/v1/host/h/bird_ip",
        "/calico/resources/v3/projectcalico.org/bgpfilters/p",
    ] {
        assert_eq!(parse(path), Some(Parsed::NotModelled), "{path}");
    }
}

#[test]
fn upper_case_escapes_are_left_alone() {
    assert_eq!(key("/calico/v1/netset/a%2Fb"), Some(Key::NetworkSet("a%2Fb".into())));
}

#[test]
fn keys_without_identity_have_no_path() {
    assert!(to_path(&Key::Policy(PolicyId::new(PolicyKind::NetworkPolicy, "", "a"))).is_err());
    assert!(to_path(&Key::Tier("".into())).is_err());
    assert!(to_path(&Key::Policy(PolicyId::new(PolicyKind::Other("tier".into()), "", "a"))).is_err());
}

#[test]
fn passed_on_objects_are_identified_by_path() {
    let block = |cidr: &str| Key::Block(cidr.parse().unwrap());
    for (path, expected) in [
        ("/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26", block("10.0.0.64/26")),
        ("/calico/ipam/v2/assignment/ipv6/block/fd00:10::40-122", block("fd00:10::40/122")),
        ("/calico/resources/v3/projectcalico.org/bgppeers/p", Key::BgpPeer("p".into())),
        (
            "/calico/resources/v3/projectcalico.org/livemigrations/ns/p",
            Key::LiveMigration(NamespacedName::new("ns", "p")),
        ),
    ] {
        assert_eq!(key(path).as_ref(), Some(&expected));
        assert_eq!(to_path(&expected).unwrap(), path);
        assert_eq!(is_block(path), path.contains("/ipam/"), "{path}");
    }
    assert_eq!(key("/calico/ipam/v2/assignment/ipv4/block/10.0.0.77-26"), Some(block("10.0.0.64/26")));
    for path in ["/calico/ipam/v2/assignment/ipv4/block/10.0.0.0", "/calico/ipam/v2/assignment/ipv4/block/x-26"] {
        assert_eq!(parse(path), None, "{path}");
    }
    for path in ["/calico/ipam/v2/handle/h", "/calico/resources/v3/projectcalico.org/nodes/n", "/calico/v1/Ready"] {
        assert!(!is_block(path), "{path}");
    }
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9.%/_-]{1,8}|%2f|%25|%252f|a/b"
}

fn passthrough_key() -> impl Strategy<Value = Key> {
    let net = (any::<std::net::IpAddr>(), 0..=32u8).prop_map(|(a, l)| Cidr::new(a, l).unwrap().masked());
    prop_oneof![
        net.prop_map(Key::Block),
        name().prop_map(|n| Key::BgpPeer(n.into())),
        (name(), name()).prop_map(|(a, b)| Key::LiveMigration(NamespacedName::new(a, b))),
    ]
}

fn any_key() -> impl Strategy<Value = Key> {
    let kind = "[A-Z][a-z]{0,4}|NetworkPolicy|GlobalNetworkPolicy";
    prop_oneof![
        (name(), name(), name(), name())
            .prop_map(|(a, b, c, d)| Key::WorkloadEndpoint(WorkloadEndpointKey::new(&a, &b, &c, &d))),
        (name(), name())
            .prop_map(|(a, b)| Key::HostEndpoint(HostEndpointKey { host: (&*a).into(), name: (&*b).into() })),
        (kind, name(), name()).prop_map(|(k, ns, n)| Key::Policy(PolicyId::new(PolicyKind::from_name(&k), ns, n))),
        name().prop_map(|n| Key::Policy(PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", n))),
        name().prop_map(|n| Key::Tier((&*n).into())),
        name().prop_map(|n| Key::Profile((&*n).into())),
        name().prop_map(|n| Key::ProfileRules((&*n).into())),
        name().prop_map(|n| Key::NetworkSet((&*n).into())),
        name().prop_map(|n| Key::GlobalConfig((&*n).into())),
        name().prop_map(|n| Key::ScopedConfig((&*n).into())),
        name().prop_map(|n| Key::Node((&*n).into())),
        name().prop_map(|n| Key::Wireguard((&*n).into())),
        (name(), name()).prop_map(|(a, b)| Key::Service(NamespacedName::new(a, b))),
        (name(), name()).prop_map(|(a, b)| Key::EndpointSlice(NamespacedName::new(a, b))),
        (name(), name()).prop_map(|(a, b)| Key::HostConfig(HostConfigKey { host: (&*a).into(), name: (&*b).into() })),
        (any::<u32>(), 0..=32u8)
            .prop_map(|(a, l)| Key::IpPool(Cidr::new(std::net::Ipv4Addr::from(a).into(), l).unwrap().masked())),
        (any::<u128>(), 0..=128u8)
            .prop_map(|(a, l)| Key::IpPool(Cidr::new(std::net::Ipv6Addr::from(a).into(), l).unwrap().masked())),
        passthrough_key(),
    ]
}

proptest! {
    #[test]
    fn every_key_survives_its_path(key in any_key()) {
        prop_assert_eq!(parse(&to_path(&key).unwrap()), Some(Parsed::Key(key)));
    }

    #[test]
    fn any_text_is_harmless(text in "(/?(calico|v1|v2|v3|host|policy|tier|profile|resources|projectcalico.org|[a-z%]{0,3})){0,9}") {
        if let Some(Parsed::Key(key)) = parse(&text)
            && let Ok(path) = to_path(&key)
        {
            prop_assert_eq!(parse(&path), Some(Parsed::Key(key)));
        }
    }
}
