//! Replay of Felix's tests of its eBPF programs: `tortie-evaluate`, the tables of `tortie-ebpf`
//! read in Rust, the program in `rbpf` and the program in the kernel give the recorded verdicts and
//! rule ids.

use std::cell::RefCell;

use tortie_classes::{Classes, Compiled, GroupId};
use tortie_ebpf::{DecisionId, Tables};
use tortie_evaluate::{DecidedBy, Evaluator, Explanation, Layer, Packet, Settings, Verdict};
use tortie_model::Direction;
use tortie_testkit::golden;

use crate::recorded_format::{Case, Messages, Policies, RecordedPacket, host, pod, recorded};
use crate::tables::{Kernel, Machine, memory};

/// Verdict for a packet, with its cause if known.
type Decision = (Verdict, Option<DecidedBy>);

/// An evaluation of an endpoint: of the workload, or of a layer of the host.
type Engine<'a> = dyn Fn(Option<Layer>, &Packet) -> Decision + 'a;

/// Evaluates in the order of Felix's program. Returns each intermediate result as well.
fn verdict(policies: &Policies, packet: &RecordedPacket, evaluate: &Engine<'_>) -> (&'static str, Vec<Decision>) {
    let decisions = RefCell::new(Vec::new());
    let evaluate = |layer, packet: &Packet| {
        let answer = evaluate(layer, packet);
        let verdict = answer.0;
        decisions.borrow_mut().push(answer);
        verdict
    };
    let found = in_order(policies, packet, &evaluate);
    (found, decisions.into_inner())
}

fn in_order(
    policies: &Policies,
    packet: &RecordedPacket,
    evaluate: &dyn Fn(Option<Layer>, &Packet) -> Verdict,
) -> &'static str {
    if policies.xdp {
        return match evaluate(Some(Layer::Untracked), &packet.before_nat()) {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
            Verdict::Undecided => "no_match",
        };
    }
    let behind_nat = packet.packet();
    let before_nat = match policies.host_pre_dnat_tiers.is_empty() {
        true => Verdict::Undecided,
        false => evaluate(Some(Layer::PreDnat), &packet.before_nat()),
    };
    let by_host = match (before_nat, packet.to_host || packet.from_host) {
        (Verdict::Undecided, true) if policies.suppress_normal_host_policy => Verdict::Allow,
        (Verdict::Undecided, true) => evaluate(Some(Layer::Normal), &behind_nat),
        (Verdict::Undecided, false) => evaluate(Some(Layer::Forward), &behind_nat),
        (decided, _) => decided,
    };
    // The host's policies apply to a workload's interface only if there are some.
    let is_governed = policies.host_interface || !policies.host_forward_tiers.is_empty();
    match by_host {
        Verdict::Deny if is_governed => "deny",
        _ if policies.host_interface => "allow",
        _ if evaluate(None, &behind_nat) == Verdict::Allow => "allow",
        _ => "deny",
    }
}

fn group(compiled: &Compiled<'_>, layer: Option<Layer>) -> GroupId {
    match layer {
        Some(layer) => compiled.host_group(&host(), layer, Direction::Ingress).unwrap(),
        None => compiled.workload_group(&pod(), Direction::Ingress).unwrap(),
    }
}

fn explain(evaluator: &Evaluator, layer: Option<Layer>, packet: &Packet) -> Explanation {
    let explained = match layer {
        Some(layer) => evaluator.explain_host(&host(), layer, Direction::Ingress, packet),
        None => evaluator.explain_workload(&pod(), Direction::Ingress, packet),
    };
    explained.unwrap()
}

