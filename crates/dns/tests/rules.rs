//! The rules of learning, each by one case, with the default limits.

#![allow(clippy::unwrap_used, reason = "helpers of tests do not count as tests")]

mod wire;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tortie_dns::{
    Action, Answer, Cluster, ClusterAddresses, Learned, Limits, MatchNames, Member, MessageLimits, Millis, Refusal,
    Scope, Settings, read,
};
use wire::Data;

fn scope(number: u32) -> Scope {
    Scope::Interface(format!("cali{number}").parse().unwrap())
}

fn v4(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0101_0000 + number).into()
}

/// Returns a value with a set of patterns that scope 1 uses.
fn learned(settings: Settings, patterns: &[&str]) -> Learned {
    let mut learned = Learned::new(settings);
    set(&mut learned, patterns);
    learned.set_scope(scope(1), 1, ["d:1".into()]);
    learned
}

fn set(learned: &mut Learned, patterns: &[&str]) {
    let patterns: Vec<_> = patterns.iter().map(|text| text.parse().unwrap()).collect();
    learned.set_domains(&"d:1".into(), patterns.into());
}

fn answer(name: &str, addresses: impl IntoIterator<Item = IpAddr>, ttl: u32) -> Answer {
    Answer::new(name.parse().unwrap(), addresses.into_iter().map(|address| (address, ttl)))
}

/// Returns the member of set 1 in a scope.
fn member(number: u32, address: u32) -> Member {
    Member { set: "d:1".into(), scope: scope(number), address: v4(address) }
}

fn of(records: &[(&str, u32, Data)]) -> Answer {
    read(&wire::message(records[0].0, records), &MessageLimits::default()).unwrap()
}

/// Returns the changes as text: `+1.1.0.1`, or `-` for a removal.
fn changes(learned: &mut Learned) -> Vec<String> {
    let text = |action| if action == Action::Added { '+' } else { '-' };
    learned.take_changes().iter().map(|change| format!("{}{}", text(change.action), change.member.address)).collect()
}

#[test]
fn a_thousand_addresses_of_a_name_work_and_one_more_evicts_the_oldest() {
    let mut learned = learned(Settings::default(), &["cdn.io"]);
    for n in 0..200 {
        let addresses = (5 * n..5 * n + 5).map(v4);
        let outcome = learned.answer(Millis(n.into()), scope(1), &answer("cdn.io", addresses, 60));
        assert_eq!(outcome.map(|outcome| (outcome.added, outcome.matched, outcome.evicted)), Some((5, 5, 0)));
    }
    assert_eq!(learned.take_changes().len(), 1_000);
    let outcome = learned.answer(Millis(200), scope(1), &answer("cdn.io", [v4(1_000)], 60)).unwrap();
    assert_eq!((outcome.added, outcome.evicted), (1, 1));
    assert_eq!(changes(&mut learned), ["-1.1.0.0", "+1.1.3.232"]);
    // An address that is answered again is no longer the oldest.
    learned.answer(Millis(201), scope(1), &answer("cdn.io", [v4(1)], 60)).unwrap();
    learned.answer(Millis(202), scope(1), &answer("cdn.io", [v4(1_001)], 60)).unwrap();
    assert_eq!(changes(&mut learned), ["-1.1.0.2", "+1.1.3.233"]);
}

#[test]
fn a_scope_with_many_names_evicts_its_own_and_first_those_without_a_set() {
    let mut learned = learned(Settings::default(), &["*.a.io"]);
    learned.set_scope(scope(2), 1, ["d:1".into()]);
    for number in [1, 2] {
        learned.answer(Millis(0), scope(number), &answer("x.a.io", [v4(number)], 3_600)).unwrap();
    }
    assert_eq!(changes(&mut learned), ["+1.1.0.1", "+1.1.0.2"]);
    for n in 0..100_000 {
        learned.answer(Millis(1), scope(1), &answer(&format!("n{n}.b.io"), [v4(n)], 3_600)).unwrap();
    }
    assert_eq!(changes(&mut learned), [""; 0]);
    let counts = learned.counts();
    assert_eq!((counts.names, counts.addresses, counts.members), (2_001, 2_001, 2));
    // Names in a set evict those without one, then each other.
    for n in 0..2_000 {
        learned.answer(Millis(2), scope(1), &answer(&format!("n{n}.a.io"), [v4(500 + n)], 3_600)).unwrap();
    }
    let taken = changes(&mut learned);
    assert_eq!((taken.len(), &*taken[0]), (2_001, "-1.1.0.1"));
    assert!(taken[1..].iter().all(|change| change.starts_with('+')));
}

