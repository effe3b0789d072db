//! The node: a network namespace with one more per pod, joined as Calico's CNI plugin joins them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use super::manifests::Pod;
use super::namespace::Namespace;
use crate::cli::Failure;

/// The Ethernet address of the node's side of every pod's interface.
const GATEWAY_MAC: &str = "ee:ee:ee:ee:ee:ee";
/// Where pods send IPv4 packets; the node answers for it by proxy ARP.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// Where pods send IPv6 packets: the link-local address of [`GATEWAY_MAC`].
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);
/// The node's own address and its gateway (RFC 5737: for documentation).
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
/// How long the kernel may take to make IPv6 addresses usable.
const PATIENCE: Duration = Duration::from_secs(10);

/// The node and its pods.
#[derive(Debug)]
pub(super) struct Node {
    /// The node's network.
    pub(super) network: Namespace,
    /// The pods, each with its network.
    pub(super) pods: Vec<(Pod, Namespace)>,
    /// What is behind the node's own interface: nothing.
    _outside: Namespace,
}

impl Node {
    /// Builds it. Routes to the pods, and settings of their interfaces on the node, are left to the agent.
    pub(super) fn build(pods: &[Pod]) -> Result<Self, Failure> {
        let network = namespace()?;
        network.sysctl(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
        ])?;
        let outside = namespace()?;
        // Without a default route the kernel would not answer for the pods' gateway.
        let mut lines = vec![
            format!("link add eth0 type veth peer name eth0 netns {}", outside.path()),
            format!("addr add {ADDRESS}/24 dev eth0"),
            "link set eth0 up".to_owned(),
            format!("route add default via {OUTSIDE} dev eth0 onlink"),
        ];
        let mut node = Self { network, pods: Vec::with_capacity(pods.len()), _outside: outside };
        for pod in pods {
            let namespace = namespace()?;
            let interface = &pod.interface;
            lines.extend([
                format!(
                    "link add {interface} address {GATEWAY_MAC} type veth peer name eth0 netns {}",
                    namespace.path()
                ),
                // The kernel would make the same address by itself, but a moment later.
                format!("addr add {GATEWAY_V6}/64 dev {interface} nodad"),
                format!("link set {interface} up"),
            ]);
            node.pods.push((pod.clone(), namespace));
        }
        node.network.ip(&lines)?;
        let mut gateways = Vec::new();
        for (pod, namespace) in &node.pods {
            namespace.ip(&pod_side(&pod.addresses))?;
            gateways.push((GATEWAY_V6, pod.interface.as_str()));
        }
        await_ipv6(&node.network, &gateways)?;
        for (pod, namespace) in &node.pods {
            let expected: Vec<_> = pod
                .addresses
                .iter()
                .filter_map(|address| match address {
                    IpAddr::V4(_) => None,
                    IpAddr::V6(address) => Some((*address, "eth0")),
                })
                .collect();
            await_ipv6(namespace, &expected)?;
        }
        Ok(node)
    }
}

/// A namespace whose interfaces do not wait for duplicate address detection, which takes a second.
fn namespace() -> Result<Namespace, Failure> {
    let namespace = Namespace::new().map_err(Failure::io("cannot create a network namespace"))?;
    namespace.sysctl(&[
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/all/accept_dad", "0"),
        ("ipv6/conf/default/accept_ra", "0"),
    ])?;
    namespace.ip(&["link set lo up".to_owned()])?;
    Ok(namespace)
}

fn pod_side(addresses: &[IpAddr]) -> Vec<String> {
    let mut lines: Vec<String> = addresses
        .iter()
        .map(|address| match address {
            IpAddr::V4(address) => format!("addr add {address}/32 dev eth0"),
            IpAddr::V6(address) => format!("addr add {address}/128 dev eth0 nodad"),
        })
        .collect();
    lines.push("link set eth0 up".to_owned());
    if addresses.iter().any(IpAddr::is_ipv4) {
        lines.push(format!("route add {GATEWAY_V4} dev eth0 scope link"));
        lines.push(format!("route add default via {GATEWAY_V4} dev eth0"));
    }
    if addresses.iter().any(IpAddr::is_ipv6) {
        lines.push(format!("route add default via {GATEWAY_V6} dev eth0"));
    }
    lines
}

/// Waits until the kernel answers for these addresses: it adds their local routes in the background.
fn await_ipv6(namespace: &Namespace, addresses: &[(Ipv6Addr, &str)]) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    let waiting = namespace.run(|| {
        loop {
            let routes = fs::read_to_string("/proc/thread-self/net/ipv6_route")?;
            if addresses.iter().all(|(address, interface)| has_local_route(&routes, *address, interface)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_millis(2));
        }
    });
    waiting.map_err(Failure::io("waiting for IPv6 addresses"))
}

/// Reads `/proc/net/ipv6_route`: destination and its length in hex first, then flags and interface at the end.
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
