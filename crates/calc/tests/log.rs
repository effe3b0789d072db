//! The messages at level `debug`.

#![cfg(test)]

use std::io;
use std::sync::{Arc, Mutex};

use tortie_calc::{Graph, GraphConfig};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{
    Labels, Policy, PolicyId, PolicyKind, SyncStatus, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn policy(selector: &str) -> Update {
    let policy = Policy { selector: selector.parse().unwrap(), ..Policy::default() };
    Update::Policy(PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "web"), Some(Valid::new(policy).unwrap()))
}

fn endpoint(app: &str) -> Update {
    let endpoint = WorkloadEndpoint {
        iface: Some("cali1".parse().unwrap()),
        labels: Labels::from_pairs([("app", app)]).unwrap(),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new("node-1", "k8s", "shop/web-0", "eth0");
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))
}

/// A graph of a node, and its log.
struct Node {
    graph: Graph,
    log: Log,
}

impl Node {
    /// Applies the updates and flushes. Returns the changes and the lines of the log.
    fn apply(&mut self, updates: impl IntoIterator<Item = Update>) -> (Vec<DesiredUpdate>, Vec<String>) {
        updates.into_iter().for_each(|update| self.graph.on_update(update));
        let changes = self.graph.take_changes();
        (changes, self.log.take().lines().map(|line| line.trim().to_owned()).collect())
    }
}

/// Runs a graph with a log as of `RUST_LOG=tortie_calc=debug`, which has these events of spans.
fn with_log(spans: FmtSpan, run: impl FnOnce(Node)) {
    let log = Log::default();
    let writer = log.clone();
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).without_time().with_target(false);
    let lines = lines.with_span_events(spans).with_writer(move || writer.clone());
    let filter: Targets = "tortie_calc=debug".parse().unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.with_filter(filter)), || {
        let mut graph = Graph::new(&GraphConfig::new("node-1".into()));
        graph.on_status(SyncStatus::InSync);
        run(Node { graph, log });
    });
}

#[test]
fn reasons_of_active_policies_and_changed_endpoints_are_logged() {
    with_log(FmtSpan::NONE, |mut node| {
        let mut apply = |update| node.apply([update]).1;
        assert_eq!(apply(policy("app == 'web'")), Vec::<String>::new());
        assert_eq!(
            apply(endpoint("web")),
            [
                "DEBUG flush: policy is active policy=GlobalNetworkPolicy/web selector=app == \"web\" why=\"it selects an endpoint of this node\" endpoint=node-1/k8s/shop/web-0/eth0",
                "DEBUG flush: endpoint changes endpoint=node-1/k8s/shop/web-0/eth0 why=\"its policies\" policies=ingress GlobalNetworkPolicy/web, egress GlobalNetworkPolicy/web",
            ]
        );
        assert_eq!(
            apply(endpoint("db")),
            [
                "DEBUG flush: policy is inactive policy=GlobalNetworkPolicy/web selector=app == \"web\" why=\"it selects no endpoint of this node\"",
                "DEBUG flush: endpoint changes endpoint=node-1/k8s/shop/web-0/eth0 why=\"its policies\" policies=",
            ]
        );
    });
}

#[test]
fn a_flush_counts_its_changes_of_policies_and_endpoints() {
    with_log(FmtSpan::CLOSE, |mut node| {
        let mut flush = |updates: &[Update], policies: usize, endpoints: usize| {
            let (changes, lines) = node.apply(updates.iter().cloned());
            let count = changes.len();
            let span = format!("DEBUG flush{{changes={count} policies={policies} endpoints={endpoints}}}: close");
            assert_eq!(lines.last(), Some(&span));
            count
        };
        let first = flush(&[policy("app == 'web'"), endpoint("web")], 1, 1);
        assert!(first > 2, "the end of the snapshot is a change as well");
        // The policy is removed, and the endpoint is sent without it.
        assert_eq!(flush(&[endpoint("db")], 1, 1), 2);
        assert_eq!(flush(&[], 0, 0), 0);
    });
}
