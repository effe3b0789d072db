//! The messages at level `debug`.

#![cfg(test)]

use std::io;
use std::sync::{Arc, Mutex};

use tortie_calc::{Graph, GraphConfig};
use tortie_model::{
    Labels, Policy, PolicyId, PolicyKind, SyncStatus, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};

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
        iface: Some("cali1".into()),
        labels: Labels::from_pairs([("app", app)]).unwrap(),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new("node-1", "k8s", "shop/web-0", "eth0");
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))
}

#[test]
fn it_is_told_why_a_policy_is_active_and_which_endpoints_change() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).without_time().with_target(false);
    let subscriber = subscriber.with_max_level(tracing::Level::DEBUG).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        let mut graph = Graph::new(&GraphConfig::new("node-1".into()));
        graph.on_status(SyncStatus::InSync);
        let mut told = |updates: Vec<Update>| {
            updates.into_iter().for_each(|update| graph.on_update(update));
            let _ = graph.take_changes();
            log.take().lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(told(vec![policy("app == 'web'")]), Vec::<String>::new());
        assert_eq!(
            told(vec![endpoint("web")]),
            [
                "DEBUG flush: policy is active policy=GlobalNetworkPolicy/web selector=app == \"web\" why=\"it selects an endpoint of this node\" endpoint=node-1/k8s/shop/web-0/eth0",
                "DEBUG flush: endpoint changes endpoint=node-1/k8s/shop/web-0/eth0 why=\"its policies\" policies=ingress GlobalNetworkPolicy/web, egress GlobalNetworkPolicy/web",
            ]
        );
        assert_eq!(
            told(vec![endpoint("db")]),
            [
                "DEBUG flush: policy is inactive policy=GlobalNetworkPolicy/web selector=app == \"web\" why=\"it selects no endpoint of this node\"",
                "DEBUG flush: endpoint changes endpoint=node-1/k8s/shop/web-0/eth0 why=\"its policies\" policies=",
            ]
        );
    });
}
