//! Rules in nftables tables that only some endpoints or nodes need, tested with packets: limits,
//! untracked and pre-DNAT policy of host endpoints, marks for IPVS.
#![allow(clippy::disallowed_methods, reason = "sends packets, in private network namespaces")]

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};
use tortie_iptables::{Action, HookPosition, InterfaceName, Rule, Table as Layer, kernel_chain};
use tortie_lab::kernel_test;
use tortie_model::{AdminState, Direction, Family, PolicyId, PolicyKind, QosControls, TierDefaultAction};
use tortie_nftables::{Features, Table, TableConfig};
use tortie_rules::names::{EndpointChain, endpoint_chain, static_set};
use tortie_rules::{EndpointMarks, HostDispatch, IpvsConfig, PolicyGroup, Renderer, TierGroups};

use super::load;
use super::pair::{HOST, PEER, Pair, SERVICE, V4, nft, renderer, set, table, update};

const ETH0: &str = "eth0";

/// Returns a tier with one policy, which has these rules in both directions.
fn tier(table: &mut Table, renderer: &Renderer, layers: &[Layer], policy: &Value) -> [TierGroups; 1] {
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "p");
    let made = renderer.policy(&id, &load::policy(policy, Family::V4), Family::V4).unwrap();
    for layer in layers {
        update(table, *layer, [made.inbound.clone(), made.outbound.clone()]);
    }
    let group = |direction| vec![PolicyGroup::new(direction, "all()", vec![id.clone()])];
    [TierGroups {
        name: "default".into(),
        default_action: Some(TierDefaultAction::Deny),
        ingress: group(Direction::Ingress),
        egress: group(Direction::Egress),
    }]
}

/// Returns a table that sends the host's packets to the chain of the workload at the other end.
fn to_workload(qos: &QosControls) -> Table {
    let renderer = renderer(|_| ());
    let mut table = Table::new(TableConfig::new(V4), Features::ALL);
    let jump = vec![Rule::new(Action::Jump(endpoint_chain(EndpointChain::ToWorkload, ETH0)))];
    table.set_hook(Layer::Filter, kernel_chain::OUTPUT, HookPosition::Insert, jump);
    let allow = json!({"tier": "default", "inbound_rules": [{"action": "allow"}]});
    let tiers = tier(&mut table, &renderer, &[Layer::Filter], &allow);
    let chains =
        renderer.workload_endpoint(InterfaceName::from_static(ETH0), AdminState::Active, &tiers, &[], Some(qos));
    update(&mut table, Layer::Filter, chains);
    table
}

/// Sends `count` datagrams and returns the number that arrives.
fn arrive(pair: &Pair, count: usize) -> usize {
    let receiver = pair.peer.run(|| UdpSocket::bind("0.0.0.0:7001")).unwrap().unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let sender = pair.host.run(|| UdpSocket::bind((HOST[0], 0))).unwrap().unwrap();
    for _ in 0..count {
        let _ = sender.send_to(b"x", (PEER[0], 7001));
    }
    (0..count).take_while(|_| receiver.recv(&mut [0; 8]).is_ok()).count()
}

