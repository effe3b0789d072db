//! On real interfaces, in namespaces.

use std::net::UdpSocket;
use std::time::Instant;

use tortie_lab::netns::Namespace;

use super::*;
use crate::netlink::Netlink;

const PATIENCE: Duration = Duration::from_secs(60);

/// A machine on the same network as another one.
struct Network {
    node: Namespace,
    other: Namespace,
}

impl Network {
    fn new() -> Self {
        let (node, other) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        for namespace in [&node, &other] {
            namespace.sysctl(&[("ipv6/conf/default/accept_dad".to_owned(), "0")]).unwrap();
        }
        node.shell(&format!(
            "ip link add eth0 type veth peer name eth0 netns {}; ip link set eth0 up; ip addr add 10.0.0.1/24 dev eth0; ip \
             addr add fd00::1/64 dev eth0",
            other.path().display()
        ))
        .unwrap();
        other.shell("ip link set eth0 up; ip addr add 10.0.0.2/24 dev eth0; ip addr add fd00::2/64 dev eth0").unwrap();
        Self { node, other }
    }

    fn index_of(&self, interface: &str) -> u32 {
        let found = self.node.run(|| Netlink::open(PATIENCE)?.links()).unwrap().unwrap();
        found.iter().find(|link| link.name.as_str() == interface).unwrap().index
    }

    fn index(&self) -> u32 {
        self.index_of("eth0")
    }

    fn mac(&self) -> Mac {
        let index = self.index();
        self.node.run(|| Netlink::open(PATIENCE)?.mac(index)).unwrap().unwrap().unwrap()
    }

