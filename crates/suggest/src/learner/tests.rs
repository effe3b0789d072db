use serde_json::json;

use super::*;

/// Returns the edges of flows as text, those that count first.
fn edges(flows: &[Value]) -> (Vec<String>, Vec<String>) {
    let mut learner = Learner::new(&[]);
    flows.iter().for_each(|flow| learner.read_flow(flow));
    assert_eq!(learner.unreadable(), 0);
    let record = learner.finish();
    let of = |learned: bool| {
        let edges = record.edges().filter(|(_, edge)| edge.learned.is_empty() != learned);
        edges.map(|(key, _)| key.to_string()).collect()
    };
    (of(true), of(false))
}

fn flow(protocol: &str, ports: (u16, u16), stage: &str, counts: (u64, u64), second: u64) -> Value {
    let time = format!("2026-01-05T10:{:02}:{:02}Z", second / 60, second % 60);
    json!({
        "time": time, "started": time, "stage": stage, "verdict": "allow", "protocol": protocol,
        "packets": counts.0, "reply_packets": counts.1, "egress": [{}], "ingress": [],
        "source": {"kind": "workload", "name": "n/a", "address": "10.0.0.1", "port": ports.0},
        "destination": {"kind": "workload", "name": "n/b", "address": "10.0.0.2", "port": ports.1},
    })
}

fn exchanged(mut flow: Value) -> Value {
    let source = flow["source"].take();
    flow["source"] = std::mem::replace(&mut flow["destination"], source);
    flow
}

const LEARNED: &str = "n/pod/a -> n/pod/b TCP 80";

#[test]
fn tcp_counts_once_it_carried_data_both_ways() {
    let tcp = |stage, packets, replies| edges(&[flow("TCP", (4, 80), stage, (packets, replies), 0)]);
    let (learned, other) = ((vec![LEARNED.to_owned()], vec![]), (vec![], vec![LEARNED.to_owned()]));
    for (stage, packets, replies, is_learned) in [
        ("ended", 3, 2, true),
        ("ended", 1, 1, false),
        ("ended", 4, 0, false),
        ("ended", 3, 1, false),
        ("ended", 2, 9, false),
        ("started", 1, 0, false),
        ("continues", 3, 2, true),
        // Without counters.
        ("ended", 0, 0, true),
        ("started", 0, 0, false),
    ] {
        let expected = if is_learned { &learned } else { &other };
        assert_eq!(tcp(stage, packets, replies), *expected, "{stage} {packets} {replies}");
    }
    let mut older = flow("TCP", (4, 80), "started", (0, 0), 0);
    older["egress"] = json!([]);
    assert_eq!(edges(&[older.clone()]), learned);
    // Without its rules, a line does not show that none decided.
    let mut other_form = older.clone();
    other_form.as_object_mut().unwrap().remove("ingress");
    assert_eq!(edges(&[other_form]), other);
    older["verdict"] = json!("deny");
    assert_eq!(edges(&[older]), other);
}

#[test]
fn a_late_reply_of_udp_is_no_edge() {
    let question = |second| flow("UDP", (4, 53), "ended", (1, 1), second);
    let reply = |second| exchanged(flow("UDP", (4, 53), "started", (1, 0), second));
    let asked = vec!["n/pod/a -> n/pod/b UDP 53".to_owned()];
    assert_eq!(edges(&[question(0), reply(40)]).0, asked);
    assert_eq!(edges(&[reply(40), question(0)]).0, asked);
    // Both ends, and a second question later.
    assert_eq!(edges(&[reply(40), reply(41), question(1), question(0), question(700)]).0, asked);
    assert_eq!(edges(&[question(0), reply(601)]).0, ["n/pod/a -> n/pod/b UDP 53", "n/pod/b -> n/pod/a UDP 4"]);
    // The first of two is the question, whatever its port.
    assert_eq!(edges(&[question(50), reply(40)]).0, ["n/pod/b -> n/pod/a UDP 4"]);
}

#[test]
fn aggregates_count_by_their_evidence_or_their_average() {
    let line = |more: Value| {
        let mut line = json!({
            "start_time": "2026-01-05T10:00:00.000Z", "end_time": "2026-01-05T10:05:00.000Z", "reporter": "egress",
            "verdict": "allow", "protocol": "TCP", "port": 80, "connections_live": 4, "packets": 12, "reply_packets": 8,
            "source": {"kind": "workload", "namespace": "n", "name": "a"},
            "destination": {"kind": "workload", "namespace": "n", "name": "b"},
        });
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        edges(&[line])
    };
    assert_eq!(line(json!({})).0, [LEARNED]);
    assert_eq!(line(json!({"packets": 11})).1, [LEARNED]);
    assert_eq!(line(json!({"packets": 11, "evidence": {"learned": 1, "attempts": 3}})).0, [LEARNED]);
    assert_eq!(line(json!({"evidence": {"attempts": 4}})).1, [LEARNED]);
    assert_eq!(line(json!({"verdict": "deny"})).1, [LEARNED]);
    assert_eq!(line(json!({"at": "host endpoint"})), (vec![], vec![]));
}

#[test]
fn aggregates_have_addresses_and_labels() {
    let line = |destination: Value| {
        json!({
            "start_time": "2026-01-05T10:00:00.000Z", "end_time": "2026-01-05T10:05:00.000Z", "reporter": "egress",
            "verdict": "allow", "protocol": "TCP", "port": 443, "evidence": {"learned": 1}, "destination": destination,
            "source": {
                "kind": "workload", "namespace": "n", "name": "copy-29012345-*",
                "labels": {"job-name": "copy-29012345", "projectcalico.org/namespace": "n"},
            },
        })
    };
    let to = |destination: Value| edges(&[line(destination)]).0;
    let public =
        |more: bool| json!({"kind": "public", "addresses": ["192.0.2.1", "192.0.2.2"], "more_addresses": more});
    assert_eq!(to(public(false)), ["n/cronjob/copy -> 192.0.2.1 TCP 443", "n/cronjob/copy -> 192.0.2.2 TCP 443"]);
    assert_eq!(to(public(true)), ["n/cronjob/copy -> any public address TCP 443"]);
    assert_eq!(to(json!({"kind": "private"})), ["n/cronjob/copy -> an unknown private address TCP 443"]);
    let set = json!({"kind": "network set", "name": "n/partners"});
    assert_eq!(to(set), ["n/cronjob/copy -> network set n/partners TCP 443"]);

    let mut learner = Learner::new(&[]);
    learner.read_flow(&line(public(false)));
    let record = learner.finish();
    let (_, pods) = record.owners().next().unwrap();
    let labels: LabelMap = [("job-name".into(), "copy-29012345".into())].into();
    assert_eq!(pods.label_sets, [labels].into());
}

#[test]
fn unreadable_lines_are_counted() {
    let mut learner = Learner::new(&[]);
    let good = flow("TCP", (4, 80), "ended", (9, 9), 0).to_string();
    learner.read(&format!("{good}\n\n{{\"torn\": \n{good}\n[]\n"));
    learner.read(&good.replace("TCP", "T"));
    learner.read(&good.replace("10.0.0.1", "10.0.0"));
    learner.read(&good.replace("n/a", "n' || all()/a"));
    learner.read(&json!({ "flows": [flow("TCP", (4, 81), "ended", (9, 9), 0)] }).to_string());
    assert_eq!((learner.flows(), learner.unreadable()), (3, 5));
    assert_eq!(learner.finish().edges().len(), 2);
}
