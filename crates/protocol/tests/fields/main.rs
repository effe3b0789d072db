//! Every field of every message to a driver is preserved by decoding and encoding.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that reads the schema from a file")]

mod schema;

use std::collections::{BTreeMap, BTreeSet};

use schema::{Field, Kind, Schema};
use tortie_protocol::{Received, encode, encode_config, receive};

/// Valid values of text fields with a syntax, by `Message.field`, or by `field` if all messages use
/// the same syntax. Each variant of a message takes one of several values.
const FORMS: &[(&str, &[&str])] = &[
    ("members", &["10.0.0.1/32", "10.0.0.1,tcp:80"]),
    ("added_members", &["10.0.0.1/32", "10.0.0.1,udp:80"]),
    ("removed_members", &["10.0.0.2/32", "10.0.0.2,sctp:80"]),
    ("action", &["allow", "deny", "log"]),
    ("src_net", &["10.0.0.0/8"]),
    ("dst_net", &["fd00::/64"]),
    ("not_src_net", &["10.0.0.0/9"]),
    ("not_dst_net", &["fd00::/65"]),
    ("perf_hints", &["AssumeNeededOnEveryNode"]),
    ("PolicyID.kind", &["NetworkPolicy", "StagedGlobalNetworkPolicy"]),
    ("Protocol.name", &["tcp", "sctp"]),
    ("WorkloadEndpoint.state", &["active", "inactive"]),
    ("mac", &["02:00:00:00:00:01"]),
    ("ipv4_nets", &["10.0.0.3/32"]),
    ("ipv6_nets", &["fd00::3/128"]),
    ("allow_spoofed_source_prefixes", &["10.3.0.0/16"]),
    ("ext_ip", &["192.0.2.1"]),
    ("int_ip", &["10.0.0.3"]),
    ("expected_ipv4_addrs", &["192.0.2.2"]),
    ("expected_ipv6_addrs", &["fd00::2"]),
    ("default_action", &["Pass", "Deny"]),
    ("IPAMPoolUpdate.id", &["10.0.0.0-16"]),
    ("IPAMPoolRemove.id", &["10.0.0.0-16"]),
    ("cidr", &["10.0.0.0/16"]),
    ("ipip_mode", &["always", "cross-subnet"]),
    ("vxlan_mode", &["cross-subnet", "always"]),
    ("interface_ipv4_addr", &["10.0.1.1"]),
    ("interface_ipv6_addr", &["fd00::5"]),
    ("dst", &["10.65.0.0/26", "fd00:65::/122"]),
    ("dst_node_ip", &["192.0.2.3"]),
    ("VXLANTunnelEndpointUpdate.ipv4_addr", &["10.65.0.1"]),
    ("VXLANTunnelEndpointUpdate.ipv6_addr", &["fd00:65::1"]),
    ("parent_device_ip", &["192.0.2.3"]),
    ("parent_device_ipv6", &["fd00::9"]),
    ("mac_v6", &["02:00:00:00:00:02"]),
    ("original_src_selector", &["src == 'a'"]),
    ("original_dst_selector", &["dst == 'a'"]),
    ("original_src_namespace_selector", &["src_ns == 'a'"]),
    ("original_dst_namespace_selector", &["global()"]),
    ("original_not_src_selector", &["has(src)"]),
    ("original_not_dst_selector", &["has(dst)"]),
    ("ServiceAccountMatch.selector", &["has( account )"]),
    ("ServicePort.Protocol", &["TCP", "UDP", "SCTP"]),
];

/// Values of number fields with restrictions. All other numbers are the field number plus 1.
const NUMBERS: &[(&str, &[i64])] = &[
    ("IPSetUpdate.type", &[2, 1]),
    ("ip_version", &[4, 6]),
    ("PortRange.last", &[65_535]),
    ("Protocol.number", &[17]),
];

/// Fields that are lost, with the reason why the loss is harmless.
const LOST: [&str; 1] = [
    // Felix's calculation graph never sets it, and Felix's dataplanes do not read it.
    "host_metadata_remove.ipv4_addr",
];

/// Number of variants: the length of the longest list of values, or of members of a `oneof`.
const VARIANTS: usize = 3;

type Bytes = Vec<u8>;

fn varint(out: &mut Bytes, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

fn block(out: &mut Bytes, number: u32, bytes: &[u8]) {
    varint(out, u64::from(number << 3 | 2));
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn form<'t, T>(forms: &'t [(&str, &[T])], message: &str, field: &str, variant: usize) -> Option<&'t T> {
    let full = format!("{message}.{field}");
    let (_, values) =
        forms.iter().find(|(name, _)| *name == full).or_else(|| forms.iter().find(|(name, _)| *name == field))?;
    Some(&values[variant % values.len()])
}

