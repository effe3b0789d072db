//! A host with Tortie's table, and a peer at the other end of its only link.
#![allow(clippy::disallowed_methods, reason = "asks the real nft and sends packets, in private network namespaces")]

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
use serde_json::{Value, json};
use tortie_ipsets::{Member, SetType};
use tortie_iptables::{Chain, IpSetName, Table as Layer};
use tortie_lab::netns::Namespace;
use tortie_lab::nft::Nft;
use tortie_model::{Direction, Family, HostInterface, IpSetId, PolicyId, PolicyKind, TierDefaultAction};
use tortie_nftables::{Features, Table, TableConfig, TableId, Transaction};
use tortie_rules::names::{ip_set_name, static_set};
use tortie_rules::{HostDispatch, NftablesConfig, PacketFilter, PolicyGroup, Renderer, RulesConfig, TierGroups};

use super::load;

pub(crate) const V4: TableId = TableId::calico(Family::V4);
pub(crate) const V6: TableId = TableId::calico(Family::V6);
/// The host's addresses; the link's, then one more of each family.
pub(crate) const HOST: [&str; 4] = ["192.0.2.1", "fd00::1", "10.65.0.1", "10.65.0.2"];
/// The peer's.
pub(crate) const PEER: [&str; 2] = ["192.0.2.2", "fd00::2"];
/// An address that only translation makes use of.
pub(crate) const SERVICE: &str = "198.51.100.1";
const MACS: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
const PATIENCE: Duration = Duration::from_millis(400);

pub(crate) struct Pair {
    pub(crate) host: Namespace,
    pub(crate) peer: Namespace,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with_interface("eth0")
    }

    /// Returns a pair in which the host's interface has this name.
    pub(crate) fn with_interface(interface: &str) -> Self {
        let (host, peer) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        for namespace in [&host, &peer] {
            // Addresses of the link need not wait for duplicate address detection.
            namespace.sysctl(&[("ipv6/conf/default/accept_dad".to_owned(), "0")]).unwrap();
        }
        let peer_at = peer.path();
        let link = format!(
            "link add {interface} address {} type veth peer name eth1 address {} netns {}",
            MACS[0],
            MACS[1],
            peer_at.display()
        );
        host.ip([link, format!("link set {interface} up")]).unwrap();
        peer.ip(["link set eth1 up"]).unwrap();
        // Static neighbour entries make ARP and neighbour discovery unnecessary.
        let neighbours = |interface: &str, addresses: [&str; 2], mac: &str| {
            addresses.map(|to| format!("neigh add {to} lladdr {mac} dev {interface} nud permanent"))
        };
        host.ip([
            format!("addr add {}/24 dev {interface}", HOST[0]),
            format!("addr add {}/64 dev {interface} nodad", HOST[1]),
            format!("addr add {}/32 dev lo", HOST[2]),
            format!("addr add {}/32 dev lo", HOST[3]),
            format!("route add default via {}", PEER[0]),
        ])
        .unwrap();
        peer.ip([
            format!("addr add {}/24 dev eth1", PEER[0]),
            format!("addr add {}/64 dev eth1 nodad", PEER[1]),
            format!("route add 10.65.0.0/16 via {}", HOST[0]),
        ])
        .unwrap();
        host.ip(neighbours(interface, PEER, MACS[1])).unwrap();
        peer.ip(neighbours("eth1", [HOST[0], HOST[1]], MACS[0])).unwrap();
        Self { host, peer }
    }

    /// Applies the desired state of a table, without problems.
    pub(crate) fn apply(&self, table: &mut Table) -> Vec<Transaction> {
        let made = apply(&self.host, table);
        assert_eq!((table.problems(), table.set_problems().count()), (Vec::new(), 0));
        made
    }

    /// Sends a datagram from the host to `to`, and returns the sender's address that the peer
    /// receives; `None` if nothing arrives.
    pub(crate) fn send(&self, from: &str, to: &str) -> Option<SocketAddr> {
        let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let any = if to.is_ipv4() { "0.0.0.0:7000" } else { "[::]:7000" };
        let receiver = self.peer.run(|| bound(any)).unwrap();
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        // A rule may reject it at once.
        let sender = self.host.run(|| UdpSocket::bind((from, 0))).unwrap().unwrap();
        let _ = sender.send_to(b"x", (to, 7000));
        receiver.recv_from(&mut [0; 8]).ok().map(|(_, from)| from)
    }

    /// Sends an ICMP message from the host.
    pub(crate) fn send_icmp(&self, to: &str, kind: u8, code: u8) {
        let to: IpAddr = to.parse().unwrap();
        let (family, protocol) =
            if to.is_ipv4() { (AddressFamily::INET, ipproto::ICMP) } else { (AddressFamily::INET6, ipproto::ICMPV6) };
        let mut message = [kind, code, 0, 0, 0, 1, 0, 1];
        // The kernel writes that of IPv6 itself.
        let sum: u32 = message.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
        let sum = !u16::try_from((sum >> 16) + (sum & 0xffff)).unwrap();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.host
            .run(|| {
                let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol)).unwrap();
                // A rule may drop it.
                let _ = sendto(&socket, &message, SendFlags::empty(), &SocketAddr::new(to, 0));
            })
            .unwrap();
    }

    /// Returns the number of packets that the rules of a chain with this text have counted.
    pub(crate) fn packets(&self, table: &str, chain: &str, text: &str) -> u64 {
        packets(&self.host, table, chain, text)
    }
}

/// Returns a socket. A socket of an earlier call may stay open for a moment in a process that
/// another test is starting.
fn bound(address: &str) -> UdpSocket {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        match UdpSocket::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(5));
            }
            socket => return socket.unwrap(),
        }
    }
}