#[test]
fn ten_thousand_addresses_of_a_scope_and_no_more() {
    let mut learned = learned(Settings::default(), &["*.a.io"]);
    for n in 0..25 {
        let addresses = (0..500).map(|a| v4(n * 500 + a));
        learned.answer(Millis(0), scope(1), &answer(&format!("n{n}.a.io"), addresses, 60)).unwrap();
    }
    assert_eq!((learned.counts().names, learned.counts().addresses), (20, 10_000));
    assert_eq!(learned.names(scope(1), v4(2_500)).count(), 1, "the addresses of the first five names are gone");
    assert_eq!(learned.names(scope(1), v4(2_499)).count(), 0);
}

#[test]
fn a_full_node_refuses_addresses_beyond_their_share() {
    let limits = Limits { addresses: 3, ..Limits::default() };
    let mut learned = learned(Settings { limits, ..Settings::default() }, &["a.io"]);
    learned.set_scope(scope(2), 1, ["d:1".into()]);
    learned.answer(Millis(0), scope(1), &answer("a.io", (0..3).map(v4), 60)).unwrap();
    let outcome = learned.answer(Millis(1), scope(2), &answer("a.io", [v4(9)], 60)).unwrap();
    assert_eq!((outcome.added, outcome.evicted, outcome.refused(Refusal::NoRoom)), (1, 1, 0));
    let outcome = learned.answer(Millis(1), scope(2), &answer("a.io", [v4(9), v4(10)], 60)).unwrap();
    assert_eq!((outcome.added, outcome.evicted, outcome.refused(Refusal::NoRoom)), (0, 0, 1));
    let outcome = learned.answer(Millis(2), scope(1), &answer("a.io", [v4(9)], 60)).unwrap();
    assert_eq!((outcome.added, outcome.evicted), (1, 1));
    // An answer of four addresses keeps its first two: the other scope has the rest of its share.
    let outcome = learned.answer(Millis(3), scope(1), &answer("b.io", (20..24).map(v4), 60)).unwrap();
    assert_eq!((outcome.added, outcome.evicted, outcome.refused(Refusal::NoRoom)), (2, 2, 2));
    assert_eq!(learned.counts().names, 2);
}

#[test]
fn lifetimes_are_extended_and_each_address_expires_by_itself() {
    let mut learned = learned(Settings::default(), &["a.io"]);
    let v6: IpAddr = "2001:db8::1".parse().unwrap();
    learned.answer(Millis(0), scope(1), &answer("a.io", [v6], 300)).unwrap();
    learned.answer(Millis(0), scope(1), &answer("a.io", [v4(1), v4(2)], 0)).unwrap();
    assert_eq!(changes(&mut learned).len(), 3);
    assert_eq!(learned.next_expiry(), Some(Millis(30_000)));
    // A shorter lifetime changes nothing, a longer one counts.
    learned.answer(Millis(10_000), scope(1), &answer("a.io", [v6], 1)).unwrap();
    learned.answer(Millis(10_000), scope(1), &answer("a.io", [v4(2)], 60)).unwrap();
    learned.expire(Millis(29_999));
    assert_eq!(changes(&mut learned), [""; 0]);
    learned.expire(Millis(30_000));
    assert_eq!(changes(&mut learned), ["-1.1.0.1"]);
    learned.expire(Millis(70_000));
    assert_eq!(changes(&mut learned), ["-1.1.0.2"]);
    assert_eq!(learned.next_expiry(), Some(Millis(300_000)));
    learned.expire(Millis(300_000));
    assert_eq!(changes(&mut learned), ["-2001:db8::1"]);
}

#[test]
fn scopes_learn_for_themselves() {
    let mut learned = Learned::new(Settings::default());
    set(&mut learned, &["a.io"]);
    for number in 0..70 {
        learned.set_scope(scope(number), 1, ["d:1".into()]);
        learned.answer(Millis(0), scope(number), &answer("a.io", [v4(1)], 60)).unwrap();
    }
    learned.set_scope(Scope::Host, 1, ["d:1".into()]);
    let added = learned.take_changes();
    assert_eq!(added.len(), 70);
    assert!(added.is_sorted() && added.iter().all(|change| change.member.scope != Scope::Host));
    assert_eq!(learned.answer(Millis(0), scope(70), &answer("a.io", [v4(1)], 60)), None);
    assert_eq!(learned.names(scope(1), v4(1)).count(), 1);
    assert_eq!(learned.names(Scope::Host, v4(1)).count(), 0);
}

