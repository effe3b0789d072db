//! The generated types against bytes that the original's types made.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that reads its data from files")]

use std::collections::BTreeSet;
use std::fmt::Debug;

use prost::Message;
use tortie_protocol::felix::to_dataplane::Payload;
use tortie_protocol::felix::{FromDataplane, ToDataplane};
use tortie_protocol::frame::{FrameReader, write_frame};
use tortie_protocol::{Received, Report, datastore_config, decode, encode, receive};
use tortie_testkit::golden;

/// A stream and its messages; none if the data are elsewhere and not there.
fn messages(stream: &str) -> (Vec<u8>, Vec<Vec<u8>>) {
    let bytes = golden::bytes(env!("CARGO_MANIFEST_DIR"), &format!("{stream}.stream")).unwrap_or_default();
    let mut reader = FrameReader::new(bytes.as_slice());
    let mut messages = Vec::new();
    while let Some(message) = reader.next_frame().unwrap() {
        messages.push(message.to_vec());
    }
    (bytes, messages)
}

/// Nothing is lost, nothing is added, and each text is in the field that it names.
fn check<M: Message + Default + Debug + PartialEq>(bytes: &[u8], names: &mut BTreeSet<String>) {
    let message = M::decode(bytes).unwrap();
    let again = message.encode_to_vec();
    // Fields that are not known would be missing. Their order is free, and differs.
    assert_eq!(again.len(), bytes.len(), "{message:?}");
    assert_eq!(M::decode(again.as_slice()).unwrap(), message);
    let printed = format!("{message:?}");
    for (at, _) in printed.match_indices(": \"") {
        // Keys and values of maps stand in quotes themselves, so there is no field before the colon.
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
fn messages_of_the_original_are_read_whole() {
    let (_, to) = messages("ToDataplane");
    let (_, from) = messages("FromDataplane");
    // Four of each payload, and an envelope without one.
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
fn streams_of_the_original_are_written_the_same() {
    for stream in ["ToDataplane", "FromDataplane"] {
        let (bytes, messages) = messages(stream);
        let mut again = Vec::new();
        messages.iter().for_each(|message| write_frame(&mut again, message).unwrap());
        assert_eq!(again, bytes);
    }
}

/// The texts are no addresses, protocols or actions, so most messages are refused, but each with a reason.
#[test]
fn what_the_model_makes_of_them() {
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

/// What two messages are compared by: without their numbers, and members in one order.
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

/// What the original's calculation told a driver about a small cluster, ids of rules included.
#[test]
fn what_the_original_says_is_understood_and_said_the_same() {
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
