use std::path::Path;

use super::manifests::{Manifests, Transport};
use super::*;

/// The manifests that the demo is made for.
pub(super) fn examples() -> Manifests {
    Manifests::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo"))
        .expect("the examples are readable")
}

#[test]
fn pods_are_listed() {
    let mut pods = examples().pods;
    pods[0].ports.push(manifests::Port { name: "dns".into(), number: 53, transport: Transport::Udp });
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

#[test]
fn interrupted_demos_end_like_other_programs() {
    let interrupt = Interrupt(Arc::new(AtomicBool::new(false)));
    assert!(interrupt.check().is_ok());
    interrupt.0.store(true, Ordering::Relaxed);
    assert!(matches!(interrupt.check(), Err(Failure::Reported(130))));
}