#[test]
fn another_owner_and_removal_empty_a_scope() {
    let mut learned = learned(Settings::default(), &["a.io"]);
    learned.answer(Millis(0), scope(1), &answer("a.io", [v4(1)], 60)).unwrap();
    assert_eq!(changes(&mut learned), ["+1.1.0.1"]);
    learned.set_scope(scope(1), 1, ["d:1".into()]);
    assert_eq!(changes(&mut learned), [""; 0]);
    learned.set_scope(scope(1), 2, ["d:1".into()]);
    assert_eq!(changes(&mut learned), ["-1.1.0.1"]);
    assert_eq!(learned.known(scope(1)).count(), 0);
    learned.answer(Millis(0), scope(1), &answer("a.io", [v4(2)], 60)).unwrap();
    learned.remove_scope(scope(1));
    assert_eq!(changes(&mut learned), [""; 0], "added and removed");
    assert_eq!(learned.next_expiry(), None);
}

#[test]
fn new_patterns_count_for_known_names() {
    let mut learned = learned(Settings::default(), &[]);
    let outcome = learned.answer(Millis(0), scope(1), &answer("www.a.io", [v4(1)], 60)).unwrap();
    assert_eq!((outcome.added, outcome.matched), (1, 0));
    assert_eq!(changes(&mut learned), [""; 0]);
    set(&mut learned, &["*.a.io"]);
    assert_eq!(changes(&mut learned), ["+1.1.0.1"]);
    set(&mut learned, &["www.a.io"]);
    assert_eq!(changes(&mut learned), [""; 0], "the set has the name before and after");
    learned.remove_domains(&"d:1".into());
    assert_eq!(changes(&mut learned), ["-1.1.0.1"]);
    set(&mut learned, &["www.a.io"]);
    learned.set_scope(scope(1), 1, []);
    assert_eq!(changes(&mut learned), [""; 0]);
    assert_eq!(learned.counts().addresses, 1);
}

#[test]
fn two_names_with_one_address_make_one_member() {
    let mut learned = learned(Settings::default(), &["*.io"]);
    learned.answer(Millis(0), scope(1), &answer("a.io", [v4(1)], 60)).unwrap();
    learned.answer(Millis(0), scope(1), &answer("b.io", [v4(1)], 90)).unwrap();
    assert_eq!(changes(&mut learned), ["+1.1.0.1"]);
    let names: Vec<String> = learned.names(scope(1), v4(1)).map(|known| known.name.to_string()).collect();
    assert_eq!(names, ["a.io", "b.io"]);
    learned.expire(Millis(60_000));
    assert_eq!(changes(&mut learned), [""; 0]);
    learned.expire(Millis(90_000));
    assert_eq!(changes(&mut learned), ["-1.1.0.1"]);
}

#[test]
fn targets_of_aliases_match_unless_only_questions_do() {
    let message = wire::message("a.io", &[("a.io", 60, Data::Alias("cdn.net")), ("cdn.net", 60, Data::Address(v4(1)))]);
    let answer = read(&message, &MessageLimits::default()).unwrap();
    for (match_names, expected) in [(MatchNames::Chain, 1), (MatchNames::Question, 0)] {
        let mut learned = learned(Settings { match_names, ..Settings::default() }, &["cdn.net"]);
        learned.answer(Millis(0), scope(1), &answer).unwrap();
        assert_eq!(learned.take_changes().len(), expected);
        set(&mut learned, &["a.io"]);
        assert_eq!(learned.counts().members, 1);
    }
}