/// Returns the numbers of cases, packets, and packets with rule ids, and the differences from the
/// recording.
fn compare(lines: &[&str]) -> ((usize, usize, usize), Vec<String>) {
    // Without failsafe ports, which Felix implements in another program.
    let settings = Settings::default();
    let kernel = Kernel::new();
    let (mut packets, mut with_ids) = (0, 0);
    let mut different = Vec::new();
    for line in lines {
        let case = Case::parse(line);
        let Messages { updates, ids } = Messages::of(&case);
        let (mut evaluator, mut classes) = (Evaluator::new(settings.clone()), Classes::new(settings.clone()));
        for update in updates {
            evaluator.apply(&update).unwrap();
            classes.apply(&update).unwrap();
        }
        let compiled = classes.flush();
        let mut tables = Tables::new(&compiled);
        let machine = Machine::of(&mut tables, &kernel);
        packets += case.packets.len();
        with_ids += case.packets.iter().filter(|packet| packet.rule_ids.is_some()).count();
        for packet in &case.packets {
            let trail = RefCell::new(Vec::new());
            let evaluated = |layer: Option<Layer>, packet: &Packet| {
                let explanation = explain(&evaluator, layer, packet);
                trail.borrow_mut().extend(ids.trail(&explanation));
                (explanation.answer.verdict, Some(explanation.answer.decided_by))
            };
            let decided = |decision| {
                let (verdict, by) = tables.decided(decision);
                (verdict, by.cloned())
            };
            let in_tables = |layer: Option<Layer>, packet: &Packet| {
                decided(tables.decide(group(&compiled, layer), Direction::Ingress, packet))
            };
            let in_rbpf = |layer: Option<Layer>, packet: &Packet| {
                let question = memory(&tables, group(&compiled, layer), Direction::Ingress, packet);
                let cell = machine.run(packet.family(), question);
                decided(DecisionId::from_cell(u32::try_from(cell).unwrap_or_default()))
            };
            let in_kernel = |layer: Option<Layer>, packet: &Packet| {
                decided(kernel.decide(&tables, group(&compiled, layer), Direction::Ingress, packet))
            };
            let engines: [&Engine<'_>; 4] = [&evaluated, &in_tables, &in_rbpf, &in_kernel];
            let found = engines.map(|evaluate| verdict(&case.rules, packet, evaluate));
            let [(_, decisions), ..] = &found;
            if found.iter().any(|(verdict, by)| *verdict != packet.verdict || by != decisions) {
                different.push(format!("{}: {found:?} {packet:?}", case.id));
            }
            if let Some(expected) = &packet.rule_ids {
                let trail = trail.into_inner();
                // All engines agree that the deciding rule has the last id.
                let last = decisions.last().and_then(|(_, by)| ids.of(by.as_ref()?));
                if recorded(&trail) != &expected[..] || last.as_ref() != trail.last() {
                    different.push(format!("{}: rules {trail:?}, the last {last:?}, of {packet:?}", case.id));
                }
            }
        }
    }
    ((lines.len(), packets, with_ids), different)
}

#[test]
fn verdicts_and_rules_are_those_of_felix() {
    let Some(text) = golden::text(env!("CARGO_MANIFEST_DIR"), "ebpf_policy_cases.jsonl.gz") else { return };
    let lines: Vec<&str> = text.lines().skip(1).collect();
    let (counts, different) = compare(&lines);
    assert!(different.is_empty(), "{}", different.join("\n"));
    golden::assert_count("cases, packets, and those with rule ids", counts, (68, 406, 10));
}

/// Returns a case with one tier and one policy, for IPv4 or IPv6, and packets as protocol, payload,
/// verdict and rule id.
fn case(ip_version: u8, rules: &str, ip_sets: &str, packets: &[(u8, &str, &str, &str)]) -> String {
    let (source, destination) = if ip_version == 4 { ("10.0.0.1", "10.0.0.2") } else { ("fd00::1", "fd00::2") };
    let packet = |(protocol, rest, verdict, id): &(u8, &str, &str, &str)| {
        format!(
            r#"{{"proto":{protocol},"src":"{source}","dst":"{destination}",{rest},"verdict":"{verdict}","rule_ids":["{id}"]}}"#
        )
    };
    let packets = packets.iter().map(packet).collect::<Vec<_>>().join(",");
    let tier = format!(
        r#"{{"name":"t","end_action":"deny","end_rule_id":"9","policies":[{{"name":"p","rules":[{rules}]}}]}}"#
    );
    format!(
        r#"{{"id":"own","ip_version":{ip_version},"ip_sets":{{{ip_sets}}},"rules":{{"tiers":[{tier}]}},"packets":[{packets}]}}"#
    )
}

/// Features that other recorded cases may have.
#[test]
fn cases_with_other_protocols_are_read() {
    let to = |port: u16| format!(r#""sport":1,"dport":{port}"#);
    let (to_7, to_80, to_81) = (to(7), to(80), to(81));
    let cases = [
        case(
            4,
            r#"{"action":"allow","match_id":"1","protocol":"UDPLite"},{"action":"allow","match_id":"2","not_protocol":"icmpv6"}"#,
            "",
            &[(136, &to_80, "allow", "1"), (6, &to_80, "allow", "2"), (58, &to_80, "deny", "9")],
        ),
        case(
            6,
            r#"{"action":"allow","match_id":"1","icmp":{"type":8}},{"action":"allow","match_id":"2","not_icmp":{"type":10}}"#,
            "",
            &[
                (1, r#""icmp_type":8,"icmp_code":0"#, "allow", "1"),
                (1, r#""icmp_type":9,"icmp_code":0"#, "allow", "2"),
                (1, r#""icmp_type":10"#, "deny", "9"),
            ],
        ),
        case(
            6,
            r#"{"action":"deny","match_id":"1","protocol":"ICMPv6","icmp":{"type":128}},{"action":"allow","match_id":5,"protocol":"58"}"#,
            "",
            &[(58, r#""icmp_type":128"#, "deny", "1"), (58, r#""icmp_type":129"#, "allow", "5")],
        ),
        case(
            4,
            r#"{"action":"allow","match_id":"1","dst_named_port_sets":["s"]},{"action":"allow","match_id":"3","dst_ports":[[7,7]]}"#,
            r#""s":["10.0.0.2/32,sctp:80","10.0.0.2/32,udplite:81","10.0.0.2/32,6:81"]"#,
            &[
                (132, &to_80, "allow", "1"),
                (6, &to_80, "deny", "9"),
                (6, &to_81, "allow", "1"),
                (136, &to_81, "deny", "9"),
                (136, &to_7, "allow", "3"),
            ],
        ),
    ];
    let lines: Vec<&str> = cases.iter().map(String::as_str).collect();
    assert_eq!(compare(&lines), ((4, 13, 13), vec![]));
    let [first, ..] = &cases;
    let wrong = first.replace(r#""rule_ids":["2"]"#, r#""rule_ids":["1"]"#);
    let (_, different) = compare(&[&wrong]);
    assert_eq!(different.len(), 1, "another rule is noticed: {different:?}");
}
