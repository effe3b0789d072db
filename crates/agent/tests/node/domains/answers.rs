//! Contents of answers: names, chains of aliases, hints, many addresses, both families.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;

use tortie_lab::netns::Namespace;

use super::super::connections::until;
use super::messages::{A, AAAA, Data, HTTPS, Record, Section};
use super::world::{By, SERVER, World, ask_once, client, connects, pod};

/// Policies beside [`POLICY`], for the pod `staged` and for a network set.
const MORE: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: asks, namespace: shop}
spec: {order: 30, selector: app == 'staged', types: [Egress], egress: [{action: Allow, protocol: UDP, destination: {ports: [53]}}]}
---
apiVersion: projectcalico.org/v3
kind: StagedNetworkPolicy
metadata: {name: later, namespace: shop}
spec: {order: 20, selector: app == 'staged', types: [Egress], egress: [{action: Allow, protocol: TCP, destination: {domains: ['*.later.net']}}]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkSet
metadata: {name: partners, labels: {role: partner}}
spec: {nets: [10.98.255.1/32], allowedEgressDomains: ['*.partner.net']}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: partners}
spec:
  order: 5
  selector: app == 'web'
  types: [Egress]
  egress:
  - {action: Deny, protocol: TCP, destination: {selector: role == 'partner', ports: [7]}}
  - {action: Allow, protocol: TCP, destination: {selector: role == 'partner', ports: [7, 80]}}
";
/// Number of policies of a large change, and of lookups after it has been read.
const MANY: u16 = 300;
const AFTERWARDS: usize = 200;
const SERVERS: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 53);

pub(super) fn open_their_addresses(by: By) {
    let mut world = World::prepare(by);
    world.node.set("FELIX_DNSMAXREPLIESPERENDPOINT", "10000");
    // Longer than any write on a busy machine.
    world.node.set("FELIX_DNSPACKETSNFQUEUEMAXHOLDDURATION", "20000");
    world.node.write("more.yaml", MORE);
    let staged = pod(&world.node, "staged", 4);
    world.node.start();
    let [web, other] = &world.pods;
    first_packets_pass(&world, web);
    case_and_dots_do_not_matter(&world, web);
    chains_of_aliases_are_followed(&world, web);
    hints_and_both_families(&world, web);
    let fragmented = many_addresses_in_fragments(&world, web);
    tcp_and_two_at_once(&world, web);
    network_sets_open_nets_and_names(&world, web);
    staged_policies_learn(&world, &staged);
    a_large_change_lets_no_answer_go_early(&world, web);
    let kept = world.assert_opens(other, "kept.example.com");
    limits_of_one_endpoint(&world, web);
    world.assert_connects(other, kept, true);
    assert!(!world.connects(other, fragmented));
}

fn first_packets_pass(world: &World, web: &Namespace) {
    for number in 0..100 {
        world.assert_opens(web, &format!("n{number}.example.com"));
    }
}

fn case_and_dots_do_not_matter(world: &World, web: &Namespace) {
    let address = world.address();
    world.zone.set("exact.example.net", A, [Record::v4("EXACT.example.Net", address)]);
    world.look_up(web, "exAct.EXAMPLE.net");
    world.assert_connects(web, address, true);
}

/// A chain with this many aliases.
fn chain(world: &World, of: &str, links: usize) -> Ipv4Addr {
    let address = world.address();
    let names: Vec<String> = (0..=links).map(|link| format!("link{link}.{of}")).collect();
    let aliases = names.windows(2).map(|pair| Record::new(&pair[0], Data::Alias(pair[1].clone())));
    // The order of records does not matter.
    let mut records: Vec<Record> = aliases.chain([Record::v4(&names[links], address)]).collect();
    records.reverse();
    world.zone.set(&names[0], A, records);
    address
}

