use proptest::prelude::*;

use super::*;

const OWN: &str = "tortie-trace-1";
const CLIENT: &str = "10.0.0.1";
const SERVER: &str = "10.0.0.2";

fn headers(from: &str, to: &str) -> LoggedHeaders {
    let [source, destination] = [from, to].map(|text| text.parse().unwrap());
    let ports = |is_original| if is_original { (50000, 80) } else { (80, 50000) };
    let (s, d) = ports(from == CLIENT);
    let tuple = Tuple { source, destination, protocol: 6, flow: Flow::Ports { source: s, destination: d } };
    LoggedHeaders { tuple, length: 60 }
}

fn recorder() -> Recorder {
    Recorder::new(OWN, Source { address: CLIENT.parse().unwrap(), port: Some(50000) })
}

fn message(id: u32, table: &str, chain: &str, event: Event, headers: Option<LoggedHeaders>) -> TraceMessage {
    let chain = Chain { family: 2, table: table.into(), name: chain.into() };
    TraceMessage::for_test(id, chain, event, headers)
}

fn matched(handle: u64) -> Event {
    Event::Rule { handle, verdict: TraceVerdict::Continue }
}

/// A packet begins at the rule that marks it.
fn begins(recorder: &mut Recorder, id: u32, from: &str, to: &str) {
    recorder.take(message(id, OWN, "prerouting", matched(1), Some(headers(from, to))));
    recorder.take(message(id, OWN, "prerouting", Event::Policy(TraceVerdict::Accept), None));
}

fn legacy(table: &str, chain: &str, event: ChainEvent) -> LegacyStep {
    LegacyStep { table: table.into(), chain: chain.into(), event }
}

fn numbered(number: usize) -> ChainEvent {
    ChainEvent::Rule(RuleName::Number(number), None)
}

fn chains(packet: &Packet) -> Vec<&str> {
    packet.steps.iter().map(|step| step.chain.chain()).collect()
}

#[test]
fn steps_belong_to_the_packet_that_is_on_its_way() {
    let mut recorder = recorder();
    begins(&mut recorder, 7, CLIENT, SERVER);
    begins(&mut recorder, 8, SERVER, CLIENT);
    recorder.take(message(7, "raw", "PREROUTING", matched(3), Some(headers(CLIENT, SERVER))));
    recorder.take(message(8, "raw", "PREROUTING", matched(4), None));
    recorder.take(message(9, "raw", "PREROUTING", matched(5), None));
    recorder.take(message(7, "filter", "FORWARD", Event::Policy(TraceVerdict::Drop), None));
    recorder.take(message(8, OWN, "input", Event::Policy(TraceVerdict::Accept), None));
    // The kernel reuses the number of a packet.
    begins(&mut recorder, 7, CLIENT, SERVER);
    recorder.take(message(7, "raw", "PREROUTING", matched(6), None));
    let packets = recorder.finish();
    assert_eq!(
        packets.iter().map(|packet| packet.direction).collect::<Vec<_>>(),
        [FlowDirection::Original, FlowDirection::Reply, FlowDirection::Original]
    );
    assert_eq!(chains(&packets[0]), ["PREROUTING", "FORWARD"], "of others nothing is kept");
    assert_eq!(chains(&packets[2]), ["PREROUTING"]);
    assert_eq!((packets[0].out, packets[1].out), (None, Some(Exit::Node)));
    assert!(packets[0].is_over() && packets[1].is_over() && !packets[2].is_over());
}

#[test]
fn the_final_destination_of_a_packet_is_kept() {
    let mut recorder = recorder();
    begins(&mut recorder, 7, CLIENT, "10.96.0.1");
    let mut end = message(7, OWN, "postrouting", Event::Policy(TraceVerdict::Accept), Some(headers(CLIENT, SERVER)));
    end.out_interface = Some(4);
    recorder.take(end);
    let packets = recorder.finish();
    assert_eq!(packets[0].first, headers(CLIENT, "10.96.0.1"));
    assert_eq!((packets[0].last, packets[0].out), (headers(CLIENT, SERVER), Some(Exit::Interface)));
    assert_eq!(packets[0].out_interface, Some(4));
}

#[test]
fn log_lines_of_iptables_legacy_are_separated_by_packet() {
    let mut recorder = recorder();
    begins(&mut recorder, 1, CLIENT, SERVER);
    begins(&mut recorder, 2, SERVER, CLIENT);
    begins(&mut recorder, 3, CLIENT, SERVER);
    let forth = headers(CLIENT, SERVER).tuple;
    let back = headers(SERVER, CLIENT).tuple;
    for (table, chain, event) in [
        ("raw", "PREROUTING", numbered(1)),
        ("raw", "cali-PREROUTING", numbered(2)),
        ("raw", "PREROUTING", ChainEvent::Policy(None)),
        ("filter", "FORWARD", numbered(1)),
    ] {
        recorder.take_legacy(legacy(table, chain, event), &forth);
    }
    recorder.take_legacy(legacy("raw", "PREROUTING", numbered(1)), &back);
    recorder.take_legacy(legacy("raw", "PREROUTING", numbered(1)), &forth);
    // This packet is dropped at once, and so is its retransmission.
    recorder.take_legacy(legacy("raw", "PREROUTING", numbered(1)), &forth);
    let packets = recorder.finish();
    assert_eq!(chains(&packets[0]), ["PREROUTING", "cali-PREROUTING", "PREROUTING", "FORWARD"]);
    assert_eq!(chains(&packets[1]), ["PREROUTING"]);
    assert_eq!(chains(&packets[2]), ["PREROUTING"]);
}

