use super::*;
use tortie_node::flows::ServiceRecord;

fn flow() -> FlowRecord {
    let end = |name: &str, port| EndRecord {
        kind: String::new(),
        name: name.into(),
        address: "192.0.2.1".into(),
        port: Some(port),
    };
    let rule = |verdict: &str, rule| HitRecord {
        verdict: verdict.into(),
        tier: Some("default".into()),
        policy: Some("NetworkPolicy/shop/db".into()),
        rule: Some(rule),
        profile: None,
    };
    FlowRecord {
        time: "2026-01-02T03:04:05.678Z".into(),
        stage: "started".into(),
        verdict: "allow".into(),
        source: end("shop/web", 40000),
        destination: end("", 5432),
        protocol: "TCP".into(),
        sent_to: Some("10.96.0.1:80".into()),
        egress: vec![HitRecord { verdict: "pass".into(), ..rule("", 0) }, rule("allow", 1)],
        ingress: vec![rule("deny", 2)],
        ..FlowRecord::default()
    }
}

const PLAIN: Text = Text { coloured: false, staged: false };

#[test]
fn a_connection_shows_the_allowing_rule() {
    let allowed = FlowRecord { ingress: Vec::new(), ..flow() };
    assert_eq!(
        PLAIN.line(&allowed),
        "2026-01-02T03:04:05.678Z  started  TCP  shop/web → 192.0.2.1 5432 (sent to 10.96.0.1:80)  \
         egress: NetworkPolicy/shop/db rule 1\n"
    );
    let service = ServiceRecord { name: "shop/sql".into(), port_name: None, port: 80 };
    let named = FlowRecord { service: Some(service), ..allowed.clone() };
    assert!(PLAIN.line(&named).contains(" 5432 (service shop/sql 80)  "), "{}", PLAIN.line(&named));
    let ended = FlowRecord { stage: "ended".into(), bytes: 70, reply_bytes: 5, ..allowed };
    assert!(PLAIN.line(&ended).ends_with("rule 1, 70 B sent, 5 B received\n"));
}

#[test]
fn a_denied_connection_shows_only_the_denying_rule() {
    let denied = FlowRecord { verdict: "deny".into(), sent_to: None, ..flow() };
    let line = PLAIN.line(&denied);
    assert!(line.contains("  denied  TCP  ") && line.ends_with("  ingress: NetworkPolicy/shop/db rule 2\n"), "{line}");
    let again = FlowRecord { stage: "ended".into(), attempts: 3, ..denied };
    let coloured = Text { coloured: true, ..PLAIN }.line(&again);
    assert!(coloured.starts_with(RED) && coloured.contains("denied 3×"), "{coloured}");
}

#[test]
fn columns_are_aligned() {
    let short = FlowRecord { stage: "ended".into(), ..flow() };
    let text = PLAIN.table(&[flow(), short]);
    let at: Vec<usize> = text.lines().map(|line| line.find("TCP").unwrap()).collect();
    assert_eq!(at[0], at[1]);
    assert_eq!(PLAIN.table(&[]), "");
}
