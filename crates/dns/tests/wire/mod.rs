//! Answers as bytes, without compression of names.

use std::net::IpAddr;

/// A record of an answer.
pub(crate) enum Data {
    Address(IpAddr),
    Alias(&'static str),
    /// An HTTPS record in service mode: its target, and hints.
    Service(&'static str, Vec<IpAddr>),
}

fn name(text: &str, bytes: &mut Vec<u8>) {
    for label in text.split('.') {
        bytes.push(u8::try_from(label.len()).expect("a short label"));
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
}

fn service(target: &str, hints: &[IpAddr]) -> Vec<u8> {
    let mut data = vec![0, 1];
    name(target, &mut data);
    let (v4, v6): (Vec<&IpAddr>, Vec<&IpAddr>) = hints.iter().partition(|hint| hint.is_ipv4());
    for (key, hints) in [(4, v4), (6, v6)] {
        let value: Vec<u8> = (hints.into_iter())
            .flat_map(|hint| match hint {
                IpAddr::V4(v4) => v4.octets().to_vec(),
                IpAddr::V6(v6) => v6.octets().to_vec(),
            })
            .collect();
        if !value.is_empty() {
            data.extend([0, key]);
            data.extend(u16::try_from(value.len()).expect("few hints").to_be_bytes());
            data.extend(value);
        }
    }
    data
}

/// Returns an answer to a question for addresses.
pub(crate) fn message(question: &str, records: &[(&str, u32, Data)]) -> Vec<u8> {
    let count = u16::try_from(records.len()).expect("few records").to_be_bytes();
    let mut bytes = vec![0, 1, 0x81, 0x80, 0, 1, count[0], count[1], 0, 0, 0, 0];
    name(question, &mut bytes);
    bytes.extend([0, 255, 0, 1]);
    for (owner, ttl, data) in records {
        name(owner, &mut bytes);
        let (rtype, data) = match data {
            Data::Address(IpAddr::V4(v4)) => (1, v4.octets().to_vec()),
            Data::Address(IpAddr::V6(v6)) => (28, v6.octets().to_vec()),
            Data::Alias(target) => {
                let mut data = Vec::new();
                name(target, &mut data);
                (5, data)
            }
            Data::Service(target, hints) => (65, service(target, hints)),
        };
        bytes.extend([0, rtype, 0, 1]);
        bytes.extend(ttl.to_be_bytes());
        bytes.extend(u16::try_from(data.len()).expect("short data").to_be_bytes());
        bytes.extend(data);
    }
    bytes
}
