//! Decisions against a kernel in memory that writes late, refuses, or does not answer.

mod refused;

use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;
use tortie_dataplane::{DomainSetPart, LearnerCommand, Shard};
use tortie_model::DomainPattern;

use super::*;
use crate::question::{LearnedName, LearnedNames, LookupQuery};
use crate::saves::Saves;
use crate::writes::{Batch, KernelMember};

const HOLD: Duration = Duration::from_secs(1);
const CLIENT: [u8; 4] = [10, 0, 0, 2];

/// An answer to a question for addresses.
pub(crate) fn answer(name: &str, addresses: &[IpAddr]) -> Vec<u8> {
    let mut bytes = vec![0, 1, 0x81, 0x80, 0, 1, 0, u8::try_from(addresses.len()).unwrap(), 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 255, 0, 1]);
    for address in addresses {
        let (kind, octets) = match address {
            IpAddr::V4(v4) => (1, v4.octets().to_vec()),
            IpAddr::V6(v6) => (28, v6.octets().to_vec()),
        };
        // The name of the question, for 60 s.
        bytes.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, u8::try_from(octets.len()).unwrap()]);
        bytes.extend(octets);
    }
    bytes
}

fn ip(protocol: u8, behind: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(20 + behind.len()).unwrap().to_be_bytes();
    let header = [0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 96, 0, 10];
    [&header[..], &CLIENT, behind].concat()
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(8 + payload.len()).unwrap().to_be_bytes();
    ip(17, &[&[0, 53, 0x9c, 0x40, high, low, 0, 0], payload].concat())
}

fn tcp(sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let [s0, s1, s2, s3] = sequence.to_be_bytes();
    ip(6, &[&[0, 53, 0x9c, 0x40, s0, s1, s2, s3, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0], payload].concat())
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

fn scope(number: u8) -> Scope {
    match number {
        0 => Scope::Host,
        number => Scope::Interface(format!("cali{number}").parse().unwrap()),
    }
}

fn set(number: u8) -> IpSetId {
    IpSetId::new(format!("d:{number}"))
}

fn patterns(texts: &[&str]) -> std::sync::Arc<[DomainPattern]> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn set_domains(number: u8, texts: &[&str]) -> LearnerCommand {
    LearnerCommand::SetDomains { set: set(number), patterns: patterns(texts) }
}

fn set_scope(number: u8, owner: u64, shard: u16, sets: &[u8]) -> LearnerCommand {
    let sets = sets.iter().map(|number| set(*number)).collect();
    LearnerCommand::SetScope { scope: scope(number), owner, namespace: "shop".into(), shard: Shard(shard), sets }
}

fn reply(id: u32, number: u8, packet: &[u8]) -> Reply<'_> {
    Reply { id, scope: Some(scope(number)), is_reply: Some(true), packet }
}

/// The member of set 1 for an address and a workload.
fn member(number: u8, shard: u16, last: u8) -> KernelMember {
    KernelMember {
        set: set(1),
        part: DomainSetPart::Interfaces(Shard(shard)),
        owner: 0,
        interface: Some(format!("cali{number}").parse().unwrap()),
        address: address(last),
    }
}

fn changes(machine: &mut Machine, now: u64) -> Vec<(KernelMember, bool)> {
    let changes = machine.next_batch(Millis(now)).map(|batch| batch.changes).unwrap_or_default();
    machine.written(Millis(now), &done());
    changes
}

/// A machine whose scopes 1 and 2 may open connections to `a.io`, with nothing to write.
fn machine() -> Machine {
    let mut machine = Machine::new(HOLD, "boot");
    machine.apply(vec![set_domains(1, &["a.io", "*.a.io"]), set_scope(1, 1, 0, &[1]), set_scope(2, 2, 0, &[1])]);
    assert_eq!(machine.next_batch(Millis(0)), None);
    machine
}

fn done() -> Written {
    Written::Except(Vec::new())
}

#[test]
fn a_reply_is_held_until_its_members_are_written() {
    let mut machine = machine();
    let packet = udp(&answer("a.io", &[address(1), "2001:db8::1".parse().unwrap()]));
    machine.packet(Millis(5), &reply(7, 1, &packet));
    assert_eq!(machine.take_accepted(), [0_u32; 0]);
    let batch = machine.next_batch(Millis(5)).unwrap();
    assert_eq!(batch.changes.len(), 2);
    assert!(batch.changes.iter().all(|(member, is_present)| {
        *is_present
            && member.interface == Some("cali1".parse().unwrap())
            && member.part == DomainSetPart::Interfaces(Shard(0))
    }));
    assert_eq!(machine.take_accepted(), [0_u32; 0], "being written");
    machine.written(Millis(12), &done());
    assert_eq!(machine.take_accepted(), [7]);
    assert_eq!(machine.take_hold_times(), [Duration::from_millis(7)]);
    // The same answer again needs no write.
    machine.packet(Millis(20), &reply(8, 1, &packet));
    assert_eq!((machine.take_accepted(), machine.next_batch(Millis(20))), (vec![8], None));
    assert_eq!((machine.tally().released_programmed, machine.tally().responses), (1, 2));
}

