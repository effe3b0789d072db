use std::time::Instant;

use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_model::Family;

use super::*;

#[test]
fn any_bytes_are_a_message() {
    let mut transactions = Transactions { tables: vec![TableId::calico(Family::V4)], is_touched: false, count: 0 };
    let ours = [&[2, 0, 0, 0, 11, 0, 1, 0][..], b"calico\0\0"].concat();
    for len in 0..ours.len() - 1 {
        transactions.on_message(SUBSYSTEM | 6, &ours[..len]);
        transactions.on_message(NFT_MSG_NEWGEN, &[]);
        assert_eq!(transactions.count, 0, "{len}");
    }
    let of_ipv6 = [&[10], &ours[1..]].concat();
    for (kind, payload, count) in [(6, &of_ipv6, 0), (6, &ours, 1), (0, &ours, 2), (15, &ours, 2)] {
        transactions.on_message(SUBSYSTEM | kind, payload);
        transactions.on_message(NFT_MSG_NEWGEN, &[]);
        assert_eq!(transactions.count, count, "{kind} {payload:?}");
    }
}

kernel_test! {
    fn transactions_on_tables_are_counted_and_others_are_not() {
        let namespace = Namespace::new().unwrap();
        let tables = Family::ALL.map(TableId::calico);
        let open = || RulesetSubscription::open(&tables, Duration::from_millis(100)).unwrap();
        let mut subscription = namespace.run(open).unwrap();
        assert_eq!(subscription.receive().unwrap(), None);
        for (line, counted) in [
            ("nft add table ip calico", 1),
            ("nft add table ip6 calico", 2),
            ("nft add table inet calico", 2),
            ("nft add table ip others", 2),
            ("nft 'add chain ip calico a; add rule ip calico a drop; add chain ip6 calico b'", 3),
            ("nft 'add set ip calico s { type ipv4_addr ; }; add element ip calico s { 10.0.0.1 }'", 4),
            ("nft delete element ip calico s { 10.0.0.1 }", 5),
            ("nft flush chain ip calico a", 6),
            ("iptables-nft -A INPUT -j ACCEPT", 6),
            ("nft 'add set ip calico cali40d-x.0 { type ipv4_addr ; }'", 7),
            ("nft add element ip calico cali40d-x.0 { 10.0.0.1, 10.0.0.2 }", 7),
            ("nft delete element ip calico cali40d-x.0 { 10.0.0.1 }", 7),
            ("nft 'add element ip calico cali40d-x.0 { 10.0.0.1 }; add element ip calico s { 10.0.0.3 }'", 8),
            ("nft delete table ip calico", 9),
            ("nft flush ruleset", 10),
        ] {
            namespace.shell(line).unwrap();
            let (begun, mut last) = (Instant::now(), None);
            while begun.elapsed() < Duration::from_millis(300) {
                last = subscription.receive().unwrap().or(last);
            }
            assert_eq!(last.unwrap_or(counted), counted, "{line}");
            assert_eq!(subscription.transactions.count, counted, "{line}");
        }
    }
}