#[test]
fn rebinding_opens_nothing_and_headless_services_open_their_pods() {
    let nets = || ["10.244.0.0/16", "192.0.2.7/32"].map(|net| net.parse().unwrap());
    let special = ["127.0.0.1", "169.254.169.254", "10.244.1.1", "::ffff:10.244.1.1", "192.0.2.7", "64:ff9b::c000:207"];
    let special = special.map(|text| text.parse::<IpAddr>().unwrap());
    let mut learned = learned(Settings::default(), &["*.a.io", "*.svc.cluster.local"]);
    learned.set_cluster(Cluster::new(nets(), Some("cluster.local".parse().unwrap())));
    let outcome = learned.answer(Millis(0), scope(1), &answer("x.a.io", special, 60)).unwrap();
    let refused = [Refusal::Loopback, Refusal::LinkLocal, Refusal::Cluster].map(|refusal| outcome.refused(refusal));
    assert_eq!((outcome.added, refused), (0, [1, 1, 3]), "the mapped address is that of a pod");
    let pod = ["10.244.1.1".parse().unwrap()];
    learned.answer(Millis(0), scope(1), &answer("db.ns.svc.cluster.local", pod, 60)).unwrap();
    assert_eq!(changes(&mut learned), ["+10.244.1.1"]);

    // An address that becomes one of the cluster, or a stricter setting, closes it again.
    learned.answer(Millis(0), scope(1), &answer("x.a.io", [v4(1)], 60)).unwrap();
    let more = nets().into_iter().chain(["1.1.0.0/16".parse().unwrap()]);
    learned.set_cluster(Cluster::new(more, Some("cluster.local".parse().unwrap())));
    assert_eq!(changes(&mut learned), [""; 0], "added and removed");
    learned.set_settings(Settings { cluster_addresses: ClusterAddresses::Never, ..Settings::default() });
    assert_eq!(changes(&mut learned), ["-10.244.1.1"]);
    assert_eq!(learned.counts().names, 0);
}

#[test]
fn a_restart_writes_differences_and_keeps_unknown_members_for_a_while() {
    let mut before = learned(Settings::default(), &["a.io"]);
    before.answer(Millis(0), scope(1), &answer("a.io", [v4(1), v4(2)], 600)).unwrap();
    let saved = before.save(Millis(10_000));
    // The kernel has one of the two, one that was learned after the save, and one of another scope.
    let kernel = [member(1, 1), member(1, 3), member(2, 1)];
    let mut after = learned(Settings::default(), &["a.io"]);
    let restored = after.restore(Millis(20_000), Some(&saved), &kernel).unwrap();
    assert_eq!((restored.addresses, restored.dropped), (2, 0));
    let text: Vec<String> = after
        .take_changes()
        .iter()
        .map(|change| format!("{:?} {} {}", change.action, change.member.scope, change.member.address))
        .collect();
    assert_eq!(text, ["Added cali1 1.1.0.2", "Removed cali2 1.1.0.1"]);
    assert_eq!(after.known(scope(1)).next().unwrap().expires, Millis(600_000));
    assert_eq!(after.next_expiry(), Some(Millis(140_000)), "the end of the grace time");
    after.expire(Millis(140_000));
    assert_eq!(changes(&mut after), ["-1.1.0.3"]);
}

#[test]
fn no_lifetime_grows_whatever_the_clock_does() {
    let mut before = learned(Settings::default(), &["a.io"]);
    before.answer(Millis(1_000_000), scope(1), &answer("a.io", [v4(1)], 600)).unwrap();
    let saved = before.save(Millis(1_100_000));
    let years = 10 * 365 * 86_400_000;
    for (now, left) in [(1_100_000, Some(500)), (1_599_999, Some(0)), (1_600_000, None), (0, Some(500)), (years, None)]
    {
        let mut after = learned(Settings::default(), &["a.io"]);
        after.restore(Millis(now), Some(&saved), &[member(1, 1)]).unwrap();
        let remaining = after.next_expiry().map(|at| at.since(Millis(now)).as_secs());
        assert_eq!(remaining, left, "at {now}");
        let expected: &[&str] = if left.is_some() { &[] } else { &["-1.1.0.1"] };
        assert_eq!(changes(&mut after), expected, "at {now}: an expired member of the kernel goes at once");
    }
    // Bounds that are lower now count.
    let max_ttl = Duration::from_secs(50);
    let mut after = learned(Settings { max_ttl, ..Settings::default() }, &["a.io"]);
    after.restore(Millis(1_100_000), Some(&saved), &[]).unwrap();
    assert_eq!(after.next_expiry(), Some(Millis(1_150_000)));
}

#[test]
fn a_scope_with_another_owner_gets_nothing_back() {
    let mut before = learned(Settings::default(), &["a.io"]);
    before.answer(Millis(0), scope(1), &answer("a.io", [v4(1)], 600)).unwrap();
    let saved = before.save(Millis(0));
    let kernel = [member(1, 1)];
    let mut after = Learned::new(Settings::default());
    set(&mut after, &["a.io"]);
    after.set_scope(scope(1), 2, ["d:1".into()]);
    let restored = after.restore(Millis(0), Some(&saved), &kernel).unwrap();
    assert_eq!((restored.addresses, restored.dropped), (0, 1));
    assert_eq!(changes(&mut after), ["-1.1.0.1"], "at once");
    // Without a cache nothing is known about the owner, so that the member stays for a while.
    let mut after = Learned::new(Settings::default());
    set(&mut after, &["a.io"]);
    after.set_scope(scope(1), 2, ["d:1".into()]);
    after.restore(Millis(0), None, &kernel).unwrap();
    assert_eq!(changes(&mut after), [""; 0]);
    after.answer(Millis(1), scope(1), &answer("a.io", [v4(1)], 600)).unwrap();
    after.expire(Millis(120_000));
    assert_eq!(changes(&mut after), [""; 0], "learned meanwhile");
}

