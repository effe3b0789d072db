//! Messages to the kernel stay within bounds, and unreadable messages from the kernel are reported.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;
use std::time::Duration;

use tortie_net::{Cidr, Family, InterfaceName};
use tortie_netfilter::{Action, ChainName, HookPosition, LogPrefix, Matches, Rule, Side, Table as Layer, kernel_chain};
use tortie_nftables::wire::{Malformed, Message, SnapshotReader, encode};
use tortie_nftables::{
    Command, Context, Expression, Features, FullNames, LayeredName, Plan, ProgramRule, Register, RenderedRule,
    SetReference, Table, TableConfig, TableId, Transaction, compile,
};

const V4: TableId = TableId::calico(Family::V4);
const NEWTABLE: u16 = 0xa00;
const NEWCHAIN: u16 = 0xa03;
const NEWRULE: u16 = 0xa06;
const NEWSETELEM: u16 = 0xa0c;
const NEWFLOWTABLE: u16 = 0xa16;
const NAME: u16 = 3;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(4 + value.len()).unwrap();
    let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Kinds and values of attributes that fill all of some bytes.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let [a, b, c, d, ..] = *bytes {
        let len = usize::from(u16::from_ne_bytes([a, b]));
        found.push((u16::from_ne_bytes([c, d]) & 0x3fff, &bytes[4..len]));
        bytes = &bytes[len.next_multiple_of(4)..];
    }
    assert!(bytes.is_empty());
    found
}

/// Returns the entries of all attributes of a kind in all messages of a kind.
fn entries(messages: &[Message], kind: u16, list: u16) -> Vec<&[u8]> {
    let of_kind = messages.iter().filter(|message| message.kind == kind);
    let lists = of_kind.flat_map(|message| attributes(&message.payload[4..])).filter(|(of, _)| *of == list);
    lists.flat_map(|(_, list)| attributes(list)).map(|(_, entry)| entry).collect()
}

fn transaction(command: Command) -> Vec<Message> {
    encode(&Transaction { table: V4, commands: vec![command] })
}

fn ports(ranges: Vec<(u16, u16)>) -> Vec<Message> {
    let lookup = Expression::Lookup { set: SetReference::Ports(ranges), register: Register::FIRST, inverted: false };
    rule_of(vec![lookup])
}

fn rule_of(expressions: Vec<Expression>) -> Vec<Message> {
    let hash = tortie_netfilter::RuleHasher::new("seed").next(["rule"]);
    let shown = RenderedRule { text: String::new(), hash, comment: String::new() };
    let rule = Arc::new(ProgramRule { shown, expressions });
    transaction(Command::AddRule { chain: LayeredName::new(Layer::Filter, "cali-many"), rule })
}

#[test]
fn many_ports_of_one_rule_take_several_messages() {
    let single = ports((0..20_000).map(|port| (2 * port, 2 * port)).collect());
    assert_eq!(entries(&single, NEWSETELEM, 3).len(), 20_000);
    // The start of each range, and the first port behind it.
    let ranges = ports((0..10_000).map(|port| (4 * port, 4 * port + 1)).collect());
    assert_eq!(entries(&ranges, NEWSETELEM, 3).len(), 20_000);
    let elements: Vec<_> = ranges.iter().filter(|message| message.kind == NEWSETELEM).collect();
    assert!(elements.len() > 1);
    for message in elements {
        // All elements are for the set that the first message creates.
        let ids = attributes(&message.payload[4..]).into_iter().filter(|(kind, _)| *kind == 4);
        assert_eq!(ids.map(|(_, id)| id).collect::<Vec<_>>(), [1_u32.to_be_bytes()]);
    }
}

#[test]
fn many_devices_of_a_flow_table_take_several_messages() {
    let devices: Vec<InterfaceName> = (0..5_000).map(|number| format!("cali{number}").parse().unwrap()).collect();
    let messages = transaction(Command::AddFlowTable { devices });
    let hooks = entries(&messages, NEWFLOWTABLE, 3);
    let devices = hooks.iter().filter(|value| value.len() > 4).flat_map(|devices| attributes(devices));
    assert_eq!(devices.count(), 5_000);
    assert_eq!(transaction(Command::AddFlowTable { devices: Vec::new() }).len(), 1);
}

