use serde_json::json;

use super::{ServiceEndpoint, Slice, endpoints};

#[test]
fn addresses_of_the_named_port_are_found_in_all_slices() {
    let slices = [
        json!({"ports": [{"name": "metrics", "port": 9093}], "endpoints": [{"addresses": ["10.0.0.9"]}]}),
        json!({
            "ports": [{"name": "metrics", "port": 9093}, {"name": "calico-typha", "port": 5473}],
            "endpoints": [
                {"addresses": ["10.0.0.2"], "nodeName": "n2", "conditions": {"ready": true}},
                {"addresses": ["10.0.0.1"], "conditions": {}},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": false}},
                {"addresses": ["not-an-address"]},
            ],
        }),
        json!({"ports": [{"name": "calico-typha", "port": 5473}], "endpoints": [{"addresses": ["fd00::1", "10.0.0.2"]}]}),
        json!({"ports": null, "endpoints": null}),
        json!({"ports": [{}], "endpoints": [{"addresses": ["10.0.0.8"]}]}),
    ];
    let slices: Vec<Slice> = slices.into_iter().map(|slice| serde_json::from_value(slice).unwrap()).collect();
    let endpoint = |address: &str, node: Option<&str>, ready| ServiceEndpoint {
        address: address.parse().unwrap(),
        node: node.map(str::to_owned),
        ready,
    };
    let expected = [
        endpoint("10.0.0.1:5473", None, true),
        endpoint("10.0.0.2:5473", Some("n2"), true),
        endpoint("10.0.0.3:5473", None, false),
        endpoint("[fd00::1]:5473", None, true),
    ];
    assert_eq!(endpoints(&slices, "calico-typha"), expected);
    assert_eq!(endpoints(&slices, "https"), []);
}
