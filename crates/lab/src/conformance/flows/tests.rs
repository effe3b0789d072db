//! A small cluster, traced by the real tracer, and flows as an agent would report them, each with
//! one error.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{FlowFault, ReportedFlow, ReportedFlows, Row, Tracer};
use crate::{
    cases::{Cluster, ClusterPod, LabelledNamespace},
    pods::{Family, Flow, FlowOutcome, LabHost, Port, Reachability},
};

const SOURCE_PORT: u16 = 40_000;

fn cluster(nodes: [usize; 2]) -> Cluster {
    let pod = |name: &str, last: u8, node| ClusterPod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        labels: BTreeMap::from([("app".to_owned(), name.to_owned())]),
        addresses: vec![[10, 65, 0, last].into()],
        ports: Vec::new(),
        node,
    };
    Cluster {
        namespaces: vec![LabelledNamespace { name: "shop".to_owned(), labels: BTreeMap::new() }],
        pods: vec![pod("web", 1, nodes[0]), pod("db", 2, nodes[1])],
    }
}

/// Policies: `db` allows ingress from `web` at ports 5431 and 5432 by its second rule; egress of
/// `web` to port 99 is denied.
fn policies() -> [Value; 2] {
    let policy = |name: &str, app: &str, spec: Value| {
        let mut policy = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": "shop"}, "spec": {"selector": format!("app == '{app}'")},
        });
        let (Some(into), Value::Object(fields)) = (policy["spec"].as_object_mut(), spec) else { unreachable!() };
        into.extend(fields);
        policy
    };
    let ports = |ports: &[u16]| json!({"ports": ports});
    let allow = |to: Value| json!({"action": "Allow", "protocol": "TCP", "destination": to});
    let ingress = json!([allow(ports(&[80])), allow(ports(&[5431, 5432]))]);
    let egress = json!([{"action": "Deny", "protocol": "TCP", "destination": ports(&[99])}, {"action": "Allow"}]);
    [
        policy("db", "db", json!({"types": ["Ingress"], "ingress": ingress})),
        policy("web", "web", json!({"types": ["Egress"], "egress": egress})),
    ]
}

fn row(nodes: [usize; 2], to: &str, port: u16, outcome: FlowOutcome) -> Row {
    let cluster = cluster(nodes);
    let mut objects = cluster.objects();
    objects.extend(policies());
    let mut tracer = Tracer::new();
    tracer.follow(&cluster, &objects);
    let flow = Flow {
        family: Family::V4,
        port: Port::tcp(port),
        from: LabHost::pod("shop", "web"),
        to: LabHost::pod("shop", to),
    };
    let measured: Reachability = [(flow.clone(), outcome)].into_iter().collect();
    let measured = measured.with_source_ports(BTreeMap::from([(flow.clone(), SOURCE_PORT)]));
    tracer.row(&flow, &measured).unwrap()
}

fn rule(verdict: &str, policy: &str, rule: usize) -> Value {
    json!([{"verdict": verdict, "tier": "default", "policy": format!("NetworkPolicy/shop/{policy}"), "rule": rule}])
}

/// Returns a flow of `web` to `db` as `tortie flows` prints it.
fn reported(port: u16, verdict: &str, egress: &Value, ingress: &Value) -> Value {
    json!({
        "time": "2024-01-01T00:00:00.000Z", "stage": "started", "verdict": verdict, "protocol": "TCP",
        "source": {"kind": "workload", "name": "shop/web", "address": "10.65.0.1", "port": SOURCE_PORT},
        "destination": {"kind": "workload", "name": "shop/db", "address": "10.65.0.2", "port": port},
        "egress": egress, "ingress": ingress, "attempts": 1,
    })
}

fn faults(row: &Row, reported: &[(usize, Value)]) -> Vec<(usize, FlowFault)> {
    let mut all = ReportedFlows::default();
    for (node, flow) in reported {
        all.add(*node, serde_json::from_value::<ReportedFlow>(flow.clone()).unwrap());
    }
    row.mismatches(&all).into_iter().map(|mismatch| (mismatch.node, mismatch.fault)).collect()
}

