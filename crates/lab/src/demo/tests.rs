use std::path::Path;

use super::{agent::AppliedChanges, manifests::Manifests, *};
use crate::{pods::Port, program::Answer};

/// Returns the demo's manifests.
pub(super) fn examples() -> Manifests {
    Manifests::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo"))
        .expect("the examples are readable")
}

#[test]
fn pods_are_listed() {
    let mut pods = examples().pods;
    pods[0].ports.push(("dns".into(), Port::udp(53)));
    let expected = [
        "   pod             interface        addresses                serves",
        "   shop/web        cali551b05c3e54  10.65.1.1, fd00:65::1:1  http 80/tcp, dns 53/udp",
        "   shop/api        cali50d8cbfc60a  10.65.1.2, fd00:65::1:2  api 8080/tcp",
        "   shop/db         cali2d7243dcff6  10.65.1.3, fd00:65::1:3  postgres 5432/tcp",
        "   visitors/guest  cali975f7193272  10.65.1.4, fd00:65::1:4  echo 7/tcp",
    ];
    assert_eq!(pod_table(&pods).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn durations_are_short() {
    assert_eq!(millis(Duration::from_micros(41_700)), "41 ms");
    assert_eq!(millis(Duration::from_millis(12_345)), "12.3 s");
}

fn enforced(count: u32, seconds: f64) -> Option<AppliedChanges> {
    let body = format!(
        "# TYPE tortie_event_to_kernel_seconds histogram\ntortie_event_to_kernel_seconds_bucket{{le=\"0.1\"}} 1\n\
         tortie_event_to_kernel_seconds_sum {seconds}\ntortie_event_to_kernel_seconds_count {count}\n"
    );
    AppliedChanges::of(&Answer { status: 200, body })
}

#[test]
fn changes_take_the_mean_of_their_time() {
    let (before, after) = (enforced(1, 0.03).unwrap(), enforced(3, 0.06).unwrap());
    let mean = after.mean_since(before);
    assert!(mean.abs_diff(Duration::from_millis(15)) < Duration::from_micros(1), "{mean:?}");
    assert_eq!(before.mean_since(before), Duration::ZERO);
    assert_eq!(
        AppliedChanges::of(&Answer { status: 200, body: "tortie_event_to_kernel_seconds_count 2\n".into() }),
        None
    );
}
