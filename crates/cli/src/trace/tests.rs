use super::question::{End, Line, Transport};
use super::*;

fn parse(line: &str) -> Result<Question, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    Question::from_line(&line).map_err(|error| error.to_string())
}

#[test]
fn ends_are_pods_nodes_and_addresses() {
    let question = parse(r#"{"from": "shop/web", "to": "node:n1", "port": 22}"#).unwrap();
    assert_eq!((question.from, question.to), (End::Workload("shop/web".into()), End::Node("n1".into())));
    assert_eq!(question.family.number(), 4);
    let question = parse(r#"{"from": "shop/web", "to": "fd00::1", "port": 22}"#).unwrap();
    assert_eq!(question.to, End::Address("fd00::1".parse().unwrap()));
    assert_eq!(question.family.number(), 6, "an address sets the family");
    let mapped = parse(r#"{"from": "::ffff:10.0.0.9", "to": "a/b", "port": 22}"#).unwrap();
    assert_eq!((mapped.from, mapped.family.number()), (End::Address("10.0.0.9".parse().unwrap()), 4));
    assert_eq!(parse(r#"{"from": "a/b", "to": "c/d", "port": 22, "family": 6}"#).unwrap().family.number(), 6);
}

#[test]
fn protocols_have_ports_or_have_none() {
    let transport =
        |rest: &str| parse(&format!(r#"{{"from": "a/b", "to": "c/d", {rest}}}"#)).map(|found| found.transport);
    let destination = |rest: &str| match transport(rest).unwrap() {
        Transport::Ports { protocol, destination, .. } => (protocol.number(), destination),
        other => panic!("{other:?}"),
    };
    assert_eq!(destination(r#""port": 80"#), (6, 80));
    assert_eq!(destination(r#""port": 53, "protocol": "UDP""#), (17, 53));
    assert_eq!(destination(r#""port": 9, "protocol": "136""#), (136, 9));
    assert_eq!(transport(r#""protocol": "ICMPv6""#), Ok(Transport::Icmp { icmp_type: None, code: 0 }));
    let echo = Transport::Icmp { icmp_type: Some(13), code: 1 };
    assert_eq!(transport(r#""protocol": "icmp", "icmp_type": 13, "icmp_code": 1"#), Ok(echo));
    assert_eq!(transport(r#""protocol": "47""#), Ok(Transport::Other { protocol: 47 }));
    for (rest, error) in [
        (r#""protocol": "TCP""#, "port: TCP needs one"),
        (r#""port": 1, "protocol": "icmp""#, "port: ICMP has none"),
        (
            r#""port": 1, "protocol": "quic""#,
            "protocol: `quic` is none of TCP, UDP, SCTP, UDPLite and ICMP, and no number up to 255",
        ),
        (r#""port": 1, "icmp_type": 8"#, "icmp_type, icmp_code: they are for protocol ICMP"),
        (r#""port": 1, "icmp_code": 1"#, "icmp_type, icmp_code: they are for protocol ICMP"),
        (r#""port": 1, "family": 5"#, "family: must be 4 or 6, is 5"),
        (r#""port": 65536"#, "invalid value: integer `65536`, expected u16"),
        (r#""port": 1, "prot": "tcp""#, "unknown field `prot`"),
    ] {
        let refused = transport(rest).unwrap_err();
        assert!(refused.starts_with(error), "{rest}: {refused}");
    }
}

#[test]
fn an_address_of_one_family_cannot_reach_one_of_the_other() {
    for line in [
        r#"{"from": "10.0.0.1", "to": "fd00::1", "port": 1}"#,
        r#"{"from": "10.0.0.1", "to": "a/b", "port": 1, "family": 6}"#,
    ] {
        assert_eq!(parse(line), Err("an address of one family cannot reach one of the other".to_owned()));
    }
}
