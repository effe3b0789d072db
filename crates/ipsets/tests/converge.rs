//! Random desired states, changes by other programs, faults and restarts: the kernel always ends in
//! sync, foreign sets are unchanged, and nothing is written twice.
#![allow(clippy::unwrap_used, reason = "the test input is valid")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use tortie_ipsets::fake::{FakeIpset, Fault};
use tortie_ipsets::{Config, Family, IpSetId, IpSets, Member, Resync, SetSpec, SetType};

/// It is listed before ours.
const FOREIGN: &str = "a-docker-set";

#[derive(Clone, Debug)]
enum Op {
    Put {
        set: u8,
        kind: u8,
        max: u8,
        members: Vec<u8>,
    },
    Add {
        set: u8,
        members: Vec<u8>,
    },
    Remove {
        set: u8,
        members: Vec<u8>,
    },
    Drop(u8),
    Apply,
    ApplyDeletions,
    Resync(bool),
    /// A text for `FakeIpset::edit`, which may be refused.
    Foreign(String),
    Fault(u8, u8),
    InUse(u8, bool),
    Unreadable(u8),
    /// Whether a set of another program is unreadable.
    ForeignUnreadable(bool),
    Restart,
    Wait(u16),
}

fn set_type(kind: u8) -> SetType {
    [SetType::HashNet, SetType::HashIp, SetType::HashIpPort, SetType::BitmapPort][usize::from(kind % 4)]
}