#[test]
fn learned_names_are_looked_up_by_scope_and_address() {
    let mut machine = machine();
    for (name, addresses) in [
        ("a.io", vec![address(1), address(2)]),
        ("a.io.shop.svc.cluster.local", vec![address(2)]),
        ("b.io", vec![address(3)]),
    ] {
        machine.packet(Millis(0), &reply(1, 1, &udp(&answer(name, &addresses))));
    }
    let look_up = |number, address, limit| {
        let query = LookupQuery { scope: scope(number), address, limit };
        machine.lookup(Millis(10_000), query)
    };
    let texts = |found: &LearnedNames| -> Vec<String> {
        let text = |name: &LearnedName| {
            let addresses: Vec<String> =
                name.addresses.iter().map(|(address, rest)| format!("{address} {rest:?}")).collect();
            let near_miss = name.near_miss.as_ref().map(tortie_model::DomainName::as_str);
            format!("{}: {}; {:?} {near_miss:?}", name.name, addresses.join(", "), name.sets.len())
        };
        found.names.iter().map(text).collect()
    };
    let all = look_up(1, None, 10).unwrap();
    assert_eq!(
        (texts(&all), all.left_out),
        (
            vec![
                "a.io: 192.0.2.1 50s, 192.0.2.2 50s; 1 None".to_owned(),
                "a.io.shop.svc.cluster.local: 192.0.2.2 50s; 0 Some(\"a.io\")".to_owned(),
                "b.io: 192.0.2.3 50s; 0 None".to_owned(),
            ],
            0
        )
    );
    let one = look_up(1, Some(address(2)), 10).unwrap();
    assert_eq!(
        one.names.iter().map(|name| name.name.as_str()).collect::<Vec<_>>(),
        ["a.io", "a.io.shop.svc.cluster.local"]
    );
    let first = look_up(1, None, 1).unwrap();
    assert_eq!((texts(&first), first.left_out), (vec!["a.io: 192.0.2.1 50s; 1 None".to_owned()], 3));
    assert_eq!(look_up(2, None, 10), Some(LearnedNames::default()), "it has learned nothing");
    assert_eq!(look_up(3, None, 10), None, "it does not learn");
}

#[test]
fn a_reply_waits_for_members_that_another_one_has_written() {
    let mut machine = machine();
    let packet = udp(&answer("a.io", &[address(1)]));
    machine.packet(Millis(0), &reply(1, 1, &packet));
    machine.next_batch(Millis(0)).unwrap();
    machine.packet(Millis(1), &reply(2, 1, &packet));
    assert_eq!(machine.take_accepted(), [0_u32; 0], "the member of the first reply is missing for the second, too");
    // Another scope waits for its own member.
    machine.packet(Millis(1), &reply(3, 2, &packet));
    machine.written(Millis(2), &done());
    assert_eq!(machine.take_accepted(), [1, 2]);
    machine.next_batch(Millis(2)).unwrap();
    machine.written(Millis(3), &done());
    assert_eq!(machine.take_accepted(), [3]);
}

#[test]
fn packets_that_open_nothing_pass_at_once() {
    let mut machine = machine();
    let matched = udp(&answer("a.io", &[address(1)]));
    let other = udp(&answer("b.io", &[address(1)]));
    let empty = udp(&answer("a.io", &[]));
    let failed = udp(&[0, 1, 0x81, 0x83, 0, 1, 0, 0, 0, 0, 0, 0]);
    let refused = udp(&answer("a.io", &[IpAddr::from([127, 0, 0, 1])]));
    let query = udp(&[0; 12]);
    let mut forged = reply(9, 1, &matched);
    forged.is_reply = Some(false);
    let cases = [
        (reply(1, 1, &other), ""),
        (reply(2, 1, &empty), ""),
        (reply(3, 1, &failed), "failed"),
        (reply(4, 1, &refused), ""),
        (reply(5, 1, &query), "query"),
        (reply(6, 1, &matched[..30]), "packet"),
        (reply(7, 3, &matched), "scope"),
        (Reply { scope: None, ..reply(8, 1, &matched) }, "scope"),
        (forged, "direction"),
        (reply(10, 1, &[0x60; 12]), "packet"),
    ];
    for (reply, reason) in cases {
        let before = machine.tally().unlearned.get(reason).copied().unwrap_or_default();
        machine.packet(Millis(0), &reply);
        assert_eq!(machine.take_accepted(), [reply.id], "{reason}");
        assert_eq!(machine.next_batch(Millis(0)), None, "{reply:?}");
        let after = machine.tally().unlearned.get(reason).copied().unwrap_or_default();
        assert_eq!(after, before + u64::from(!reason.is_empty()), "{reason}");
    }
    assert_eq!(machine.tally().refused, BTreeMap::from([("loopback", 1)]));
    assert_eq!(machine.tally().packets_in, 10);
}

