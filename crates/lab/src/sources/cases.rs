//! Cases for every source.

use std::time::Duration;

use tortie_resources::manifest::Kind;

use super::Need;
use super::objects::{any, bad_policy, bad_set, delete, namespaced_policy, namespaced_set, policy, pool, set, tier};
use super::world::World;

pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) needs: &'static [Need],
    pub(super) run: fn(&mut World<'_>),
}

/// Time for which a datastore is unavailable.
const AWAY: Duration = Duration::from_millis(400);
/// Number of objects in a large listing.
const MANY: u16 = 3000;

macro_rules! cases {
    ($($name:ident [$($need:ident),*]),+ $(,)?) => {
        pub(super) const CASES: &[Case] =
            &[$(Case { name: stringify!($name), needs: &[$(Need::$need),*], run: $name }),+];
    };
}

cases! {
    an_empty_datastore_is_in_sync [],
    existing_objects_are_read [],
    changes_are_followed [],
    bursts_of_changes_converge_to_the_last_state [],
    rewriting_an_equal_object_changes_nothing [],
    of_pools_with_the_same_network_one_counts [],
    a_large_datastore_is_read_and_emptied [],
    a_requested_resync_sends_everything [],
    a_source_that_restarts_finds_the_same [],
    an_invalid_object_does_not_affect_others [BadObjects],
    problems_are_reported_and_cleared [BadObjects, Problems],
    a_last_good_version_outlives_a_broken_connection [BadObjects, Cut],
    a_broken_connection_loses_nothing [Cut],
    a_connection_that_breaks_again_and_again_loses_nothing [Cut],
    a_connection_that_breaks_while_everything_is_read [Cut],
    a_killed_datastore_deletes_nothing [Stop],
    an_unavailable_datastore_is_reported [Stop, Unavailable],
    a_datastore_is_waited_for_from_the_beginning [Stop],
    a_requested_resync_completes_when_the_datastore_returns [Stop],
    a_partition_deletes_nothing_and_loses_nothing [Partition],
    compacted_changes_are_detected [Compact],
    compacted_deletions_are_detected_after_a_partition [Compact, Partition],
}

fn an_empty_datastore_is_in_sync(world: &mut World<'_>) {
    world.start();
    world.in_sync(1);
}

fn a_bit_of_everything() -> Vec<super::Edit> {
    vec![
        tier("platform", 5),
        policy("base", 1),
        namespaced_policy("web", 1),
        set("partners", 1),
        namespaced_set("offices", 1),
        pool("main", 99, true),
    ]
}

fn existing_objects_are_read(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.start();
    world.in_sync(1);
}

fn changes_are_followed(world: &mut World<'_>) {
    world.start();
    world.in_sync(1);
    for edit in a_bit_of_everything() {
        world.edit([edit]);
        world.converged();
    }
    world.edit([policy("base", 2), set("partners", 2), namespaced_policy("web", 2)]);
    world.converged();
    world.edit([delete(Kind::GlobalNetworkSet, "partners"), delete(Kind::NetworkPolicy, "web"), tier("platform", 6)]);
    world.converged();
    world.edit([set("partners", 3), delete(Kind::Tier, "platform")]);
    world.converged();
}

/// Returns pseudo-random edits, equal in each run.
fn edits(world: &World<'_>, seed: &mut u64, count: usize) -> Vec<super::Edit> {
    let mut exists = std::collections::HashMap::new();
    let mut edits = Vec::new();
    for _ in 0..count {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = usize::try_from(*seed >> 40).unwrap_or_default();
        let put = any(draw % 36, u16::try_from(draw / 36 % 900).unwrap_or_default());
        let super::Edit::Put(id, _) = &put else { continue };
        let is_present = exists.entry(id.clone()).or_insert_with(|| world.exists(id));
        if *is_present && draw % 5 == 0 {
            *is_present = false;
            edits.push(super::Edit::Delete(id.clone()));
        } else {
            *is_present = true;
            edits.push(put);
        }
    }
    edits
}