fn text(set_type: SetType, n: u8) -> String {
    let n = n % 8;
    match set_type {
        SetType::HashNet => {
            ["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "10.0.0.0/8", "10.1.0.0/16", "10.0.0.1", "10.0.0.2", "10.0.0.3"]
                [usize::from(n)]
            .to_owned()
        }
        SetType::HashIpPort => format!("10.0.0.{},{}:{n}", n / 2 + 1, ["tcp", "udp"][usize::from(n % 2)]),
        SetType::BitmapPort => format!("{n}"),
        _ => format!("10.0.0.{}", n + 1),
    }
}

fn member(set_type: SetType, n: u8) -> Member {
    Member::parse(set_type, Family::V4, &text(set_type, n)).unwrap().unwrap()
}

fn set_id(set: u8) -> IpSetId {
    IpSetId::new(format!("s:{}", set % 4))
}

fn set_name(set: u8) -> String {
    format!("cali40s:{}", set % 4)
}

fn foreign() -> impl Strategy<Value = String> {
    let name = || {
        prop_oneof![
            4 => any::<u8>().prop_map(set_name),
            1 => Just("cali4t0".to_owned()),
            1 => Just("cali4t3".to_owned()),
            1 => Just("felix-4old".to_owned()),
        ]
    };
    prop_oneof![
        name().prop_map(|n| format!("destroy {n}")),
        name().prop_map(|n| format!("flush {n}")),
        name().prop_map(|n| format!("create {n} hash:ip family inet maxelem 1048576")),
        name().prop_map(|n| format!("create {n} hash:net family inet maxelem 4")),
        name().prop_map(|n| format!("create {n} hash:mac")),
        (name(), any::<u8>(), 0..4u8).prop_map(|(n, m, kind)| format!("add {n} {}", text(set_type(kind), m))),
        (name(), any::<u8>(), 0..4u8).prop_map(|(n, m, kind)| format!("del {n} {}", text(set_type(kind), m))),
        (name(), any::<u8>()).prop_map(|(n, m)| format!("add {n} {} nomatch", text(SetType::HashNet, m))),
        (name(), name()).prop_map(|(a, b)| format!("swap {a} {b}")),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let some = || prop::collection::vec(any::<u8>(), 0..6);
    prop_oneof![
        4 => (any::<u8>(), any::<u8>(), 0..4u8, some())
            .prop_map(|(set, kind, max, members)| Op::Put { set, kind: if kind < 200 { 0 } else { kind }, max, members }),
        4 => (any::<u8>(), some()).prop_map(|(set, members)| Op::Add { set, members }),
        3 => (any::<u8>(), some()).prop_map(|(set, members)| Op::Remove { set, members }),
        1 => any::<u8>().prop_map(Op::Drop),
        5 => Just(Op::Apply),
        2 => Just(Op::ApplyDeletions),
        1 => any::<bool>().prop_map(Op::Resync),
        3 => foreign().prop_map(Op::Foreign),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Op::Fault(a, b)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(a, b)| Op::InUse(a, b)),
        1 => any::<u8>().prop_map(Op::Unreadable),
        1 => any::<bool>().prop_map(Op::ForeignUnreadable),
        1 => Just(Op::Restart),
        1 => any::<u16>().prop_map(Op::Wait),
    ]
}

fn fault(kind: u8, n: u8) -> Fault {
    match kind % 9 {
        7 => Fault::ListAll,
        8 => Fault::CutListAll(usize::from(n % 60)),
        0 => Fault::ListNames,
        1 => Fault::List,
        2 => Fault::CutList(usize::from(n % 12)),
        3 => Fault::Restore,
        4 => Fault::CutRestore(usize::from(n % 8)),
        5 => Fault::LateRestore,
        _ => Fault::Destroy,
    }
}

type Model = BTreeMap<u8, (SetSpec, BTreeSet<u8>)>;

fn fresh(model: &Model) -> IpSets {
    let list_all_limit = if model.len().is_multiple_of(2) { Config::default().list_all_limit } else { Duration::ZERO };
    let config = Config { members_per_restore: 5, list_all_limit, ..Config::default() };
    let mut sets = IpSets::new(Family::V4, config);
    for (set, (spec, members)) in model {
        let kind = spec.set_type();
        let members = members.iter().map(|&m| member(kind, m));
        sets.add_or_replace(&set_id(*set), *spec, members).unwrap();
    }
    sets
}

/// Returns the members that the kernel should hold.
fn expected(spec: &SetSpec, members: &BTreeSet<u8>) -> BTreeSet<String> {
    let kind = spec.set_type();
    let mut texts: BTreeSet<String> = members.iter().map(|&m| text(kind, m)).collect();
    if texts.remove("0.0.0.0/0") {
        texts.extend(["0.0.0.0/1".to_owned(), "128.0.0.0/1".to_owned()]);
    }
    texts
}

fn content(kernel: &FakeIpset, name: &str) -> BTreeSet<String> {
    kernel.members(name).into_iter().map(str::to_owned).collect()
}

struct World {
    model: Model,
    sets: IpSets,
    kernel: FakeIpset,
    now: Duration,
}

impl World {
    fn new() -> Self {
        let mut kernel = FakeIpset::new();
        kernel.edit(&format!("create {FOREIGN} hash:ip\nadd {FOREIGN} 9.9.9.9")).unwrap();
        Self { model: Model::new(), sets: fresh(&Model::new()), kernel, now: Duration::ZERO }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Put { set, kind, max, members } => {
                let set = set % 4;
                let kind = set_type(kind);
                // 3 is too few for some.
                let spec = match max {
                    0 => SetSpec::new(kind).with_max_elements(3),
                    1 => SetSpec::new(kind).with_max_elements(100),
                    _ => SetSpec::new(kind),
                };
                let members: BTreeSet<u8> = members.iter().map(|m| m % 8).collect();
                let packed = members.iter().map(|&m| member(kind, m));
                self.sets.add_or_replace(&set_id(set), spec, packed).unwrap();
                self.model.insert(set, (spec, members));
            }
            Op::Add { set, members } => {
                if let Some((spec, wanted)) = self.model.get_mut(&(set % 4)) {
                    wanted.extend(members.iter().map(|m| m % 8));
                    let kind = spec.set_type();
                    let packed = members.iter().map(|&m| member(kind, m));
                    self.sets.add_members(&set_id(set), packed).unwrap();
                }
            }
            Op::Remove { set, members } => {
                if let Some((spec, wanted)) = self.model.get_mut(&(set % 4)) {
                    wanted.retain(|m| !members.iter().any(|n| n % 8 == *m));
                    let kind = spec.set_type();
                    let packed = members.iter().map(|&m| member(kind, m));
                    self.sets.remove_members(&set_id(set), packed).unwrap();
                }
            }
            Op::Drop(set) => {
                let known = self.model.remove(&(set % 4)).is_some();
                assert_eq!(self.sets.remove(&set_id(set)).is_ok(), known);
            }
            Op::Apply => {
                let _ = self.kernel.apply(&mut self.sets, &mut self.now);
            }
            Op::ApplyDeletions => {
                let _ = self.kernel.apply_deletions(&mut self.sets, &mut self.now);
            }
            Op::Resync(full) => self.sets.queue_resync(if full { Resync::Full } else { Resync::Background }),
            Op::Foreign(lines) => {
                let _ = self.kernel.edit(&lines);
            }
            Op::Fault(kind, n) => self.kernel.inject(fault(kind, n)),
            Op::InUse(set, on) => self.kernel.set_in_use(&set_name(set), on),
            Op::Unreadable(set) => self.kernel.make_unreadable(&set_name(set), true),
            Op::ForeignUnreadable(on) => self.kernel.make_unreadable(FOREIGN, on),
            Op::Restart => self.sets = fresh(&self.model),
            Op::Wait(ms) => self.now += Duration::from_millis(ms.into()),
        }
    }

    /// Removes all faults and applies until in sync.
    fn apply_until_in_sync(&mut self) {
        for set in 0..4 {
            self.kernel.set_in_use(&set_name(set), false);
            self.kernel.make_unreadable(&set_name(set), false);
        }
        let _ = self.kernel.apply(&mut self.sets, &mut self.now);
        self.kernel.clear_faults();
        for _ in 0..60 {
            self.now += Duration::from_secs(61);
            self.sets.queue_resync(Resync::Background);
            let report = self.kernel.apply(&mut self.sets, &mut self.now);
            let done = !report.more && report.retry_after.is_none();
            let mut more = false;
            for _ in 0..20 {
                more = self.kernel.apply_deletions(&mut self.sets, &mut self.now).more;
                if !more {
                    break;
                }
            }
            let before = self.kernel.names().len();
            if done && !more && before == self.model.len() + 1 {
                return;
            }
        }
        panic!("does not come to rest: {:?} for {:?}", self.kernel, self.model);
    }

    fn check(&mut self) {
        for (set, (spec, members)) in &self.model {
            let wanted = expected(spec, members);
            let got = content(&self.kernel, &set_name(*set));
            if wanted.len() <= spec.max_elements() {
                assert_eq!(got, wanted, "{}", set_name(*set));
            } else {
                assert_eq!(got.len(), spec.max_elements());
                assert!(got.is_subset(&wanted));
            }
        }
        assert_eq!(self.kernel.members(FOREIGN), ["9.9.9.9"]);
        assert_eq!(self.kernel.names().len(), self.model.len() + 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn kernel_ends_in_the_desired_state(ops in prop::collection::vec(op(), 0..40)) {
        let mut world = World::new();
        for op in ops {
            world.run(op);
        }
        world.apply_until_in_sync();
        world.check();

        // A restart finds everything in sync.
        world.kernel.reset_counts();
        world.sets = fresh(&world.model);
        let _ = world.kernel.apply(&mut world.sets, &mut world.now);
        let _ = world.kernel.apply_deletions(&mut world.sets, &mut world.now);
        let counts = world.kernel.counts();
        // An overfull set may hold another subset of the desired members.
        prop_assert_eq!((counts.restores, counts.deletions), (0, 0));
    }

    #[test]
    fn writes_are_the_difference(
        before in prop::collection::vec(op(), 0..20),
        after in prop::collection::vec(op(), 0..20),
    ) {
        let is_set_change = |op: &Op| matches!(op, Op::Put { .. } | Op::Add { .. } | Op::Remove { .. });
        // Types and sizes stay, so that every write is one of members.
        let plain = |op: Op| match op {
            Op::Put { set, members, .. } => Op::Put { set, kind: 0, max: 3, members },
            op => op,
        };
        let mut world = World::new();
        for set in 0..4 {
            world.run(Op::Put { set, kind: 0, max: 3, members: Vec::new() });
        }
        for op in before.into_iter().filter(is_set_change).map(plain) {
            world.run(op);
        }
        world.run(Op::Apply);
        let old: Vec<_> = (0..4).map(|set| content(&world.kernel, &set_name(set))).collect();
        world.kernel.reset_counts();
        for op in after.into_iter().filter(is_set_change).map(plain) {
            world.run(op);
        }
        world.run(Op::Apply);
        world.check();
        let changes: usize = (0..4u8)
            .map(|set| {
                let new = content(&world.kernel, &set_name(set));
                new.symmetric_difference(&old[usize::from(set)]).count()
            })
            .sum();
        prop_assert_eq!(world.kernel.counts().lines, changes);
        prop_assert_eq!(world.kernel.counts().lists, 0);
        prop_assert_eq!((world.kernel.counts().list_names, world.kernel.counts().list_all), (0, 0));
    }
}