kernel_test! {
    fn a_packet_rate_allows_its_burst_and_little_more() {
        let pair = Pair::new();
        pair.apply(&mut to_workload(&QosControls::default()));
        assert_eq!(arrive(&pair, 100), 100);
        let limits = QosControls { ingress_packet_rate: 10, ingress_packet_burst: 20, ..QosControls::default() };
        pair.apply(&mut to_workload(&limits));
        let arrived = arrive(&pair, 100);
        assert!((20..60).contains(&arrived), "{arrived}");
    }

    fn connections_above_their_number_are_reset() {
        let pair = Pair::new();
        let limits = QosControls { ingress_max_connections: 2, ..QosControls::default() };
        pair.apply(&mut to_workload(&limits));
        let address = SocketAddr::new(PEER[0].parse().unwrap(), 7002);
        let listener = pair.peer.run(|| TcpListener::bind(address)).unwrap().unwrap();
        let connect = || pair.host.run(|| TcpStream::connect_timeout(&address, Duration::from_secs(5))).unwrap();
        let open = [connect().unwrap(), connect().unwrap()];
        for _ in 0..2 {
            assert_eq!(connect().unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        }
        drop((open, listener));
    }

    fn untracked_policy_decides_before_connections_are_tracked() {
        for (action, arrives) in [("allow", true), ("deny", false)] {
            let pair = Pair::new();
            let renderer = renderer(|_| ());
            let mut table = table(&renderer, V4);
            let rules = json!([{"action": action, "protocol": {"name": "udp"}}, {"action": "allow"}]);
            let policy = json!({"tier": "default", "untracked": true, "inbound_rules": rules, "outbound_rules": rules});
            let tiers = tier(&mut table, &renderer, &[Layer::Raw], &policy);
            let eth0: InterfaceName = ETH0.parse().unwrap();
            update(&mut table, Layer::Raw, renderer.host_dispatch(HostDispatch::Raw, [eth0], false));
            update(&mut table, Layer::Raw, renderer.host_endpoint_raw(ETH0.parse().unwrap(), &tiers));
            pair.apply(&mut table);
            let seen = "add table ip seen
                add chain ip seen output { type filter hook output priority 0 ; }
                add rule ip seen output udp dport 7000 ct state untracked counter";
            nft(&pair.host, seen).unwrap();
            assert_eq!(pair.send(HOST[0], PEER[0]).is_some(), arrives, "{action}");
            assert_eq!(pair.packets("ip seen", "output", "dport 7000") > 0, arrives, "{action}");
        }
    }

    fn pre_dnat_policy_sees_the_original_destination_port() {
        for (denied, is_open) in [(30_080, false), (7_000, true)] {
            let pair = Pair::new();
            // As kube-proxy does for a node port.
            let node_port = "add table ip kube-proxy
                add chain ip kube-proxy pre { type nat hook prerouting priority -100 ; }
                add rule ip kube-proxy pre udp dport 30080 redirect to :7000";
            nft(&pair.host, node_port).unwrap();
            let renderer = renderer(|_| ());
            let mut table = table(&renderer, V4);
            let ports = json!([{"first": denied, "last": denied}]);
            let rules = json!([{"action": "deny", "protocol": {"name": "udp"}, "dst_ports": ports}, {"action": "allow"}]);
            let policy = json!({"tier": "default", "inbound_rules": rules});
            let tiers = tier(&mut table, &renderer, &[Layer::Mangle], &policy);
            let eth0: InterfaceName = ETH0.parse().unwrap();
            update(&mut table, Layer::Mangle, renderer.host_dispatch(HostDispatch::MangleIngress, [eth0], false));
            update(&mut table, Layer::Mangle, [renderer.host_endpoint_mangle_ingress(ETH0.parse().unwrap(), &tiers)]);
            pair.apply(&mut table);
            let receiver = pair.host.run(|| UdpSocket::bind((HOST[0], 7000))).unwrap().unwrap();
            receiver.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
            let sender = pair.peer.run(|| UdpSocket::bind((PEER[0], 0))).unwrap().unwrap();
            sender.send_to(b"x", (HOST[0], 30_080)).unwrap();
            assert_eq!(receiver.recv(&mut [0; 8]).is_ok(), is_open, "{denied}");
        }
    }

    fn packets_that_ipvs_will_forward_are_marked_with_their_endpoint() {
        let pair = Pair::new();
        let renderer = renderer(|config| {
            config.marks = tortie_rules::Marks::allocate(tortie_rules::Marks::DEFAULT_MASK, false, true).unwrap();
            config.ipvs = Some(IpvsConfig { node_ports: Vec::new() });
        });
        let mut table = table(&renderer, V4);
        set(&mut table, static_set::THIS_HOST, &["192.0.2.1/32"]);
        let mut marks = EndpointMarks::new(&renderer.config().marks);
        let eth0: InterfaceName = ETH0.parse().unwrap();
        let mark = marks.assign(eth0);
        update(&mut table, Layer::Filter, [renderer.set_endpoint_mark(InterfaceName::from_static(ETH0), mark)]);
        update(&mut table, Layer::Filter, renderer.endpoint_mark_dispatch(&marks, [], [eth0]));
        update(&mut table, Layer::Filter, renderer.host_endpoint_filter(ETH0.parse().unwrap(), &[], &[], &[]));
        pair.apply(&mut table);
        let mark = mark.unwrap();
        let seen = format!(
            "add table ip seen
             add chain ip seen input {{ type filter hook input priority 10 ; }}
             add rule ip seen input udp dport 7000 meta mark & {} == {:#x} counter",
            mark.mask(),
            mark.value()
        );
        nft(&pair.host, &seen).unwrap();
        // kube-proxy assigns the addresses of services to the node.
        pair.host.ip([format!("addr add {SERVICE}/32 dev lo")]).unwrap();
        pair.peer.ip([format!("route add {SERVICE} via {}", HOST[0])]).unwrap();
        let sender = pair.peer.run(|| UdpSocket::bind((PEER[0], 0))).unwrap().unwrap();
        let marked = |to: &str| {
            sender.send_to(b"x", (to, 7000)).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            pair.packets("ip seen", "input", "mark")
        };
        assert_eq!((marked(HOST[0]), marked(SERVICE)), (0, 1));
    }
}