#[test]
fn a_write_that_hangs_lets_replies_go_after_the_hold_time() {
    let mut machine = machine();
    let packet = udp(&answer("a.io", &[address(1)]));
    machine.packet(Millis(0), &reply(1, 1, &packet));
    machine.next_batch(Millis(0)).unwrap();
    assert_eq!(machine.next_time(), Some(Millis(1_000)));
    machine.advance(Millis(999));
    assert_eq!(machine.take_accepted(), [0_u32; 0]);
    machine.advance(Millis(1_000));
    assert_eq!((machine.take_accepted(), machine.tally().released_timeout), (vec![1], 1));
    machine.written(Millis(5_000), &done());
    assert_eq!(machine.take_accepted(), [0_u32; 0], "once");
}

#[test]
fn a_scope_that_takes_a_tenth_of_the_thread_learns_nothing_for_a_while() {
    let mut machine = machine();
    let packet = udp(&answer("a.io", &[address(1)]));
    let one = scope(1);
    machine.charge(Millis(0), one, Duration::from_millis(99));
    machine.packet(Millis(10), &reply(1, 1, &packet));
    assert_eq!(machine.take_accepted(), [0_u32; 0], "held");
    machine.charge(Millis(10), one, Duration::from_millis(1));
    let other = udp(&answer("b.a.io", &[address(2)]));
    machine.packet(Millis(999), &reply(2, 1, &other));
    assert_eq!((machine.take_accepted(), machine.tally().unlearned["budget"]), (vec![2], 1));
    // Other scopes and the next second are not affected, nor is the budget by other sets.
    machine.packet(Millis(999), &reply(3, 2, &other));
    assert_eq!(machine.take_accepted(), [0_u32; 0]);
    machine.apply(vec![set_scope(1, 1, 0, &[1, 2])]);
    machine.packet(Millis(999), &reply(4, 1, &other));
    machine.packet(Millis(1_000), &reply(5, 1, &other));
    assert_eq!(machine.take_accepted(), [4]);
}

#[test]
fn a_segment_that_completes_a_message_is_held_with_its_repeats() {
    let mut machine = machine();
    let bytes = framed(&answer("a.io", &[address(1)]));
    let (first, second) = bytes.split_at(9);
    let packets = [tcp(99, 0x12, &[]), tcp(100, 0x18, first), tcp(109, 0x18, second)];
    for (id, packet) in (1..).zip(&packets) {
        machine.packet(Millis(0), &reply(id, 1, packet));
    }
    assert_eq!(machine.take_accepted(), [1, 2]);
    machine.next_batch(Millis(0)).unwrap();
    machine.packet(Millis(300), &reply(4, 1, &packets[2]));
    machine.packet(Millis(300), &reply(5, 1, &tcp(100 + u32::try_from(bytes.len()).unwrap(), 0x10, &[])));
    assert_eq!(machine.take_accepted(), [5], "a repeat waits as well");
    machine.written(Millis(301), &done());
    assert_eq!(machine.take_accepted(), [3, 4]);
    machine.packet(Millis(302), &reply(6, 1, &packets[2]));
    machine.packet(Millis(302), &reply(7, 1, &tcp(9_999, 0x18, &bytes)));
    assert_eq!(machine.take_accepted(), [6, 7], "beyond a gap");
    assert_eq!(machine.tally().unlearned, BTreeMap::from([("gap", 1)]));
}

