//! Routing rules, and tables that only they lead to.

use std::process::Command;

use tortie_dataplane::{
    Route, RouteChange, RouteKind, RouteScope, RouteTableIndex, RouteTarget, RoutingRule, RoutingRuleChange,
};
use tortie_lab::kernel_test;
use tortie_model::Family;

use super::{in_namespace, route_to, via};
use crate::netlink::routing_rule::{encode, parse};
use crate::netlink::wire::{self, RTM_NEWRULE};

fn rule(family: Family, table: u32) -> RoutingRule {
    RoutingRule {
        family,
        priority: 99,
        mark: 0x20_0000,
        mask: 0x20_0000,
        is_inverted: true,
        table: RouteTableIndex(table),
        has_more: false,
    }
}

#[test]
fn written_rules_are_read_back() {
    for family in Family::ALL {
        for table in [1, 250, 256, 0x7fff_ffff] {
            for is_inverted in [true, false] {
                let rule = RoutingRule { is_inverted, ..rule(family, table) };
                assert_eq!(parse(family, RTM_NEWRULE, &encode(&rule)).unwrap(), Some(rule));
            }
        }
    }
    assert_eq!(parse(Family::V6, RTM_NEWRULE, &encode(&rule(Family::V4, 1))).unwrap(), None);
}

/// `ip rule add not fwmark 0x200000/0x200000 table 1 priority 99`, as Linux 6.1 lists it.
#[cfg(target_endian = "little")]
#[test]
fn a_rule_as_the_kernel_lists_it() {
    #[rustfmt::skip]
    let listed = [
        2, 0, 0, 0, 1, 0, 0, 1, 2, 0, 0, 0,
        8, 0, 15, 0, 1, 0, 0, 0,
        8, 0, 14, 0, 255, 255, 255, 255,
        8, 0, 6, 0, 99, 0, 0, 0,
        5, 0, 21, 0, 3, 0, 0, 0,
        8, 0, 10, 0, 0, 0, 32, 0,
        8, 0, 16, 0, 0, 0, 32, 0,
    ];
    assert_eq!(parse(Family::V4, RTM_NEWRULE, &listed).unwrap(), Some(rule(Family::V4, 1)));
    let with = |offset: usize, value: u8| {
        let mut bytes = listed;
        bytes[offset] = value;
        parse(Family::V4, RTM_NEWRULE, &bytes).unwrap()
    };
    let asks_more = Some(RoutingRule { has_more: true, ..rule(Family::V4, 1) });
    assert_eq!(with(2, 32), asks_more, "a source");
    assert_eq!(with(24, 0), asks_more, "a prefix length that is suppressed");
    assert_eq!(with(7, 2), None, "a rule that jumps to another");
    assert!(parse(Family::V4, RTM_NEWRULE, &listed[..11]).is_err());
    let other = [&listed[..], &wire::attribute(3, b"eth0\0")].concat();
    assert_eq!(parse(Family::V4, RTM_NEWRULE, &other).unwrap(), asks_more, "an interface");
}

kernel_test! {
    fn rules_are_made_and_removed_and_others_left_alone() {
        in_namespace(|namespace, netlink, _| {
            for (family, option) in [(Family::V4, "-4"), (Family::V6, "-6")] {
                let ip = |line: &str| {
                    let line = format!("{option} rule add {line}");
                    namespace.output(Command::new("ip").args(line.split(' ')), "").unwrap();
                };
                ip("priority 98 fwmark 0x1 table 200");
                for table in [1, 1000] {
                    let index = RouteTableIndex(table);
                    let rule = rule(family, table);
                    assert_eq!(netlink.routing_rules(family, index).unwrap(), []);
                    netlink.change_routing_rule(&RoutingRuleChange::Add(rule)).unwrap();
                    let again = netlink.change_routing_rule(&RoutingRuleChange::Add(rule)).unwrap_err();
                    assert!(again.already_exists(), "{again}");
                    assert_eq!(netlink.routing_rules(family, index).unwrap(), [rule]);

                    ip(&format!("priority 97 iif lo table {table}"));
                    let found = netlink.routing_rules(family, index).unwrap();
                    let more = RoutingRule { priority: 97, mark: 0, mask: 0, is_inverted: false, has_more: true, ..rule };
                    assert_eq!(found, [more, rule]);
                    netlink.change_routing_rule(&RoutingRuleChange::Delete(more)).unwrap();
                    netlink.change_routing_rule(&RoutingRuleChange::Delete(rule)).unwrap();
                    assert_eq!(netlink.routing_rules(family, index).unwrap(), []);
                    let gone = netlink.change_routing_rule(&RoutingRuleChange::Delete(rule)).unwrap_err();
                    assert!(gone.is_not_found(), "{gone}");
                }
                assert_eq!(netlink.routing_rules(family, RouteTableIndex(200)).unwrap().len(), 1);
            }
        });
    }

    fn tables_do_not_know_of_each_others_routes() {
        in_namespace(|_, netlink, [w0, _]| {
            for (family, destination, scope) in
                [(Family::V4, "10.65.0.2/32", RouteScope::LINK), (Family::V6, "fd00:65::2/128", RouteScope::UNIVERSE)]
            {
                let own = RouteTableIndex(1);
                let main = netlink.routes(family, RouteTableIndex::MAIN).unwrap();
                assert_eq!(netlink.routes(family, own).unwrap(), []);
                let by_device = route_to(destination, via(w0, scope));
                let nothing = RouteTarget { kind: RouteKind::Throw, interface: None, ..via(0, RouteScope::UNIVERSE) };
                let throw = route_to(destination, nothing);
                let set = |netlink: &mut crate::netlink::Netlink, route: &Route| {
                    netlink.change_routes(own, &[RouteChange::Replace(route.clone())]).unwrap().remove(0).unwrap();
                };
                for route in [&throw, &by_device, &throw, &by_device] {
                    set(netlink, route);
                    assert_eq!(netlink.routes(family, own).unwrap(), std::slice::from_ref(route));
                }
                assert_eq!(netlink.routes_of(family, own, w0).unwrap(), std::slice::from_ref(&by_device));
                assert_eq!(netlink.routes_of(family, RouteTableIndex(2), w0).unwrap(), []);
                assert_eq!(netlink.routes(family, RouteTableIndex::MAIN).unwrap(), main);
                netlink.change_routes(own, &[RouteChange::Delete(by_device)]).unwrap().remove(0).unwrap();
                assert_eq!(netlink.routes(family, own).unwrap(), []);
            }
        });
    }
}
