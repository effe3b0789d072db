//! Random histories of pods, nodes and address allocation.
#![allow(clippy::disallowed_methods, reason = "the time of a test has to begin somewhere")]

mod cases;
mod one_by_one;
mod world;

use std::collections::BTreeMap;

use proptest::prelude::*;
use tortie_datastore::store::Fault;

use self::world::{Race, World, held_in, json_of, texts};
use super::*;
use crate::nodes::Next;

const GRACE: Duration = Duration::from_secs(900);
const PERIOD: Duration = Duration::from_secs(300);

#[test]
fn cooldowns() {
    for (config, seconds) in [
        (r#"{"strict_affinity": false}"#, Some(0)),
        (r#"{"ipCooldownSeconds": 30}"#, Some(30)),
        (r#"{"ipCooldownSeconds": -1}"#, Some(0)),
        (r#"{"ipCooldownSeconds": "30"}"#, None),
        ("[]", None),
        ("", None),
    ] {
        assert_eq!(cooldown(config), seconds.map(Duration::from_secs), "{config}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    NodeUp(u8),
    NodeDown(u8),
    Claim(u8),
    PodStart(u8, u8),
    PodAdd(u8, bool),
    PodReported(u8),
    PodDeleted(u8, bool),
    Cooldown(u32),
    ObserveNodes,
    ObservePods,
    ObserveStored,
    Fail(Fault),
    Take,
    Finish(usize, Option<Race>),
    Pass(u64),
    Restart,
    Follow,
    Lead,
}

fn step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![Just(Fault::Unavailable), Just(Fault::LostAnswer), Just(Fault::Refused)];
    let race = prop::option::weighted(0.4, prop_oneof![Just(Race::Allocate), Just(Race::Reallocate)]);
    prop_oneof![
        4 => (0..3u8).prop_map(Step::NodeUp),
        2 => (0..3u8).prop_map(Step::NodeDown),
        2 => (0..3u8).prop_map(Step::Claim),
        6 => (0..6u8, 0..3u8).prop_map(|(pod, node)| Step::PodStart(pod, node)),
        8 => (0..6u8, prop::bool::weighted(0.2)).prop_map(|(pod, borrow)| Step::PodAdd(pod, borrow)),
        4 => (0..6u8).prop_map(Step::PodReported),
        6 => (0..6u8, prop::bool::weighted(0.3)).prop_map(|(pod, clean)| Step::PodDeleted(pod, clean)),
        1 => prop_oneof![Just(0), Just(30)].prop_map(Step::Cooldown),
        4 => Just(Step::ObserveNodes),
        6 => Just(Step::ObservePods),
        8 => Just(Step::ObserveStored),
        2 => fault.prop_map(Step::Fail),
        14 => Just(Step::Take),
        14 => (any::<usize>(), race).prop_map(|(which, race)| Step::Finish(which, race)),
        8 => (0..1_200_000u64).prop_map(Step::Pass),
        1 => Just(Step::Restart),
        1 => Just(Step::Follow),
        2 => Just(Step::Lead),
    ]
}

fn play(world: &mut World, step: Step) {
    let pod = |number: u8| format!("p{number}");
    match step {
        Step::NodeUp(node) => world.node_up(node),
        Step::NodeDown(node) => drop(world.kubernetes.0.lock().expect("no panic").nodes.remove(&node)),
        Step::Claim(node) if world.node_exists(node) => drop(world.claim(node)),
        Step::Claim(_) => {}
        Step::PodStart(number, node) => world.pod_start(&pod(number), node),
        Step::PodAdd(number, borrow) => world.pod_add(&pod(number), borrow),
        Step::PodReported(number) => world.pod_reported(&pod(number)),
        Step::PodDeleted(number, is_clean) => world.pod_deleted(&pod(number), is_clean),
        Step::Cooldown(seconds) => world.set_cooldown(seconds),
        Step::ObserveNodes => world.observe_nodes(),
        Step::ObservePods => world.observe_pods(),
        Step::ObserveStored => world.observe_stored(),
        Step::Fail(fault) => world.fail(fault),
        Step::Take => {
            if let Next::Job(job) = world.controller.next(world.now) {
                world.working.push(job);
            }
        }
        Step::Finish(which, race) => {
            let count = world.working.len();
            if count > 0 {
                let job = world.working.swap_remove(which % count);
                world.run(job, race, GRACE);
            }
        }
        Step::Pass(ms) => world.now += Duration::from_millis(ms),
        Step::Restart => world.restart(),
        Step::Follow => world.controller.follow(),
        Step::Lead => world.controller.lead(),
    }
}

/// Uses up all pending faults, and runs until every leak is found.
fn settle(world: &mut World) {
    for _ in 0..100 {
        let _used_up = tortie_datastore::store::ResourceStore::list(&world.store, ResourceKind::Tier, None);
    }
    // A pod without a reported address may have the one of an earlier pod of its name.
    for name in world.kubernetes.names() {
        world.pod_add(&name, false);
        world.pod_reported(&name);
    }
    world.controller.lead();
    for _ in 0..4 {
        world.drain(GRACE + PERIOD, GRACE);
    }
}

fn check(world: &World) {
    let truth = world.kubernetes.0.lock().expect("no panic");
    let held = world.held();
    let in_use: BTreeSet<&str> = truth.pods.values().filter_map(|pod| pod.handle.as_deref()).collect();
    let nodes_in_use: BTreeSet<u8> =
        truth.pods.values().filter(|pod| pod.handle.is_some()).map(|pod| pod.node).collect();
    let mut counts: BTreeMap<&str, BTreeMap<String, u64>> = BTreeMap::new();
    for (cidr, _, handle, _) in &held {
        *counts.entry(handle).or_default().entry(cidr.to_string()).or_default() += 1;
        match handle.strip_prefix("tunnel").map(|node| node.parse::<u8>().expect("a number")) {
            Some(node) => assert!(truth.nodes.contains(&node) || nodes_in_use.contains(&node), "{handle} has leaked"),
            None => assert!(in_use.contains(&**handle), "{handle} has leaked"),
        }
    }
    for handle in in_use {
        assert!(counts.contains_key(handle), "{handle} was released");
    }
    let handles = texts(&world.store, "/calico/ipam/v2/handle/");
    let handles: BTreeMap<&str, BTreeMap<String, u64>> = handles
        .iter()
        .map(|stored| {
            let blocks = serde_json::from_value(json_of(stored)["block"].clone()).expect("counts");
            (stored.path.strip_prefix("/calico/ipam/v2/handle/").expect("a handle"), blocks)
        })
        .collect();
    if world.is_transactional {
        assert_eq!(handles, counts);
    }
    // Without transactions, an interruption leaves handles that count too many addresses.
    for (handle, counts) in &counts {
        for (cidr, count) in counts {
            assert!(handles[handle][cidr] >= *count, "{handle} says {:?}, not {counts:?}", handles[handle]);
        }
    }

    let mut affine: BTreeMap<String, Vec<(Cidr, Value)>> = BTreeMap::new();
    for stored in texts(&world.store, "/calico/ipam/v2/assignment/") {
        let (cidr, block) = (block_at(&stored.path).expect("a block"), json_of(&stored));
        let attributes = block["attributes"].as_array().expect("a list");
        assert!(attributes.iter().all(|attributes| attributes["releasedAt"].is_null()), "{block} cools down");
        let node = block["affinity"].as_str().and_then(|text| text.strip_prefix("host:")).expect("an affinity");
        let affinity = format!("/calico/ipam/v2/host/{node}/ipv4/block/{}", cidr.to_string().replace('/', "-"));
        assert!(
            tortie_datastore::store::TextStore::text(&world.store, &affinity).expect("read").is_some(),
            "{affinity}"
        );
        affine.entry(node.to_owned()).or_default().push((cidr, block));
    }
    let blocks: usize = affine.values().map(Vec::len).sum();
    assert_eq!(texts(&world.store, "/calico/ipam/v2/host/").len(), blocks, "every affinity is of a block");
    for (node, blocks) in affine {
        let empty = blocks.iter().filter(|(cidr, block)| held_in(*cidr, block).is_empty()).count();
        let number = node.strip_prefix('n').and_then(|number| number.parse().ok()).expect("a node");
        let allowed = usize::from(blocks.len() == 1 && (world.node_exists(number) || nodes_in_use.contains(&number)));
        assert!(empty <= allowed, "{node} has {} blocks, {empty} of them empty", blocks.len());
    }
    assert_eq!(world.controller.problems(), [] as [String; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn only_leaked_addresses_are_released(
        is_transactional: bool,
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut world = World::new(is_transactional, Instant::now());
        for step in steps {
            play(&mut world, step);
        }
        settle(&mut world);
        check(&world);

        // Entries in sync are not written again.
        let writes = world.store.writes();
        world.restart();
        world.drain(GRACE + PERIOD, GRACE);
        prop_assert_eq!(world.store.writes(), writes);
    }
}