#[test]
fn hints_open_nothing_for_the_target_of_another_owner() {
    let mut learned = learned(Settings::default(), &["api.github.com"]);
    let answer =
        of(&[("x.evil.io", 86_400, Data::Service("api.github.com", vec![v4(6), "2001:db8::6".parse().unwrap()]))]);
    let outcome = learned.answer(Millis(0), scope(1), &answer).unwrap();
    assert_eq!((outcome.added, outcome.matched, outcome.changed), (2, 0, 0));
    assert_eq!(changes(&mut learned), [""; 0]);
    assert!(learned.known(scope(1)).all(|known| known.name.as_str() == "x.evil.io"));
    // The names that lead to the owner have the hints.
    let answer = of(&[
        ("api.github.com", 60, Data::Alias("lb.github.com")),
        ("lb.github.com", 60, Data::Service("lb.github.com", vec![v4(7)])),
    ]);
    learned.answer(Millis(0), scope(1), &answer).unwrap();
    assert_eq!(changes(&mut learned), ["+1.1.0.7"]);
}

#[test]
fn aliases_out_of_the_cluster_domain_open_no_pod() {
    let cluster = |nets: &[&str], domain: &str| {
        Cluster::new(nets.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>(), Some(domain.parse().unwrap()))
    };
    let pods = cluster(&["1.1.0.0/16"], "cluster.local");
    let service = "x.t.svc.cluster.local";
    let to = |target| of(&[(service, 60, Data::Alias(target)), (target, 60, Data::Address(v4(9)))]);
    let start = || learned(Settings::default(), &["*.svc.cluster.local"]);
    let mut learned = start();
    learned.set_cluster(pods.clone());
    let outcome = learned.answer(Millis(0), scope(1), &to("x.evil.io")).unwrap();
    assert_eq!((outcome.added, outcome.refused(Refusal::Cluster)), (0, 2));
    // Out and in again.
    let answer = of(&[
        (service, 60, Data::Alias("x.evil.io")),
        ("x.evil.io", 60, Data::Alias("y.t.svc.cluster.local")),
        ("y.t.svc.cluster.local", 60, Data::Address(v4(9))),
    ]);
    let outcome = learned.answer(Millis(0), scope(1), &answer).unwrap();
    assert_eq!((outcome.added, outcome.refused(Refusal::Cluster)), (1, 2), "the last name alone");
    learned.expire(Millis(100_000));
    assert_eq!(changes(&mut learned), [""; 0]);
    let inside = to("y.t.svc.cluster.local");
    learned.answer(Millis(100_000), scope(1), &inside).unwrap();
    assert_eq!(changes(&mut learned), ["+1.1.0.9"]);
    // Another domain has no knowledge of owners.
    learned.set_cluster(cluster(&["1.1.0.0/16"], "local"));
    assert_eq!(changes(&mut learned), ["-1.1.0.9"]);

    // An address that becomes that of a pod later: one answer from outside counts.
    for answers in [[&to("x.evil.io"), &inside], [&inside, &to("x.evil.io")]] {
        let mut learned = Learned::new(Settings::default());
        set(&mut learned, &[service]);
        learned.set_scope(scope(1), 1, ["d:1".into()]);
        learned.set_cluster(cluster(&[], "cluster.local"));
        for answer in answers {
            learned.answer(Millis(0), scope(1), answer).unwrap();
        }
        assert_eq!(changes(&mut learned), ["+1.1.0.9"]);
        learned.set_cluster(pods.clone());
        assert_eq!(changes(&mut learned), ["-1.1.0.9"]);
    }
    // The same after a restart.
    for (answer, expected) in [(to("x.evil.io"), &["-1.1.0.9"][..]), (inside, &[][..])] {
        let mut before = start();
        before.set_cluster(cluster(&[], "cluster.local"));
        before.answer(Millis(0), scope(1), &answer).unwrap();
        let mut after = start();
        after.set_cluster(cluster(&[], "cluster.local"));
        after.restore(Millis(0), Some(&before.save(Millis(0))), &[]).unwrap();
        for learned in [&mut before, &mut after] {
            assert_eq!(changes(learned), ["+1.1.0.9"]);
            learned.set_cluster(pods.clone());
            assert_eq!(changes(learned), expected);
        }
    }
}