#[test]
fn members_move_with_the_shard_of_their_scope() {
    let mut machine = machine();
    let packet = udp(&answer("a.io", &[address(1)]));
    machine.packet(Millis(0), &reply(1, 1, &packet));
    machine.next_batch(Millis(0)).unwrap();
    machine.written(Millis(0), &done());
    let applied = machine.apply(vec![set_scope(1, 1, 5, &[1])]);
    assert!(!applied.has_new_owner && applied.needs > machine.done());
    let moved: Vec<(DomainSetPart, bool)> =
        machine.next_batch(Millis(0)).unwrap().changes.into_iter().map(|(member, is)| (member.part, is)).collect();
    assert_eq!(moved, [(DomainSetPart::Interfaces(Shard(0)), false), (DomainSetPart::Interfaces(Shard(5)), true)]);
    machine.written(Millis(0), &done());
    assert!(applied.needs <= machine.done());
    // Another owner has none of them.
    let applied = machine.apply(vec![set_scope(1, 9, 5, &[1])]);
    assert!(applied.has_new_owner);
    let changes = machine.next_batch(Millis(0)).unwrap().changes;
    assert!(changes.len() == 1 && !changes[0].1, "{changes:?}");
}

#[test]
fn members_of_another_holder_are_distinct_where_the_kernel_distinguishes_them() {
    let mut machine = Machine::new(HOLD, "boot").with_map();
    machine.apply(vec![set_domains(1, &["a.io"]), set_scope(1, 1, 0, &[1])]);
    let packet = udp(&answer("a.io", &[address(1)]));
    let changes = |machine: &mut Machine| -> Vec<(u64, bool)> {
        let batch = machine.next_batch(Millis(0)).unwrap();
        machine.written(Millis(0), &done());
        batch.changes.iter().map(|(member, is_present)| (member.owner, *is_present)).collect()
    };
    machine.packet(Millis(0), &reply(1, 1, &packet));
    assert_eq!(changes(&mut machine), [(1, true)]);
    machine.apply(vec![set_scope(1, 2, 0, &[1])]);
    machine.packet(Millis(0), &reply(2, 1, &packet));
    assert_eq!(changes(&mut machine), [(1, false), (2, true)], "the same address");
}

#[test]
fn members_of_the_kernel_without_a_place_go_and_the_others_are_restored() {
    let mut before = machine();
    before.packet(Millis(0), &reply(1, 1, &udp(&answer("a.io", &[address(1)]))));
    let saved = before.save(Millis(0));
    let kernel = vec![member(1, 0, 1), member(1, 3, 1), member(2, 0, 8), member(9, 0, 2)];
    let mut after = machine();
    let sets = after.unlisted();
    let restored = after.restore(Millis(1_000), Some(&saved), &sets, kernel.clone()).unwrap();
    assert_eq!(restored.addresses, 1);
    let changes = after.next_batch(Millis(1_000)).unwrap().changes;
    assert_eq!(changes, [(member(9, 0, 2), false), (member(1, 3, 1), false)], "an unknown scope and another shard");
    // Nothing of another boot comes back.
    let mut other = Machine::new(HOLD, "other boot");
    other.apply(vec![set_domains(1, &["a.io"]), set_scope(1, 1, 0, &[1])]);
    other.restore(Millis(0), Some(&saved), &sets, kernel).unwrap_err();
    let changes = other.next_batch(Millis(0)).unwrap().changes;
    assert!(changes.len() == 4 && changes.iter().all(|(_, is_present)| !is_present), "{changes:?}");
}

#[test]
fn members_of_another_shard_stay_as_long_as_others_of_the_kernel() {
    let mut before = machine();
    before.packet(Millis(0), &reply(1, 1, &udp(&answer("a.io", &[address(1)]))));
    let saved = before.save(Millis(0));
    let mut after = machine();
    let sets = after.unlisted();
    // The cache does not name the second one, which was learned after it was saved.
    let kernel = vec![member(1, 3, 1), member(1, 3, 5), member(1, 0, 6), member(1, 3, 6)];
    after.restore(Millis(1_000), Some(&saved), &sets, kernel).unwrap();
    let moved = [(member(1, 0, 1), true), (member(1, 0, 5), true)];
    let gone = [(member(1, 3, 1), false), (member(1, 3, 5), false), (member(1, 3, 6), false)];
    assert_eq!(changes(&mut after, 1_000), [&moved[..], &gone].concat());
    after.advance(Millis(1_000 + 120_000));
    let expired = [1, 5, 6].map(|last| (member(1, 0, last), false));
    assert_eq!(changes(&mut after, 121_000), expired);
}