#[test]
fn the_kernel_is_asked_for_a_rule_of_many_expressions_in_one_message_that_it_refuses() {
    let names = FullNames::default();
    let context = Context { family: Family::V4, layer: Layer::Filter, names: &names, features: Features::ALL };
    let rule = |count: u8| {
        let net = |last: u8| Cidr::host([192, 0, 2, last].into());
        let matches = (0..count).fold(Matches::new(), |all, last| all.not_net(Side::Source, net(last)));
        Rule::when(matches, Action::Accept)
    };
    let written = |count| {
        let expressions = compile(&rule(count), &context).unwrap();
        entries(&rule_of(expressions), NEWRULE, 4).len()
    };
    // A load and a comparison for each, a counter and a verdict.
    assert_eq!(written(60), 122);
    assert_eq!(written(200), 129);
}

#[test]
fn as_much_of_a_log_prefix_is_written_as_the_kernel_takes() {
    let names = FullNames::default();
    let context = Context { family: Family::V4, layer: Layer::Filter, names: &names, features: Features::ALL };
    for text in ["p".repeat(70_000), format!("p{}", "é".repeat(40_000))] {
        let rule = Rule::new(Action::Log(LogPrefix::new(&text)));
        let expressions = compile(&rule, &context).unwrap();
        let Some(Expression::Log { prefix, .. }) = expressions.iter().find(|e| matches!(e, Expression::Log { .. }))
        else {
            panic!("{expressions:?}")
        };
        assert_eq!(prefix.len(), 127);
        assert!(prefix.strip_suffix(": ").is_some_and(|cut| text.starts_with(cut)), "{prefix}");
        assert_eq!(entries(&rule_of(expressions), NEWRULE, 4).len(), 2);
    }
}

fn reader() -> SnapshotReader {
    SnapshotReader::new(V4)
}

fn message(parts: &[Vec<u8>]) -> Vec<u8> {
    [&[2, 0, 0, 0][..], &attribute(1, b"calico\0"), &parts.concat()].concat()
}

#[test]
fn incomplete_messages_are_rejected() {
    assert_eq!(reader().on_message(NEWCHAIN, &[2, 0]), Err(Malformed { object: "object", part: "header" }));
    let chain = Malformed { object: "chain", part: "name" };
    assert_eq!(reader().on_message(NEWCHAIN, &message(&[])), Err(chain));
    assert_eq!(chain.to_string(), "a listed chain lacks its name");
    let handle = Malformed { object: "rule", part: "handle" };
    let rule = [attribute(2, b"filter-FORWARD\0"), attribute(3, &[1, 2])];
    assert_eq!(reader().on_message(NEWRULE, &message(&rule)), Err(handle));
    let unlisted = Malformed { object: "element", part: "set" };
    let element = [attribute(2, b"unknown\0"), attribute(3, &[])];
    assert_eq!(reader().on_message(NEWSETELEM, &message(&element)), Err(unlisted));
    // Messages of another table are ignored.
    assert_eq!(reader().on_message(NEWCHAIN, &[&[2, 0, 0, 0][..], &attribute(1, b"other\0")].concat()), Ok(()));
}

#[test]
fn objects_with_non_utf8_names_stay() {
    let mut reader = reader();
    reader.on_message(NEWTABLE, &message(&[])).unwrap();
    reader.on_message(NEWCHAIN, &message(&[attribute(NAME, b"\xff\xfe\0")])).unwrap();
    let snapshot = reader.finish().unwrap();
    assert!(snapshot.has_unreadable_names && snapshot.chains.is_empty());

    let mut table = Table::new(TableConfig::new(V4), Features::ALL);
    let drop = vec![Rule::new(Action::Jump(ChainName::new("cali-FORWARD").unwrap()))];
    table.set_hook(Layer::Filter, kernel_chain::FORWARD, HookPosition::Insert, drop);
    assert!(matches!(table.plan(Duration::ZERO), Plan::Read));
    table.on_read(Duration::ZERO, Ok(Some(snapshot)));
    let Plan::Commit(transaction) = table.plan(Duration::ZERO) else { panic!("there is something to do") };
    assert!(!transaction.commands.contains(&Command::DeleteTable));
}