#[test]
fn members_that_a_cache_names_are_not_kept() {
    let limits = Limits { addresses_per_name: 1, ..Limits::default() };
    let mut before = learned(Settings::default(), &["a.io"]);
    before.answer(Millis(0), scope(1), &answer("a.io", [v4(1), v4(2)], 600)).unwrap();
    let (saved, kernel) = (before.save(Millis(0)), [member(1, 1), member(1, 2), member(1, 3)]);
    let restart = |settings, cluster: Cluster| {
        let mut after = learned(settings, &["a.io"]);
        after.set_cluster(cluster);
        after.restore(Millis(1_000), Some(&saved), &kernel).unwrap();
        let taken = changes(&mut after);
        (after, taken)
    };
    let none = Cluster::default;
    assert_eq!(restart(Settings::default(), none()).1, [""; 0]);
    let (_, evicted) = restart(Settings { limits, ..Settings::default() }, none());
    assert_eq!(evicted, ["-1.1.0.2"], "over a lower limit");
    let pool = || Cluster::new(["1.1.0.2/31".parse().unwrap()], None);
    assert_eq!(restart(Settings::default(), pool()).1, ["-1.1.0.2", "-1.1.0.3"], "refused, named or not");
    // A pool that comes later closes kept members, too.
    let (mut after, _) = restart(Settings::default(), none());
    after.set_cluster(pool());
    assert_eq!(changes(&mut after), ["-1.1.0.2", "-1.1.0.3"]);
    let special = Member { address: "127.0.0.1".parse().unwrap(), ..member(1, 0) };
    let mut after = learned(Settings::default(), &["a.io"]);
    after.restore(Millis(0), None, &[special]).unwrap();
    assert_eq!(changes(&mut after), ["-127.0.0.1"], "no state explains it");
}

#[test]
fn a_crash_loop_does_not_extend_the_grace_time() {
    let kernel = [member(1, 3)];
    let mut saved = learned(Settings::default(), &["a.io"]).save(Millis(0));
    for (now, until) in [(0, Some(120_000)), (50_000, Some(120_000)), (119_999, Some(120_000)), (120_000, None)] {
        let mut after = learned(Settings::default(), &["a.io"]);
        after.restore(Millis(now), Some(&saved), &kernel).unwrap();
        assert_eq!(after.next_expiry(), until.map(Millis), "at {now}");
        assert_eq!(after.counts().members, usize::from(until.is_some()));
        saved = if until.is_some() { after.save(Millis(now)) } else { saved };
    }
}

#[test]
fn another_epoch_ends_everything() {
    let epoch = |epoch: &str| Settings { epoch: epoch.to_owned(), ..Settings::default() };
    let mut before = learned(epoch("one"), &["a.io"]);
    before.answer(Millis(0), scope(1), &answer("a.io", [v4(1)], 600)).unwrap();
    let mut after = learned(epoch("two"), &["a.io"]);
    after.restore(Millis(0), Some(&before.save(Millis(0))), &[member(1, 1), member(1, 2)]).unwrap_err();
    assert_eq!(changes(&mut after), ["-1.1.0.1", "-1.1.0.2"]);
    assert_eq!(changes(&mut before), ["+1.1.0.1"]);
    before.set_settings(epoch("one"));
    assert_eq!(changes(&mut before), [""; 0]);
    before.set_settings(epoch("two"));
    assert_eq!((changes(&mut before), before.counts().addresses), (vec!["-1.1.0.1".to_owned()], 0));
}

#[test]
fn a_scope_that_the_cache_lacks_keeps_nothing() {
    let saved = learned(Settings::default(), &["a.io"]).save(Millis(0));
    let kernel = [member(1, 1), member(2, 1)];
    let mut after = learned(Settings::default(), &["a.io"]);
    after.set_scope(scope(2), 1, ["d:1".into()]);
    after.restore(Millis(0), Some(&saved), &kernel).unwrap();
    let removed: Vec<_> = after.take_changes().into_iter().map(|change| change.member.scope).collect();
    assert_eq!(removed, [scope(2)]);
    // Bytes that cannot be read say nothing about scopes.
    let mut after = learned(Settings::default(), &["a.io"]);
    after.set_scope(scope(2), 1, ["d:1".into()]);
    after.restore(Millis(0), Some(&saved[1..]), &kernel).unwrap_err();
    assert_eq!(changes(&mut after), [""; 0]);
}

