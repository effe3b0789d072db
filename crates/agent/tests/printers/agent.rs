//! Commands that query an agent, with hostile answers.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use super::words;

/// Answers every call at a socket with this text in each field.
pub(crate) fn listen(socket: &Path, evil: &'static str) {
    let listener = UnixListener::bind(socket).unwrap();
    // The thread ends with the test program.
    thread::spawn(move || listener.incoming().for_each(|stream| answer_all(stream.unwrap(), evil)));
}

fn answer_all(mut stream: UnixStream, evil: &str) {
    let mut calls = BufReader::new(stream.try_clone().unwrap());
    let mut call = Vec::new();
    while calls.read_until(0, &mut call).is_ok_and(|length| length > 0) {
        call.pop();
        let parsed: Value = serde_json::from_slice(&call).unwrap();
        call.clear();
        let method = parsed["method"].as_str().unwrap().strip_prefix("org.tortie.agent.").unwrap().to_owned();
        let reply = match answer(&method, evil) {
            Some(parameters) => json!({"parameters": parameters}),
            None => json!({"error": evil, "parameters": {evil: evil}}),
        };
        // The client may have closed the connection.
        let _ = stream.write_all(format!("{reply}\0").as_bytes());
    }
}

/// Returns the answer to a method; `None` for an error.
fn answer(method: &str, evil: &str) -> Option<Value> {
    let tier = json!({"name": evil, "default_action": evil, "ingress": [evil], "egress": [evil]});
    let tiers = json!([tier]);
    let counters = json!({
        "ip_version": 4, "table": evil, "chain": evil, "rule": evil, "packets": 1, "bytes": 1,
        "counts_for": [evil], "counted_together": 2, "kernel_rules": 2
    });
    let decision = json!({
        "direction": evil, "verdict": evil, "tier": evil, "policy": evil, "profile": evil, "rule": 1, "decided_by": evil,
        "packets": 1, "bytes": 1
    });
    let policy = json!({
        "id": evil, "tier": evil, "order": 1.0, "selector": evil, "staged": true, "ingress_rules": 1, "egress_rules": 1,
        "ip_sets": [evil], "endpoints": [evil], "ingress_chain": evil, "egress_chain": evil,
        "last_hit": {"time": evil, "hits": 1}, "counters": [counters], "decisions": [decision]
    });
    let held = json!({
        "since": evil, "connections": [evil], "unknown": evil, "objects": [evil], "unprotected": [evil]
    });
    Some(match method {
        "Status" => status(evil, &held),
        "Configuration" => {
            let set = json!({"source": evil, "value": evil});
            let parameter = json!({"name": evil, "value": evil, "source": evil, "overridden": [set], "used": false});
            json!({"parameters": [parameter], "notices": [evil]})
        }
        "Endpoints" => json!({"endpoints": [{
            "kind": evil, "name": evil, "id": evil, "interface": evil, "addresses": [evil], "labels": {evil: evil},
            "profiles": [evil], "status": evil, "tiers": tiers, "untracked_tiers": tiers, "pre_dnat_tiers": tiers,
            "forward_tiers": tiers
        }]}),
        "Policies" => json!({"policies": [policy]}),
        "Counters" => json!({"decisions": null, "policies": [policy]}),
        "IpSets" => json!({"ip_sets": [{
            "id": evil, "type": evil, "size": 1, "kernel_names": [evil], "users": [evil], "members": [evil]
        }]}),
        "Flows" => json!({"flows": [flow(evil, "allow"), flow(evil, evil)], "lost": 3}),
        "ConfirmHostChanges" => json!({"confirmed": held, "not_kept": evil}),
        _ => return None,
    })
}

fn status(evil: &str, held: &Value) -> Value {
    json!({
        "version": evil, "pid": 1, "node": evil, "datastore": evil, "dataplane": evil, "uptime_seconds": 1,
        "live": true, "ready": false,
        "components": [{"name": evil, "live": true, "ready": false, "detail": evil}],
        "counters": {
            "updates": 1, "events_to_kernel": 1, "event_to_kernel_mean_ms": 1.0, "apply_failures": 0,
            "input_problems": 1, "dataplane_problems": 1
        },
        "pending_change": {"by": evil, "state": evil, "seconds_left": 1, "resources": [evil]},
        "engine": {
            "session": 1, "datastore_state": evil, "datastore_unavailable": evil, "on_hold": evil, "held_changes": held,
            "enforced_by": evil, "input_problems": [evil], "ignored_objects": [evil], "dataplane_problems": [evil],
            "last_apply": null, "workload_endpoints": 1, "host_endpoints": 1, "policies": 1, "ip_sets": 1
        }
    })
}

fn flow(evil: &str, verdict: &str) -> Value {
    let end = json!({"kind": evil, "name": evil, "address": evil, "port": 1});
    let hit = json!({"verdict": evil, "tier": evil, "policy": evil, "profile": evil, "rule": 1});
    let staged = json!({"policy": evil, "direction": evil, "at": evil, "verdict": evil});
    json!({
        "time": evil, "stage": evil, "verdict": verdict, "source": end, "destination": end, "protocol": evil,
        "sent_to": evil, "service": {"name": evil, "port_name": evil, "port": 1}, "egress": [hit], "ingress": [hit],
        "host": [hit], "staged": [staged], "started": evil, "attempts": 1, "packets": 1, "bytes": 1,
        "reply_packets": 1, "reply_bytes": 1
    })
}

/// Returns the commands that query the agent at a socket.
pub(crate) fn runs(socket: &str, empty: &str, evil: &str) -> Vec<Vec<String>> {
    let mut runs = Vec::new();
    for output in ["table", "json", "yaml"] {
        let mut add = |command: &[&str]| runs.push(words(&[command, &["--socket", socket, "-o", output]].concat()));
        add(&["status"]);
        add(&["config"]);
        add(&["config", evil]);
        add(&["show", "policies"]);
        add(&["show", "policies", evil]);
        add(&["show", "policy", evil]);
        add(&["show", "counters"]);
        add(&["show", "endpoints"]);
        add(&["show", "sets"]);
        add(&["show", "sets", evil]);
        add(&["flows"]);
        add(&["flows", "--follow"]);
        add(&["flows", "--staged", evil, "--color", "always"]);
        add(&["flows", "--follow", "--color", "always"]);
        add(&["confirm", "--status", "--state-dir", empty]);
        add(&["confirm", "--state-dir", empty]);
    }
    runs
}
