//! Namespaces, interfaces, addresses and routes.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::{Duration, Instant},
};

use sha1::{Digest, Sha1};

use super::{LabHost, NodeSide, Pod};
use crate::netns::{Namespace, NetnsError};

/// Last byte of the outside host's addresses.
const OUTSIDE: u8 = 254;
/// Addresses of the first node on its `eth0`.
pub const NODE_ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 65, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x65, 0, 0, 0, 0, 0, 1))];
/// Addresses of the host outside the cluster, the default gateway of the nodes in the first subnet.
pub const OUTSIDE_ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 65, 0, 254)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x65, 0, 0, 0, 0, 0, 0xfe))];

const NODE_SIDE_MAC: &str = "ee:ee:ee:ee:ee:ee";
const GATEWAY_V4: &str = "169.254.1.1";
/// Link-local address that the kernel derives from [`NODE_SIDE_MAC`].
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);

/// Returns the name of the node's side of a pod's interface: `cali` and the first 11 hex digits of
/// the SHA-1 of `NAMESPACE.POD`
/// (`libcalico-go/lib/backend/k8s/conversion/workload_endpoint_default.go`). `None` for other
/// places.
///
/// ```
/// use tortie_lab::pods::{LabHost, interface_name};
/// assert_eq!(interface_name(&LabHost::pod("default", "nginx")).as_deref(), Some("calic440f455693"));
/// ```
#[must_use]
pub fn interface_name(place: &LabHost) -> Option<String> {
    let LabHost::Pod { namespace, name } = place else {
        return None;
    };
    let digest = Sha1::digest(format!("{namespace}.{name}"));
    let hex: String = digest.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(11).map(hex_digit).collect();
    Some(format!("cali{hex}"))
}

fn hex_digit(nibble: u8) -> char {
    char::from_digit(nibble.into(), 16).unwrap_or('0')
}

/// Returns the cluster name of the node of this number, from 0.
#[must_use]
pub fn node_name(number: usize) -> String {
    format!("node{}", number + 1)
}

/// Returns the `eth0` addresses of the node of this number, from 0, in this subnet.
#[must_use]
pub fn node_addresses(subnet: u8, number: usize) -> [IpAddr; 2] {
    in_subnet(subnet, u8::try_from(number).unwrap_or(u8::MAX).saturating_add(1))
}

fn in_subnet(subnet: u8, last: u8) -> [IpAddr; 2] {
    let v6 = Ipv6Addr::new(0xfd00, 0x65, 0, subnet.into(), 0, 0, 0, last.into());
    [IpAddr::from([10, 65, subnet, last]), v6.into()]
}

/// Builds the nodes, with forwarding, and the outside host, which is their default gateway and has
/// a bridge for each subnet.
pub(super) fn build_nodes(subnets: &[u8]) -> Result<(Namespace, Vec<Namespace>, Namespace), NetnsError> {
    let outside = Namespace::new()?;
    let bridges: BTreeSet<u8> = subnets.iter().copied().collect();
    build_bridges(&outside, &bridges)?;
    let mut nodes = Vec::with_capacity(subnets.len());
    for (number, subnet) in subnets.iter().enumerate() {
        nodes.push(build_node(&outside, *subnet, number)?);
    }
    let expected: Vec<_> = bridges
        .iter()
        .flat_map(|subnet| {
            ipv6(&in_subnet(*subnet, OUTSIDE)).map(|address| (address, format!("br{subnet}"))).collect::<Vec<_>>()
        })
        .collect();
    await_ipv6(&outside, &expected)?;
    // A router between subnets has no routes to pods: their packets must arrive in tunnels.
    if bridges.len() == 1 {
        let [node4, node6] = NODE_ADDRESSES;
        outside.ip([format!("route add default via {node4}"), format!("route add default via {node6}")])?;
    }
    let others = nodes.split_off(1.min(nodes.len()));
    let no_node = || NetnsError::Socket {
        description: "a laboratory without nodes".to_owned(),
        source: std::io::ErrorKind::InvalidInput.into(),
    };
    Ok((nodes.pop().ok_or_else(no_node)?, others, outside))
}

