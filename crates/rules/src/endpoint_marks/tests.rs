use tortie_iptables::{InterfaceName, MarkBits};

use super::{EndpointMarks, fnv1, number_of, spread};
use crate::{IpvsConfig, Marks, Renderer, RulesConfig};

fn name(text: &str) -> InterfaceName {
    InterfaceName::new(text).unwrap()
}

#[test]
fn hash_and_spread() {
    assert_eq!(fnv1("calic6866a25fab"), 0x9c8d_3c0c);
    let mask = MarkBits::new(0x8421_0000).unwrap();
    assert_eq!(spread(0b1011, mask), 0x8021_0000);
    assert_eq!(number_of(0x8021_0000, mask), 0b1011);
}

#[test]
fn numbers_are_stable_distinct_and_never_reserved() {
    let marks = Marks::allocate(0x7f_0000, false, true).unwrap();
    assert_eq!(marks.endpoint.get().count_ones(), 2);
    let mut numbers = EndpointMarks::new(&marks);
    // Four numbers, of which 0 and 1 are reserved.
    let first = numbers.assign(name("a")).unwrap();
    let second = numbers.assign(name("b")).unwrap();
    assert_ne!(first, second);
    for mark in [first, second] {
        assert_ne!(mark.value(), 0);
        assert_ne!(Some(mark.value()), marks.non_endpoint.map(MarkBits::get));
    }
    assert_eq!(numbers.assign(name("a")), Some(first));
    assert_eq!(numbers.assign(name("c")), None);
    numbers.release(name("a"));
    assert_eq!(numbers.get(name("a")), None);
    assert_eq!(numbers.assign(name("c")), Some(first));
}

#[test]
fn the_probe_wraps_around() {
    let marks = Marks::allocate(Marks::DEFAULT_MASK, false, true).unwrap();
    let mut numbers = EndpointMarks::new(&marks);
    let count = u32::MAX >> (u32::BITS - marks.endpoint.get().count_ones());
    let mut seen = std::collections::BTreeSet::new();
    for i in 0..count - 1 {
        assert!(seen.insert(numbers.assign(name(&format!("cali{i}"))).unwrap().value()));
    }
    assert_eq!(numbers.assign(name("one-too-many")), None);
}

/// Expected chains by `felix/rules/dispatch_test.go`'s rules, for two workloads and a host
/// endpoint.
#[test]
fn dispatch_chains() {
    let mut config = RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).unwrap();
    config.marks = Marks::allocate(Marks::DEFAULT_MASK, false, true).unwrap();
    config.ipvs = Some(IpvsConfig { node_ports: Vec::new() });
    let renderer = Renderer::new(config);
    let mut numbers = EndpointMarks::new(&renderer.config().marks);
    for interface in ["cali1", "cali12", "eth0"] {
        numbers.assign(name(interface));
    }
    let chains =
        renderer.endpoint_mark_dispatch(&numbers, [name("cali12"), name("cali1"), name("new")], [name("eth0")]);
    let text: Vec<String> = chains
        .iter()
        .flat_map(|chain| {
            chain.rules.iter().map(move |rule| {
                let mut line = format!("{} ", chain.name);
                tortie_iptables::write_rest(rule, &tortie_iptables::Features::ALL, &mut line);
                line
            })
        })
        .collect();
    let mark = |interface| format!("{:#x}/0xffe00000", numbers.get(name(interface)).unwrap().value());
    assert_eq!(
        text,
        [
            "cali-set-endpoint-mark-wep-c --in-interface cali1 --goto cali-sm-cali1".to_owned(),
            "cali-set-endpoint-mark-wep-c --in-interface cali12 --goto cali-sm-cali12".to_owned(),
            "cali-set-endpoint-mark --in-interface c+ --goto cali-set-endpoint-mark-wep-c".to_owned(),
            "cali-set-endpoint-mark --in-interface new --goto cali-sm-new".to_owned(),
            "cali-set-endpoint-mark --in-interface eth0 --goto cali-sm-eth0".to_owned(),
            "cali-set-endpoint-mark -m comment --comment \"Unknown endpoint\" --in-interface cali+ --jump DROP"
                .to_owned(),
            "cali-set-endpoint-mark -m comment --comment \"Non-Cali endpoint mark\" \
             --jump MARK --set-mark 0x200000/0xffe00000"
                .to_owned(),
            format!("cali-from-endpoint-mark -m mark --mark {} --goto cali-fw-cali1", mark("cali1")),
            format!("cali-from-endpoint-mark -m mark --mark {} --goto cali-fw-cali12", mark("cali12")),
            format!("cali-from-endpoint-mark -m mark --mark {} --goto cali-fhfw-eth0", mark("eth0")),
            "cali-from-endpoint-mark -m comment --comment \"Unknown interface\" --jump DROP".to_owned(),
        ]
    );
}
