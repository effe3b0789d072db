use std::collections::BTreeMap;

use tortie_dataplane::WireguardKey;

use super::*;
use tortie_linux::netlink::PeerTraffic;

#[test]
fn devices_and_their_peers() {
    let peer = PeerTraffic {
        endpoint: Some("10.0.0.2:51820".parse().unwrap()),
        last_handshake: Duration::from_millis(1_700_000_000_900),
        received: 5,
        sent: 7,
    };
    let device = DeviceTraffic {
        public_key: Some(WireguardKey([0; 32])),
        port: 51820,
        peers: BTreeMap::from([(WireguardKey([255; 32]), peer)]),
    };
    let (own, other) = (WireguardKey([0; 32]).to_string(), WireguardKey([255; 32]).to_string());
    let text = text("n1", &[("wireguard.cali".parse().unwrap(), device)]);
    let of_peer = format!("hostname=\"n1\",public_key=\"{own}\",peer_key=\"{other}\",peer_endpoint=\"10.0.0.2:51820\"");
    for line in [
        format!(
            "wireguard_meta{{hostname=\"n1\",public_key=\"{own}\",iface=\"wireguard.cali\",listen_port=\"51820\"}} 1"
        ),
        "# TYPE wireguard_bytes_rcvd counter".to_owned(),
        format!("wireguard_bytes_rcvd{{{of_peer}}} 5"),
        format!("wireguard_bytes_sent{{{of_peer}}} 7"),
        format!("wireguard_latest_handshake_seconds{{{of_peer}}} 1700000000"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn devices_that_are_not_there_have_no_figures() {
    let none = expose("n1", &["no-such-device".parse().unwrap()], Duration::from_secs(10)).unwrap();
    assert_eq!(none, "");
}