/// Configures the outside host as a router with a bridge for each subnet.
fn build_bridges(outside: &Namespace, bridges: &BTreeSet<u8>) -> Result<(), NetnsError> {
    skip_duplicate_address_detection(outside)?;
    let setting = |name: &str, value| (name.to_owned(), value);
    outside.sysctl(&[setting("ipv4/ip_forward", "1"), setting("ipv6/conf/all/forwarding", "1")])?;
    for subnet in bridges {
        let [v4, v6] = in_subnet(*subnet, OUTSIDE);
        outside.ip([
            format!("link add br{subnet} type bridge"),
            format!("addr add {v4}/24 dev br{subnet}"),
            format!("addr add {v6}/64 dev br{subnet} nodad"),
            format!("link set br{subnet} up"),
        ])?;
    }
    Ok(())
}

/// Builds a node that forwards packets, with its `eth0` connected to the bridge of its subnet.
fn build_node(outside: &Namespace, subnet: u8, number: usize) -> Result<Namespace, NetnsError> {
    let node = Namespace::new()?;
    skip_duplicate_address_detection(&node)?;
    let setting = |name: &str, value| (name.to_owned(), value);
    node.sysctl(&[
        setting("ipv4/ip_forward", "1"),
        setting("ipv6/conf/all/forwarding", "1"),
        setting("ipv4/conf/all/rp_filter", "0"),
        setting("ipv4/conf/default/rp_filter", "0"),
        setting("ipv4/conf/all/send_redirects", "0"),
        setting("ipv4/conf/default/send_redirects", "0"),
    ])?;
    outside.ip([
        format!("link add port{number} type veth peer name eth0 netns {}", node.path().display()),
        format!("link set port{number} master br{subnet}"),
        format!("link set port{number} up"),
    ])?;
    let ([node4, node6], [out4, out6]) = (node_addresses(subnet, number), in_subnet(subnet, OUTSIDE));
    node.ip([
        format!("addr add {node4}/24 dev eth0"),
        format!("addr add {node6}/64 dev eth0 nodad"),
        "link set eth0 up".to_owned(),
        format!("route add default via {out4}"),
        format!("route add default via {out6}"),
    ])?;
    let expected: Vec<_> = ipv6(&node_addresses(subnet, number)).map(|address| (address, "eth0".to_owned())).collect();
    await_ipv6(&node, &expected)?;
    Ok(node)
}

/// Creates a namespace for each pod, connected to the node.
pub(super) fn connect_pods(node: &Namespace, pods: &[&Pod], side: NodeSide) -> Result<Vec<Namespace>, NetnsError> {
    let mut namespaces = Vec::with_capacity(pods.len());
    let mut links = Vec::new();
    let mut up = Vec::new();
    let mut routes = Vec::new();
    let mut settings = Vec::new();
    let mut gateways = Vec::new();
    for pod in pods {
        let Some(interface) = interface_name(&pod.place) else {
            continue;
        };
        let namespace = Namespace::new()?;
        skip_duplicate_address_detection(&namespace)?;
        links.push(format!(
            "link add {interface} address {NODE_SIDE_MAC} type veth peer name eth0 netns {}",
            namespace.path().display()
        ));
        // The kernel would add the same link-local address by itself, but a moment later.
        up.push(format!("addr add {GATEWAY_V6}/64 dev {interface} nodad"));
        up.push(format!("link set {interface} up"));
        routes.extend(pod.addresses.iter().map(|address| format!("{} dev {interface}", host_route(*address))));
        settings.extend([
            (format!("ipv4/conf/{interface}/proxy_arp"), "1"),
            (format!("ipv4/neigh/{interface}/proxy_delay"), "0"),
            (format!("ipv4/conf/{interface}/forwarding"), "1"),
            (format!("ipv6/conf/{interface}/forwarding"), "1"),
        ]);
        gateways.push((GATEWAY_V6, interface));
        namespaces.push(namespace);
    }
    node.ip(links)?;
    if side == NodeSide::Complete {
        node.sysctl(&settings)?;
    }
    node.ip(up)?;
    for (pod, namespace) in pods.iter().zip(&namespaces) {
        namespace.ip(pod_side(pod))?;
    }
    if side == NodeSide::Complete {
        node.ip(routes)?;
    }
    await_ipv6(node, &gateways)?;
    for (pod, namespace) in pods.iter().zip(&namespaces) {
        let expected: Vec<_> = ipv6(&pod.addresses).map(|address| (address, "eth0".to_owned())).collect();
        await_ipv6(namespace, &expected)?;
    }
    Ok(namespaces)
}

