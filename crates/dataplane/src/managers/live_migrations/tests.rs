//! The states of a live migration, one input at a time and in random histories.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tortie_model::WorkloadEndpointId;
use tortie_model::desired::{ComputedFields, LiveMigrationRole};

use super::state::MigrationInput;
use super::{LiveMigrations, MigrationChange, MigrationState};
use crate::config::RoutePriority;

const CONVERGENCE: Duration = Duration::from_secs(30);
const SOURCE: Option<LiveMigrationRole> = Some(LiveMigrationRole::Source);
const TARGET: Option<LiveMigrationRole> = Some(LiveMigrationRole::Target);

fn id(name: &str) -> WorkloadEndpointId {
    WorkloadEndpointId {
        orchestrator: "k8s".into(),
        workload: format!("default/{name}").into(),
        endpoint: "eth0".into(),
    }
}

fn fields(role: Option<LiveMigrationRole>, uid: &str) -> ComputedFields {
    let machine = if uid.is_empty() { "" } else { "vm" };
    ComputedFields {
        live_migration_role: role,
        live_migration_uid: uid.into(),
        live_migration_vmi_name: machine.into(),
        ..ComputedFields::default()
    }
}

#[test]
fn every_state_with_every_input() {
    use MigrationInput as I;
    use MigrationState::{Base, Live, Target, TimeWait};
    let table = [
        // Base, Target, Live, TimeWait
        (I::NoRole, [Base, TimeWait, TimeWait, TimeWait]),
        (I::Source, [Base, Base, Base, Base]),
        (I::Target, [Target, Target, Live, TimeWait]),
        (I::Announced, [Base, Live, Live, TimeWait]),
        (I::TimeUp, [Base, Target, Live, Base]),
        (I::Deleted, [Base, Base, Base, Base]),
    ];
    for (input, expected) in table {
        for (from, to) in [Base, Target, Live, TimeWait].into_iter().zip(expected) {
            assert_eq!(from.after(input), to, "{from} after {input:?}");
        }
    }
    let priorities = [Base, Target, Live, TimeWait].map(MigrationState::priority);
    let (normal, elevated) = (Some(RoutePriority::Normal), Some(RoutePriority::Elevated));
    assert_eq!(priorities, [normal, None, elevated, elevated]);
}

/// One endpoint and the clock.
#[derive(Default)]
struct Bench {
    migrations: LiveMigrations,
    now: Duration,
}

impl Bench {
    fn role(&mut self, role: Option<LiveMigrationRole>) {
        let uid = if role.is_some() { "uid" } else { "" };
        self.migrations.on_update(&id("vm"), Some(&fields(role, uid)));
        self.migrations.advance(self.now, CONVERGENCE);
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.migrations.advance(self.now, CONVERGENCE);
    }

    fn watch(&self) -> Option<u64> {
        self.migrations.awaited().map(|(_, number)| number).next()
    }

    /// Returns the changes since the last call, as `from-to`.
    fn changes(&mut self) -> Vec<String> {
        let changes = self.migrations.take_changes();
        changes.into_iter().map(|MigrationChange { from, to, .. }| format!("{from}-{to}")).collect()
    }
}

#[test]
fn a_migration_from_its_beginning_to_its_end() {
    let mut bench = Bench::default();
    bench.role(None);
    assert!(bench.migrations.migrations.is_empty(), "most endpoints cost nothing");
    bench.role(TARGET);
    let first = bench.watch().expect("an announcement is waited for");
    bench.wait(3600);
    bench.role(TARGET);
    assert_eq!(bench.changes(), ["Base-Target"]);
    assert_eq!(bench.migrations.next(bench.now), None, "nothing is due");
    bench.migrations.on_announcement(first);
    assert_eq!((bench.watch(), bench.changes()), (None, vec!["Target-Live".to_owned()]));
    bench.wait(3600);
    bench.migrations.on_announcement(first);
    assert!(bench.changes().is_empty());
    bench.role(None);
    assert_eq!(bench.migrations.next(bench.now), Some(CONVERGENCE));
    bench.wait(29);
    assert_eq!(bench.migrations.next(bench.now), Some(Duration::from_secs(1)));
    bench.role(None);
    assert_eq!(bench.changes(), ["Live-TimeWait"]);
    assert_eq!(bench.migrations.priority(&id("vm")), Some(RoutePriority::Elevated));
    bench.wait(1);
    assert_eq!(bench.changes(), ["TimeWait-Base"]);
    assert_eq!(bench.migrations.next(bench.now), None);
    assert!(bench.migrations.migrations.is_empty());
}

#[test]
fn an_announcement_of_an_earlier_wait_means_nothing() {
    let mut bench = Bench::default();
    bench.role(TARGET);
    let first = bench.watch().expect("waited for");
    bench.role(SOURCE);
    assert_eq!(bench.watch(), None);
    bench.role(TARGET);
    assert_ne!(bench.watch(), Some(first));
    bench.migrations.on_announcement(first);
    assert_eq!(bench.changes(), ["Base-Target", "Target-Base", "Base-Target"]);
    let second = bench.watch().expect("waited for");
    bench.migrations.on_announcement(second);
    assert_eq!(bench.changes(), ["Target-Live"]);
}

