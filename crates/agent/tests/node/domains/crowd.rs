//! More pods than one set can have interfaces for an address, and one of them that floods.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tortie_lab::netns::Namespace;
use tortie_lab::pods::{LabHost, interface_name};

use super::messages::{A, question};
use super::world::{By, NAMED, SECOND, SERVER, World, ask_once, connects_from};

const PODS: u8 = 70;

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 65, 1, number)
}

/// Makes pods of a tenant in one network namespace; each address has its own interface and default
/// route.
pub(super) fn crowd(world: &World, tenant: &str, pods: u8) -> Namespace {
    let crowd = Namespace::new().unwrap();
    let (mut outer, mut inner, mut manifests) = (String::new(), String::new(), String::new());
    for number in 1..=pods {
        let (name, address) = (format!("p{number}"), address(number));
        let interface = interface_name(&LabHost::pod(tenant, &name)).unwrap();
        outer += &format!(
            "link add {interface} address ee:ee:ee:ee:ee:ee type veth peer name {name} netns {}\nlink set {interface} up\n",
            crowd.path().display()
        );
        inner += &format!(
            "link set {name} up\naddr add {address}/32 dev {name}\nroute add 169.254.1.1 dev {name} table {number}\nroute add \
             default via 169.254.1.1 dev {name} table {number}\nneigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev {name}\nrule \
             add from {address} lookup {number}\n"
        );
        manifests += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {tenant}, labels: {{app: crowd}}}}\nspec: {{nodeName: \
             n1, containers: [{{name: c, image: i}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: {address}}}]}}\n"
        );
    }
    world.node.namespace().ip(outer.lines()).unwrap();
    crowd.ip(inner.lines()).unwrap();
    world.node.write("crowd.yaml", &manifests);
    crowd
}

pub(super) fn socket(crowd: &Namespace, number: u8, to: (Ipv4Addr, u16)) -> UdpSocket {
    let socket = crowd.run(|| UdpSocket::bind((address(number), 0))).unwrap().unwrap();
    socket.connect(to).unwrap();
    socket
}

fn reaches(crowd: &Namespace, number: u8, to: Ipv4Addr) -> bool {
    connects_from(crowd, address(number), (to, 80).into())
}

pub(super) fn seventy_pods_learn_one_address(by: By) {
    let mut world = World::prepare(by);
    let crowd = crowd(&world, "shop", PODS);
    world.node.start();
    let looks_up = |number, name: &str| ask_once(&socket(&crowd, number, (SERVER, 53)), name, A).is_some();
    for number in 1..=PODS {
        if number % 10 == 0 {
            assert!(!reaches(&crowd, number, NAMED), "{number}\n{}", world.node.log());
        }
        assert!(looks_up(number, "api.example.com"), "{number}");
        assert!(reaches(&crowd, number, NAMED), "{number}\n{}", world.node.kernel_state());
    }
    assert!((1..=PODS).all(|number| reaches(&crowd, number, NAMED)), "{}", world.node.kernel_state());
    a_flood_delays_no_other_pod(&world, &crowd);
}

/// The first pod asks for as many names as it can, the last one for some, which it uses at once.
fn a_flood_delays_no_other_pod(world: &World, crowd: &Namespace) {
    let read = world.node.metric("felix_dns_packet_nfqueue_monitor_packets_in");
    let (ends, asks) = (AtomicBool::new(false), socket(crowd, PODS, (SERVER, 53)));
    let begin = Instant::now();
    let (sent, mut times) = thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let (socket, mut sent) = (socket(crowd, 1, (SECOND, 53)), 0_u32);
            while !ends.load(Ordering::Relaxed) {
                let _ = socket.send(&question(&format!("f{sent}.example.com"), A));
                sent += 1;
            }
            sent
        });
        let mut times = Vec::new();
        while begin.elapsed() < Duration::from_millis(1_500) {
            let (name, address) = (format!("q{}.example.com", times.len()), world.address());
            world.zone.name(&name, address);
            let asked = Instant::now();
            assert!(ask_once(&asks, &name, A).is_some(), "{name}");
            times.push(asked.elapsed());
            assert!(reaches(crowd, PODS, address), "{name}: a first packet is lost\n{}", world.node.log());
        }
        ends.store(true, Ordering::Relaxed);
        (flood.join().unwrap(), times)
    });
    times.sort_unstable();
    let elapsed = begin.elapsed().as_secs_f64();
    let read = world.node.metric("felix_dns_packet_nfqueue_monitor_packets_in") - read;
    println!(
        "{sent} questions in {elapsed} s, {read} answers read, {} lookups, p99 {:?}",
        times.len(),
        times[times.len() * 99 / 100]
    );
    // 1,000 answers a second, and as many at once.
    assert!(read < 1_000.0 * (elapsed + 1.5) + times.len() as f64, "{read} answers read in {elapsed} s");
    assert!(f64::from(sent) > 2.0 * read, "no flood: {sent} questions");
}
