//! Announcements on a real kernel.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tortie_dataplane::AnnouncementWatch;
use tortie_lab::ethernet::{FrameSender, arp_request, gratuitous_arp, reverse_arp};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;

use super::Announcements;

const PATIENCE: Duration = Duration::from_secs(60);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 65, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 65, 0, 2);

/// A node with two virtual machines, behind `cali1` and `cali2`.
struct Node {
    namespace: Namespace,
    /// Senders of frames to the node by each of the interfaces.
    machines: [FrameSender; 2],
    /// Sender of frames of the node by the first interface.
    host: FrameSender,
    announcements: Announcements,
    reported: Receiver<u64>,
}

impl Node {
    fn new() -> Self {
        let namespace = Namespace::new().unwrap();
        let machines = [("cali1", 7), ("cali2", 8)].map(|(name, index)| {
            let pod = Namespace::new().unwrap();
            let path = pod.path();
            let veth = format!("link add {name} index {index} type veth peer name eth0 netns {}", path.display());
            namespace.ip([veth, format!("link set {name} up")]).unwrap();
            pod.ip(["link set eth0 up"]).unwrap();
            FrameSender::open(&pod, "eth0").unwrap()
        });
        let host = FrameSender::open(&namespace, "cali1").unwrap();
        let (sender, reported) = channel();
        let announcements = Announcements::new(move |number| sender.send(number).unwrap());
        Self { namespace, machines, host, announcements, reported }
    }

    /// Expects announcements on these interfaces, with numbers ten times those of the interfaces.
    fn expect(&mut self, indices: &[u32]) {
        let (namespace, announcements) = (&self.namespace, &mut self.announcements);
        let interfaces = ["cali1", "cali2"];
        let watch = |index: &u32| {
            let interface = interfaces[usize::try_from(*index - 7).unwrap()];
            AnnouncementWatch::new(u64::from(*index) * 10, *index, interface.parse().unwrap())
        };
        let watches: BTreeSet<_> = indices.iter().map(watch).collect();
        namespace.run(|| announcements.expect(watches)).unwrap();
    }

    /// Makes the second machine announce itself in this way. All earlier packets of this kind have
    /// been received then.
    fn send_and_collect(&mut self, announcement: &[u8]) -> Vec<u64> {
        self.machines[1].send(announcement).unwrap();
        let mut reported = Vec::new();
        while reported.last() != Some(&80) {
            reported.push(self.reported.recv_timeout(PATIENCE).unwrap());
        }
        reported
    }
}

fn threads() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("comm"));
    names.filter(|path| std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "announcements")).count()
}

kernel_test! {
    fn each_kind_of_announcement_is_reported_once_and_no_other_packet() {
        for announcement in [gratuitous_arp(MAC, ADDRESS), reverse_arp(MAC)] {
            let mut node = Node::new();
            node.expect(&[7, 8]);
            node.machines[0].send(&arp_request(MAC, ADDRESS, OTHER)).unwrap();
            node.machines[0].send(&announcement).unwrap();
            node.machines[0].send(&announcement).unwrap();
            assert_eq!(node.send_and_collect(&announcement), [70, 80]);
        }
    }

    fn nothing_but_an_announcement_counts() {
        for announcement in [gratuitous_arp(MAC, ADDRESS), reverse_arp(MAC)] {
            let mut node = Node::new();
            node.expect(&[7, 8]);
            node.machines[0].send(&arp_request(MAC, ADDRESS, OTHER)).unwrap();
            node.host.send(&announcement).unwrap();
            assert_eq!(node.send_and_collect(&announcement), [80]);
        }
    }

    fn interfaces_without_expected_machine_are_ignored() {
        let mut node = Node::new();
        node.expect(&[8]);
        node.machines[0].send(&reverse_arp(MAC)).unwrap();
        assert_eq!(node.send_and_collect(&reverse_arp(MAC)), [80]);
    }

    fn machines_expected_later_and_earlier_are_both_reported() {
        let mut node = Node::new();
        node.expect(&[7]);
        node.expect(&[7, 8]);
        node.machines[0].send(&reverse_arp(MAC)).unwrap();
        assert_eq!(node.reported.recv_timeout(PATIENCE), Ok(70));
        node.expect(&[8]);
        assert_eq!(node.send_and_collect(&reverse_arp(MAC)), [80]);
    }

    fn the_listener_ends_when_no_machine_is_expected() {
        let mut node = Node::new();
        let before = threads();
        node.expect(&[7]);
        node.expect(&[]);
        let end = std::time::Instant::now() + PATIENCE;
        while threads() > before {
            assert!(std::time::Instant::now() < end, "the thread ends");
            std::thread::yield_now();
        }
        assert!(node.announcements.listener.is_none());
        assert!(node.reported.try_recv().is_err());
    }
}