#[test]
fn the_time_of_an_earlier_migration_does_not_end_a_later_one() {
    let mut bench = Bench::default();
    bench.role(TARGET);
    bench.role(None);
    bench.wait(20);
    bench.role(SOURCE);
    bench.role(TARGET);
    bench.role(None);
    bench.wait(20);
    assert_eq!(bench.migrations.priority(&id("vm")), Some(RoutePriority::Elevated));
    bench.wait(10);
    assert_eq!(bench.migrations.priority(&id("vm")), Some(RoutePriority::Normal));
}

#[test]
fn an_endpoint_that_goes_takes_its_migration_along() {
    let mut bench = Bench::default();
    for begin in [vec![TARGET], vec![TARGET, None], vec![SOURCE]] {
        begin.into_iter().for_each(|role| bench.role(role));
        bench.migrations.on_remove(&id("vm"));
        assert!(bench.migrations.migrations.is_empty());
        assert_eq!(bench.migrations.next(bench.now), None);
    }
    bench.migrations.on_remove(&id("vm"));
    assert!(bench.migrations.migrations.is_empty());
    bench.changes();
    bench.role(TARGET);
    assert_eq!(bench.changes(), ["Base-Target"], "the next of its name is another");
}

#[test]
fn changes_after_a_migration_carry_its_uid() {
    let mut bench = Bench::default();
    bench.role(TARGET);
    bench.migrations.on_update(&id("vm"), None);
    let changes = bench.migrations.take_changes();
    let expected: Vec<_> = changes.iter().map(|change| (&*change.uid, &*change.machine, change.to)).collect();
    assert_eq!(expected, [("uid", "vm", MigrationState::Target), ("uid", "vm", MigrationState::TimeWait)]);
}

#[derive(Clone, Debug)]
enum Step {
    Role(u8, Option<LiveMigrationRole>),
    Remove(u8),
    /// Announcement for the wait with this number.
    Announce(u64),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let role = prop_oneof![1 => Just(None), 1 => Just(SOURCE), 2 => Just(TARGET)];
    prop_oneof![
        4 => (0..3u8, role).prop_map(|(workload, role)| Step::Role(workload, role)),
        1 => (0..3u8).prop_map(Step::Remove),
        3 => (1..12u64).prop_map(Step::Announce),
        2 => (0..40u64).prop_map(Step::Pass),
    ]
}

/// Model of an endpoint: the inputs that decide the priority of its routes, namely roles and times.
#[derive(Clone, Default)]
struct ModelEndpoint {
    role: Option<LiveMigrationRole>,
    /// Number of the wait, while the virtual machine is expected.
    coming: Option<u64>,
    has_come: bool,
    /// End of the convergence time.
    settles: Option<Duration>,
}

impl ModelEndpoint {
    fn end(&mut self) {
        *self = Self { role: self.role, ..Self::default() };
    }

    fn priority(&self) -> Option<RoutePriority> {
        if self.has_come || self.settles.is_some() {
            Some(RoutePriority::Elevated)
        } else if self.coming.is_some() {
            None
        } else {
            Some(RoutePriority::Normal)
        }
    }
}

proptest! {
    #[test]
    fn routes_follow_the_reported_roles(steps in proptest::collection::vec(step(), 0..60)) {
        let mut migrations = LiveMigrations::default();
        let mut model: BTreeMap<u8, ModelEndpoint> = BTreeMap::new();
        let (mut now, mut waits) = (Duration::ZERO, 0);
        for step in steps {
            match step {
                Step::Role(workload, role) => {
                    migrations.on_update(&id(&workload.to_string()), Some(&fields(role, "uid")));
                    let expected = model.entry(workload).or_default();
                    if std::mem::replace(&mut expected.role, role) != role {
                        let takes_part = expected.coming.is_some() || expected.has_come;
                        match role {
                            Some(LiveMigrationRole::Source) => expected.end(),
                            Some(LiveMigrationRole::Target) if !takes_part && expected.settles.is_none() => {
                                waits += 1;
                                expected.coming = Some(waits);
                            }
                            None if takes_part => {
                                expected.end();
                                expected.settles = Some(now + CONVERGENCE);
                            }
                            Some(LiveMigrationRole::Target) | None => {}
                        }
                    }
                }
                Step::Remove(workload) => {
                    migrations.on_remove(&id(&workload.to_string()));
                    model.remove(&workload);
                }
                Step::Announce(wait) => {
                    migrations.on_announcement(wait);
                    for expected in model.values_mut().filter(|expected| expected.coming == Some(wait)) {
                        expected.coming = None;
                        expected.has_come = true;
                    }
                }
                Step::Pass(seconds) => now += Duration::from_secs(seconds),
            }
            migrations.advance(now, CONVERGENCE);
            for expected in model.values_mut().filter(|expected| expected.settles.is_some_and(|at| at <= now)) {
                expected.end();
            }
            for workload in 0..3 {
                let expected = model.get(&workload).cloned().unwrap_or_default();
                prop_assert_eq!(migrations.priority(&id(&workload.to_string())), expected.priority());
            }
            let awaited: Vec<u64> = migrations.awaited().map(|(_, wait)| wait).collect();
            let expected: Vec<u64> = model.values().filter_map(|expected| expected.coming).collect();
            prop_assert_eq!(awaited, expected);
            let next = model.values().filter_map(|expected| expected.settles).min().map(|at| at - now);
            prop_assert_eq!(migrations.next(now), next);
        }
        for workload in 0..3 {
            migrations.on_remove(&id(&workload.to_string()));
        }
        prop_assert!(migrations.migrations.is_empty());
    }
}
