use tortie_dataplane::{DeviceChange, DeviceKind};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;

use super::*;
use crate::netlink::Netlink;

const BUCKET: TokenBucket = TokenBucket { rate: 125_000, buffer: 500_000, limit: 503_125, peak_rate: 0, min_burst: 0 };

#[test]
fn truncated_messages_are_rejected_without_panic() {
    let (_, _, payload, _) = change_request(&QdiscChange::SetBucket(7, BUCKET));
    let whole = parse_qdisc(RTM_NEWQDISC, &payload).unwrap().unwrap();
    assert_eq!(whole, Qdisc { interface: 7, is_root: true, kind: QdiscKind::Bucket(BUCKET) });
    let (_, _, redirect, _) = change_request(&QdiscChange::Redirect { from: 7, to: 9 });
    assert_eq!(parse_filter(RTM_NEWTFILTER, &redirect).unwrap().unwrap().redirects_to, Some(9));
    for length in 0..payload.len() {
        let _ = parse_qdisc(RTM_NEWQDISC, &payload[..length]);
    }
    for length in 0..redirect.len() {
        let _ = parse_filter(RTM_NEWTFILTER, &redirect[..length]);
    }
}

kernel_test! {
    fn limits_and_redirections_equal_the_output_of_tc() {
        let namespace = Namespace::new().unwrap();
        namespace.ip(["link add v0 type veth peer name v1", "link set v0 up"]).unwrap();
        namespace.run(|| {
            let mut netlink = Netlink::open(std::time::Duration::from_secs(20)).unwrap();
            let v0 = netlink.device("v0").unwrap().unwrap().index;
            let ifb = DeviceChange::Create { name: "ifb9".parse().unwrap(), mac: None, kind: DeviceKind::Other("ifb".into()) };
            netlink.change_device(&ifb).unwrap();
            let ifb = netlink.device("ifb9").unwrap().unwrap().index;
            let of = |netlink: &mut Netlink| {
                let all = netlink.qdiscs().unwrap().into_iter().filter(|qdisc| qdisc.interface == v0);
                all.map(|qdisc| qdisc.kind).collect::<Vec<_>>()
            };
            assert!(of(&mut netlink).iter().all(|kind| *kind == QdiscKind::Default));
            netlink.change_qdisc(&QdiscChange::SetBucket(v0, BUCKET)).unwrap();
            assert_eq!(of(&mut netlink), [QdiscKind::Bucket(BUCKET)]);
            let fast = TokenBucket { rate: 10_000_000_000, buffer: 1_000, limit: 250_000_000, peak_rate: 0, min_burst: 0 };
            netlink.change_qdisc(&QdiscChange::SetBucket(v0, fast)).unwrap();
            assert_eq!(of(&mut netlink), [QdiscKind::Bucket(fast)]);
            let peak = TokenBucket { peak_rate: 250_000, min_burst: 1514, ..BUCKET };
            netlink.change_qdisc(&QdiscChange::SetBucket(v0, peak)).unwrap();
            assert!(matches!(of(&mut netlink)[..], [QdiscKind::Bucket(TokenBucket { peak_rate: 250_000, .. })]));

            netlink.change_qdisc(&QdiscChange::AddIngress(v0)).unwrap();
            assert!(netlink.redirections(v0).unwrap().is_empty());
            netlink.change_qdisc(&QdiscChange::Redirect { from: v0, to: ifb }).unwrap();
            assert_eq!(netlink.redirections(v0).unwrap(), [Some(ifb)]);
            assert!(of(&mut netlink).contains(&QdiscKind::Ingress));
            netlink.change_qdisc(&QdiscChange::DeleteIngress(v0)).unwrap();
            netlink.change_qdisc(&QdiscChange::DeleteRoot(v0)).unwrap();
            assert!(of(&mut netlink).iter().all(|kind| *kind == QdiscKind::Default));
        }).unwrap();
    }
}