#[test]
fn members_are_bounded_however_many_sets_match() {
    let mut learned = Learned::new(Settings::default());
    let sets: Vec<tortie_net::IpSetId> = (0..1_000).map(|n| tortie_net::IpSetId::new(format!("d:{n}"))).collect();
    for set in &sets {
        learned.set_domains(set, ["*.evil.io".parse().unwrap()].into());
    }
    learned.set_scope(scope(1), 1, sets.clone());
    let outcome = learned.answer(Millis(0), scope(1), &answer("x.evil.io", (0..1_000).map(v4), 60)).unwrap();
    assert_eq!((outcome.added, outcome.changed, outcome.refused(Refusal::NoRoom)), (40, 40_000, 960));
    let outcome = learned.answer(Millis(1), scope(1), &answer("y.evil.io", [v4(0), v4(2_000)], 60)).unwrap();
    assert_eq!((outcome.added, outcome.evicted), (2, 2));
    assert_eq!(learned.counts().members, 40_000);
    // Sets that come later trim what is known.
    let mut learned = Learned::new(Settings::default());
    for set in &sets {
        learned.set_domains(set, ["*.evil.io".parse().unwrap()].into());
    }
    learned.set_scope(scope(1), 1, []);
    learned.answer(Millis(0), scope(1), &answer("x.evil.io", (0..1_000).map(v4), 60)).unwrap();
    learned.set_scope(scope(1), 1, sets.clone());
    assert_eq!((learned.counts().addresses, learned.counts().members), (40, 40_000));
    assert_eq!(learned.take_changes().len(), 40_000);
    // A name in more sets than the limit is not learned, and evicts nothing.
    let limits = Limits { members_per_scope: 999, ..Limits::default() };
    learned.set_settings(Settings { limits, ..Settings::default() });
    let outcome = learned.answer(Millis(1), scope(1), &answer("z.evil.io", [v4(1)], 60)).unwrap();
    assert_eq!((outcome.added, outcome.evicted, outcome.refused(Refusal::NoRoom)), (0, 0, 1));
}

#[test]
fn an_answer_evicts_a_bounded_number_of_addresses() {
    let mut learned = learned(Settings::default(), &["*.io"]);
    for n in 0..8 {
        learned.answer(Millis(0), scope(1), &answer(&format!("big{n}.io"), (0..1_000).map(v4), 3_600)).unwrap();
    }
    for n in 8..2_000 {
        learned.answer(Millis(0), scope(1), &answer(&format!("n{n}.io"), [v4(n)], 3_600)).unwrap();
    }
    assert_eq!((learned.counts().names, learned.counts().addresses), (2_000, 9_992));
    let names: Vec<&str> = (0..17).map(|n| &*format!("c{n}.io").leak()).collect();
    let aliases = names.windows(2).map(|pair| (pair[0], 60, Data::Alias(pair[1])));
    let chain: Vec<_> = aliases.chain([(names[16], 60, Data::Address(v4(1)))]).collect();
    let outcome = learned.answer(Millis(1), scope(1), &of(&chain)).unwrap();
    assert_eq!((outcome.added, outcome.evicted, outcome.refused(Refusal::NoRoom)), (1, 1_017, 16));
    // Each answer goes on, so that names have room in the end.
    let again = (0..8).map(|_| learned.answer(Millis(1), scope(1), &of(&chain)).unwrap());
    let again: Vec<_> = again.inspect(|outcome| assert!(outcome.evicted <= 1_017)).collect();
    assert_eq!(again.last().map(|outcome| (outcome.renewed, outcome.evicted)), Some((17, 0)));
}

#[test]
fn lower_limits_wipe_no_scope() {
    let mut learned = learned(Settings::default(), &["a.io"]);
    learned.set_scope(scope(2), 1, ["d:1".into()]);
    for number in [1, 2] {
        learned.answer(Millis(0), scope(number), &answer("a.io", (0..10).map(v4), 60)).unwrap();
    }
    let limits = Limits { addresses: 10, ..Limits::default() };
    learned.set_settings(Settings { limits, ..Settings::default() });
    let outcome = learned.answer(Millis(1), scope(1), &answer("b.io", [v4(9)], 60)).unwrap();
    assert_eq!((outcome.added, outcome.evicted, outcome.refused(Refusal::NoRoom)), (0, 0, 1));
    assert_eq!(learned.counts().addresses, 20);
}

