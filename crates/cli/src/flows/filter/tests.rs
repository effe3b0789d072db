use super::*;
use tortie_node::flows::HitRecord;

fn flow() -> FlowRecord {
    let end = |name: &str, address: &str, port| EndRecord {
        kind: "workload".into(),
        name: name.into(),
        address: address.into(),
        port: Some(port),
    };
    FlowRecord {
        verdict: "allow".into(),
        source: end("shop/web", "10.0.0.1", 40000),
        destination: end("shop/db", "10.0.0.2", 5432),
        ingress: vec![HitRecord { policy: Some("NetworkPolicy/shop/db".into()), ..HitRecord::default() }],
        staged: vec![StagedRecord {
            policy: "StagedNetworkPolicy/shop/strict".into(),
            at: None,
            direction: "ingress".into(),
            verdict: "deny".into(),
        }],
        ..FlowRecord::default()
    }
}

#[test]
fn all_that_is_given_must_fit() {
    let text = |text: &str| Some(text.to_owned());
    let all = Filter {
        denied: false,
        from: text("shop/"),
        to: text("10.0.0.2"),
        port: Some(5432),
        policy: text("shop/db"),
        staged: text("strict"),
    };
    assert!(all.matches(&flow()) && Filter::default().matches(&flow()));
    for wrong in [
        Filter { denied: true, ..Filter::default() },
        Filter { from: text("shop"), ..all.clone() },
        Filter { from: text("shop/w"), ..all.clone() },
        Filter { to: text("shop/web"), ..all.clone() },
        Filter { port: Some(40000), ..all.clone() },
        Filter { policy: text("b"), ..all.clone() },
        Filter { staged: text("shop/other"), ..all },
    ] {
        assert!(!wrong.matches(&flow()), "{wrong:?}");
    }
    let mut allowed = flow();
    allowed.staged[0].verdict = "allow".into();
    assert!(!Filter { staged: text("strict"), ..Filter::default() }.matches(&allowed));
    let denied = FlowRecord { verdict: "deny".into(), ..flow() };
    assert!(Filter { denied: true, ..Filter::default() }.matches(&denied));
    assert!(!Filter { staged: text("strict"), ..Filter::default() }.matches(&denied), "it is denied anyway");
}
