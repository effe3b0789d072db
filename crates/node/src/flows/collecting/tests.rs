use std::collections::VecDeque;
use std::path::Path;

use tortie_evaluate::{Packet, Settings};
use tortie_flows::{ConnectionReport, FlowId, Limits};
use tortie_rules::no_profile_prefix;

use super::*;
use crate::flows::kernel_events::Logged;
use crate::flows::queue::{self, MessageSender};
use crate::flows::{FlowFile, FlowRecord};
use crate::metrics::Metrics;

/// Returns scripted events, one entry for each read.
#[derive(Debug, Default)]
struct Script {
    looks: VecDeque<KernelEvents>,
    listed: Vec<ConnectionReport>,
    can_list: bool,
}

impl Source for Script {
    fn wait(&mut self, _: Duration) -> bool {
        !self.looks.is_empty()
    }

    fn receive(&mut self, events: &mut KernelEvents) {
        *events = self.looks.pop_front().unwrap_or_default();
    }

    fn list(&mut self, each: &mut dyn FnMut(&ConnectionReport)) -> bool {
        self.listed.iter().for_each(each);
        self.can_list
    }
}

fn id(port: u16) -> FlowId {
    let packet = Packet::tcp(("10.0.0.1".parse().unwrap(), 40000), ("10.0.0.2".parse().unwrap(), port)).unwrap();
    FlowId { packet, icmp_id: 0 }
}

fn denied(port: u16) -> Logged {
    Logged { id: id(port), length: 60, by: LoggedBy::Rule(no_profile_prefix(tortie_model::Direction::Ingress).into()) }
}

/// A worker and the sender of its messages; its file is in the folder.
fn worker(looks: Vec<KernelEvents>, folder: &Path) -> (Worker<Script>, MessageSender, SharedFlows) {
    let (sender, receiver) = queue::message_queue(10);
    let shared = SharedFlows::default();
    let file = FlowFile { path: folder.join("flows"), max_size: 1 << 20, max_files: 2 };
    let settings = FlowSettings {
        reports_flows: true,
        log_rules: None,
        flush_interval: Duration::from_secs(300),
        previews: true,
        evaluation: Settings::default(),
        file: Some(file),
        #[cfg(feature = "goldmane")]
        receivers: Vec::new(),
        netlink_timeout: Duration::from_secs(1),
    };
    let collector = Collector::new(Settings::default(), true, Limits::default());
    let clock = Clock::start();
    let outputs = Outputs::new(&settings, shared.clone(), clock.now()).unwrap();
    let source = Script { looks: looks.into(), can_list: true, ..Script::default() };
    (Worker::new(receiver, source, collector, Some(outputs), clock), sender, shared)
}

fn looks(packets: &[&[u16]]) -> Vec<KernelEvents> {
    let events = |ports: &&[u16]| KernelEvents {
        packets: ports.iter().copied().map(denied).collect(),
        ..KernelEvents::default()
    };
    packets.iter().map(events).collect()
}

#[test]
fn kernel_events_become_shared_flows() {
    let folder = tempfile::tempdir().unwrap();
    let quiet: [&[u16]; 8] = [&[]; 8];
    let events = looks(&[&[&[1, 2][..], &[1]], &quiet[..]].concat());
    let (mut worker, _sender, shared) = worker(events, folder.path());
    assert!(shared.recent().is_none() && shared.follow().is_none());
    shared.begin();
    let followed = shared.follow().unwrap();
    while worker.turn() {}
    let recent: Vec<FlowRecord> = shared.recent().unwrap().iter().map(FlowRecord::of).collect();
    let received: Vec<_> = recent.iter().map(|flow| (flow.destination.port, flow.attempts, &*flow.verdict)).collect();
    assert_eq!(received, [(Some(1), 2, "deny"), (Some(2), 1, "deny")]);
    assert_eq!(followed.try_iter().map(|batch| batch.events.len()).sum::<usize>(), 2);

    worker.run();
    assert!(shared.recent().is_none() && followed.recv().is_err(), "the end is seen");
    // Connections without a workload of this node are not aggregated.
    assert!(!folder.path().join("flows").exists());
}

#[test]
fn more_is_read_at_once_and_losses_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut looks = looks(&[&[1], &[2], &[3]]);
    for look in &mut looks {
        (look.more, look.lost, look.unreadable) = (true, 2, 1);
    }
    looks[2].more = false;
    let (mut worker, _sender, ..) = worker(looks, folder.path());
    assert!(worker.turn());
    let outputs = worker.outputs.as_ref().unwrap();
    assert_eq!((outputs.lost, outputs.unreadable), (6, 3));
    assert_eq!(worker.collector.stats().connections, 3);
    assert!(!worker.turn());
}

#[test]
fn a_listing_that_fails_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut worker, _sender, ..) = worker(looks(&[&[1]]), folder.path());
    let connection = ConnectionReport { id: id(1), sent_to: None, traffic: None };
    assert!(worker.turn());
    worker.collector.on_new(&connection, worker.clock.now());
    worker.source.can_list = false;
    worker.list();
    worker.list();
    assert_eq!(worker.collector.stats().connections, 1);
    worker.source.can_list = true;
    worker.list();
    assert_eq!(worker.collector.stats().connections, 0);
}

#[test]
fn the_thread_ends_when_the_sender_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let (mut worker, sender, ..) = worker(looks(&[&[], &[]]), folder.path());
    assert!(worker.turn());
    drop(sender);
    assert!(!worker.turn());
}

#[test]
fn rules_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (mut worker, _sender, shared) = worker(looks(&[&[1, 1, 2]]), folder.path());
    assert!(worker.turn());
    worker.outputs.as_ref().unwrap().give_totals(&worker.collector);
    let flows = shared.metrics().unwrap();
    assert_eq!(flows.stats.connections, 2);
    let [rule] = &flows.rules[..] else { panic!("{:?}", flows.rules) };
    assert_eq!((rule.direction, rule.totals.hits, rule.totals.traffic.bytes), ("ingress", 3, 180));
    assert_eq!(rule.rule.verdict, "deny");
    assert_eq!(shared.last_hit("NetworkPolicy/shop/db"), None);
    let metrics = Metrics { flows: shared.clone(), ..Metrics::default() };
    let text = metrics.expose();
    let labels = r#"{direction="ingress",tier="",policy="",profile="",rule="end",action="deny"}"#;
    let at = rule.totals.last_hit.as_secs_f64();
    for line in [
        format!("tortie_rule_hits{labels} 3\n"),
        format!("tortie_rule_packets{labels} 3\n"),
        format!("tortie_rule_bytes{labels} 180\n"),
        format!("tortie_rule_last_hit_timestamp_seconds{labels} {at}\n"),
        "tortie_other_rules_hits 0\n".to_owned(),
    ] {
        assert!(text.contains(&line), "{line}{text}");
    }
    let other_rules = RuleTotals { hits: 7, ..flows.other_rules };
    shared.set_totals(BTreeMap::new(), FlowMetrics { other_rules, ..flows });
    let text = metrics.expose();
    assert!(text.contains("tortie_other_rules_hits 7\n"), "{text}");
}