fn bursts_of_changes_converge_to_the_last_state(world: &mut World<'_>) {
    let mut seed = 1;
    world.edit(edits(world, &mut seed, 40));
    world.start();
    for _ in 0..8 {
        world.edit(edits(world, &mut seed, 60));
        // An object that is deleted and created within a batch may be reported as deleted.
        let consumer = world.consumer();
        consumer.take(Duration::from_millis(5));
    }
    world.churned();
}

fn rewriting_an_equal_object_changes_nothing(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.start();
    world.in_sync(1);
    world.edit(a_bit_of_everything());
    world.edit(a_bit_of_everything());
    world.converged();
}

fn of_pools_with_the_same_network_one_counts(world: &mut World<'_>) {
    world.edit([pool("m", 99, true)]);
    world.start();
    world.in_sync(1);
    world.edit([pool("z", 99, false)]);
    world.converged();
    world.edit([pool("a", 99, false)]);
    world.converged();
    world.edit([delete(Kind::IpPool, "a")]);
    world.converged();
    world.edit([delete(Kind::IpPool, "m")]);
    world.converged();
}

fn a_large_datastore_is_read_and_emptied(world: &mut World<'_>) {
    world.edit((0..MANY).map(|number| set(&format!("s{number}"), number)));
    world.start();
    world.in_sync(1);
    world.edit((1..MANY).map(|number| delete(Kind::GlobalNetworkSet, &format!("s{number}"))));
    world.converged();
}

fn a_requested_resync_sends_everything(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.start();
    world.in_sync(1);
    world.consumer().restart();
    world.in_sync(1);
    world.edit([policy("base", 2), delete(Kind::Tier, "platform")]);
    world.consumer().restart();
    world.in_sync(1);
    // Also before the previous resync is complete.
    world.consumer().restart();
    world.consumer().take(Duration::from_secs(1));
    world.consumer().restart();
    world.consumer().restart();
    world.in_sync(1);
}

fn a_source_that_restarts_finds_the_same(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.start();
    world.in_sync(1);
    world.end();
    world.edit([set("partners", 2), delete(Kind::Tier, "platform")]);
    world.start();
    world.in_sync(1);
}

fn an_invalid_object_does_not_affect_others(world: &mut World<'_>) {
    world.edit([set("a", 1), bad_set("b"), bad_policy("p"), set("c", 1), policy("q", 1)]);
    world.start();
    world.in_sync(1);
    // A valid object keeps its last valid version.
    world.edit([set("d", 1), bad_set("a"), bad_policy("q"), set("e", 1)]);
    world.converged();
    world.consumer().restart();
    world.in_sync(1);
    world.edit([set("a", 2), set("b", 2), policy("p", 2), policy("q", 2)]);
    world.converged();
    world.edit([bad_set("a"), delete(Kind::GlobalNetworkSet, "b")]);
    world.converged();
    world.edit([delete(Kind::GlobalNetworkSet, "a")]);
    world.converged();
}

fn problems_are_reported_and_cleared(world: &mut World<'_>) {
    world.edit([bad_set("b"), set("c", 1)]);
    world.start();
    world.in_sync(1);
    let await_problem = |world: &mut World<'_>, name: &'static str| {
        let mentions = move |problem: &tortie_datastore::InputProblem| problem.to_string().contains(name);
        world.consumer().until(name, move |consumer| consumer.problems.iter().any(mentions));
    };
    await_problem(world, "GlobalNetworkSet/b");
    world.edit([bad_set("c")]);
    await_problem(world, "GlobalNetworkSet/c");
    world.consumer().restart();
    world.in_sync(1);
    await_problem(world, "GlobalNetworkSet/b");
    world.edit([set("b", 1), delete(Kind::GlobalNetworkSet, "c")]);
    world.converged();
    world.consumer().until("no problems", |consumer| consumer.problems.is_empty());
}