/// Returns the only differing field.
fn differing_field(row: &Row, flow: &Value) -> &'static str {
    match &faults(row, &[(0, flow.clone())])[..] {
        [(0, FlowFault::Differs { field, .. })] => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flow_must_name_all_that_trace_names() {
    let row = row([0, 0], "db", 5432, FlowOutcome::Reached);
    let good = reported(5432, "allow", &rule("allow", "web", 1), &rule("allow", "db", 1));
    assert_eq!((faults(&row, &[(0, good.clone())]), row.flows()), (Vec::new(), 1));

    let spoilt = |pointer: &str, value: Value| {
        let mut flow = good.clone();
        *flow.pointer_mut(pointer).unwrap() = value;
        flow
    };
    assert_eq!(differing_field(&row, &spoilt("/verdict", json!("deny"))), "verdict");
    assert_eq!(differing_field(&row, &spoilt("/source/name", json!("shop/db"))), "source");
    assert_eq!(differing_field(&row, &spoilt("/destination/name", json!(""))), "destination");
    assert_eq!(differing_field(&row, &spoilt("/egress/0/rule", json!(0))), "egress");
    assert_eq!(differing_field(&row, &spoilt("/ingress/0/rule", json!(2))), "ingress");
    assert_eq!(differing_field(&row, &spoilt("/ingress/0/policy", json!("NetworkPolicy/shop/web"))), "ingress");
    assert_eq!(differing_field(&row, &spoilt("/ingress/0/tier", json!("other"))), "ingress");
    assert_eq!(differing_field(&row, &spoilt("/ingress", json!([]))), "ingress");
    let end = json!([{"verdict": "deny", "tier": "default"}]);
    assert_eq!(differing_field(&row, &spoilt("/egress", end)), "egress");
    let mut by_host = good.clone();
    by_host["host"] = rule("allow", "web", 1);
    assert_eq!(differing_field(&row, &by_host), "host endpoints");

    for other in [
        spoilt("/stage", json!("ended")),
        spoilt("/source/port", json!(SOURCE_PORT + 1)),
        spoilt("/source/address", json!("10.65.0.9")),
        spoilt("/destination/port", json!(5431)),
        spoilt("/protocol", json!("UDP")),
    ] {
        assert_eq!(faults(&row, &[(0, other)]), [(0, FlowFault::Missing)]);
    }
}

#[test]
fn the_verdict_is_the_outcome_of_the_packet() {
    let row = row([0, 0], "db", 5432, FlowOutcome::Silent);
    let flow = reported(5432, "allow", &rule("allow", "web", 1), &rule("allow", "db", 1));
    assert_eq!(differing_field(&row, &flow), "verdict");
}

#[test]
fn a_later_start_of_the_same_attempt_counts() {
    let row = row([0, 0], "db", 5432, FlowOutcome::Reached);
    let [old, new] = [0, 1].map(|index| reported(5432, "allow", &rule("allow", "web", 1), &rule("allow", "db", index)));
    assert_eq!(faults(&row, &[(0, old), (0, new)]), []);
}

#[test]
fn denied_egress_has_no_hits_at_the_destination() {
    let denied = rule("deny", "web", 0);
    let flow = reported(99, "deny", &denied, &json!([]));
    assert_eq!(faults(&row([0, 0], "db", 99, FlowOutcome::Silent), &[(0, flow.clone())]), []);
    let end = json!([{"verdict": "deny", "tier": "default"}]);
    assert_eq!(
        differing_field(&row([0, 0], "db", 99, FlowOutcome::Silent), &reported(99, "deny", &denied, &end)),
        "ingress"
    );

    let apart = row([0, 1], "db", 99, FlowOutcome::Silent);
    assert_eq!((faults(&apart, &[(0, flow.clone())]), apart.flows()), (Vec::new(), 1));
    assert_eq!(faults(&apart, &[(0, flow.clone()), (1, flow)]), [(1, FlowFault::Unexpected)]);
}

#[test]
fn each_node_reports_its_own_end() {
    let nothing = json!([]);
    let out = reported(5432, "allow", &rule("allow", "web", 1), &nothing);
    let allowed = row([0, 1], "db", 5432, FlowOutcome::Reached);
    let arrived = reported(5432, "allow", &nothing, &rule("allow", "db", 1));
    assert_eq!((faults(&allowed, &[(0, out.clone()), (1, arrived.clone())]), allowed.flows()), (Vec::new(), 2));
    assert_eq!(faults(&allowed, &[(0, out)]), [(1, FlowFault::Missing)]);
    assert_eq!(faults(&allowed, &[(1, arrived)]), [(0, FlowFault::Missing)]);

    let end = json!([{"verdict": "deny", "tier": "default"}]);
    let out = reported(7, "allow", &rule("allow", "web", 1), &nothing);
    let stopped = reported(7, "deny", &nothing, &end);
    assert_eq!(faults(&row([0, 1], "db", 7, FlowOutcome::Silent), &[(0, out), (1, stopped)]), []);
}

#[test]
fn no_flow_is_reported_from_a_pod_to_itself() {
    let row = row([0, 0], "web", 80, FlowOutcome::Reached);
    assert_eq!((faults(&row, &[]), row.flows()), (Vec::new(), 0));
    let mut flow = reported(80, "allow", &json!([]), &json!([]));
    flow["destination"]["address"] = json!("10.65.0.1");
    assert_eq!(faults(&row, &[(0, flow)]), [(0, FlowFault::Unexpected)]);
}