    /// Returns the Ethernet address that the other machine resolves for an address; `None` if no
    /// host answers.
    fn resolve(&self, address: &str) -> Option<Mac> {
        self.other.shell(&format!("ip neigh flush to {address} dev eth0")).unwrap();
        let address: IpAddr = address.parse().unwrap();
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        self.other.run(|| UdpSocket::bind(any)?.send_to(b"?", (address, 9))).unwrap().unwrap();
        let patience = Instant::now() + PATIENCE;
        loop {
            let found = self.other.shell(&format!("ip neigh show to {address} dev eth0")).unwrap();
            if let Some((_, rest)) = found.split_once("lladdr ") {
                return rest.split_whitespace().next().unwrap().parse().ok();
            }
            if found.contains("FAILED") {
                return None;
            }
            assert!(Instant::now() < patience, "{found}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Asks repeatedly, since answers may be slow.
fn assert_answered(network: &Network, address: &str, mac: Mac) {
    let patience = Instant::now() + PATIENCE;
    while network.resolve(address) != Some(mac) {
        assert!(Instant::now() < patience, "{address}");
    }
}

fn neighbour(interface: u32, address: &str) -> ProxyNeighbour {
    ProxyNeighbour { interface, address: address.parse().unwrap() }
}

tortie_lab::kernel_test! {
    fn only_added_addresses_are_answered() {
        let network = Network::new();
        let (index, mac) = (network.index(), network.mac());
        let responder = network.node.run(Responder::spawn).unwrap().unwrap();
        for (address, silent) in [("10.0.0.50", "10.0.0.51"), ("fd00::50", "fd00::51")] {
            assert_eq!(network.resolve(address), None, "no host answers for {address}");
            network.node.run(|| responder.add(neighbour(index, address), Some(mac))).unwrap().unwrap();
            assert_answered(&network, address, mac);
            assert_eq!(network.resolve(silent), None, "{silent}");
            let of_family = Family::of(address.parse().unwrap());
            assert_eq!(responder.entries(of_family), [neighbour(index, address)]);

            network.node.run(|| responder.remove(neighbour(index, address))).unwrap().unwrap();
            assert_eq!(network.resolve(address), None, "{address} is answered for no more");
            assert_eq!(responder.remove(neighbour(index, address)), Err(KernelError::NotFound));
            assert!(responder.entries(of_family).is_empty());
        }
    }

    fn an_answer_is_given_only_on_its_own_interface() {
        let network = Network::new();
        let responder = network.node.run(Responder::spawn).unwrap().unwrap();
        let add = |address: &str, interface| {
            network.node.run(|| responder.add(neighbour(interface, address), Some(network.mac()))).unwrap()
        };
        network.node.shell("ip link add eth1 type veth peer name eth2; ip link set eth1 up; ip link set eth2 up").unwrap();
        let other = network.index_of("eth1");
        for address in ["10.0.0.50", "fd00::50"] {
            add(address, other).unwrap();
            assert_eq!(network.resolve(address), None, "{address}");
            add(address, network.index()).unwrap();
            assert_answered(&network, address, network.mac());
        }
        assert_eq!(add("fd00::50", 9999), Err(KernelError::NotFound));
    }

    fn an_announcement_corrects_stale_neighbour_entries() {
        let network = Network::new();
        let (index, mac) = (network.index(), network.mac());
        let responder = network.node.run(Responder::spawn).unwrap().unwrap();
        for address in ["10.0.0.50", "fd00::50"] {
            network.node.run(|| responder.add(neighbour(index, address), Some(mac))).unwrap().unwrap();
            network.other.shell(&format!("ip neigh replace {address} lladdr 02:00:00:00:00:99 dev eth0 nud stale")).unwrap();
            let patience = Instant::now() + PATIENCE;
            loop {
                // The kernel ignores an update shortly after the previous one (`locktime`).
                network.node.run(|| responder.announce(neighbour(index, address), Some(mac))).unwrap().unwrap();
                let found = network.other.shell(&format!("ip neigh show to {address} dev eth0")).unwrap();
                if found.contains(&mac.to_string()) {
                    break;
                }
                assert!(Instant::now() < patience, "{found}");
                thread::sleep(Duration::from_millis(100));
            }
        }
        assert_eq!(responder.announce(neighbour(index + 100, "10.0.0.50"), Some(mac)), Err(KernelError::NotFound));
    }

    fn duplicate_address_detection_of_another_machine_is_answered() {
        let network = Network::new();
        let (index, mac) = (network.index(), network.mac());
        let responder = network.node.run(Responder::spawn).unwrap().unwrap();
        network.node.run(|| responder.add(neighbour(index, "fd00::50"), Some(mac))).unwrap().unwrap();
        network.other.sysctl(&[("ipv6/conf/eth0/accept_dad".to_owned(), "1")]).unwrap();
        network.other.sysctl(&[("ipv6/conf/eth0/dad_transmits".to_owned(), "30")]).unwrap();
        network.other.shell("ip addr add fd00::50/64 dev eth0").unwrap();
        let patience = Instant::now() + PATIENCE;
        loop {
            let found = network.other.shell("ip -6 addr show dev eth0 to fd00::50").unwrap();
            if found.contains("dadfailed") {
                break;
            }
            let is_undecided = found.contains("tentative");
            assert!(is_undecided && Instant::now() < patience, "{found}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn many_addresses_are_answered_for_and_nothing_is_left() {
        let network = Network::new();
        let (index, mac) = (network.index(), network.mac());
        let joined = || {
            let found = network.node.shell("ip -6 maddr show dev eth0").unwrap();
            let groups: Vec<String> = (0..300).map(|i| format!("ff02::1:ff01:{i:x}")).collect();
            found.split_whitespace().filter(|word| groups.iter().any(|group| group == word)).count()
        };
        let responder = network.node.run(Responder::spawn).unwrap().unwrap();
        // More groups than one socket can join, each shared by two addresses.
        let all: Vec<String> = (0..300).flat_map(|i| [format!("fd00::1:{i:x}"), format!("fd00::1:1:{i:x}")]).collect();
        for address in &all {
            network.node.run(|| responder.add(neighbour(index, address), Some(mac))).unwrap().unwrap();
        }
        assert_eq!(joined(), 300);
        for address in [&all[0], &all[1], &all[598], &all[599]] {
            assert_answered(&network, address, mac);
        }
        for address in all.iter().step_by(2) {
            responder.remove(neighbour(index, address)).unwrap();
        }
        assert_eq!(network.resolve(&all[598]), None);
        assert_answered(&network, &all[599], mac);
        assert_eq!(joined(), 300);
        drop(responder);
        assert_eq!(network.resolve(&all[599]), None);
        assert_eq!(joined(), 0);
    }
}