fn a_last_good_version_outlives_a_broken_connection(world: &mut World<'_>) {
    world.edit([set("a", 1), policy("q", 1)]);
    world.start();
    world.in_sync(1);
    world.edit([bad_set("a"), bad_policy("q")]);
    world.converged();
    world.datastore.cut();
    world.edit([set("b", 1)]);
    world.converged();
}

fn a_broken_connection_loses_nothing(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.start();
    world.in_sync(1);
    world.datastore.cut();
    world.edit([policy("base", 2), delete(Kind::Tier, "platform"), set("later", 1)]);
    world.converged();
    world.edit([set("partners", 7)]);
    world.datastore.cut();
    world.converged();
}

fn a_connection_that_breaks_again_and_again_loses_nothing(world: &mut World<'_>) {
    let mut seed = 2;
    world.start();
    for _ in 0..6 {
        world.edit(edits(world, &mut seed, 20));
        world.datastore.cut();
        world.consumer().take(Duration::from_millis(20));
    }
    world.churned();
}

fn a_connection_that_breaks_while_everything_is_read(world: &mut World<'_>) {
    world.edit((0..MANY).map(|number| set(&format!("s{number}"), number)));
    world.start();
    world.datastore.cut();
    world.consumer().take(Duration::from_secs(1));
    world.datastore.cut();
    world.in_sync(1);
}

fn a_killed_datastore_deletes_nothing(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.start();
    world.in_sync(1);
    world.edit([set("partners", 2)]);
    world.datastore.stop();
    world.nothing_is_deleted(AWAY);
    world.datastore.start();
    world.edit([policy("base", 2), delete(Kind::Tier, "platform")]);
    world.converged();
    // The source must not wait for an answer when it ends.
    world.datastore.stop();
    world.end();
    world.datastore.start();
}

fn an_unavailable_datastore_is_reported(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.start();
    world.in_sync(1);
    world.consumer().unavailable = None;
    world.datastore.stop();
    world.consumer().until("the datastore is away", |consumer| consumer.unavailable.is_some());
    world.datastore.start();
    world.consumer().until("the datastore is back, with nothing new", |consumer| consumer.unavailable.is_none());
    world.edit([set("later", 1)]);
    world.converged();
}

fn a_datastore_is_waited_for_from_the_beginning(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.datastore.stop();
    world.start();
    world.consumer().listen(AWAY);
    let consumer = world.consumer();
    assert!(consumer.in_sync == 0 && consumer.state.is_empty(), "nothing can be known yet");
    world.datastore.start();
    world.in_sync(1);
}

fn a_requested_resync_completes_when_the_datastore_returns(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.start();
    world.in_sync(1);
    world.datastore.stop();
    world.consumer().listen(AWAY / 2);
    world.consumer().restart();
    // The source may send its known state, or wait.
    world.consumer().listen(AWAY);
    world.datastore.start();
    world.edit([set("later", 1)]);
    world.in_sync(1);
}

fn a_partition_deletes_nothing_and_loses_nothing(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.start();
    world.in_sync(1);
    world.datastore.partition();
    world.nothing_is_deleted(AWAY / 2);
    world.edit([policy("base", 2), delete(Kind::Tier, "platform"), set("later", 1)]);
    let consumer = world.consumer();
    consumer.listen(AWAY);
    world.datastore.heal();
    world.converged();
}

fn compacted_changes_are_detected(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.start();
    world.in_sync(1);
    world.edit([policy("base", 2), delete(Kind::Tier, "platform"), set("later", 1)]);
    world.datastore.compact();
    world.converged();
    world.edit([policy("base", 3)]);
    world.converged();
}

fn compacted_deletions_are_detected_after_a_partition(world: &mut World<'_>) {
    world.edit(a_bit_of_everything());
    world.start();
    world.in_sync(1);
    world.datastore.partition();
    world.edit([policy("base", 2), delete(Kind::Tier, "platform"), set("later", 1)]);
    world.datastore.compact();
    world.consumer().listen(AWAY / 2);
    world.datastore.heal();
    world.converged();
    world.edit([set("later", 2), delete(Kind::GlobalNetworkSet, "partners")]);
    world.converged();
}
