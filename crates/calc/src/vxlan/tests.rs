use tortie_model::{ConfigName, Labels, NodeBgp};

use super::*;

fn node(v4: &str, v6: &str) -> Node {
    let bgp = NodeBgp { ipv4_address: v4.into(), ipv6_address: v6.into(), ..NodeBgp::default() };
    Node { bgp: Some(bgp), addresses: [].into(), tunnels: None, pod_networks: [].into(), labels: Labels::default() }
}

struct Feed(VxlanResolver);

impl Feed {
    fn new() -> Self {
        let mut resolver = VxlanResolver::default();
        resolver.set_wanted(true);
        Self(resolver)
    }

    fn node(&mut self, node: Option<&Node>) {
        self.0.on_node(&"node1".into(), node);
    }

    fn config(&mut self, name: &str, value: Option<&str>) {
        let key = HostConfigKey { host: "node1".into(), name: ConfigName::from(name) };
        self.0.on_host_config(&key, value);
    }

    /// Returns the sent message as text; `-` for a removal.
    fn flush(&mut self) -> Option<String> {
        let mut changes = VtepChanges::default();
        self.0.flush(&mut changes);
        let VtepChanges { updated, removed } = changes;
        assert!(updated.len() + removed.len() <= 1);
        let part = |part: Option<VtepAddresses>| {
            part.map_or("-".into(), |part| format!("{} {} {}", part.mac, part.tunnel, part.parent))
        };
        let sent = updated.first().map(|(_, vtep)| format!("{}, {}", part(vtep.v4), part(vtep.v6)));
        sent.or_else(|| removed.first().map(|_| "-".into()))
    }
}

#[test]
fn a_vtep_has_complete_families() {
    let mut feed = Feed::new();
    feed.node(Some(&node("192.168.0.1/24", "fd00::1")));
    assert_eq!(feed.flush(), None);
    feed.config("IPv4VXLANTunnelAddr", Some("10.0.0.0"));
    assert_eq!(feed.flush().unwrap(), "66:f9:37:c3:7e:94 10.0.0.0 192.168.0.1, -");
    feed.config("IPv6VXLANTunnelAddr", Some("fd01::0"));
    let both = "66:f9:37:c3:7e:94 10.0.0.0 192.168.0.1, 66:0f:35:f2:60:df fd01:: fd00::1";
    assert_eq!(feed.flush().unwrap(), both);
    feed.config("VXLANTunnelMACAddr", Some("00:11:22:AA:bb:cc"));
    feed.config("VXLANTunnelMACAddrV6", Some("is none"));
    assert_eq!(feed.flush().unwrap(), both.replace("66:f9:37:c3:7e:94", "00:11:22:aa:bb:cc"));
    feed.config("VXLANTunnelMACAddr", None);
    feed.config("IPv6VXLANTunnelAddr", Some("10.0.0.1"));
    assert_eq!(feed.flush().unwrap(), "66:f9:37:c3:7e:94 10.0.0.0 192.168.0.1, -", "of the other family");
    feed.node(Some(&Node { bgp: None, ..node("", "") }));
    assert_eq!(feed.flush().as_deref(), Some("-"));
}

#[test]
fn a_change_that_is_reverted_before_the_flush_is_not_sent() {
    let mut feed = Feed::new();
    let value = node("192.168.0.1/24", "");
    feed.node(Some(&value));
    feed.config("IPv4VXLANTunnelAddr", Some("10.0.0.0"));
    feed.node(None);
    assert_eq!(feed.flush(), None);
    feed.node(Some(&value));
    assert!(feed.flush().is_some());
    feed.node(None);
    feed.node(Some(&node("192.168.0.1/16", "")));
    feed.config("LogSeverityScreen", Some("debug"));
    assert_eq!(feed.flush(), None);
}

#[test]
fn vteps_are_sent_only_if_enabled() {
    let mut feed = Feed::new();
    feed.0.set_wanted(false);
    feed.node(Some(&node("192.168.0.1/24", "")));
    feed.config("IPv4VXLANTunnelAddr", Some("10.0.0.0"));
    assert_eq!(feed.flush(), None);
    feed.0.set_wanted(true);
    assert!(feed.flush().is_some_and(|sent| sent != "-"));
    feed.0.set_wanted(false);
    assert_eq!(feed.flush().as_deref(), Some("-"));
    feed.node(None);
    feed.config("IPv4VXLANTunnelAddr", None);
    assert!(feed.0.is_empty());
}
