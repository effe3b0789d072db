//! The generated types and messages serialised by Felix's Go types.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that reads its data from files")]

use std::collections::BTreeSet;
use std::fmt::Debug;

use prost::Message;
use tortie_protocol::felix::to_dataplane::Payload;
use tortie_protocol::felix::{FromDataplane, ToDataplane};
use tortie_protocol::frame::{FrameReader, write_frame};
use tortie_protocol::{Received, Report, datastore_config, decode, encode, receive};
use tortie_testkit::golden;

/// Returns a stream and its messages; both are empty if the test data are not installed.
fn messages(stream: &str) -> (Vec<u8>, Vec<Vec<u8>>) {
    let bytes = golden::bytes(env!("CARGO_MANIFEST_DIR"), &format!("{stream}.stream")).unwrap_or_default();
    let mut reader = FrameReader::new(bytes.as_slice());
    let mut messages = Vec::new();
    while let Some(message) = reader.next_frame().unwrap() {
        messages.push(message.to_vec());
    }
    (bytes, messages)
}

/// Asserts that decoding and encoding loses and adds nothing, and that each text is in the field
/// that it names.
fn check<M: Message + Default + Debug + PartialEq>(bytes: &[u8], names: &mut BTreeSet<String>) {
    let message = M::decode(bytes).unwrap();
    let again = message.encode_to_vec();
    // Unknown fields would be missing. Only the order of the fields may differ.
    assert_eq!(again.len(), bytes.len(), "{message:?}");
    assert_eq!(M::decode(again.as_slice()).unwrap(), message);
    let printed = format!("{message:?}");
    for (at, _) in printed.match_indices(": \"") {
        // Keys and values of maps are quoted, so no field name precedes the colon.
        let field = printed[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let Some((named, _)) = printed[at + 3..].split_once('-') else { continue };
        if field.is_empty() || !named.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        assert!(named.eq_ignore_ascii_case(field), "`{named}` is in the field `{field}`: {printed}");
        names.insert(field.to_owned());
    }
}

#[test]
fn messages_of_felix_are_read_completely() {
    let (_, to) = messages("ToDataplane");
    let (_, from) = messages("FromDataplane");
    // Four messages per payload, and an envelope without payload.
    golden::assert_count("messages", (to.len(), from.len()), (33 * 4 + 1, 7 * 4 + 1));
    let mut names = BTreeSet::new();
    to.iter().for_each(|message| check::<ToDataplane>(message, &mut names));
    from.iter().for_each(|message| check::<FromDataplane>(message, &mut names));
    for name in
        ["mac", "original_src_service_namespace", "default_action", "ext_ip", "parent_device_ipv6", "iso_timestamp"]
    {
        golden::assert_count(name, names.contains(name), true);
    }
}

#[test]
fn streams_of_felix_are_written_identically() {
    for stream in ["ToDataplane", "FromDataplane"] {
        let (bytes, messages) = messages(stream);
        let mut again = Vec::new();
        messages.iter().for_each(|message| write_frame(&mut again, message).unwrap());
        assert_eq!(again, bytes);
    }
}

/// The texts are no valid addresses, protocols or actions, so most messages are rejected, each with
/// a reason.
#[test]
fn recorded_messages_are_decoded_to_the_model() {
    let (_, to) = messages("ToDataplane");
    let (mut updates, mut denied, mut unusable) = (0, 0, BTreeSet::new());
    for message in &to {
        match receive(message) {
            Ok(Received::Update(_) | Received::Config(_)) => updates += 1,
            Ok(Received::Denied { why, .. }) => {
                denied += 1;
                unusable.insert(why.to_string());
            }
            Ok(Received::Unknown) => {}
            Err(error) => drop(unusable.insert(error.to_string())),
        }
    }
    golden::assert_count("policies and profiles that deny", denied, 6);
    golden::assert_count("more than 60 updates", updates > 60, true);
    for message in [
        "host endpoint endpoint_id-1: expected_ipv4_addrs",
        "route to dst-3: dst",
        "a route: dst",
        "VXLAN tunnel endpoint node-1: mac",
    ] {
        golden::assert_count(message, unusable.iter().any(|why| why.starts_with(message)), true);
    }
    let (_, from) = messages("FromDataplane");
    let read = from.iter().filter(|message| Report::decode(message).is_ok()).count();
    golden::assert_count("reports that are read", read, 24);
}

/// Returns a message in comparable form: without its sequence number, and with sorted members.
fn comparable(mut message: ToDataplane) -> ToDataplane {
    message.sequence_number = 0;
    match &mut message.payload {
        Some(Payload::IpsetUpdate(update)) => update.members.sort_unstable(),
        Some(Payload::IpsetDeltaUpdate(update)) => {
            update.added_members.sort_unstable();
            update.removed_members.sort_unstable();
        }
        _ => {}
    }
    message
}

/// The messages of Felix's calculation graph for a small cluster are decoded and encoded without a
/// difference, rule ids included.
#[test]
fn messages_of_felix_are_decoded_and_encoded_identically() {
    let (_, to) = messages("felix-node-1");
    let mut same = BTreeSet::new();
    for (number, bytes) in (0..).zip(&to) {
        let message = decode(bytes).unwrap();
        assert_eq!(message.sequence_number, number);
        match receive(bytes).unwrap() {
            Received::Update(update) => {
                let ours = decode(&encode(&update, 0).unwrap()).unwrap();
                assert_eq!(comparable(ours), comparable(message));
                let name = format!("{update:?}");
                same.insert(name.split('(').next().unwrap_or_default().to_owned());
            }
            Received::Config(config) => {
                assert_eq!(number, 0);
                assert_eq!(config.config["FelixHostname"], "node-1");
                assert!(!datastore_config(&config).global.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
    for name in
        ["InSync", "IpSet", "Policy", "Profile", "WorkloadEndpoint", "HostEndpoint", "Host", "IpPool", "Namespace"]
    {
        golden::assert_count(name, same.contains(name), true);
    }
}
