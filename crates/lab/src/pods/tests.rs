use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use super::{Family, Flow, FlowOutcome, Lab, LabHost, LabOptions, Pod, Port, Timing, interface_name};
use crate::kernel_test;

fn cluster(pods: u8) -> Vec<Pod> {
    let ports = || [80, 81].into_iter().flat_map(|port| [Port::tcp(port), Port::udp(port), Port::sctp(port)]);
    (0..pods)
        .map(|index| {
            let addresses = [format!("192.168.1.{}", 10 + index), format!("fd00:10::{:x}", 10 + index)]
                .map(|text| text.parse().unwrap());
            Pod::new("x", &format!("p{index}"), addresses, ports())
        })
        .collect()
}

fn flow(from: &str, to: &str, port: Port, family: Family) -> Flow {
    Flow { from: from.parse().unwrap(), to: to.parse().unwrap(), port, family }
}

#[test]
fn interface_names_are_those_of_the_cni_plugin() {
    assert_eq!(interface_name(&LabHost::pod("default", "nginx")).as_deref(), Some("calic440f455693"));
    assert_eq!(interface_name(&LabHost::Node), None);
}

kernel_test! {
    fn first_reached_returns_the_time_of_the_first_answer() {
        let lab = Lab::new(&cluster(2), &LabOptions::default()).unwrap();
        let flows = [flow("x/p0", "x/p1", Port::tcp(80), Family::V4), flow("x/p0", "x/p1", Port::udp(80), Family::V6)];
        lab.node().shell("iptables -w -P FORWARD DROP; ip6tables -w -P FORWARD DROP").unwrap();
        assert_eq!(lab.first_reached(&flows, Duration::from_millis(300)).unwrap(), None);
        for command in ["iptables -w -P FORWARD ACCEPT", "ip6tables -w -P FORWARD ACCEPT"] {
            lab.node().shell("iptables -w -P FORWARD DROP; ip6tables -w -P FORWARD DROP").unwrap();
            std::thread::scope(|scope| {
                let watching = scope.spawn(|| lab.first_reached(&flows, Duration::from_secs(10)).unwrap());
                std::thread::sleep(Duration::from_millis(100));
                let opened = Instant::now();
                lab.node().shell(command).unwrap();
                let answered = watching.join().unwrap().expect("an answer");
                assert!(answered > opened && answered < opened + Duration::from_secs(5), "{:?}", answered - opened);
            });
        }
    }

    fn without_policy_all_flows_succeed_and_rules_block_exactly_their_flows() {
        let lab = Lab::new(&cluster(4), &LabOptions::default()).unwrap();
        let flows = lab.flows();
        assert_eq!(flows.len(), 4 * 3 * 6 * 2);
        let open = lab.probe(&flows, &Timing::default()).unwrap();
        let missing: Vec<_> = open.iter().filter(|(_, outcome)| **outcome != FlowOutcome::Reached).collect();
        assert!(missing.is_empty(), "{missing:?}");

        lab.node().shell(
            "iptables -w -A FORWARD -s 192.168.1.10 -d 192.168.1.11 -j DROP
             iptables -w -A FORWARD -s 192.168.1.12 -d 192.168.1.11 -p sctp --dport 81 -j DROP
             iptables -w -A FORWARD -s 192.168.1.12 -d 192.168.1.10 -p tcp --dport 80 -j REJECT --reject-with tcp-reset
             ip6tables -w -A FORWARD -s fd00:10::b -d fd00:10::c -p udp --dport 80 -j DROP",
        ).unwrap();
        // The first rule also matches answers to 192.168.1.11, so flows from p1 to p0 fail as well.
        let mut blocked: Vec<Flow> = flows
            .iter()
            .filter(|flow| flow.family == Family::V4)
            .filter(|flow| [("x/p0", "x/p1"), ("x/p1", "x/p0")].map(|(a, b)| (a.to_owned(), b.to_owned()))
                .contains(&(flow.from.to_string(), flow.to.to_string())))
            .cloned()
            .collect();
        blocked.push(flow("x/p2", "x/p1", Port::sctp(81), Family::V4));
        blocked.push(flow("x/p1", "x/p2", Port::udp(80), Family::V6));
        blocked.sort();
        let refused = flow("x/p2", "x/p0", Port::tcp(80), Family::V4);
        let measured = lab.probe(&flows, &Timing::default()).unwrap();
        assert!(matches!(measured.outcome(&refused), Some(FlowOutcome::Refused(_))));
        let silent: Vec<Flow> =
            measured.iter().filter(|(_, outcome)| **outcome == FlowOutcome::Silent).map(|(flow, _)| flow.clone()).collect();
        assert_eq!(silent, blocked);
        assert_eq!(flows.iter().filter(|flow| measured.reached(flow)).count(), flows.len() - blocked.len() - 1);
    }

    fn pods_come_and_go_and_change_address_under_the_same_name() {
        let mut pods = cluster(3);
        let mut lab = Lab::new(&pods, &LabOptions::default()).unwrap();
        let all_reached = |lab: &Lab| {
            let flows = lab.flows();
            let measured = lab.probe(&flows, &Timing::default()).unwrap();
            let missing: Vec<&Flow> = flows.iter().filter(|flow| !measured.reached(flow)).collect();
            assert!(missing.is_empty(), "{missing:?}");
            flows.len()
        };
        assert_eq!(all_reached(&lab), 3 * 2 * 12);
        pods[0].addresses = vec!["192.168.1.77".parse().unwrap()];
        pods.pop();
        lab.set_pods(&pods).unwrap();
        assert_eq!(all_reached(&lab), 2 * 6);
        lab.set_pods(&cluster(3)).unwrap();
        assert_eq!(all_reached(&lab), 3 * 2 * 12);
    }

    fn the_node_side_is_left_to_the_agent_on_request() {
        let lab = Lab::new(&cluster(2), &LabOptions::for_agent()).unwrap();
        let measured = lab.probe(&lab.flows(), &Timing::default()).unwrap();
        assert!(measured.iter().all(|(_, outcome)| *outcome != FlowOutcome::Reached), "{measured}");
    }

    fn node_and_outside_can_send_and_receive() {
        let mut lab = Lab::new(&cluster(1), &LabOptions::default()).unwrap();
        lab.serve(&LabHost::Node, &[Port::tcp(22)]).unwrap();
        lab.serve(&LabHost::Outside, &[Port::udp(53)]).unwrap();
        let pod = LabHost::pod("x", "p0");
        let flows: Vec<Flow> = [Family::V4, Family::V6]
            .into_iter()
            .flat_map(|family| [
                Flow { from: pod.clone(), to: LabHost::Node, port: Port::tcp(22), family },
                Flow { from: pod.clone(), to: LabHost::Outside, port: Port::udp(53), family },
                Flow { from: LabHost::Outside, to: pod.clone(), port: Port::sctp(80), family },
                Flow { from: LabHost::Node, to: pod.clone(), port: Port::tcp(80), family },
            ])
            .collect();
        let measured = lab.probe(&flows, &Timing::default()).unwrap();
        assert!(flows.iter().all(|flow| measured.reached(flow)), "{measured}");
    }

    fn a_connection_stays_open_and_can_be_used() {
        let lab = Lab::new(&cluster(2), &LabOptions::default()).unwrap();
        let mut stream = lab.connect(&flow("x/p0", "x/p1", Port::tcp(80), Family::V4), Duration::from_secs(1)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut greeting = [0; 4];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"x/p1");
        stream.write_all(b"still here").unwrap();
        let mut echo = [0; 10];
        stream.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"still here");
    }
}