fn chains_of_aliases_are_followed(world: &World, web: &Namespace) {
    for (links, expected) in [(16, true), (17, false)] {
        let of = format!("l{links}.example.com");
        let address = chain(world, &of, links);
        world.look_up(web, &format!("link0.{of}"));
        world.assert_connects(web, address, expected);
    }
    // The target matches, and the question does not.
    let address = world.address();
    let alias = Record::new("www.other.net", Data::Alias("cdn.example.com".into()));
    world.zone.set("www.other.net", A, [alias, Record::v4("cdn.example.com", address)]);
    world.look_up(web, "www.other.net");
    world.assert_connects(web, address, true);
    // An owner that no alias names, other sections, and a loop teach nothing.
    let [foreign, authority, additional, looped] = [(); 4].map(|()| world.address());
    let of = |section, owner: &str, address| Record { section, ..Record::v4(owner, address) };
    let alias = |from: &str, to: &str| Record::new(from, Data::Alias(to.into()));
    world.zone.set(
        "a.other.net",
        A,
        [
            Record::v4("b.example.com", foreign),
            of(Section::Authority, "a.other.net", authority),
            of(Section::Additional, "c.example.com", additional),
        ],
    );
    world.zone.set(
        "loop.example.com",
        A,
        [
            alias("loop.example.com", "round.example.com"),
            alias("round.example.com", "loop.example.com"),
            Record::v4("beside.example.com", looped),
        ],
    );
    world.zone.set(
        "empty.example.com",
        A,
        [
            of(Section::Authority, "empty.example.com", authority),
            of(Section::Additional, "empty.example.com", additional),
        ],
    );
    for name in ["a.other.net", "loop.example.com", "empty.example.com"] {
        world.look_up(web, name);
    }
    for address in [foreign, authority, additional, looped] {
        world.assert_connects(web, address, false);
    }
}

fn hints_and_both_families(world: &World, web: &Namespace) {
    let (hinted, first) = (world.address(), world.address());
    world.zone.set("hint.example.com", HTTPS, [Record::new("hint.example.com", Data::Hint(hinted))]);
    world.ask(web, SERVERS, "hint.example.com", HTTPS);
    world.assert_connects(web, hinted, true);
    // IPv6 is learned by IPv4, and an answer of one family leaves the other alone.
    let [six, next] = [1, 2].map(|last| Ipv6Addr::new(0xfd00, 0x98, 0, 0, 0, 0, 0, last));
    world.zone.set("six.example.com", AAAA, [Record::new("six.example.com", Data::V6(six))]);
    world.zone.name("six.example.com", first);
    assert!(!world.connects(web, six));
    world.ask(web, SERVERS, "six.example.com", AAAA);
    // The way there may still be unknown to neighbours.
    world.until_connects(web, six, true);
    world.assert_connects(web, next, false);
    world.look_up(web, "six.example.com");
    world.assert_connects(web, first, true);
    world.assert_connects(web, six, true);
}

/// An answer of 4 KiB arrives in fragments, and opens all its addresses.
fn many_addresses_in_fragments(world: &World, web: &Namespace) -> Ipv4Addr {
    let addresses: Vec<Ipv4Addr> = (0..240).map(|_| world.address()).collect();
    let records: Vec<Record> = addresses.iter().map(|address| Record::v4("m.example.com", *address)).collect();
    world.zone.set("m.example.com", A, records);
    let answer = world.look_up(web, "m.example.com");
    assert!(answer.len() > 4_096, "{} bytes", answer.len());
    for address in &addresses {
        world.assert_connects(web, *address, true);
    }
    addresses[0]
}

fn tcp_and_two_at_once(world: &World, web: &Namespace) {
    let address = world.address();
    world.zone.name("tcp.example.com", address);
    world.ask_by_tcp(web, "tcp.example.com");
    world.assert_connects(web, address, true);
    for number in 0..20 {
        let (name, address) = (format!("both{number}.example.com"), world.address());
        world.zone.name(&name, address);
        let sockets = [(); 2].map(|()| client(web, SERVERS));
        thread::scope(|scope| {
            let asks = sockets.map(|socket| {
                let name = &name;
                scope.spawn(move || ask_once(&socket, name, A).is_some() && connects(web, (address, 80).into()))
            });
            assert!(asks.into_iter().all(|ask| ask.join().unwrap()), "{name}\n{}", world.node.log());
        });
    }
}

