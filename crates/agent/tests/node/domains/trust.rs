//! Servers whose answers count, and addresses that no answer opens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use tortie_lab::netns::Namespace;

use super::super::connections::until;
use super::messages::{A, AAAA, Data, Record, question};
use super::world::{By, NODE, SECOND, SERVER, World, ask_once, client, pod, receive};

const CACHE: Ipv4Addr = Ipv4Addr::new(169, 254, 20, 10);
/// Address of the Service of DNS servers in the cluster, of its next incarnation, and of its
/// endpoints.
const SERVICE: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 96, 0, 10), Ipv4Addr::new(10, 96, 0, 11)];
const BACKENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 65, 0, 53), Ipv4Addr::new(10, 99, 0, 55)];
const SOON: Duration = Duration::from_millis(300);

const HOST: &str = "
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: out, labels: {role: host}}
spec: {node: n1, interfaceName: out0, expectedIPs: [10.99.0.1]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: host}
spec:
  selector: role == 'host'
  types: [Egress]
  egress:
  - {action: Allow, protocol: UDP, destination: {ports: [53]}}
  - {action: Allow, protocol: TCP, destination: {domains: ['*.example.com'], ports: [80]}}
";

fn service(address: Ipv4Addr, backend: Ipv4Addr) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{namespace: shop, name: kube-dns}}\nspec: {{type: ClusterIP, clusterIP: \
         {address}, clusterIPs: [{address}], ports: [{{name: dns, port: 53, targetPort: 5353, protocol: UDP}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{namespace: shop, name: kube-dns-1, labels: \
         {{kubernetes.io/service-name: kube-dns}}}}\naddressType: IPv4\nendpoints: [{{addresses: [{backend}]}}]\nports: [{{name: \
         dns, port: 5353, protocol: UDP}}]\n"
    )
}

pub(super) fn answers_of_trusted_servers_alone_count(by: By) {
    let mut world = World::prepare(by);
    world.node.set("FELIX_DNSTRUSTEDSERVERS", &format!("{SERVER},{SECOND},{CACHE},k8s-service:shop/kube-dns"));
    world.node.set("FELIX_DEFAULTENDPOINTTOHOSTACTION", "ACCEPT");
    world.node.write("host.yaml", HOST);
    let dns = pod(&world.node, "dns", 53);
    world.zone.serve(&dns, (BACKENDS[0], 5353).into());
    world.node.start();
    let [web, attacker] = &world.pods;
    forged_and_unasked_answers_teach_nothing(&world, web, attacker);
    external_addresses_of_services_are_not_trusted(&world, web, attacker);
    rebinding_opens_nothing(&world, web);
    services_are_followed(&world, web);
    node_local_caches_are_trusted(&world, web);
    the_host_learns_for_itself(&world, web);
}

/// Returns the answer to a question for a new name, and its address.
fn answer(world: &World, name: &str) -> (Vec<u8>, Ipv4Addr) {
    let address = world.address();
    world.zone.name(name, address);
    (world.zone.answer(&question(name, A)), address)
}

fn forged_and_unasked_answers_teach_nothing(world: &World, web: &Namespace, attacker: &Namespace) {
    // The pod waits for an answer that the server does not give.
    let waiting = client(web, (SERVER, 54).into());
    waiting.send(b"?").unwrap();
    let open = web.run(|| UdpSocket::bind("10.65.0.2:5353")).unwrap().unwrap();
    let to = open.local_addr().unwrap();
    let bind = |address: Ipv4Addr| attacker.run(|| UdpSocket::bind((address, 53))).unwrap().unwrap();
    // By the attacker's address.
    let (forged, from_itself) = answer(world, "forged1.example.com");
    let socket = bind(Ipv4Addr::new(10, 65, 0, 3));
    socket.send_to(&forged, to).unwrap();
    assert_eq!(receive(&open, SOON), Some(forged));
    // By the server's address: the packet does not leave the attacker.
    attacker.shell(&format!("ip addr add {SERVER}/32 dev lo")).unwrap();
    let (forged, from_server) = answer(world, "forged2.example.com");
    bind(SERVER).send_to(&forged, to).unwrap();
    assert_eq!(receive(&open, SOON), None);
    attacker.shell(&format!("ip addr del {SERVER}/32 dev lo")).unwrap();
    // The server answers without a question, also when the pod then sends something.
    let (unasked, by_server) = answer(world, "unasked.example.com");
    for _ in 0..2 {
        world.server.send_to(&unasked, to).unwrap();
        assert_eq!(receive(&open, SOON), Some(unasked.clone()));
        open.send_to(&[0; 12], (SERVER, 53)).unwrap();
        while receive(&open, Duration::from_millis(20)).is_some() {}
    }
    // The pod asks the attacker.
    let (_, asked) = answer(world, "asked.example.com");
    let zone = world.zone.clone();
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question) {
            let _ = socket.send_to(&zone.answer(&question[..length]), from);
        }
    });
    world.ask(web, "10.65.0.3:53".parse().unwrap(), "asked.example.com", A);
    for address in [from_itself, from_server, by_server, asked] {
        world.assert_connects(web, address, false);
        world.assert_connects(attacker, address, false);
    }
    world.assert_opens(web, "asked2.example.com");
}

/// Has packets to a server's address and port 53 reach another server.
fn translate(world: &World, from: &str, server: Ipv4Addr, to: SocketAddr) {
    let rule = format!("PREROUTING {from} -d {server} -p udp --dport 53 -j DNAT --to {to}");
    world.node.shell(&format!("iptables-{} -w -t nat -I {rule}", world.by.iptables()));
}

