//! Responses for health and metrics.

use crate::nodes::Done;
use crate::{MetricFamily, MetricKind, Status};

use tortie_telemetry::escape;
use tortie_telemetry::exposition::Exposition;
use tortie_telemetry::http::Response;
use tortie_telemetry::process;

/// Progress of the node controller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeStatus {
    /// True after the initial sync and, on the leader, once the first pass has begun.
    pub in_sync: bool,
    /// Number of items that wait or are in work.
    pub waiting: usize,
    /// Numbers of written resources and released addresses.
    pub totals: Done,
    /// Metrics of allocated and leaked addresses.
    pub addresses: Vec<MetricFamily>,
}

/// Answers a request for `/liveness`, `/readiness` or `/metrics`.
///
/// The controller is ready when it knows all Kubernetes objects and, on the leader, has compared
/// them with the datastore. Problems are listed, but do not affect readiness.
#[must_use]
pub fn answer(path: &str, status: &Status, nodes: &NodeStatus, problems: &[String]) -> Response {
    match path {
        // The response shows that no thread has kept the lock of the state.
        "/liveness" => Response::text(200, "live\n"),
        "/readiness" => {
            let role = if status.leads { "leads" } else { "waits for the lead" };
            let (code, ready) =
                if status.in_sync && nodes.in_sync { (200, "in sync") } else { (503, "not in sync yet") };
            let mut body = format!("{ready}; {role}; {} to write\n", status.waiting + nodes.waiting);
            for problem in problems {
                body.push_str(&escape::line(problem));
                body.push('\n');
            }
            Response::text(code, body)
        }
        "/metrics" => Response {
            status: 200,
            content_type: "text/plain; version=0.0.4; charset=utf-8",
            body: metrics(status, nodes, problems.len()),
        },
        _ => Response::text(404, "not found; paths: /liveness, /readiness, /metrics\n"),
    }
}

fn metrics(status: &Status, nodes: &NodeStatus, problems: usize) -> String {
    let number = |count: usize| count as u64;
    let mut text = Exposition::default();
    text.level("tortie_controller_leads", "1 if this controller is the leader, otherwise 0.", status.leads.into());
    text.level(
        "tortie_controller_in_sync",
        "1 if this controller is in sync and ready, otherwise 0.",
        (status.in_sync && nodes.in_sync).into(),
    );
    text.level(
        "tortie_controller_waiting",
        "Number of objects queued for writing.",
        number(status.waiting + nodes.waiting),
    );
    text.level("tortie_controller_problems", "Number of current problems.", number(problems));
    for (name, help, count) in [
        ("created", "Resources created.", status.created),
        ("updated", "Resources changed.", status.updated),
        ("deleted", "Resources deleted.", status.deleted),
        ("retries", "Retried writes.", status.retries),
        ("given_up", "Writes given up until the next comparison.", status.given_up),
        ("comparisons", "Successful comparisons of all resources of a kind with the datastore.", status.comparisons),
        ("failed_comparisons", "Failed comparisons with the datastore.", status.failed_comparisons),
        ("node_created", "Resources created by the node controller.", nodes.totals.created),
        ("node_updated", "Resources changed by the node controller.", nodes.totals.updated),
        ("node_deleted", "Resources deleted by the node controller.", nodes.totals.deleted),
        ("released_addresses", "Leaked addresses released.", nodes.totals.released),
    ] {
        text.count(&format!("tortie_controller_{name}"), help, number(count));
    }
    for family in &nodes.addresses {
        let samples: Vec<(Vec<(&str, &str)>, f64)> = family
            .samples
            .iter()
            .map(|(labels, value)| (labels.iter().map(|(name, text)| (*name, &**text)).collect(), *value))
            .collect();
        let samples: Vec<(&[(&str, &str)], f64)> = samples.iter().map(|(labels, value)| (&**labels, *value)).collect();
        match family.kind {
            MetricKind::Gauge => text.gauge(family.name, family.help, &samples),
            MetricKind::Counter => text.counters(family.name, family.help, &samples),
        }
    }
    text.finish() + &process::expose()
}

/// Returns the metrics of a controller that has done nothing.
#[must_use]
pub fn example_metrics() -> String {
    let nodes = NodeStatus { addresses: crate::metric_families(), ..NodeStatus::default() };
    metrics(&Status::default(), &nodes, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let mut status = Status::default();
        (status.leads, status.waiting, status.created) = (true, 3, 7);
        let mut nodes = NodeStatus { waiting: 2, ..NodeStatus::default() };
        let problems = ["NetworkPolicy/a/knp.default.b: spec: is wrong".to_owned()];
        let unready = answer("/readiness", &status, &nodes, &problems);
        assert_eq!(unready.status, 503);
        assert_eq!(unready.body, format!("not in sync yet; leads; 5 to write\n{}\n", problems[0]));
        status.in_sync = true;
        assert_eq!(answer("/readiness", &status, &nodes, &problems).status, 503);
        nodes.in_sync = true;
        assert_eq!(answer("/readiness", &status, &nodes, &problems).status, 200);
        assert_eq!(answer("/liveness", &status, &nodes, &problems).status, 200);
        assert_eq!(answer("/", &status, &nodes, &problems).status, 404);
        let metrics = answer("/metrics", &status, &nodes, &problems).body;
        for line in ["tortie_controller_leads 1", "tortie_controller_created 7", "tortie_controller_problems 1"] {
            assert!(metrics.lines().any(|found| found == line), "{metrics}");
        }
    }
}
