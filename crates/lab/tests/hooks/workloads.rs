//! Packets of workloads.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::time::Duration;

use tortie_ebpf::DecisionId;
use tortie_ebpf::hooks::HookSettings;
use tortie_ebpf::layout::MapKind;
use tortie_evaluate::{DecidedBy, EndpointToHost, FailsafePort, Settings};
use tortie_lab::ethernet::FrameSender;
use tortie_lab::kernel_test;
use tortie_lab::pods::{Family, Flow, Lab, LabHost, LabOptions, Pod, Port};
use tortie_model::{Direction, Protocol, Rule, RuleAction};

use crate::content::{Content, Rulings, allow, allow_all, rule};
use crate::generation::{Generation, track};
use crate::{check, check_of};

/// Timeouts for expected and for unexpected packets.
const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(300);

fn pod(name: &str, last: u8) -> Pod {
    let addresses = [format!("192.168.1.{last}"), format!("fd00:10::{last:x}")];
    let ports = [80, 81].into_iter().flat_map(|port| [Port::tcp(port), Port::udp(port), Port::sctp(port)]);
    Pod::new("x", name, addresses.map(|address| address.parse().unwrap()), ports)
}

pub(crate) fn place(name: &str) -> LabHost {
    LabHost::pod("x", name)
}

/// Creates two pods with policy, and one without endpoint, on a node that is a server too.
pub(crate) fn lab() -> Lab {
    let mut lab = Lab::new(&[pod("a", 10), pod("b", 11), pod("stray", 12)], &LabOptions::default()).unwrap();
    lab.serve(&LabHost::Node, &[Port::tcp(22), Port::tcp(80), Port::udp(80)]).unwrap();
    lab.serve(&LabHost::Outside, &[Port::tcp(22), Port::tcp(80), Port::udp(53)]).unwrap();
    track(&lab);
    lab
}

/// `a` may send all traffic except UDP; `b` is reachable at port 80 by TCP and SCTP.
pub(crate) fn content() -> Content {
    let a = Rulings { ingress: vec![], egress: vec![rule(RuleAction::Deny, Protocol::UDP, &[]), allow_all()] };
    let b = Rulings {
        ingress: vec![allow(Protocol::TCP, &[80]), allow(Protocol::SCTP, &[80]), allow(Protocol::UDP, &[80])],
        egress: vec![allow(Protocol::UDP, &[53])],
    };
    Content { pods: vec![(place("a"), a), (place("b"), b)], ..Content::default() }
}

/// Attaches programs with this content.
fn attach_programs(lab: &Lab, content: &Content, settings: &HookSettings) -> Generation {
    let mut generation = Generation::load(settings);
    content.write(lab, &generation);
    generation.attach(lab, 0).unwrap();
    generation
}

fn connect(lab: &Lab, from: &LabHost, to: &LabHost, family: Family) -> std::net::TcpStream {
    let flow = Flow { from: from.clone(), to: to.clone(), port: Port::tcp(80), family };
    let mut stream = lab.connect(&flow, LONG).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut greeting = vec![0; to.to_string().len()];
    stream.read_exact(&mut greeting).unwrap();
    stream
}

/// Reports whether an answer arrives within this time.
fn echoes(stream: &mut std::net::TcpStream, patience: Duration) -> bool {
    let mut echo = [0; 5];
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut echo).is_ok()
}

/// Returns a broadcast frame of a DHCP client.
fn request(source: [u8; 4], text: [u8; 5]) -> Vec<u8> {
    let mut header = [[0x45, 0, 0, 33], [0, 1, 0, 0], [64, 17, 0, 0], source, [255; 4]].concat();
    let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    let ethernet = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x08, 0x00]].concat();
    // From port 68 to 67, without a checksum.
    [ethernet, header, vec![0, 68, 0, 67, 0, 13, 0, 0], text.to_vec()].concat()
}

/// Receives the next datagram. A receive with a timeout can be interrupted while other tests run.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match socket.recv(buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