fn network_sets_open_nets_and_names(world: &World, web: &Namespace) {
    let net = Ipv4Addr::new(10, 98, 255, 1);
    world.assert_connects(web, net, true);
    assert!(!connects(web, (net, 7).into()), "denied");
    // A rule that denies does not know the names of the set.
    let named = world.assert_opens(web, "api.partner.net");
    assert!(connects(web, (named, 7).into()), "{}", world.node.log());
}

fn staged_policies_learn(world: &World, staged: &Namespace) {
    let address = world.address();
    world.zone.name("a.later.net", address);
    world.look_up(staged, "a.later.net");
    world.assert_connects(staged, address, false);
    let enforced = MORE.replace("kind: StagedNetworkPolicy", "kind: NetworkPolicy").replace("*.later.net", "a.*.net");
    world.node.write("more.yaml", &enforced);
    world.until_connects(staged, address, true);
    // A new pattern counts for a name that no rule has matched so far.
    let address = world.address();
    world.zone.name("a.unknown.org", address);
    world.look_up(staged, "a.unknown.org");
    world.assert_connects(staged, address, false);
    world.node.write("more.yaml", &enforced.replace("a.*.net", "a.unknown.org"));
    world.until_connects(staged, address, true);
}

/// While many policies come into force, an answer still waits for its members.
fn a_large_change_lets_no_answer_go_early(world: &World, web: &Namespace) {
    let policies: String = (0..MANY)
        .map(|number| {
            format!(
                "---\napiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: many{number}, namespace: shop}}\nspec: \
                 {{order: 100, selector: all(), types: [Egress], egress: [{{action: Allow, protocol: TCP, destination: {{nets: \
                 [192.0.2.{}/32], ports: [443]}}}}]}}\n",
                number % 256
            )
        })
        .collect();
    world.node.write("many.yaml", &policies);
    let mut left = AFTERWARDS;
    for number in 0.. {
        world.assert_opens(web, &format!("while{number}.example.com"));
        left -= usize::from(world.node.metric("felix_active_local_policies") > f64::from(MANY));
        if left == 0 {
            return;
        }
    }
}

/// 1,000 addresses of one name are open, and one more displaces the oldest. Names beyond 2,000
/// displace those of the same endpoint.
fn limits_of_one_endpoint(world: &World, web: &Namespace) {
    let socket = client(web, SERVERS);
    let addresses: Vec<Ipv4Addr> = (0..1_001).map(|_| world.address()).collect();
    for part in addresses.chunks(5) {
        let records: Vec<Record> = part.iter().map(|address| Record::v4("cdn.example.com", *address)).collect();
        if records.len() < 5 {
            // All the others are open.
            for address in addresses[..1_000].iter().step_by(37) {
                world.assert_connects(web, *address, true);
            }
        }
        world.zone.set("cdn.example.com", A, records);
        assert!(ask_once(&socket, "cdn.example.com", A).is_some());
    }
    world.assert_connects(web, addresses[0], false);
    world.assert_connects(web, addresses[1], true);
    world.assert_connects(web, addresses[1_000], true);
    let evicted = world.node.metric("tortie_dns_evicted_total");
    // Some answers pass unread: an endpoint has a tenth of the reader's time.
    let mut number = 0;
    until("names are displaced", &world.node, || {
        for _ in 0..200 {
            assert!(ask_once(&socket, &format!("many{number}.example.com"), A).is_some());
            number += 1;
        }
        (world.node.metric("tortie_dns_evicted_total") > evicted + 1_000.0).then_some(())
    });
}
