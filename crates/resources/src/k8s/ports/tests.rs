use tortie_model::{NamedProtocol, PortSpec};

use super::{group, is_port_name};

fn range(first: u16, last: u16) -> PortSpec {
    PortSpec::Range { first, last }
}

#[test]
fn numbers_merge_and_names_come_first() {
    let name = PortSpec::Named("http".into());
    let entries = [range(80, 80), name.clone(), range(82, 90), range(81, 81), range(65535, 65535)];
    let ports = group(entries.into_iter().map(|port| (NamedProtocol::Tcp, Some(port))).collect());
    assert_eq!(ports["TCP"].1, [name, range(80, 90), range(65535, 65535)]);
}

#[test]
fn one_number_keeps_its_place() {
    let name = PortSpec::Named("http".into());
    let entries = [range(80, 80), name.clone()];
    let ports = group(entries.into_iter().map(|port| (NamedProtocol::Udp, Some(port))).collect());
    assert_eq!(ports["UDP"].1, [range(80, 80), name]);
}

#[test]
fn a_whole_protocol_absorbs_its_ports() {
    let ports = group(vec![
        (NamedProtocol::Tcp, Some(range(80, 80))),
        (NamedProtocol::Tcp, None),
        (NamedProtocol::Tcp, Some(range(81, 81))),
        (NamedProtocol::Sctp, Some(range(1, 1))),
    ]);
    assert_eq!(ports.keys().collect::<Vec<_>>(), [&"SCTP", &"TCP"]);
    assert!(ports["TCP"].1.is_empty());
}

#[test]
fn names_of_ports() {
    for (name, expected) in
        [("http", true), ("h2", true), ("80", false), ("a--b", false), ("-a", false), ("Web", false)]
    {
        assert_eq!(is_port_name(name), expected, "{name}");
    }
}
