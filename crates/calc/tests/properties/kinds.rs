//! Coverage of histories: all kinds of objects that the graph takes occur in them.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tortie_model::{Key, Update};

use crate::generate::update;
use crate::histories::{Step, steps};

const KINDS: usize = 20;

/// Returns a number below [`KINDS`] for each kind of key; `None` for kinds that the graph ignores.
fn kind(key: &Key) -> Option<usize> {
    Some(match key {
        Key::WorkloadEndpoint(_) => 0,
        Key::HostEndpoint(_) => 1,
        Key::Policy(_) => 2,
        Key::Tier(_) => 3,
        Key::ProfileRules(_) => 4,
        Key::Profile(_) => 5,
        Key::NetworkSet(_) => 6,
        Key::IpPool(_) => 7,
        Key::GlobalConfig(_) => 8,
        Key::HostConfig(_) => 9,
        Key::ScopedConfig(_) => 10,
        Key::Ready => 11,
        Key::Node(_) => 12,
        Key::Wireguard(_) => 13,
        Key::Service(_) => 14,
        Key::EndpointSlice(_) => 15,
        Key::BgpConfiguration(_) => 16,
        Key::Block(_) => 17,
        Key::BgpPeer(_) => 18,
        Key::LiveMigration(_) => 19,
        Key::SyncerObject(_) => return None,
    })
}

#[test]
fn every_kind_of_object_can_be_added_and_removed() {
    let (mut came, mut went) = ([0; KINDS], [0; KINDS]);
    let (mut ready, mut unready) = (0, 0);
    let (mut runner, steps) = (TestRunner::deterministic(), steps(update()));
    for _ in 0..500 {
        for step in steps.new_tree(&mut runner).unwrap().current() {
            let Step::Update(update) = step else { continue };
            let Some(kind) = kind(&update.key()) else { continue };
            let times = if update.exists() { &mut came } else { &mut went };
            times[kind] += 1;
            match update {
                Update::Ready(Some(true)) => ready += 1,
                Update::Ready(Some(false)) => unready += 1,
                _ => {}
            }
        }
    }
    // A few times are not enough: a history has about thirty updates, and effects of an object show
    // in few of them.
    let often = |times: &usize| *times >= 25;
    assert!(came.iter().all(often) && went.iter().all(often), "came {came:?}, went {went:?}");
    assert!(often(&ready) && often(&unready), "ready {ready} times, and not {unready} times");
}
