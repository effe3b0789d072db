use serde_json::json;

use super::*;

const PLAIN: Layout = Layout { is_wide: false, has_labels: false, has_titles: true, names_kinds: false };

#[test]
fn lines_are_aligned() {
    let policies = [
        json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"order": 10.0, "selector": "all()"}}),
        json!({"metadata": {"name": "a", "namespace": "x"}, "spec": {"tier": "platform"}}),
    ];
    assert_eq!(
        Table::new(ResourceKind::NetworkPolicy, PLAIN).rows(policies.iter()),
        "NAMESPACE   NAME   TIER       ORDER   SELECTOR\n\
         shop        web    default    10      all()\n\
         x           a      platform\n"
    );
    let set = [json!({"metadata": {"name": "a"}, "spec": {"nets": ["10.0.0.0/8", "::/0"]}})];
    assert_eq!(
        Table::new(ResourceKind::GlobalNetworkSet, PLAIN).rows(set.iter()),
        "NAME   NETS\na      10.0.0.0/8,::/0\n"
    );
}

#[test]
fn later_rows_keep_the_columns() {
    let tier = |name: &str| [json!({"metadata": {"name": name}, "spec": {"order": 5}})];
    let mut table = Table::new(ResourceKind::Tier, PLAIN);
    assert_eq!(table.rows(tier("platform").iter()), "NAME       ORDER   DEFAULTACTION\nplatform   5\n");
    assert_eq!(table.rows(tier("a").iter()), "a          5\n");
    assert_eq!(table.rows(tier("much-longer-name").iter()), "much-longer-name   5\n");
}

#[test]
fn labels_and_kinds_are_shown_and_titles_left_out_on_request() {
    let tier = [json!({"metadata": {"name": "a", "labels": {"b": "c"}}, "spec": {"order": 5}})];
    let layout = Layout { has_labels: true, names_kinds: true, ..PLAIN };
    assert_eq!(
        Table::new(ResourceKind::Tier, layout).rows(tier.iter()),
        "NAME                       ORDER   DEFAULTACTION   LABELS\ntier.projectcalico.org/a   5                       b=c\n"
    );
    let layout = Layout { has_titles: false, ..PLAIN };
    assert_eq!(Table::new(ResourceKind::Tier, layout).rows(tier.iter()), "a   5\n");
}

#[test]
fn wide_tables_have_more_columns() {
    let pool =
        [json!({"metadata": {"name": "pods", "creationTimestamp": "2025-01-02T03:04:05Z", "labels": {"a": "b"}},
        "spec": {"cidr": "10.0.0.0/16", "ipipMode": "Always", "natOutgoing": true, "blockSize": 26}})];
    assert_eq!(
        Table::new(ResourceKind::IpPool, Layout { is_wide: true, ..PLAIN }).rows(pool.iter()),
        "NAME   CIDR          SELECTOR   IPIPMODE   VXLANMODE   NAT    DISABLED   BLOCKSIZE   CREATED                LABELS\n\
         pods   10.0.0.0/16              Always                 true              26          2025-01-02T03:04:05Z   a=b\n"
    );
}