pub(crate) fn apply(namespace: &Namespace, table: &mut Table) -> Vec<Transaction> {
    namespace.run(|| Nft::open().unwrap().apply(table)).unwrap().unwrap()
}

pub(crate) fn packets(namespace: &Namespace, table: &str, chain: &str, text: &str) -> u64 {
    let listed = namespace.shell(&format!("nft -n list chain {table} {chain}")).unwrap();
    let counted: Vec<u64> = listed
        .lines()
        .filter(|line| line.contains(text))
        .map(|line| line.split("counter packets ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(!counted.is_empty(), "{text} is not in\n{listed}");
    counted.iter().sum()
}

/// Runs `nft` with these lines; `Err` has its message if it refuses them.
pub(crate) fn nft(namespace: &Namespace, lines: &str) -> Result<(), String> {
    namespace.output(Command::new("nft").args(["-f", "-"]), lines).map(drop).map_err(|error| error.to_string())
}

pub(crate) fn renderer(change: impl FnOnce(&mut RulesConfig)) -> Renderer {
    let mut config =
        RulesConfig { packet_filter: PacketFilter::Nftables(NftablesConfig::default()), ..RulesConfig::default() };
    change(&mut config);
    Renderer::new(config)
}

pub(crate) fn set_name(family: Family, id: &str) -> IpSetName {
    ip_set_name(family, &IpSetId::from(id)).unwrap()
}

pub(crate) fn set(table: &mut Table, id: &str, members: &[&str]) {
    let family = table.config().id.family;
    let members = members.iter().map(|text| Member::parse(SetType::HashNet, family, text).unwrap().unwrap());
    table.replace_set(&IpSetId::from(id), set_name(family, id), SetType::HashNet, members).unwrap();
}

pub(crate) fn update(table: &mut Table, layer: Layer, chains: impl IntoIterator<Item = Chain>) {
    chains.into_iter().for_each(|chain| table.update_chain(layer, chain));
}

/// Returns the chains that do not depend on policies and endpoints, with empty chains in place of
/// those of other managers.
pub(crate) fn table(renderer: &Renderer, id: TableId) -> Table {
    let mut table = Table::new(TableConfig::new(id), Features::ALL);
    for hook in renderer.hooks() {
        table.set_hook(hook.table, hook.kernel_chain, hook.position, hook.rules);
    }
    for layer in Layer::ALL {
        update(&mut table, layer, renderer.fixed_chains(layer, id.family));
    }
    for id in [
        static_set::ALL_HOSTS,
        static_set::THIS_HOST,
        static_set::NETWORK_POOLS,
        static_set::MASQUERADE_POOLS,
        static_set::DSCP_SOURCES,
    ] {
        set(&mut table, id, &[]);
    }
    for (layer, map, kind) in renderer.verdict_maps() {
        table.define_map(layer, map, kind);
    }
    let none = Default::default();
    update(
        &mut table,
        Layer::Nat,
        [renderer.nat_outgoing(false, id.family), renderer.fip_dnat(&none), renderer.fip_snat(&none)],
    );
    update(&mut table, Layer::Mangle, [renderer.egress_dscp(&[])]);
    update(&mut table, Layer::Raw, [renderer.rpf_skip(&Default::default(), id.family)]);
    update(&mut table, Layer::Filter, [renderer.cidr_block([], id.family)]);
    update(&mut table, Layer::Filter, renderer.workload_dispatch([]));
    host(&mut table, renderer, None);
    table
}

/// Sets a host endpoint for the packets that the host sends by this interface, with a policy of
/// these rules and default deny behind it; or no host endpoint.
pub(crate) fn host(table: &mut Table, renderer: &Renderer, endpoint: Option<(&str, Value)>) {
    let family = table.config().id.family;
    let interface = endpoint.as_ref().map(|(name, _)| (*name).parse().unwrap());
    for layer in [Layer::Raw, Layer::Filter] {
        let purpose = if layer == Layer::Raw { HostDispatch::Raw } else { HostDispatch::Filter };
        update(table, layer, renderer.host_dispatch(purpose, interface, false));
    }
    for purpose in [HostDispatch::MangleIngress, HostDispatch::MangleEgress] {
        update(table, Layer::Mangle, renderer.host_dispatch(purpose, interface, false));
    }
    let Some((interface, rules)) = endpoint else { return };
    let interface = HostInterface::Named(interface.parse().unwrap());
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "out");
    let tiers = [TierGroups {
        name: "default".into(),
        default_action: Some(TierDefaultAction::Deny),
        ingress: Vec::new(),
        egress: vec![PolicyGroup::new(Direction::Egress, "all()", vec![id.clone()])],
    }];
    let policy = load::policy(&json!({"tier": "default", "outbound_rules": rules}), family);
    let policy = renderer.policy(&id, &policy, family).unwrap();
    for layer in [Layer::Filter, Layer::Mangle] {
        update(table, layer, [policy.inbound.clone(), policy.outbound.clone()]);
    }
    update(table, Layer::Raw, renderer.host_endpoint_raw(interface, &[]));
    update(table, Layer::Filter, renderer.host_endpoint_filter(interface, &tiers, &[], &[]));
    update(
        table,
        Layer::Mangle,
        [
            renderer.host_endpoint_mangle_ingress(interface, &[]),
            renderer.host_endpoint_mangle_egress(interface, &tiers, &[]),
        ],
    );
}

/// Translates the service's address to the peer's, as kube-proxy does, ahead of Tortie's chains.
pub(crate) fn translate(pair: &Pair) {
    let lines = format!(
        "add table ip kube-proxy
         add chain ip kube-proxy output {{ type nat hook output priority -100 ; }}
         add rule ip kube-proxy output ip daddr {SERVICE} dnat to {}",
        PEER[0]
    );
    nft(&pair.host, &lines).unwrap();
}
