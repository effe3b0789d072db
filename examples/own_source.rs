//! An engine with an own source: `cargo run --package tortie --example own_source --features node`
#![allow(clippy::disallowed_methods, reason = "a source waits for changes")]

use std::{error::Error, thread::sleep, time::Duration};

use tortie::model::{EntityMatch, Labels, Policy, PolicyId, PolicyKind, Rule, RuleAction};
use tortie::model::{Update, Valid, WorkloadEndpoint, WorkloadEndpointKey};
use tortie::{Agent, AgentOptions, datastore::from_fn};

fn pod(number: u8, role: &str) -> Result<Update, Box<dyn Error>> {
    let pod = WorkloadEndpoint {
        iface: Some(format!("cali{number}").parse()?),
        ipv4_nets: [format!("10.65.1.{number}").parse()?].into(),
        labels: Labels::from_pairs([("role", role)])?,
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new("node-1", "inventory", role, "eth0");
    Ok(Update::WorkloadEndpoint(key, Some(Valid::new(pod)?)))
}

/// Allows only the API pod to reach other pods, and leaves this in force.
pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let source = EntityMatch { selector: Some("role == 'api'".parse()?), ..EntityMatch::default() };
    let inbound = [Rule { source, ..Rule::new(RuleAction::Allow) }].into();
    let policy = Valid::new(Policy { inbound, outbound: [Rule::new(RuleAction::Allow)].into(), ..Policy::default() })?;
    let policy = Update::Policy(PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "api"), Some(policy));
    let objects = [pod(1, "web")?, pod(2, "api")?, pod(3, "db")?, policy];
    let source = from_fn("inventory", move |feed| {
        loop {
            feed.send_all(objects.clone())?;
            while !feed.take_resend()? {
                feed.show_life(); // And `feed.send_now` with what has changed.
                sleep(Duration::from_millis(100));
            }
        }
    });
    let agent = Agent::new(AgentOptions::new("node-1"))?.start(source)?;
    println!("ready: {}", agent.wait_until_ready(Duration::from_secs(60)));
    Ok(agent.shutdown()?)
}