kernel_test! {
    fn policy_of_workloads_is_in_force_in_both_directions() {
        let lab = lab();
        let (a, b, stray) = (place("a"), place("b"), place("stray"));
        let (node, outside) = (LabHost::Node, LabHost::Outside);
        let open = [
            (&a, &b, Port::tcp(80), true),
            (&a, &b, Port::tcp(81), true),
            (&b, &a, Port::udp(81), true),
            (&a, &node, Port::tcp(22), true),
            (&node, &a, Port::tcp(80), true),
            (&outside, &b, Port::udp(81), true),
            (&stray, &a, Port::udp(80), true),
            (&outside, &stray, Port::udp(80), true),
        ];
        check(&lab, &open);
        let generation = attach_programs(&lab, &content(), &HookSettings::default());
        check(&lab, &[
            (&a, &b, Port::tcp(80), true),
            (&a, &b, Port::sctp(80), true),
            (&a, &b, Port::udp(80), false),
            (&a, &b, Port::tcp(81), false),
            (&b, &a, Port::tcp(80), false),
            (&a, &outside, Port::tcp(80), true),
            (&a, &outside, Port::udp(53), false),
            (&b, &outside, Port::udp(53), true),
            (&b, &outside, Port::tcp(80), false),
            (&outside, &b, Port::udp(80), true),
            (&outside, &b, Port::udp(81), false),
            (&outside, &a, Port::tcp(80), false),
            // The host reaches its workloads, but they do not reach the host.
            (&node, &a, Port::tcp(80), true),
            (&node, &b, Port::udp(81), true),
            (&a, &node, Port::tcp(22), false),
            (&b, &node, Port::tcp(80), false),
            // The interface of an unknown workload passes only traffic that the host itself begins.
            (&stray, &b, Port::tcp(80), false),
            (&a, &stray, Port::tcp(80), false),
            (&outside, &stray, Port::tcp(80), false),
            (&stray, &outside, Port::udp(53), false),
            (&stray, &node, Port::tcp(22), false),
            (&node, &outside, Port::udp(53), true),
            (&outside, &node, Port::tcp(22), true),
        ]);
        drop(generation);
        check(&lab, &open);
    }

    fn packets_of_known_connections_skip_policy() {
        let lab = lab();
        let (a, b) = (place("a"), place("b"));
        let generation = attach_programs(&lab, &content(), &HookSettings::default());
        for family in [Family::V4, Family::V6] {
            let mut content = content();
            content.write(&lab, &generation);
            let mut stream = connect(&lab, &a, &b, family);
            content.pods[1].1.ingress = vec![];
            content.write(&lab, &generation);
            check(&lab, &[(&a, &b, Port::tcp(80), false)]);
            assert!(echoes(&mut stream, LONG), "established connections stay");
            // Established connections of an interface without endpoint are dropped too.
            content.pods.remove(1);
            content.write(&lab, &generation);
            assert!(!echoes(&mut stream, SHORT), "the interface has no endpoint");
        }
    }

    fn without_records_workloads_are_denied_and_the_host_keeps_connections_and_failsafe_ports() {
        let lab = lab();
        let (a, b, node, outside) = (place("a"), place("b"), LabHost::Node, LabHost::Outside);
        let tcp = |port| FailsafePort { protocol: Protocol::TCP, port, net: None };
        let udp = |port| FailsafePort { protocol: Protocol::UDP, port, net: None };
        let policy = Settings {
            failsafe_inbound: vec![tcp(22)],
            failsafe_outbound: vec![udp(53)],
            ..Settings::default()
        };
        let mut generation = Generation::load(&HookSettings { policy, ..HookSettings::default() });
        content().write(&lab, &generation);
        generation.attach(&lab, 0).unwrap();
        for family in [Family::V4, Family::V6] {
            generation.write(MapKind::Current, 0, &1_u64.to_ne_bytes());
            let mut of_host = [connect(&lab, &outside, &node, family), connect(&lab, &node, &outside, family)];
            let mut of_pods = connect(&lab, &a, &b, family);
            // This generation holds no state.
            generation.write(MapKind::Current, 0, &2_u64.to_ne_bytes());
            for stream in &mut of_host {
                assert!(echoes(stream, LONG), "connections of the host stay");
            }
            assert!(!echoes(&mut of_pods, SHORT), "workloads have nothing");
            check_of(&[family], &lab, &[
                (&a, &b, Port::tcp(80), false),
                (&a, &node, Port::tcp(22), false),
                (&node, &a, Port::tcp(80), false),
                (&outside, &a, Port::tcp(80), false),
                (&node, &outside, Port::udp(53), true),
                (&node, &outside, Port::tcp(80), false),
                (&outside, &node, Port::tcp(22), true),
                (&outside, &node, Port::tcp(80), false),
            ]);
        }
    }

    fn endpoint_to_host_action_applies() {
        let lab = lab();
        let (a, b, node) = (place("a"), place("b"), LabHost::Node);
        for (endpoint_to_host, open) in
            [(EndpointToHost::Allow, true), (EndpointToHost::Undecided, true), (EndpointToHost::Deny, false)]
        {
            let policy = Settings { endpoint_to_host, ..Settings::default() };
            let _generation = attach_programs(&lab, &content(), &HookSettings { policy, ..HookSettings::default() });
            check(&lab, &[
                (&a, &node, Port::tcp(22), open),
                (&a, &node, Port::udp(80), false),
                (&b, &node, Port::tcp(22), false),
            ]);
        }
    }

    fn sources_that_are_not_the_workloads_are_dropped() {
        let lab = lab();
        let (a, b) = (place("a"), place("b"));
        let mut content = content();
        content.pods[0].1.egress = vec![allow_all()];
        content.pods[1].1.ingress = vec![allow_all()];
        let generation = attach_programs(&lab, &content, &HookSettings::default());
        let (from, to) = (lab.namespace(&a).unwrap(), lab.namespace(&b).unwrap());
        from.ip(["addr add 192.168.1.99/32 dev eth0", "addr add fd00:10::99/128 dev eth0 nodad"]).unwrap();
        for (good, spoofed, target) in [
            ("192.168.1.10:0", "192.168.1.99:0", "192.168.1.11:7777"),
            ("[fd00:10::a]:0", "[fd00:10::99]:0", "[fd00:10::b]:7777"),
        ] {
            let receiver = to.run(|| UdpSocket::bind(target).unwrap()).unwrap();
            receiver.set_read_timeout(Some(LONG)).unwrap();
            let before = generation.counted(DecisionId::default());
            let send = |source: &str, text: &[u8]| {
                let socket = from.run(|| UdpSocket::bind(source).unwrap()).unwrap();
                socket.send_to(text, target).unwrap();
            };
            send(spoofed, b"spoofed");
            send(good, b"good");
            let mut text = [0; 16];
            let length = receive(&receiver, &mut text).unwrap();
            assert_eq!(&text[..length], b"good");
            let after = generation.counted(DecisionId::default());
            assert!(after.packets > before.packets, "{before:?} {after:?}");
        }
    }

    fn pods_without_address_may_send_dhcp_requests() {
        let lab = lab();
        let a = place("a");
        let mut content = content();
        content.pods[0].1.egress = vec![allow_all()];
        let server = lab.node().run(|| UdpSocket::bind("0.0.0.0:67").unwrap()).unwrap();
        server.set_read_timeout(Some(LONG)).unwrap();
        let sender = FrameSender::open(lab.namespace(&a).unwrap(), "eth0").unwrap();
        let mut text = [0; 16];
        sender.send(&request([1, 0, 0, 0], *b"first")).unwrap();
        assert_eq!(receive(&server, &mut text).unwrap(), 5, "no policy is in force");
        let policy = Settings { endpoint_to_host: EndpointToHost::Allow, ..Settings::default() };
        let _generation = attach_programs(&lab, &content, &HookSettings { policy, ..HookSettings::default() });
        for (source, text) in [([1, 0, 0, 0], b"spoof"), ([0, 0, 0, 0], b"asked")] {
            sender.send(&request(source, *text)).unwrap();
        }
        let length = receive(&server, &mut text).unwrap();
        assert_eq!(&text[..length], b"asked");
    }

    fn fragments_get_the_verdict_of_the_first() {
        let lab = lab();
        let (outside, b) = (LabHost::Outside, place("b"));
        let generation = attach_programs(&lab, &content(), &HookSettings::default());
        let (from, to) = (lab.namespace(&outside).unwrap(), lab.namespace(&b).unwrap());
        for (any, address) in [("0.0.0.0:0", "192.168.1.11"), ("[::]:0", "[fd00:10::b]")] {
            let receiver = to.run(|| UdpSocket::bind(format!("{address}:83")).unwrap()).unwrap();
            receiver.set_read_timeout(Some(SHORT)).unwrap();
            let sender = from.run(|| UdpSocket::bind(any).unwrap()).unwrap();
            sender.send_to(&[7; 5000], format!("{address}:83")).unwrap();
            assert!(receive(&receiver, &mut [0; 8192]).is_err(), "port 83 is denied");
            let mut content = content();
            content.pods[1].1.ingress = vec![allow(Protocol::UDP, &[83])];
            content.write(&lab, &generation);
            receiver.set_read_timeout(Some(LONG)).unwrap();
            sender.send_to(&[7; 5000], format!("{address}:83")).unwrap();
            assert_eq!(receive(&receiver, &mut [0; 8192]).unwrap(), 5000);
            self::content().write(&lab, &generation);
        }
    }

    fn packets_are_counted_per_decision() {
        let lab = lab();
        let (a, b) = (place("a"), place("b"));
        let mut generation = Generation::load(&HookSettings::default());
        let mut content = content();
        content.pods[0].1.egress = vec![Rule::new(RuleAction::Allow)];
        let tables = content.write(&lab, &generation);
        generation.attach(&lab, 0).unwrap();
        let counted = || -> u64 {
            let decided = (1..8).map(|number| DecisionId::from_cell(number << 2));
            let of_b = decided.filter(|decision| {
                let (_, by) = tables.decided(*decision);
                by.is_some_and(|by| format!("{by:?}").contains("x/b"))
            });
            of_b.map(|decision| generation.counted(decision).packets).sum()
        };
        let before = counted();
        let mut stream = connect(&lab, &a, &b, Family::V4);
        for _ in 0..5 {
            assert!(echoes(&mut stream, LONG));
        }
        let after = counted();
        assert_eq!(after, before + 1, "one packet began the connection");
    }

    fn rules_of_both_directions_are_counted_apart() {
        let lab = lab();
        let (b, node, outside) = (place("b"), LabHost::Node, LabHost::Outside);
        let mut generation = Generation::load(&HookSettings::default());
        let tables = content().write(&lab, &generation);
        generation.attach(&lab, 0).unwrap();
        // The first rules of the policy's two lists.
        let counted = || {
            [Direction::Ingress, Direction::Egress].map(|direction| {
                let decided = (1..16).map(|number| DecisionId::from_cell(number << 2));
                let is_it = |decision: &DecisionId| {
                    let (_, by) = tables.decided(*decision);
                    let is_first = |by: &DecidedBy| {
                        matches!(by, DecidedBy::PolicyRule { policy, index: 0, .. } if *policy.name == *b.to_string())
                    };
                    tables.decided_direction(*decision) == Some(direction) && by.is_some_and(is_first)
                };
                let found: Vec<DecisionId> = decided.filter(is_it).collect();
                let [decision] = found[..] else { panic!("{direction:?}: {found:?}") };
                generation.counted(decision).packets
            })
        };
        assert_eq!(counted(), [0, 0]);
        drop(connect(&lab, &outside, &b, Family::V4));
        let [to, from] = counted();
        assert_eq!((to, from), (1, 0), "a connection to it");
        check(&lab, &[(&b, &outside, Port::udp(53), true), (&node, &b, Port::udp(80), true)]);
        let [still, from] = counted();
        assert!(still == to && from >= 1, "{still} and {from}");
    }
}
