//! `Learned` against a naive model, over random histories with small limits.

#![allow(clippy::unwrap_used, reason = "helpers of tests do not count as tests")]

mod naive;
mod wire;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use naive::{Naive, Statement};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tortie_dns::{
    Action, Answer, Cluster, ClusterAddresses, Learned, Limits, MatchNames, Member, MessageLimits, Millis,
    RestoreError, Scope, Settings, read,
};
use tortie_net::{DomainPattern, IpSetId};
use wire::Data;

const NAMES: [&str; 8] = ["a.x", "b.x", "a.b.x", "c.a.b.x", "x", "c.y", "d.local", "e.local"];
const PATTERNS: [&str; 7] = ["*.x", "a.x", "*.b.x", "a.*.x", "c.y", "d.local", "*.local"];
const ADDRESSES: [&str; 9] = [
    "192.0.2.1",
    "192.0.2.2",
    "192.0.2.3",
    "192.0.2.4",
    "2001:db8::1",
    "2001:db8::2",
    "127.0.0.1",
    "10.0.0.1",
    "64:ff9b::a00:2",
];
const SETS: [&str; 3] = ["d:1", "d:2", "d:3"];

/// A service of the last name of a chain, with addresses of its target.
#[derive(Clone, Debug)]
struct Service {
    target: &'static str,
    hints: Vec<&'static str>,
    addresses: Vec<(&'static str, u32)>,
}

/// TTLs of aliases and services in seconds.
const OF_ALIASES: u32 = 150;
const OF_SERVICES: u32 = 120;

#[derive(Clone, Debug)]
enum Op {
    /// The names of a chain, addresses of the last one, and perhaps a service of it.
    Answer {
        scope: usize,
        names: Vec<&'static str>,
        addresses: Vec<(&'static str, u32)>,
        service: Option<Service>,
    },
    SetDomains {
        set: usize,
        patterns: Vec<&'static str>,
    },
    RemoveDomains {
        set: usize,
    },
    SetScope {
        scope: usize,
        owner: u64,
        sets: Vec<&'static str>,
    },
    SetGroup {
        scope: usize,
        group: &'static str,
    },
    RemoveScope {
        scope: usize,
    },
    Wait {
        milliseconds: u64,
    },
    SetCluster {
        nets: Vec<&'static str>,
    },
    SetSettings {
        cluster: usize,
        per_name: usize,
    },
    Take,
    /// A restart: with or without a saved state, after some time or before it by the clock, with
    /// members that the kernel has lost and gained, and scopes with a new owner.
    Restart {
        saved: bool,
        later: i64,
        lost: Vec<&'static str>,
        gained: Vec<(usize, usize, &'static str)>,
        replaced: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let set = || 0..SETS.len();
    let scope = || 0..3usize;
    let names = subsequence(NAMES.to_vec(), 1..4).prop_shuffle();
    let addresses = || prop::collection::vec((select(ADDRESSES.to_vec()), 0u32..200), 0..5);
    let hints = prop::collection::vec(select(ADDRESSES.to_vec()), 0..3);
    let service = (select(NAMES.to_vec()), hints, addresses()).prop_map(|(target, hints, addresses)| Service {
        target,
        hints,
        addresses,
    });
    let service = prop::option::weighted(0.3, service);
    let gained = prop::collection::vec((set(), scope(), select(ADDRESSES.to_vec())), 0..4);
    prop_oneof![
        10 => (scope(), names, addresses(), service)
            .prop_map(|(scope, names, addresses, service)| Op::Answer { scope, names, addresses, service }),
        3 => (set(), subsequence(PATTERNS.to_vec(), 0..4)).prop_map(|(set, patterns)| Op::SetDomains { set, patterns }),
        1 => set().prop_map(|set| Op::RemoveDomains { set }),
        4 => (scope(), 0..2u64, subsequence(SETS.to_vec(), 0..4))
            .prop_map(|(scope, owner, sets)| Op::SetScope { scope, owner, sets }),
        1 => (scope(), select(vec!["", "a", "b"])).prop_map(|(scope, group)| Op::SetGroup { scope, group }),
        1 => scope().prop_map(|scope| Op::RemoveScope { scope }),
        4 => (0..70_000u64).prop_map(|milliseconds| Op::Wait { milliseconds }),
        1 => subsequence(vec!["10.0.0.0/8", "192.0.2.3/32", "2001:db8::/64"], 0..3).prop_map(|nets| Op::SetCluster { nets }),
        1 => (0..3usize, 1..4usize).prop_map(|(cluster, per_name)| Op::SetSettings { cluster, per_name }),
        3 => Just(Op::Take),
        1 => (any::<bool>(), -50_000..50_000i64, subsequence(ADDRESSES.to_vec(), 0..2), gained, any::<bool>())
            .prop_map(|(saved, later, lost, gained, replaced)| Op::Restart { saved, later, lost, gained, replaced }),
    ]
}

fn scope(number: usize) -> Scope {
    match number {
        0 => Scope::Host,
        _ => Scope::Interface(format!("cali{number}").parse().unwrap()),
    }
}

fn settings(match_names: MatchNames, cluster: usize, per_name: usize) -> Settings {
    let choices = [ClusterAddresses::ClusterDomain, ClusterAddresses::Always, ClusterAddresses::Never];
    Settings {
        max_ttl: Duration::from_secs(100),
        extra_ttl: Duration::from_secs(1),
        match_names,
        cluster_addresses: choices[cluster],
        limits: Limits {
            addresses_per_name: per_name,
            names_per_scope: 3,
            addresses_per_scope: 5,
            members_per_scope: 6,
            addresses: 8,
        },
        grace: Duration::from_secs(20),
        epoch: "boot".to_owned(),
        ..Settings::default()
    }
}

/// The code under test, the model, and a kernel that has taken all changes up to some time.
struct Run {
    learned: Learned,
    naive: Naive,
    kernel: BTreeSet<Member>,
    now: Millis,
}

impl Run {
    fn new(match_names: MatchNames) -> Self {
        let settings = settings(match_names, 0, 3);
        let mut learned = Learned::new(settings.clone());
        let naive = Naive::new(settings);
        learned.set_cluster(naive.cluster());
        Self { learned, naive, kernel: BTreeSet::new(), now: Millis(1_000_000) }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Answer { scope: number, names, addresses, service } => {
                self.answer(scope(number), &names, &addresses, service.as_ref());
            }
            Op::SetDomains { set, patterns } => {
                let patterns: Vec<DomainPattern> = patterns.iter().map(|text| text.parse().unwrap()).collect();
                self.learned.set_domains(&SETS[set].into(), patterns.clone().into());
                self.naive.set_domains(SETS[set].into(), patterns);
            }
            Op::RemoveDomains { set } => {
                self.learned.remove_domains(&SETS[set].into());
                self.naive.remove_domains(&SETS[set].into());
            }
            Op::SetScope { scope: number, owner, sets } => {
                let sets: Vec<IpSetId> = sets.into_iter().map(IpSetId::from).collect();
                self.learned.set_scope(scope(number), owner, sets.clone());
                self.naive.set_scope(scope(number), owner, sets);
            }
            Op::SetGroup { scope: number, group } => {
                self.learned.set_group(scope(number), &group.into());
                self.naive.set_group(scope(number), group);
            }
            Op::RemoveScope { scope: number } => {
                self.learned.remove_scope(scope(number));
                self.naive.remove_scope(scope(number));
            }
            Op::Wait { milliseconds } => {
                self.now = Millis(self.now.0 + milliseconds);
                self.learned.expire(self.now);
                self.naive.expire(self.now);
            }
            Op::SetCluster { nets } => {
                let nets: Vec<_> = nets.iter().map(|net| net.parse().unwrap()).collect();
                self.learned.set_cluster(Cluster::new(nets.clone(), Some("local".parse().unwrap())));
                self.naive.set_cluster(nets);
            }
            Op::SetSettings { cluster, per_name } => {
                let settings = settings(self.naive.settings.match_names, cluster, per_name);
                self.learned.set_settings(settings.clone());
                self.naive.set_settings(settings);
            }
            Op::Take => self.take(),
            Op::Restart { saved, later, lost, gained, replaced } => {
                let lost: Vec<IpAddr> = lost.iter().map(|text| text.parse().unwrap()).collect();
                self.kernel.retain(|member| !lost.contains(&member.address));
                for (set, number, address) in gained {
                    let (scope, address) = (scope(number), address.parse().unwrap());
                    self.kernel.insert(Member { set: SETS[set].into(), scope, address });
                }
                self.restart(saved, later, replaced);
            }
        }
        self.compare();
    }

    fn answer(
        &mut self,
        scope: Scope,
        names: &[&'static str],
        addresses: &[(&'static str, u32)],
        service: Option<&Service>,
    ) {
        let answer = read(&message(names, addresses, service), &MessageLimits::default()).unwrap();
        let statements = statements(names, addresses, service);
        let read: Vec<_> = answer.addresses().map(|(name, address, ttl)| (name.clone(), address, ttl)).collect();
        let expected: Vec<_> = statements.iter().cloned().map(|(name, address, ttl, _)| (name, address, ttl)).collect();
        assert_eq!(read, expected);
        let before = self.naive.members();
        let outcome = self.learned.answer(self.now, scope, &answer);
        assert_eq!(outcome.is_some(), self.naive.has_scope(scope));
        if let Some(outcome) = outcome {
            let expected = self.naive.answer(self.now, scope, names[0], &statements);
            let changed = before.symmetric_difference(&self.naive.members()).count();
            let and_back = outcome.changed.checked_sub(changed);
            assert!(and_back.is_some_and(|count| count.is_multiple_of(2)), "a member may come and go");
            let most = outcome.added + outcome.evicted;
            assert!(outcome.changed <= SETS.len() * most, "{} members of {most} pairs", outcome.changed);
            let refused = tortie_dns::Refusal::ALL.iter().map(|refusal| outcome.refused(*refusal)).sum::<usize>();
            let counts = [outcome.added, outcome.renewed, outcome.matched, outcome.evicted, refused];
            assert_eq!(counts, expected, "added, renewed, matched, evicted, refused");
        }
    }

    fn take(&mut self) {
        let changes = self.learned.take_changes();
        assert!(changes.is_sorted());
        for change in changes {
            match change.action {
                Action::Added => assert!(self.kernel.insert(change.member)),
                Action::Removed => assert!(self.kernel.remove(&change.member)),
            }
        }
        assert_eq!(self.kernel, self.naive.members());
    }

    fn restart(&mut self, saved: bool, later: i64, replaced: bool) {
        let bytes = self.learned.save(self.now);
        assert!(bytes.len() <= Learned::MAX_SAVED);
        let at = self.now;
        self.now = Millis(self.now.0.checked_add_signed(later).unwrap());
        self.learned = Learned::new(self.naive.settings.clone());
        self.learned.set_cluster(self.naive.cluster());
        for (set, patterns) in self.naive.sets() {
            self.learned.set_domains(set, patterns.clone().into());
        }
        for (scope, owner, sets) in self.naive.scopes() {
            self.learned.set_scope(scope, owner + u64::from(replaced), sets);
        }
        for (scope, group) in self.naive.groups() {
            self.learned.set_group(scope, &group.into());
        }
        let kernel: Vec<Member> = self.kernel.iter().cloned().collect();
        let restored = self.learned.restore(self.now, saved.then_some(bytes.as_slice()), &kernel).unwrap();
        let before = self.naive.counts().1;
        self.naive.restart(self.now, saved.then_some(at), &self.kernel, replaced);
        let expected = if saved { (self.naive.counts().1, before - self.naive.counts().1) } else { (0, 0) };
        assert_eq!((restored.addresses, restored.dropped), expected);
        self.take();
    }

    fn compare(&self) {
        let counts = self.learned.counts();
        assert_eq!((counts.names, counts.addresses), self.naive.counts());
        assert_eq!(counts.members, self.naive.members().len());
        let members = SETS.iter().flat_map(|set| self.learned.members(&(*set).into()));
        assert!(members.eq(self.naive.members()));
        assert_eq!(self.learned.next_expiry(), self.naive.next_expiry());
        for number in 0..3 {
            let known = self.learned.known(scope(number)).map(|known| {
                let mut sets = known.sets;
                sets.sort_unstable();
                (known.name.clone(), known.address, known.expires, sets.into_iter().cloned().collect())
            });
            let known: Vec<_> = known.collect();
            assert_eq!(known, self.naive.known(scope(number)));
            for address in ADDRESSES.map(|text| text.parse::<IpAddr>().unwrap()) {
                let names: Vec<_> =
                    self.learned.names(scope(number), address).map(|known| known.name.clone()).collect();
                let expected: Vec<_> =
                    known.iter().filter(|known| known.1 == address).map(|known| known.0.clone()).collect();
                assert_eq!(names, expected);
            }
        }
    }

    /// Removes everything.
    fn end(mut self) {
        self.take();
        for number in 0..3 {
            self.apply(Op::RemoveScope { scope: number });
        }
        for set in 0..SETS.len() {
            self.apply(Op::RemoveDomains { set });
        }
        assert_eq!(self.learned.next_expiry(), None);
        self.take();
        assert!(self.learned.is_empty() && self.kernel.is_empty());
    }
}

/// Returns the message of an answer.
fn message(names: &[&'static str], addresses: &[(&'static str, u32)], service: Option<&Service>) -> Vec<u8> {
    let last = *names.last().unwrap();
    let of = |owner, all: &[(&'static str, u32)]| -> Vec<_> {
        all.iter().map(|(text, ttl)| (owner, *ttl, Data::Address(text.parse().unwrap()))).collect()
    };
    let aliases = names.windows(2).map(|pair| (pair[0], OF_ALIASES, Data::Alias(pair[1])));
    let mut records: Vec<_> = aliases.chain(of(last, addresses)).collect();
    if let Some(Service { target, hints, addresses }) = service {
        let hints = hints.iter().map(|text| text.parse().unwrap()).collect();
        records.push((last, OF_SERVICES, Data::Service(target, hints)));
        records.extend(of(target, addresses));
    }
    wire::message(names[0], &records)
}

/// The names from the question to an owner with the TTLs of the records that lead to them, an
/// address of the owner, and its TTL.
type Source = (Vec<(&'static str, u32)>, &'static str, u32);

/// Returns the pairs that an answer states, in the order of names and addresses: each address
/// belongs to its owner and to all names before it on the way from the question. Hints belong to
/// the last name of the chain. Of several statements about a pair, the one with the longest
/// lifetime counts, and of these the one with the shortest way.
fn statements(names: &[&'static str], addresses: &[(&'static str, u32)], service: Option<&Service>) -> Vec<Statement> {
    let chain: Vec<(&str, u32)> = names.iter().map(|name| (*name, OF_ALIASES)).collect();
    let mut sources: Vec<Source> = addresses.iter().map(|(address, ttl)| (chain.clone(), *address, *ttl)).collect();
    let mut order = names.to_vec();
    if let Some(Service { target, hints, addresses }) = service {
        sources.extend(hints.iter().map(|hint| (chain.clone(), *hint, OF_SERVICES)));
        let way = match names.iter().position(|name| name == target) {
            Some(at) => chain[..=at].to_vec(),
            None => {
                order.push(target);
                [chain, vec![(*target, OF_SERVICES)]].concat()
            }
        };
        sources.extend(addresses.iter().map(|(address, ttl)| (way.clone(), *address, *ttl)));
    }
    let mut all = Vec::new();
    for (way, address, ttl) in sources {
        for (at, (name, _)) in way.iter().enumerate() {
            let ttl = way[at + 1..].iter().map(|(_, ttl)| *ttl).fold(ttl, u32::min);
            let is_inside = way[at..].iter().all(|(name, _)| name.ends_with(".local"));
            let position = order.iter().position(|other| other == name).unwrap();
            let address: IpAddr = address.parse().unwrap();
            all.push(((position, address, std::cmp::Reverse(ttl), way.len()), is_inside));
        }
    }
    all.sort_unstable();
    all.dedup_by_key(|((position, address, ..), _)| (*position, *address));
    let statement =
        |((position, address, ttl, _), is_inside): ((usize, IpAddr, std::cmp::Reverse<u32>, usize), bool)| {
            (order[position].parse().unwrap(), address, ttl.0, is_inside)
        };
    all.into_iter().map(statement).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn any_history_equals_that_of_the_model(
        ops in prop::collection::vec(op(), 1..60),
        match_names in select(vec![MatchNames::Chain, MatchNames::Question]),
    ) {
        let mut run = Run::new(match_names);
        for number in 0..2 {
            run.apply(Op::SetDomains { set: number, patterns: vec![PATTERNS[number]] });
            run.apply(Op::SetScope { scope: number, owner: 0, sets: vec![SETS[number]] });
        }
        ops.into_iter().for_each(|op| run.apply(op));
        run.end();
    }

    #[test]
    fn altered_caches_are_refused_or_restore_within_the_limits(
        at in any::<prop::sample::Index>(), value in 1u8.., cut in any::<bool>(), with_hash in any::<bool>(),
    ) {
        let mut run = Run::new(MatchNames::Chain);
        run.apply(Op::SetDomains { set: 0, patterns: vec!["*.x"] });
        run.apply(Op::SetScope { scope: 1, owner: 0, sets: vec!["d:1"] });
        let addresses = vec![("192.0.2.1", 60), ("2001:db8::1", 60)];
        run.apply(Op::Answer { scope: 1, names: vec!["a.x", "b.x"], addresses, service: None });
        let mut bytes = run.learned.save(run.now);
        let at = at.index(bytes.len());
        bytes[at] ^= value;
        if cut {
            bytes.truncate(at);
        } else if with_hash && at < bytes.len() - 8 {
            let end = bytes.len() - 8;
            let hash = twox_hash::XxHash3_64::oneshot(&bytes[..end]).to_be_bytes();
            bytes[end..].copy_from_slice(&hash);
        }
        let is_right = with_hash && !cut;
        match run.learned.restore(run.now, Some(&bytes), &[]) {
            Ok(restored) => prop_assert!(is_right && restored.addresses + restored.dropped <= 8),
            Err(error) => prop_assert!(is_right || !matches!(error, RestoreError::Malformed | RestoreError::Epoch)),
        }
        prop_assert!(run.learned.next_expiry() <= Some(Millis(run.now.0 + 101_000)));
        prop_assert!(run.learned.counts().addresses <= 8);
    }

    #[test]
    fn no_bytes_are_restored_by_accident(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut learned = Learned::new(Settings::default());
        prop_assert!(learned.restore(Millis(0), Some(&bytes), &[]).is_err());
        prop_assert!(learned.is_empty());
    }
}

/// An answer that the model need not know.
fn plain(name: &str, address: &str) -> Answer {
    Answer::new(name.parse().unwrap(), [(address.parse().unwrap(), 60)])
}

#[test]
fn an_epoch_of_its_own_and_foreign_bytes_are_told_apart() {
    let mut learned = Learned::new(Settings { epoch: "one".to_owned(), ..Settings::default() });
    learned.set_scope(Scope::Host, 0, []);
    learned.answer(Millis(0), Scope::Host, &plain("a.x", "192.0.2.1")).unwrap();
    let bytes = learned.save(Millis(0));
    let mut other = Learned::new(Settings { epoch: "two".to_owned(), ..Settings::default() });
    other.set_scope(Scope::Host, 0, []);
    let mut restore = |bytes: &[u8]| other.restore(Millis(0), Some(bytes), &[]).unwrap_err();
    assert_eq!(restore(&bytes), RestoreError::Epoch);
    assert_eq!(restore(b"#!/bin/sh\n"), RestoreError::Foreign);
    assert_eq!(restore(b""), RestoreError::Torn);
    assert_eq!(restore(&bytes[..bytes.len() - 1]), RestoreError::Torn);
    assert_eq!(restore(&bytes[..10]), RestoreError::Torn);
    let mut newer = bytes.clone();
    newer["tortie-dns-cache\n".len()] = 3;
    assert_eq!(restore(&newer), RestoreError::Version(3));
    let mut long = vec![0; Learned::MAX_SAVED + 1];
    long[..bytes.len()].copy_from_slice(&bytes);
    assert_eq!(restore(&long), RestoreError::TooLong(Learned::MAX_SAVED + 1));
    assert_eq!(other.counts().addresses, 0);
}