#[test]
fn a_set_that_is_told_later_is_listed_and_has_no_unexplained_member() {
    let mut machine = machine();
    let sets = machine.unlisted();
    assert_eq!(sets, [(set(1), DomainSetPart::Interfaces(Shard(0)))]);
    machine.restore(Millis(0), None, &sets, Vec::new()).unwrap();
    assert_eq!(machine.unlisted(), []);
    machine.packet(Millis(0), &reply(1, 1, &udp(&answer("a.io", &[address(1)]))));
    changes(&mut machine, 0);
    // A set that was left over, a part for more interfaces, and a set that is destroyed and made.
    let later = [(set(1), DomainSetPart::Interfaces(Shard(1))), (set(2), DomainSetPart::Interfaces(Shard(0)))];
    machine.apply(vec![set_domains(2, &["b.io"]), set_scope(2, 2, 1, &[1, 2])]);
    let unlisted = machine.unlisted();
    assert!(later.iter().all(|set| unlisted.contains(set)) && unlisted.len() == 3, "{unlisted:?}");
    let stray = KernelMember { set: set(2), ..member(2, 1, 9) };
    machine.compare(&unlisted, vec![stray.clone(), member(1, 1, 1)]);
    assert_eq!(changes(&mut machine, 1), [(member(1, 1, 1), false), (stray, false)]);
    machine.apply(vec![LearnerCommand::RemoveDomains(set(2))]);
    machine.apply(vec![set_domains(2, &["b.io"])]);
    assert_eq!(machine.unlisted().len(), 2);
    // A part that is not in use for a while.
    machine.apply(vec![set_scope(2, 2, 0, &[1])]);
    machine.apply(vec![set_scope(2, 2, 1, &[1])]);
    assert!(machine.unlisted().contains(&later[0]));
}

#[test]
fn members_that_another_program_removes_come_back() {
    let mut machine = machine();
    let sets = machine.unlisted();
    machine.restore(Millis(0), None, &sets, Vec::new()).unwrap();
    let packet = udp(&answer("a.io", &[address(1), address(2)]));
    machine.packet(Millis(0), &reply(1, 1, &packet));
    changes(&mut machine, 0);
    assert_eq!(machine.take_accepted(), [1]);
    let sets = machine.next_comparison();
    machine.compare(&sets, vec![member(1, 0, 2)]);
    // A renewed answer waits for them, too.
    machine.packet(Millis(1), &reply(2, 1, &packet));
    assert_eq!(machine.take_accepted(), [0_u32; 0]);
    assert_eq!(changes(&mut machine, 1), [(member(1, 0, 1), true)]);
    assert_eq!(machine.take_accepted(), [2]);
    machine.compare(&sets, vec![member(1, 0, 1), member(1, 0, 2)]);
    assert_eq!(changes(&mut machine, 2), []);
}

#[test]
fn comparisons_take_turns_and_end_where_they_are_expensive() {
    let mut machine = Machine::new(HOLD, "boot");
    let domains: Vec<LearnerCommand> = (0..40).map(|number| set_domains(number, &["*.a.io"])).collect();
    let all: Vec<u8> = (0..40).collect();
    machine.apply(domains);
    machine.apply(vec![set_scope(1, 1, 0, &all)]);
    assert_eq!(machine.next_comparison(), [], "nothing is listed");
    let sets = machine.unlisted();
    machine.restore(Millis(0), None, &sets, Vec::new()).unwrap();
    let seen: BTreeSet<SetPart> = (0..3).flat_map(|_| machine.next_comparison()).collect();
    assert_eq!(seen.len(), 40);
    for name in 0..2_000 {
        let addresses: Vec<IpAddr> = (0..5).map(|last| IpAddr::from([198, 51, 100, last])).collect();
        machine.packet(Millis(0), &reply(1, 1, &udp(&answer(&format!("n{name}.a.io"), &addresses))));
    }
    assert!(machine.sizes().0.members <= kernel_view::COMPARED_MEMBERS && !machine.next_comparison().is_empty());
    for last in 0..=u8::MAX {
        let addresses: Vec<IpAddr> = (0..3).map(|net| IpAddr::from([203, 0, net, last])).collect();
        machine.packet(Millis(0), &reply(1, 1, &udp(&answer("a.a.io", &addresses))));
    }
    assert!(machine.sizes().0.members > kernel_view::COMPARED_MEMBERS);
    assert_eq!(machine.next_comparison(), []);
}