#[test]
fn both_implementations_are_in_the_order_of_hooks_and_tables() {
    let mut recorder = recorder();
    begins(&mut recorder, 1, CLIENT, SERVER);
    recorder.take(message(1, "mangle", "PREROUTING", matched(1), None));
    recorder.take(message(1, "mangle", "KUBE-X", matched(2), None));
    recorder.take(message(1, "filter", "FORWARD", matched(3), None));
    let tuple = headers(CLIENT, SERVER).tuple;
    for (table, chain) in [("raw", "PREROUTING"), ("raw", "cali-x"), ("nat", "PREROUTING"), ("nat", "POSTROUTING")] {
        recorder.take_legacy(legacy(table, chain, numbered(1)), &tuple);
    }
    let packets = recorder.finish();
    let tables: Vec<&str> = packets[0].steps.iter().map(|step| step.chain.table()).collect();
    assert_eq!(tables, ["raw", "raw", "mangle", "mangle", "nat", "filter", "nat"]);
    assert_eq!(chains(&packets[0])[1..4], ["cali-x", "PREROUTING", "KUBE-X"]);
}

#[test]
fn traces_of_other_processes_are_ignored() {
    let mut recorder = recorder();
    begins(&mut recorder, 1, CLIENT, SERVER);
    let before = recorder.progress();
    let mut others = [headers(CLIENT, SERVER).tuple, headers(SERVER, CLIENT).tuple, headers(SERVER, "10.0.0.9").tuple];
    others[0].flow = Flow::Ports { source: 50001, destination: 80 };
    others[1].flow = Flow::Ports { source: 80, destination: 50001 };
    for tuple in others {
        recorder.take_legacy(legacy("raw", "PREROUTING", numbered(1)), &tuple);
    }
    recorder.take(message(9, "raw", "PREROUTING", matched(5), None));
    assert_eq!(recorder.progress(), before);
    recorder.take(message(1, OWN, "postrouting", Event::Policy(TraceVerdict::Accept), None));
    assert_eq!(recorder.progress(), before + 1, "that it came out is news");
    assert!(recorder.finish()[0].steps.is_empty());
}

#[test]
fn an_answer_to_a_ping_is_an_answer() {
    let source = Source { address: CLIENT.parse().unwrap(), port: None };
    let direction = |from: &str, icmp_type| {
        let flow = Flow::Icmp { id: 1, icmp_type, code: 0 };
        source.direction(&Tuple {
            protocol: 1,
            flow,
            ..headers(from, if from == CLIENT { SERVER } else { CLIENT }).tuple
        })
    };
    assert_eq!(
        (direction(CLIENT, 8), direction(SERVER, 0)),
        (Some(FlowDirection::Original), Some(FlowDirection::Reply))
    );
    assert_eq!((direction(SERVER, 8), direction(CLIENT, 0)), (None, None), "the other one asks");
    assert_eq!(
        (direction(CLIENT, 128), direction(SERVER, 129)),
        (Some(FlowDirection::Original), Some(FlowDirection::Reply))
    );
}

#[test]
fn no_more_is_kept_than_there_is_room_for() {
    let mut recorder = recorder();
    begins(&mut recorder, 1, CLIENT, SERVER);
    for handle in 0..10_000 {
        recorder.take(message(1, "filter", "cali-x", matched(handle), None));
    }
    let kept = MOST_STEPS - 1;
    assert_eq!(recorder.left_out, 10_000 - kept);
    assert_eq!(recorder.finish()[0].steps.len(), kept);
}

#[test]
fn the_answer_is_about_the_packet_that_opens_a_connection() {
    let mut recorder = recorder();
    for (id, from, flags) in [(1, SERVER, 0x12), (2, CLIENT, 0x11), (3, CLIENT, 0x02), (4, CLIENT, 0x02)] {
        let to = if from == CLIENT { SERVER } else { CLIENT };
        let mut message = message(id, OWN, "prerouting", matched(1), Some(headers(from, to)));
        message.tcp_flags = Some(flags);
        recorder.take(message);
    }
    let packets = recorder.finish();
    assert_eq!(principal(&packets), Some(2));
    assert_eq!(principal(&packets[..2]), Some(1), "of those that there are");
    assert_eq!(principal(&packets[..1]), None, "an answer alone is nothing");
}

proptest! {
    /// In any order of messages, each step of a known packet is kept once, or counted.
    #[test]
    fn no_order_is_too_strange(messages in proptest::collection::vec((0_u32..3, 0_usize..6, any::<bool>()), 0..60)) {
        const CHAINS: [&str; 6] = ["PREROUTING", "FORWARD", "POSTROUTING", "cali-x", "prerouting", "input"];
        let mut recorder = recorder();
        let mut expected = 0;
        let mut begun = [false; 3];
        for (id, chain, is_own) in messages {
            let table = if is_own { OWN } else { "filter" };
            let is_begin = is_own && CHAINS[chain] != "input";
            let known = begun[id as usize];
            begun[id as usize] |= is_begin;
            expected += usize::from(!is_own && known);
            let headers = if id == 0 { headers(SERVER, CLIENT) } else { headers(CLIENT, SERVER) };
            recorder.take(message(id, table, CHAINS[chain], matched(1), Some(headers)));
        }
        let kept: usize = recorder.finish().iter().map(|packet| packet.steps.len()).sum();
        prop_assert_eq!(kept, expected);
    }
}
