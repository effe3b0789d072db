//! Memory use of the objects of a large cluster.

use std::alloc::System;
use std::path::PathBuf;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tortie_datastore::{DirState, FileContent, Objects};
use tortie_model::{Hostname, Interner};
use tortie_resources::manifest::{Kind, ObjectId, Options, UnknownFields, read_object};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PODS: usize = 32_768;

fn pod(number: usize) -> (ObjectId, String) {
    let (namespace, name) = (number % 100, format!("web-frontend-7d4b9c6f8d-{number:05x}"));
    let json = format!(
        r#"{{"metadata": {{"name": "{name}", "namespace": "team-{namespace}", "labels": {{"app": "web-{}",
        "pod-template-hash": "7d4b9c6f8d", "tier": "front"}}}}, "spec": {{"nodeName": "worker-{}",
        "serviceAccountName": "default", "containers": [{{"name": "c", "ports": [{{"name": "http", "containerPort": 8080}}]}}]}},
        "status": {{"phase": "Running", "podIPs": [{{"ip": "10.{}.{}.{}"}}]}}}}"#,
        number % 20,
        number / 100,
        number >> 16,
        number >> 8 & 255,
        number & 255,
    );
    let id = ObjectId { kind: Kind::Pod, namespace: format!("team-{namespace}").into(), name: name.into() };
    (id, json)
}

/// Returns the bytes that a policy takes in a file of its own.
fn bytes_of_a_policy_in_a_file() -> usize {
    const FILES: usize = 4_096;
    let mut directory = DirState::new(Options::default());
    let region = Region::new(GLOBAL);
    for number in 0..FILES {
        let text = format!(
            r#"{{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {{"name": "p{number}",
            "namespace": "bench"}}, "spec": {{"podSelector": {{"matchLabels": {{"app": "a{number}"}}}},
            "ingress": [{{"ports": [{{"port": 80}}]}}]}}}}"#
        );
        directory.set_file(&PathBuf::from(format!("policy-{number}.json")), Some(FileContent::Text(&text)));
    }
    let change = region.change();
    (change.bytes_allocated - change.bytes_deallocated) / FILES
}

/// The values themselves are included: they are shared with the consumers that receive them.
///
/// A single test, as concurrent tests would allocate as well.
#[test]
fn bytes_of_an_object_are_bounded() {
    let options = Options { unknown_fields: UnknownFields::Ignore, ..Options::default() };
    let mut labels = Interner::new();
    let mut objects = Objects::of_node(Hostname::new("worker-1"));
    let region = Region::new(GLOBAL);
    for number in 0..PODS {
        let (id, json) = pod(number);
        objects.set(&id, read_object(&json, Kind::Pod, &options, &mut labels).unwrap());
        if number % 500 == 0 {
            objects.take_updates();
        }
    }
    objects.take_updates();
    let change = region.change();
    let each = (change.bytes_allocated - change.bytes_deallocated) / PODS;
    println!("{each} bytes per pod");
    assert!((300..800).contains(&each), "{each} bytes per pod");
    let each = bytes_of_a_policy_in_a_file();
    println!("{each} bytes per policy");
    assert!((1_000..2_100).contains(&each), "{each} bytes per policy");
}
