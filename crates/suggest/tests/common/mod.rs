//! Clusters and flows of tests.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use serde_json::{Value, json};
use tortie_model::{Interner, Update};
use tortie_resources::manifest::{Format, Options, Outcome, read};
use tortie_suggest::{Learner, Record};

/// Returns a pod as a YAML document.
pub fn pod(namespace: &str, name: &str, node: &str, address: &str, labels: &str, generated: Option<&str>) -> String {
    let generated = generated.map(|prefix| format!(", generateName: {prefix}")).unwrap_or_default();
    format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}{generated}}}, \
         spec: {{nodeName: {node}, containers: []}}, status: {{phase: Running, podIP: {address}}}}}\n"
    )
}

pub fn cluster(text: &str) -> Vec<Update> {
    let mut labels = Interner::new();
    let manifest = read(text, Format::Yaml, &Options::default(), &mut labels);
    assert!(manifest.unreadable.is_empty(), "{:?}", manifest.unreadable);
    let mut updates = Vec::new();
    for resource in manifest.resources {
        match resource.outcome {
            Outcome::Valid(contributions) => updates.extend(contributions),
            _ => panic!("{}: {:?}", resource.subject, resource.problems),
        }
    }
    updates
}

pub fn learned<'f>(cluster: &[Update], flows: impl IntoIterator<Item = &'f Flow>) -> Record {
    let mut learner = Learner::new(cluster);
    flows.into_iter().for_each(|flow| learner.read_flow(&flow.0));
    assert_eq!(learner.unreadable(), 0);
    learner.finish()
}

/// A flow as the agent reports it.
#[derive(Clone, Debug)]
pub struct Flow(pub Value);

/// Monday, 5 January 2026, 10:00 UTC.
const BEGIN: i64 = 1_767_607_200;

fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(BEGIN + seconds).unwrap().to_string()
}

impl Flow {
    fn new(source: &Value, destination: &Value, port: u16) -> Self {
        let mut flow = json!({
            "time": time(5), "started": time(0), "stage": "ended", "verdict": "allow", "protocol": "TCP",
            "source": source, "destination": destination, "egress": [{"verdict": "allow"}], "ingress": [],
            "attempts": 1, "packets": 9, "bytes": 900, "reply_packets": 8, "reply_bytes": 800,
        });
        flow["source"]["port"] = json!(40_000);
        flow["destination"]["port"] = json!(port);
        Self(flow)
    }

    pub fn pods(from: &str, from_address: &str, to: &str, to_address: &str, port: u16) -> Self {
        let end = |name: &str, address: &str| json!({"kind": "workload", "name": name, "address": address});
        Self::new(&end(from, from_address), &end(to, to_address), port)
    }

    pub fn from_node(node: &str, address: &str, to: &str, to_address: &str, port: u16) -> Self {
        let source = json!({"kind": "node", "name": node, "address": address});
        Self::new(&source, &json!({"kind": "workload", "name": to, "address": to_address}), port)
    }

    pub fn to_outside(from: &str, from_address: &str, address: &str, port: u16) -> Self {
        let source = json!({"kind": "workload", "name": from, "address": from_address});
        Self::new(&source, &json!({"kind": "outside", "address": address}), port)
    }

    pub fn from_outside(address: &str, to: &str, to_address: &str, port: u16) -> Self {
        let destination = json!({"kind": "workload", "name": to, "address": to_address});
        Self::new(&json!({"kind": "outside", "address": address}), &destination, port)
    }

    pub fn udp(mut self) -> Self {
        self.0["protocol"] = json!("UDP");
        self
    }

    pub fn ping(mut self) -> Self {
        self.0["protocol"] = json!("ICMP");
        self.0["icmp_type"] = json!(8);
        for end in ["source", "destination"] {
            self.0[end].as_object_mut().unwrap().remove("port");
        }
        self
    }

    pub fn denied(mut self) -> Self {
        self.0["verdict"] = json!("deny");
        self
    }

    pub fn count(mut self, packets: u64, replies: u64) -> Self {
        (self.0["packets"], self.0["reply_packets"]) = (json!(packets), json!(replies));
        self
    }

    pub fn source_port(mut self, port: u16) -> Self {
        self.0["source"]["port"] = json!(port);
        self
    }

    pub fn at(mut self, seconds: i64) -> Self {
        (self.0["started"], self.0["time"]) = (json!(time(seconds)), json!(time(seconds + 5)));
        self
    }

    pub fn day(self, day: i64) -> Self {
        self.at(day * 86_400)
    }

    pub fn open(mut self) -> Self {
        self.0["stage"] = json!("started");
        self
    }

    /// A flow that no rule has decided about.
    pub fn unjudged(mut self) -> Self {
        (self.0["egress"], self.0["ingress"]) = (json!([]), json!([]));
        self
    }
}
