use std::cmp::Ordering;

use tortie_model::{Order, PolicyId, PolicyKind};

use super::{compare_ids, compare_orders};

#[test]
fn no_order_is_last() {
    let order = |number| Order::new(number);
    assert_eq!(compare_orders(order(1.0), None), Ordering::Less);
    assert_eq!(compare_orders(order(f64::INFINITY), None), Ordering::Equal);
    assert_eq!(compare_orders(order(-0.0), order(0.0)), Ordering::Equal);
}

#[test]
fn ids_compare_as_text() {
    let ids = [
        ("a", "", PolicyKind::GlobalNetworkPolicy),
        ("a", "ns", PolicyKind::NetworkPolicy),
        ("a", "ns-2", PolicyKind::NetworkPolicy),
        ("a-b", "", PolicyKind::GlobalNetworkPolicy),
        ("a.b", "", PolicyKind::GlobalNetworkPolicy),
        ("ab", "", PolicyKind::StagedGlobalNetworkPolicy),
        ("ab", "", PolicyKind::GlobalNetworkPolicy),
    ];
    let text = |id: &PolicyId| format!("{}/{}/{}", id.name, id.namespace, id.kind);
    let ids = ids.map(|(name, namespace, kind)| PolicyId::new(kind, namespace, name));
    for a in &ids {
        for b in &ids {
            assert_eq!(compare_ids(a, b), text(a).cmp(&text(b)), "{a} {b}");
        }
    }
}