#[test]
fn a_crash_never_passes_members_to_the_next_owner() {
    let mut machine = machine();
    let sets = machine.unlisted();
    machine.restore(Millis(0), None, &sets, Vec::new()).unwrap();
    machine.packet(Millis(0), &reply(1, 1, &udp(&answer("a.io", &[address(1)]))));
    changes(&mut machine, 0);
    let mut saves = Saves::new(Duration::from_secs(60));
    saves.set_draft(Millis(0), machine.collected(), machine.save(Millis(0)));
    assert_eq!(machine.next_batch(Millis(0)), None);
    let mut file = saves.begin(machine.done(), machine.has_refused_removals()).expect("the kernel has everything");
    saves.finish();
    let kernel = [member(1, 0, 1)];
    let new_owner = || vec![set_domains(1, &["a.io", "*.a.io"]), set_scope(1, 9, 0, &[1])];
    assert!(machine.apply(new_owner()).has_new_owner);
    saves.request();
    // At each point before the kernel has removed the member, a restart removes it.
    for step in 0..3 {
        if saves.wants_draft(Millis(1)) {
            saves.set_draft(Millis(1), machine.collected(), machine.save(Millis(1)));
        }
        file = saves.begin(machine.done(), machine.has_refused_removals()).unwrap_or(file);
        let mut restarted = Machine::new(HOLD, "boot");
        restarted.apply(new_owner());
        let sets = restarted.unlisted();
        restarted.restore(Millis(2), Some(&file), &sets, kernel.to_vec()).unwrap();
        assert_eq!(changes(&mut restarted, 2), [(member(1, 0, 1), false)], "{step}");
        match step {
            0 => assert!(machine.next_batch(Millis(1)).is_some()),
            // The kernel refuses the removal.
            _ => machine.written(Millis(1), &Written::Except(vec![0])),
        }
    }
    machine.next_batch(Millis(1_001)).unwrap();
    assert_eq!(saves.begin(machine.done(), machine.has_refused_removals()), None, "the removal is tried again");
    machine.written(Millis(1_001), &done());
    assert_ne!(saves.begin(machine.done(), machine.has_refused_removals()), None);
}

#[test]
fn a_lost_queue_forgets_and_an_end_releases() {
    let mut machine = machine();
    let packet = udp(&answer("a.io", &[address(1)]));
    machine.packet(Millis(0), &reply(1, 1, &packet));
    machine.queue_lost();
    machine.release_all(Millis(0));
    assert_eq!((machine.take_accepted(), machine.tally().shutdowns), (vec![], 1));
    machine.packet(Millis(0), &reply(2, 1, &packet));
    machine.release_all(Millis(0));
    assert_eq!(machine.take_accepted(), [2]);
}

/// Step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Answer {
        scope: u8,
        name: usize,
        addresses: Vec<u8>,
    },
    Patterns {
        set: u8,
        patterns: Option<usize>,
    },
    Scope {
        scope: u8,
        owner: u64,
        shard: u16,
        sets: Vec<u8>,
    },
    RemoveScope(u8),
    /// Time passes.
    Pass(u64),
    /// The batch that is being written ends.
    Finish(Fate),
    /// Another program removes a member, or adds one.
    Foreign {
        scope: u8,
        set: u8,
        shard: u16,
        last: u8,
    },
    /// All sets are listed.
    List,
    /// The listing arrives.
    Listed,
}

/// Fate of a batch.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Done,
    /// The kernel refuses the change at this place.
    Refused(usize),
    /// No answer comes; the kernel has done the changes before this place.
    Unknown(usize),
}

const NAMES: [&str; 3] = ["a.io", "x.a.io", "b.io"];
const PATTERNS: [&[&str]; 4] = [&["a.io"], &["*.a.io"], &["a.io", "b.io"], &["c.io"]];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sets = prop::collection::btree_set(1u8..4, 0..3).prop_map(|sets| sets.into_iter().collect());
    let fate = prop_oneof![
        4 => Just(Fate::Done),
        1 => (0usize..4).prop_map(Fate::Refused),
        1 => (0usize..4).prop_map(Fate::Unknown),
    ];
    let addresses = prop::collection::vec(0u8..5, 1..3);
    let step = prop_oneof![
        8 => (0u8..4, 0usize..3, addresses).prop_map(|(scope, name, addresses)| Step::Answer { scope, name, addresses }),
        2 => (1u8..4, prop::option::of(0usize..4)).prop_map(|(set, patterns)| Step::Patterns { set, patterns }),
        3 => (0u8..4, 0u64..2, 0u16..2, sets)
            .prop_map(|(scope, owner, shard, sets)| Step::Scope { scope, owner, shard, sets }),
        1 => (0u8..4).prop_map(Step::RemoveScope),
        3 => (0u64..40_000).prop_map(Step::Pass),
        4 => (0u64..900).prop_map(Step::Pass),
        8 => fate.prop_map(Step::Finish),
        2 => (0u8..4, 1u8..4, 0u16..2, 0u8..5)
            .prop_map(|(scope, set, shard, last)| Step::Foreign { scope, set, shard, last }),
        2 => Just(Step::List),
        2 => Just(Step::Listed),
    ];
    prop::collection::vec(step, 0..80)
}