/// Returns a message with all fields set. The variant selects the member of each `oneof`. A list
/// has two entries if its values have no syntax.
fn full(schema: &Schema, message: &str, variant: usize) -> Bytes {
    let mut out = Bytes::new();
    for field in &schema.messages[message] {
        if schema.is_other_choice(message, field, variant) {
            continue;
        }
        write(schema, message, field, variant, &mut out);
    }
    out
}

fn write(schema: &Schema, message: &str, field: &Field, variant: usize, out: &mut Bytes) {
    match &field.kind {
        Kind::Text => {
            if let Some(text) = form(FORMS, message, &field.name, variant) {
                block(out, field.number, text.as_bytes());
                return;
            }
            block(out, field.number, format!("{}-1", field.name).as_bytes());
            if field.repeated {
                block(out, field.number, format!("{}-2", field.name).as_bytes());
            }
        }
        Kind::Number => {
            let number = form(NUMBERS, message, &field.name, variant).copied();
            varint(out, u64::from(field.number << 3));
            varint(out, number.unwrap_or(i64::from(field.number) % 60 + 1).cast_unsigned());
        }
        Kind::Flag => {
            varint(out, u64::from(field.number << 3));
            out.push(1);
        }
        Kind::Choice(most) => {
            varint(out, u64::from(field.number << 3));
            varint(out, form(NUMBERS, message, &field.name, variant).copied().unwrap_or(*most).cast_unsigned());
        }
        Kind::Message(name) => block(out, field.number, &full(schema, name, variant)),
        Kind::Map(value) => {
            let mut entry = Bytes::new();
            match value {
                Some(message) => {
                    entry.extend([8, 3]);
                    block(&mut entry, 2, &full(schema, message, variant));
                }
                None => {
                    block(&mut entry, 1, b"key");
                    block(&mut entry, 2, b"value");
                }
            }
            block(out, field.number, &entry);
        }
    }
}

/// Collects the paths of all fields of a message, with their values.
fn leaves(schema: &Schema, message: &str, mut bytes: &[u8], path: &str, out: &mut BTreeMap<String, BTreeSet<String>>) {
    while !bytes.is_empty() {
        let tag = read_varint(&mut bytes);
        let number = u32::try_from(tag >> 3).unwrap();
        let field = schema.messages[message].iter().find(|field| field.number == number).unwrap();
        let path = format!("{path}.{}", field.name);
        let value = if tag & 7 == 0 {
            read_varint(&mut bytes).to_string()
        } else {
            let length = usize::try_from(read_varint(&mut bytes)).unwrap();
            let (value, rest) = bytes.split_at(length);
            bytes = rest;
            if let Kind::Message(name) = &field.kind {
                leaves(schema, name, value, &path, out);
                continue;
            }
            String::from_utf8_lossy(value).into_owned()
        };
        out.entry(path).or_default().insert(value);
    }
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (&first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first < 0x80 {
            break;
        }
    }
    value
}

#[test]
fn no_field_is_lost() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/felix.proto");
    let schema = Schema::parse(&std::fs::read_to_string(path).unwrap());
    let payloads: Vec<&Field> = schema.messages["ToDataplane"].iter().filter(|field| field.oneof.is_some()).collect();
    assert_eq!(payloads.len(), 33);
    let (mut lost, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for payload in payloads {
        let Kind::Message(message) = &payload.kind else { panic!("{payload:?}") };
        for variant in 0..VARIANTS {
            let mut bytes = Bytes::new();
            block(&mut bytes, payload.number, &full(&schema, message, variant));
            let again = match receive(&bytes) {
                Ok(Received::Update(update)) => encode(&update, 0).unwrap(),
                Ok(Received::Config(config)) => encode_config(config, 0),
                other => panic!("{}: {other:?}", payload.name),
            };
            let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
            leaves(&schema, "ToDataplane", &bytes, "", &mut before);
            leaves(&schema, "ToDataplane", &again, "", &mut after);
            for (path, values) in before {
                seen.insert(path.clone());
                // Both sides compute the id from the content of the rule.
                let is_kept = if path.ends_with(".rule_id") {
                    after.contains_key(&path)
                } else {
                    after.get(&path) == Some(&values)
                };
                if !is_kept {
                    lost.insert(path.trim_start_matches('.').to_owned());
                }
            }
        }
    }
    assert_eq!(lost, LOST.map(str::to_owned).into());
    assert!(seen.len() > 300, "{}", seen.len());
    for path in [
        ".workload_endpoint_update.endpoint.local_bgp_peer.bgp_peer_name",
        ".active_policy_update.policy.inbound_rules.not_icmp_type_code.code",
    ] {
        assert!(seen.contains(path), "{path}: {seen:?}");
    }
}