/// Connects a pod's namespace to the node again.
pub(super) fn plug(node: &Namespace, pod: &Pod, namespace: &Namespace) -> Result<(), NetnsError> {
    let Some(interface) = interface_name(&pod.place) else {
        return Ok(());
    };
    node.ip([
        format!(
            "link add {interface} address {NODE_SIDE_MAC} type veth peer name eth0 netns {}",
            namespace.path().display()
        ),
        format!("addr add {GATEWAY_V6}/64 dev {interface} nodad"),
        format!("link set {interface} up"),
    ])?;
    namespace.ip(pod_side(pod))?;
    let expected: Vec<_> = ipv6(&pod.addresses).map(|address| (address, "eth0".to_owned())).collect();
    await_ipv6(namespace, &expected)
}

fn pod_side(pod: &Pod) -> Vec<String> {
    let mut lines: Vec<String> = pod.addresses.iter().map(|address| address_line(*address)).collect();
    lines.push("link set eth0 up".to_owned());
    if pod.addresses.iter().any(IpAddr::is_ipv4) {
        lines.push(format!("route add {GATEWAY_V4} dev eth0 scope link"));
        lines.push(format!("route add default via {GATEWAY_V4} dev eth0"));
    }
    if pod.addresses.iter().any(IpAddr::is_ipv6) {
        lines.push(format!("route add default via {GATEWAY_V6} dev eth0"));
    }
    lines
}

fn ipv6(addresses: &[IpAddr]) -> impl Iterator<Item = Ipv6Addr> {
    addresses.iter().filter_map(|address| match address {
        IpAddr::V6(address) => Some(*address),
        IpAddr::V4(_) => None,
    })
}

/// Waits until the kernel answers for these addresses: it adds their local routes in the
/// background.
fn await_ipv6(namespace: &Namespace, addresses: &[(Ipv6Addr, String)]) -> Result<(), NetnsError> {
    if addresses.is_empty() {
        return Ok(());
    }
    let failed = |source| NetnsError::Socket { description: "waiting for IPv6 addresses".to_owned(), source };
    let deadline = Instant::now() + Duration::from_secs(10);
    namespace.run(|| {
        loop {
            let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").map_err(failed)?;
            if addresses.iter().all(|(address, interface)| has_local_route(&routes, *address, interface)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(failed(std::io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    })?
}

/// Parses `/proc/net/ipv6_route`: destination and its length in hex first, flags and interface
/// last.
fn has_local_route(routes: &str, address: Ipv6Addr, interface: &str) -> bool {
    const LOCAL: u32 = 0x8000_0000;
    let destination = format!("{:032x} 80 ", u128::from(address));
    routes.lines().filter(|line| line.starts_with(&destination)).any(|line| {
        let mut backwards = line.split_whitespace().rev();
        let device = backwards.next();
        let flags = backwards.next().and_then(|flags| u32::from_str_radix(flags, 16).ok()).unwrap_or(0);
        device == Some(interface) && flags & LOCAL != 0
    })
}

fn address_line(address: IpAddr) -> String {
    let no_detection = if address.is_ipv6() { " nodad" } else { "" };
    format!("addr add {address} dev eth0{no_detection}")
}

fn host_route(address: IpAddr) -> String {
    format!("route add {address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// Disables duplicate address detection, which makes an IPv6 address unusable for a second, on
/// present and later interfaces.
fn skip_duplicate_address_detection(namespace: &Namespace) -> Result<(), NetnsError> {
    let setting = |name: &str| (format!("ipv6/conf/{name}"), "0");
    namespace.sysctl(&[setting("default/accept_dad"), setting("default/accept_ra"), setting("all/accept_dad")])
}