/// A packet in the kernel.
struct Packet {
    scope: u8,
    since: u64,
    name: usize,
    addresses: Vec<u8>,
    /// No command came since: a later one can give its addresses members that it need not wait for.
    is_current: bool,
}

/// The kernel, and everything that is known about the packets.
#[derive(Default)]
struct World {
    kernel: BTreeSet<KernelMember>,
    being_written: Option<Batch>,
    now: u64,
    /// Packets in the kernel.
    held: BTreeMap<u32, Packet>,
    /// Members that the kernel lacks because it refused a change.
    refused: BTreeSet<KernelMember>,
    /// Members that another program has removed or added, until the learner writes them.
    lost: BTreeSet<KernelMember>,
    strays: BTreeSet<KernelMember>,
    /// The sets of a listing, and the members at its time.
    listing: Option<(Vec<SetPart>, BTreeSet<KernelMember>)>,
    ids: u32,
}

impl World {
    fn step(&mut self, machine: &mut Machine, step: Step) {
        if matches!(step, Step::Patterns { .. } | Step::Scope { .. } | Step::RemoveScope(_)) {
            self.held.values_mut().for_each(|packet| packet.is_current = false);
        }
        match step {
            Step::Answer { scope, name, addresses } => {
                self.ids += 1;
                let listed: Vec<IpAddr> = addresses.iter().map(|last| address(*last)).collect();
                let packet = udp(&answer(NAMES[name], &listed));
                let packet_in_kernel = Packet { scope, since: self.now, name, addresses, is_current: true };
                self.held.insert(self.ids, packet_in_kernel);
                machine.packet(Millis(self.now), &reply(self.ids, scope, &packet));
            }
            Step::Patterns { set: number, patterns: Some(which) } => {
                machine.apply(vec![set_domains(number, PATTERNS[which])]);
            }
            Step::Patterns { set: number, patterns: None } => {
                machine.apply(vec![LearnerCommand::RemoveDomains(set(number))]);
                self.refused.retain(|member| member.set != set(number));
            }
            Step::Scope { scope, owner, shard, sets } => {
                machine.apply(vec![set_scope(scope, owner, shard, &sets)]);
            }
            Step::RemoveScope(number) => {
                machine.apply(vec![LearnerCommand::RemoveScope(scope(number))]);
            }
            Step::Pass(time) => self.now += time,
            Step::Finish(fate) => self.finish(machine, fate),
            Step::Foreign { scope: number, set: of, shard, last } => {
                let member = tortie_dns::Member { set: set(of), scope: scope(number), address: address(last) };
                let part = scopes::part_of(scope(number), Shard(shard));
                let member = placed(member, scopes::Place { part, owner: 0 });
                if self.kernel.remove(&member) {
                    self.strays.remove(&member);
                    self.lost.insert(member);
                } else {
                    self.kernel.insert(member.clone());
                    self.strays.insert(member);
                }
            }
            // The writer does one thing at a time.
            Step::List if self.being_written.is_none() && self.listing.is_none() => {
                let sets = machine.unlisted().into_iter().chain(machine.next_comparison()).collect();
                self.listing = Some((sets, self.kernel.clone()));
            }
            Step::List => {}
            Step::Listed => self.listed(machine),
        }
        self.settle(machine);
    }

    fn listed(&mut self, machine: &mut Machine) {
        let Some((sets, members)) = self.listing.take() else { return };
        let is_of_sets = |member: &KernelMember| sets.contains(&(member.set.clone(), member.part));
        machine.compare(&sets, members.into_iter().filter(is_of_sets).collect());
    }

    fn finish(&mut self, machine: &mut Machine, fate: Fate) {
        self.listed(machine);
        let Some(batch) = self.being_written.take() else { return };
        let (until, refused) = match fate {
            Fate::Done => (usize::MAX, None),
            // A removal is never refused.
            Fate::Refused(at) => (usize::MAX, Some(at).filter(|at| batch.changes.get(*at).is_some_and(|(_, is)| *is))),
            Fate::Unknown(at) => (at, None),
        };
        for (at, (member, is_present)) in batch.changes.into_iter().enumerate().take(until) {
            if refused == Some(at) {
                self.refused.insert(member);
            } else {
                self.refused.remove(&member);
                self.lost.remove(&member);
                self.strays.remove(&member);
                if is_present {
                    self.kernel.insert(member)
                } else {
                    self.kernel.remove(&member)
                };
            }
        }
        let written = match fate {
            Fate::Unknown(_) => Written::Unknown,
            _ => Written::Except(refused.into_iter().collect()),
        };
        machine.written(Millis(self.now), &written);
    }