/// A Service has the address of a trusted server among its external ones, and leads to a pod.
fn external_addresses_of_services_are_not_trusted(world: &World, web: &Namespace, attacker: &Namespace) {
    let socket = attacker.run(|| UdpSocket::bind("10.65.0.3:5353")).unwrap().unwrap();
    let zone = world.zone.clone();
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question) {
            let _ = socket.send_to(&zone.answer(&question[..length]), from);
        }
    });
    translate(world, "-s 10.65.0.2", SECOND, "10.65.0.3:5353".parse().unwrap());
    let (_, address) = answer(world, "external.example.com");
    world.ask(web, (SECOND, 53).into(), "external.example.com", A);
    world.assert_connects(web, address, false);
}

fn rebinding_opens_nothing(world: &World, web: &Namespace) {
    let listener = world.node.namespace().run(|| TcpListener::bind("0.0.0.0:80")).unwrap().unwrap();
    thread::spawn(move || listener.incoming().for_each(drop));
    let pod = Ipv4Addr::new(10, 65, 0, 3);
    // A pod, an address of the pool that no pod has, and the node, also in the form of IPv6.
    let addresses = ["127.0.0.1", "169.254.169.254", "224.0.0.1", "10.65.0.3", "10.65.9.9", "10.99.0.1"];
    for (number, address) in addresses.into_iter().map(|text| text.parse::<Ipv4Addr>().unwrap()).enumerate() {
        let name = format!("rebind{number}.example.com");
        world.zone.name(&name, address);
        world.zone.set(&name, AAAA, [Record::new(&name, Data::V6(address.to_ipv6_mapped()))]);
        world.look_up(web, &name);
        world.ask(web, (SERVER, 53).into(), &name, AAAA);
        let members = world.members();
        let mapped = IpAddr::V6(address.to_ipv6_mapped());
        assert!(!members.iter().any(|member| *member == address || *member == mapped), "{address}: {members:?}");
    }
    world.assert_connects(web, pod, false);
    // Only the cluster's names have its addresses.
    world.zone.name("db.shop.svc.cluster.local", pod);
    world.look_up(web, "db.shop.svc.cluster.local");
    world.assert_connects(web, pod, true);
}

/// Waits until answers by this server open addresses.
fn until_trusted(world: &World, web: &Namespace, server: Ipv4Addr) {
    let mut number = 0;
    until(&format!("answers by {server} count"), &world.node, || {
        number += 1;
        let (name, address) = (format!("trusted{number}.example.com"), world.address());
        world.zone.name(&name, address);
        world.ask(web, (server, 53).into(), &name, A);
        world.connects(web, address).then_some(())
    });
}

/// A Service that comes late, gets other endpoints, and is made anew.
fn services_are_followed(world: &World, web: &Namespace) {
    let [before, after] = SERVICE;
    let [here, elsewhere] = BACKENDS;
    translate(world, "", before, (here, 5353).into());
    let (_, early) = answer(world, "early.example.com");
    world.ask(web, (before, 53).into(), "early.example.com", A);
    world.assert_connects(web, early, false);
    world.node.write("service.yaml", &service(before, here));
    until_trusted(world, web, before);
    // A host of another node has the next endpoint.
    world.outside.shell(&format!("ip addr add {elsewhere}/24 dev eth0")).unwrap();
    world.zone.serve(&world.outside, (elsewhere, 5353).into());
    translate(world, "", before, (elsewhere, 5353).into());
    world.node.write("service.yaml", &service(before, elsewhere));
    until_trusted(world, web, before);
    // The former endpoint no longer counts.
    let (_, former) = answer(world, "former.example.com");
    world.ask(web, (here, 5353).into(), "former.example.com", A);
    world.assert_connects(web, former, false);
    translate(world, "", after, (elsewhere, 5353).into());
    world.node.write("service.yaml", &service(after, elsewhere));
    until_trusted(world, web, after);
}

/// A cache on the node, whose packets conntrack does not see.
fn node_local_caches_are_trusted(world: &World, web: &Namespace) {
    let iptables = format!("iptables-{} -w -t raw", world.by.iptables());
    world.node.shell(&format!(
        "ip addr add {CACHE}/32 dev lo; {iptables} -I PREROUTING -d {CACHE} -p udp --dport 53 -j NOTRACK; {iptables} -I OUTPUT -s \
         {CACHE} -p udp --sport 53 -j NOTRACK"
    ));
    world.zone.serve(world.node.namespace(), (CACHE, 53).into());
    let (_, address) = answer(world, "cached.example.com");
    world.ask(web, (CACHE, 53).into(), "cached.example.com", A);
    world.assert_connects(web, address, true);
    let counted = world.node.shell(&format!("{iptables} -nvxL PREROUTING | grep {CACHE}"));
    assert!(!counted.trim_start().starts_with("0 "), "{counted}");
}

fn the_host_learns_for_itself(world: &World, web: &Namespace) {
    let host = world.node.namespace();
    assert_eq!(NODE, Ipv4Addr::new(10, 99, 0, 1));
    let (_, address) = answer(world, "host.example.com");
    world.assert_connects(host, address, false);
    let socket = client(host, (SERVER, 53).into());
    assert!(ask_once(&socket, "host.example.com", A).is_some());
    world.assert_connects(host, address, true);
    world.assert_connects(web, address, false);
    let of_pod = world.assert_opens(web, "pod.example.com");
    world.assert_connects(host, of_pod, false);
}