#[test]
fn a_scope_below_its_share_learns_however_many_addresses_others_have() {
    let limits = Limits { addresses: 30, ..Limits::default() };
    let mut learned = learned(Settings { limits, ..Settings::default() }, &["*.io"]);
    learned.set_scope(scope(2), 1, ["d:1".into()]);
    learned.set_scope(scope(3), 1, ["d:1".into()]);
    let have = |learned: &Learned| [1, 2, 3].map(|number| learned.known(scope(number)).count());
    for n in 0..9 {
        learned.answer(Millis(n), scope(1), &answer(&format!("n{n}.io"), (0..4).map(v4), 600)).unwrap();
    }
    assert_eq!(have(&learned), [30, 0, 0], "no other scope needs room");
    let outcome = learned.answer(Millis(10), scope(2), &answer("a.io", (0..8).map(v4), 600)).unwrap();
    assert_eq!((outcome.added, outcome.evicted, outcome.refused(Refusal::NoRoom)), (8, 8, 0));
    assert_eq!(have(&learned), [22, 8, 0]);
    let outcome = learned.answer(Millis(11), scope(3), &answer("a.io", (0..25).map(v4), 600)).unwrap();
    assert_eq!((outcome.added, outcome.evicted, outcome.refused(Refusal::NoRoom)), (10, 10, 15));
    assert_eq!(have(&learned), [12, 8, 10]);
    for n in 12..20 {
        learned.answer(Millis(n), scope(1), &answer(&format!("n{n}.io"), (0..4).map(v4), 600)).unwrap();
    }
    assert_eq!(have(&learned)[1..], [8, 10], "no scope within its share gives way");
}

#[test]
fn lower_limits_evict_no_more_than_an_answer_may() {
    let mut learned = learned(Settings::default(), &["*.io"]);
    for n in 0..5 {
        learned.answer(Millis(0), scope(1), &answer(&format!("n{n}.io"), (0..1_000).map(v4), 60)).unwrap();
    }
    let limits = Limits { addresses_per_scope: 10, ..Limits::default() };
    learned.set_settings(Settings { limits, ..Settings::default() });
    for left in [3_999, 2_998, 1_997, 996] {
        let outcome = learned.answer(Millis(1), scope(1), &answer("a.io", [v4(1)], 60)).unwrap();
        assert_eq!((outcome.added, outcome.evicted, outcome.refused(Refusal::NoRoom)), (0, 1_001, 1));
        assert_eq!(learned.counts().addresses, left);
    }
    let outcome = learned.answer(Millis(1), scope(1), &answer("a.io", [v4(1)], 60)).unwrap();
    assert_eq!((outcome.added, learned.counts().addresses), (1, 10));
}

#[test]
fn an_answer_without_a_match_tells_that_it_changes_members() {
    let limits = Limits { names_per_scope: 1, ..Limits::default() };
    let mut learned = learned(Settings { limits, ..Settings::default() }, &["a.io"]);
    let outcome = learned.answer(Millis(0), scope(1), &answer("a.io", [v4(1)], 60)).unwrap();
    assert_eq!((outcome.matched, outcome.changed), (1, 1));
    let outcome = learned.answer(Millis(0), scope(1), &answer("a.io", [v4(1)], 90)).unwrap();
    assert_eq!((outcome.matched, outcome.changed), (1, 0));
    let outcome = learned.answer(Millis(0), scope(1), &answer("b.io", [v4(2)], 60)).unwrap();
    assert_eq!((outcome.matched, outcome.changed), (0, 1));
}

#[test]
fn members_of_a_set_are_listed_when_no_change_tells_them() {
    let mut learned = learned(Settings::default(), &["a.io"]);
    learned.answer(Millis(0), scope(1), &answer("a.io", [v4(2), v4(1)], 60)).unwrap();
    assert_eq!(learned.take_changes().len(), 2);
    learned.remove_domains(&"d:1".into());
    set(&mut learned, &["a.io"]);
    assert_eq!(changes(&mut learned), [""; 0], "a kernel set that was made anew is empty");
    assert_eq!(learned.members(&"d:1".into()), [member(1, 1), member(1, 2)]);
    assert_eq!(learned.members(&"d:2".into()), []);
}