    fn settle(&mut self, machine: &mut Machine) {
        machine.advance(Millis(self.now));
        if let Some(batch) = machine.next_batch(Millis(self.now)) {
            assert!(self.being_written.is_none(), "one batch at a time");
            self.being_written = Some(batch);
        }
        for id in machine.take_accepted() {
            let packet = self.held.remove(&id).expect("accepted once");
            if packet.is_current && self.now < packet.since + 1_000 {
                self.check_members(machine, &packet);
            }
        }
        let overdue = self.held.values().filter(|packet| self.now >= packet.since + 1_000).count();
        assert_eq!(overdue, 0, "a packet is held too long");
        assert_eq!(machine.holding.len(), self.held.len());
    }

    /// A reply that was let go before its time has all members that its addresses should have now.
    fn check_members(&self, machine: &Machine, packet: &Packet) {
        let (of_scope, name) = (scope(packet.scope), NAMES[packet.name]);
        let Some(learner) = machine.scopes.get(of_scope) else { return };
        let known: Vec<_> = machine.learned.known(of_scope).filter(|known| known.name.as_str() == name).collect();
        for last in &packet.addresses {
            let entry = known.iter().find(|known| known.address == address(*last));
            for of_set in entry.map(|entry| entry.sets.as_slice()).unwrap_or_default() {
                let member = tortie_dns::Member { set: (*of_set).clone(), scope: of_scope, address: address(*last) };
                let member = placed(member, learner.place);
                let is_excused = self.refused.contains(&member) || self.lost.contains(&member);
                assert!(self.kernel.contains(&member) || is_excused, "{name} {member:?}");
            }
        }
    }

    /// The kernel answers until nothing is left to write.
    fn rest(&mut self, machine: &mut Machine) {
        for turn in 0..16 {
            self.step(machine, Step::Finish(Fate::Done));
            // Not while a batch is being written, such as one of expired addresses.
            if (7..14).contains(&turn) {
                self.step(machine, Step::List);
                self.step(machine, Step::Listed);
            }
            self.step(machine, Step::Pass(1_000));
        }
        // Addresses may have expired in the last second.
        self.step(machine, Step::Finish(Fate::Done));
        assert!(machine.writes.is_idle() && self.held.is_empty());
        let mut members = BTreeSet::new();
        for number in 1..4 {
            for member in machine.learned.members(&set(number)) {
                let place = machine.scopes.get(member.scope).expect("a scope with members learns").place;
                members.insert(placed(member, place));
            }
        }
        // Sets that are not in use may have strays, which a later listing finds.
        let used: BTreeSet<SetPart> = machine.listed.clone();
        assert_eq!(machine.unlisted(), []);
        let strays = self.strays.iter().filter(|member| !used.contains(&(member.set.clone(), member.part)));
        members.extend(strays.cloned());
        assert_eq!(self.kernel, members);
    }
}

proptest! {
    #[test]
    fn no_reply_overtakes_its_members_and_the_kernel_follows(steps in steps()) {
        let (mut machine, mut world) = (Machine::new(HOLD, "boot"), World::default());
        for step in steps {
            world.step(&mut machine, step);
        }
        world.rest(&mut machine);
        for number in 0..4 {
            world.step(&mut machine, Step::RemoveScope(number));
            world.step(&mut machine, Step::Patterns { set: number, patterns: None });
        }
        world.rest(&mut machine);
        prop_assert!(world.kernel == world.strays && machine.learned.is_empty());
    }

    #[test]
    fn no_packet_panics_and_each_is_accepted_once(
        packets in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..80), 0u32..200), 0..20),
    ) {
        let mut machine = machine();
        let mut accepted = Vec::new();
        machine.packet(Millis(0), &reply(0, 1, &tcp(99, 2, &[])));
        for (id, (is_udp, bytes, sequence)) in (1u32..).zip(&packets) {
            let packet = if *is_udp { udp(bytes) } else { tcp(*sequence, 0x18, bytes) };
            machine.packet(Millis(0), &reply(id, 1, &packet));
        }
        machine.advance(Millis(1_000));
        accepted.extend(machine.take_accepted());
        accepted.sort_unstable();
        let all: Vec<u32> = (0..=u32::try_from(packets.len()).unwrap()).collect();
        prop_assert_eq!(accepted, all);
    }
}
