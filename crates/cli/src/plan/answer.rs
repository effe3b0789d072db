use serde_json::{Map, Value, json};
use tortie_analysis::plan::classes::evaluate::DecidedBy;
use tortie_analysis::plan::classes::{Details, Nodes, Traffic};
use tortie_analysis::plan::{Connections, DecisionChange, Ends, Finding, HostPackets, Packets, Plan};

use super::super::decision::direction;
use super::super::origin::{Origin, Origins};
use super::kernel::NodeChange;
use super::words::{existence, finding, layer, notes};

pub(super) struct Answer<'a> {
    pub(super) plan: &'a Plan,
    pub(super) origins: &'a Origins,
    pub(super) node: Option<&'a NodeChange>,
}

impl Answer<'_> {
    pub(super) fn place(&self, finding: &Finding) -> Option<Origin<'_>> {
        let policy = finding.policy()?;
        let rule = finding.rule().and_then(|(way, index)| self.origins.rule(policy, way, index));
        rule.or_else(|| self.origins.policy(policy))
    }

    pub(super) fn decision(&self, packets: &Packets) -> String {
        let why = &packets.decision;
        let by = why.after.in_words(why.direction);
        match self.rule(&why.after, why) {
            Some(origin) => format!("{by}: {origin}"),
            // A connection may close because the rule that allowed it is gone.
            None if !packets.opens => format!("{by} (before: {})", why.before.in_words(why.direction)),
            None => by,
        }
    }

    pub(super) fn rule(&self, by: &DecidedBy, why: &DecisionChange) -> Option<Origin<'_>> {
        match by {
            DecidedBy::PolicyRule { policy, index, .. } => self.origins.rule(policy, why.direction, *index),
            _ => None,
        }
    }

    pub(super) fn whole(&self) -> Value {
        let objects = self.plan.objects.iter();
        let objects: Vec<Value> =
            objects.map(|(key, change)| json!({"object": key.to_string(), "change": existence(*change)})).collect();
        let findings = self.plan.findings.iter().map(|found| {
            let (kind, text) = finding(found);
            json!({
                "kind": kind,
                "text": text,
                "policy": found.policy().map(ToString::to_string),
                "workloads": if let Finding::LoseAllPolicy { workloads } = found { Some(&workloads.workloads) } else { None },
                "hostEndpoints": if let Finding::LoseManagement { endpoints, .. } = found {
                    Some(endpoints.iter().map(ToString::to_string).collect::<Vec<_>>())
                } else {
                    None
                },
                "end": found.rule().map(|(way, _)| direction(way)),
                "rule": found.rule().map(|(_, index)| index),
                "position": self.place(found).map(|place| place.to_string()),
            })
        });
        let programming = self.plan.programming;
        json!({
            "objects": objects,
            "connections": self.plan.connections.iter().map(|found| self.connections(found)).collect::<Vec<_>>(),
            "hostEndpoints": self.plan.hosts.iter().map(|found| self.host(found)).collect::<Vec<_>>(),
            "notes": notes(self.plan),
            "findings": findings.collect::<Vec<_>>(),
            "programming": {
                "ipSets": programming.ip_sets,
                "ipSetsRemoved": programming.ip_sets_removed,
                "membersAdded": programming.members_added,
                "membersRemoved": programming.members_removed,
                "policies": programming.policies,
                "policiesRemoved": programming.policies_removed,
                "endpoints": programming.endpoints,
                "endpointsRemoved": programming.endpoints_removed,
            },
            "node": self.node.map(NodeChange::whole),
        })
    }

    fn connections(&self, found: &Connections) -> Value {
        let mut value = self.packets(&found.packets);
        value.insert("from".into(), ends(&found.from));
        value.insert("to".into(), ends(&found.to));
        let nodes = match found.nodes {
            Nodes::Any => "any",
            Nodes::Same => "same",
            Nodes::Different => "different",
        };
        value.insert("nodes".into(), nodes.into());
        value.insert("hostEndpointLayer".into(), found.packets.decision.layer.map(layer).into());
        value.into()
    }

    fn host(&self, found: &HostPackets) -> Value {
        let mut value = self.packets(&found.packets);
        let endpoints: Vec<String> = found.endpoints.iter().map(ToString::to_string).collect();
        value.insert("endpoints".into(), endpoints.into());
        value.insert("layer".into(), layer(found.layer).into());
        value.insert("peers".into(), ends(&found.peers));
        value.into()
    }

    fn packets(&self, packets: &Packets) -> Map<String, Value> {
        let why = &packets.decision;
        let decision = |by: &DecidedBy| {
            let position = self.rule(by, why).map(|origin| origin.to_string());
            json!({"by": by.in_words(why.direction), "position": position})
        };
        let families: Vec<u8> = packets.families.iter().map(|family| family.number()).collect();
        let mut value = Map::new();
        value.insert("change".into(), if packets.opens { "opened" } else { "closed" }.into());
        value.insert("traffic".into(), packets.traffic.to_string().into());
        value.insert("protocols".into(), protocols(&packets.traffic));
        value.insert("sourcePorts".into(), json!(packets.source_ports));
        value.insert("families".into(), families.into());
        value.insert("end".into(), direction(why.direction).into());
        value.insert("before".into(), decision(&why.before));
        value.insert("after".into(), decision(&why.after));
        value
    }
}

/// Returns protocols by number; without `ports` and `icmp`, all packets of the protocol.
fn protocols(traffic: &Traffic) -> Value {
    let protocol = |(number, details): (u8, &Details)| match details {
        Details::All => json!({"protocol": number}),
        Details::Ports(ports) => json!({"protocol": number, "ports": ports}),
        Details::Icmp(messages) => json!({"protocol": number, "icmp": messages}),
    };
    if traffic.is_everything() { Value::Null } else { traffic.protocols().map(protocol).collect() }
}

fn ends(ends: &Ends) -> Value {
    let networks: Vec<String> = ends.networks.iter().map(ToString::to_string).collect();
    json!({
        "text": ends.to_string(), "workloads": ends.workloads, "networks": networks, "domains": ends.domains,
    })
}
