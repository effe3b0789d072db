use super::*;
use crate::nodes::config::{NodeConfig, Overrides};

fn node() -> Value {
    json!({
        "metadata": {"name": "n1", "labels": {"rack": "r1", "own": "node"}},
        "spec": {
            "bgp": {"ipv4Address": "192.0.2.1/24", "ipv6Address": "2001:db8::1/64", "ipv4IPIPTunnelAddr": "10.244.0.1"},
            "ipv4VXLANTunnelAddr": "10.244.0.2", "ipv6VXLANTunnelAddr": "fd00::2",
            "wireguard": {"interfaceIPv4Address": "10.244.0.3"},
            "addresses": [{"address": "192.0.2.1", "type": "InternalIP"}, {"address": "192.0.2.9", "type": "InternalIP"},
                {"address": "203.0.113.1", "type": "ExternalIP"}, {"address": "host", "type": "InternalIP"}],
            "interfaces": [{"name": "eth0", "addresses": ["192.0.2.1", "172.16.0.1"]}, {"name": "eth1", "addresses": ["172.16.1.1"]}],
        },
    })
}

fn wanted_by(section: &Value) -> BTreeMap<String, Value> {
    let resource = json!({"spec": {"controllers": {"node": {"hostEndpoint": section}}}});
    let (config, problems) = NodeConfig::read(&resource, &Overrides::default());
    assert_eq!(problems, [] as [String; 0]);
    wanted("n1", &node(), &config.host_endpoints)
}

#[test]
fn the_default_endpoint_has_every_address_of_the_node() {
    let wanted = wanted_by(&json!({"autoCreate": "Enabled"}));
    let names: Vec<&String> = wanted.keys().collect();
    assert_eq!(names, ["n1-auto-hep"]);
    assert_eq!(
        wanted["n1-auto-hep"],
        json!({
            "metadata": {"labels": {"own": "node", "rack": "r1", CREATED_BY: CONTROLLER}},
            "spec": {
                "node": "n1",
                "interfaceName": "*",
                "expectedIPs": ["192.0.2.1", "2001:db8::1", "10.244.0.1", "10.244.0.2", "fd00::2", "10.244.0.3",
                    "192.0.2.9", "172.16.0.1", "172.16.1.1"],
                "profiles": ["projectcalico-default-allow"],
            },
        })
    );
    assert!(wanted_by(&json!({"autoCreate": "Disabled"})).is_empty());
    assert!(wanted_by(&json!({"autoCreate": "Enabled", "createDefaultHostEndpoint": "Disabled"})).is_empty());
}

#[test]
fn templates() {
    let wanted = wanted_by(&json!({"autoCreate": "Enabled", "createDefaultHostEndpoint": "Disabled", "templates": [
        {"generateName": "inner", "interfaceCIDRs": ["172.16.0.0/12"], "nodeSelector": "rack == 'r1'",
         "labels": {"own": "template", "a": "b"}, "annotations": {"note": "x"}},
        {"generateName": "elsewhere", "interfaceCIDRs": ["172.16.0.0/12"], "nodeSelector": "rack == 'r2'"},
        {"generateName": "none", "interfaceCIDRs": ["198.51.100.0/24"], "nodeSelector": "all()"},
        {"generateName": "each", "interfaceCIDRs": ["10.244.0.2/32"], "interfacePattern": "^eth", "nodeSelector": "all()"},
        {"generateName": "any", "interfacePattern": "1$"},
    ]}));
    let summary: Vec<(&str, &Value, &Value)> = wanted
        .iter()
        .map(|(name, object)| {
            (&**name, field(object, &["spec", "interfaceName"]), field(object, &["spec", "expectedIPs"]))
        })
        .collect();
    assert_eq!(
        summary,
        [
            ("n1-any-eth1-auto-hep", &json!("eth1"), &json!(["172.16.1.1"])),
            ("n1-each-eth0-auto-hep", &json!("eth0"), &json!(["10.244.0.2", "192.0.2.1", "172.16.0.1"])),
            ("n1-each-eth1-auto-hep", &json!("eth1"), &json!(["10.244.0.2", "172.16.1.1"])),
            ("n1-inner-auto-hep", &Value::Null, &json!(["172.16.0.1", "172.16.1.1"])),
        ]
    );
    let inner = &wanted["n1-inner-auto-hep"]["metadata"];
    assert_eq!(inner["labels"], json!({"own": "template", "rack": "r1", "a": "b", CREATED_BY: CONTROLLER}));
    assert_eq!(inner["annotations"], json!({"note": "x"}));
}

#[test]
fn names_that_are_too_long_are_hashed() {
    assert_eq!(bounded("n".repeat(253)).len(), 253);
    let hashed = bounded("n".repeat(254));
    assert!(hashed.ends_with("-auto-hep") && hashed.len() < 64, "{hashed}");
    assert!(hashed.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{hashed}");
    assert_ne!(hashed, bounded("m".repeat(254)));
}
