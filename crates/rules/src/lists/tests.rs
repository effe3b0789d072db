use std::collections::BTreeMap;

use tortie_iptables::{Chain, Features, InterfaceName, write_rest};
use tortie_model::{Cidr, Family};

use crate::{DscpRule, Marks, NatConfig, Renderer, RulesConfig};

fn renderer() -> Renderer {
    Renderer::new(RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).unwrap())
}

fn lines(chain: &Chain) -> Vec<String> {
    let line = |rule| {
        let mut text = String::new();
        write_rest(rule, &Features::ALL, &mut text);
        text
    };
    chain.rules.iter().map(line).collect()
}

fn cidrs(texts: &[&str]) -> Vec<Cidr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn foreign_sources_are_sorted_and_of_one_family() {
    let interface = |name| InterfaceName::new(name).unwrap();
    let allowed = BTreeMap::from([
        (interface("cali2"), cidrs(&["10.0.1.0/24", "fd00::/64", "10.0.0.0/24", "10.0.1.0/24"])),
        (interface("cali1"), cidrs(&["192.0.2.1"])),
    ]);
    assert_eq!(
        lines(&renderer().rpf_skip(&allowed, Family::V4)),
        [
            "--in-interface cali1 --source 192.0.2.1/32 --jump ACCEPT",
            "--in-interface cali2 --source 10.0.0.0/24 --jump ACCEPT",
            "--in-interface cali2 --source 10.0.1.0/24 --jump ACCEPT",
        ]
    );
    assert_eq!(
        lines(&renderer().rpf_skip(&allowed, Family::V6)),
        ["--in-interface cali2 --source fd00::/64 --jump ACCEPT"]
    );
}

#[test]
fn service_loop_prevention_can_be_disabled() {
    let config = RulesConfig { service_loop: None, ..renderer().config().clone() };
    let chain = Renderer::new(config).cidr_block(cidrs(&["10.96.0.0/12"]), Family::V4);
    assert_eq!(chain.rules, []);
}

#[test]
fn service_networks_are_in_the_order_of_their_text() {
    let chain = renderer().cidr_block(cidrs(&["9.0.0.0/8", "10.96.0.0/12", "9.0.0.0/8"]), Family::V4);
    assert_eq!(lines(&chain), ["--destination 10.96.0.0/12 --jump DROP", "--destination 9.0.0.0/8 --jump DROP"]);
}

#[test]
fn equal_dscp_rules_are_one() {
    let rule = |source: &str, value| DscpRule { source: source.parse().unwrap(), value };
    let chain = renderer().egress_dscp(&[rule("10.0.0.2/32", 1), rule("10.0.0.1/32", 2), rule("10.0.0.2/32", 1)]);
    assert_eq!(
        lines(&chain),
        ["--source 10.0.0.1/32 --jump DSCP --set-dscp 2", "--source 10.0.0.2/32 --jump DSCP --set-dscp 1"]
    );
}

#[test]
fn a_source_address_is_for_its_own_family() {
    let nat = NatConfig { address: Some("fd00::9".parse().unwrap()), ..NatConfig::default() };
    let renderer = Renderer::new(RulesConfig { nat, ..renderer().config().clone() });
    assert!(lines(&renderer.nat_outgoing(true, Family::V4))[0].ends_with("--jump MASQUERADE --random-fully"));
    assert!(
        lines(&renderer.nat_outgoing(true, Family::V6))[0].ends_with("--jump SNAT --to-source fd00::9 --random-fully")
    );
}
