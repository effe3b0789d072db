use std::net::IpAddr;

use serde_json::{Map, Value, json};
use tortie_analysis::trace::{Connection, EnforcementPoint, Leg};
use tortie_evaluate::{
    self as evaluate, Alternative, DecidedBy, End, Mismatch, RuleOutcome, RuleStep, Ruling, Step, Unenforceable,
    Unknown,
};
use tortie_model::{Direction, Key, PolicyId, Rule};

use super::super::decision::{direction, verdict};
use super::super::origin::Origins;
use super::tables::LegTable;
use super::view::View;

pub(super) struct Answer<'a> {
    pub(super) connection: &'a Connection,
    /// The connection with all staged policies in force; `None` if there are none.
    pub(super) pending: Option<&'a Connection>,
    pub(super) origins: &'a Origins,
    pub(super) policies: &'a View,
    /// Result of the table lookup for each leg; empty without `--tables`.
    pub(super) tables: &'a [LegTable],
}

/// Verdict that depends on an unknown property of the destination.
pub(super) const DEPENDS: &str = "depends";

pub(super) fn ruling(ruling: Ruling) -> &'static str {
    match ruling {
        Ruling::Allow => "allow",
        Ruling::Deny => "deny",
        Ruling::Pass => "pass",
        Ruling::Silent => "none",
    }
}

/// Returns the deciding leg: the one that denies, else the last one of a workload, else the last
/// one.
fn deciding(connection: &Connection) -> Option<&Leg> {
    let is_workload = |leg: &&Leg| !matches!(leg.at, EnforcementPoint::Host(..));
    connection.denied_by().or_else(|| connection.legs.iter().rfind(is_workload)).or(connection.legs.last())
}

/// Returns the other possible answer of a leg.
pub(super) fn alternative(leg: &Leg) -> Option<(&Leg, &Alternative)> {
    Some((leg, leg.explanation.answer.alternative.as_deref()?))
}

/// Returns an unknown property of a destination as JSON has it.
fn unknown(unknown: Unknown) -> &'static str {
    match unknown {
        Unknown::Names => "names",
        Unknown::Address => "address",
        _ => "other",
    }
}

impl Answer<'_> {
    pub(super) fn deciding(&self) -> Option<&Leg> {
        deciding(self.connection)
    }

    /// Returns the source address of the packet at a leg if the connection begins with another one.
    pub(super) fn translated_source(&self, leg: &Leg) -> Option<IpAddr> {
        Some(leg.packet.source()).filter(|source| Some(*source) != self.connection.source)
    }

    pub(super) fn short(&self) -> Map<String, Value> {
        let mut answer = Map::new();
        let depends = self.connection.depends_at();
        let all = if depends.is_some() { DEPENDS } else { verdict(self.connection.verdict()) };
        answer.insert("verdict".into(), all.into());
        let leg = self.deciding();
        answer.insert("end".into(), leg.map(|leg| direction(leg.direction)).into());
        answer.extend(self.decision(leg));
        if let Some((leg, alternative)) = depends.and_then(alternative) {
            answer.insert("dependsOn".into(), unknown(alternative.unknown).into());
            answer.insert("alternative".into(), self.alternative(leg, alternative).into());
        }
        answer
    }

    fn alternative(&self, leg: &Leg, alternative: &Alternative) -> Map<String, Value> {
        let mut fields = self.decision_of(leg, &alternative.answer);
        fields.insert("verdict".into(), verdict(alternative.answer.verdict).into());
        fields.insert("end".into(), direction(leg.direction).into());
        fields
    }

    pub(super) fn whole(&self) -> Value {
        let legs = self.connection.legs.iter().enumerate();
        let legs: Vec<Value> = legs.map(|(place, leg)| self.leg(leg, self.tables.get(place))).collect();
        let mut answer = self.short();
        if let Some(pending) = self.pending {
            let leg = deciding(pending);
            let mut fields = self.decision(leg);
            fields.insert("verdict".into(), verdict(pending.verdict()).into());
            fields.insert("end".into(), leg.map(|leg| direction(leg.direction)).into());
            answer.insert("pending".into(), fields.into());
        }
        answer.insert("legs".into(), legs.into());
        answer.into()
    }

    /// Returns the parts of the decision; null for those that it does not have.
    fn decision(&self, leg: Option<&Leg>) -> Map<String, Value> {
        match leg {
            Some(leg) => self.decision_of(leg, &leg.explanation.answer),
            None => {
                let none = ["tier", "policy", "profile", "rule", "position"].map(|name| (name.to_owned(), Value::Null));
                none.into_iter().chain([("reason".to_owned(), "no policy applies".into())]).collect()
            }
        }
    }

    fn decision_of(&self, leg: &Leg, answer: &evaluate::Answer) -> Map<String, Value> {
        let (mut tier, mut policy, mut profile, mut rule) = (Value::Null, Value::Null, Value::Null, Value::Null);
        let origin = self.origins.decided_by(&answer.decided_by, leg.direction);
        let position: Value = origin.map(|origin| origin.to_string()).into();
        match &answer.decided_by {
            DecidedBy::PolicyRule { tier: of, policy: id, index } => {
                tier = of.as_str().into();
                policy = id.to_string().into();
                rule = (*index).into();
            }
            DecidedBy::EndOfTier { tier: of } => tier = of.as_str().into(),
            DecidedBy::ProfileRule { profile: name, index } => {
                profile = name.to_string().into();
                rule = (*index).into();
            }
            _ => {}
        }
        let reason = answer.decided_by.in_words(leg.direction);
        [("tier", tier), ("policy", policy), ("profile", profile), ("rule", rule), ("position", position)]
            .into_iter()
            .chain([("reason", reason.into())])
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    fn leg(&self, leg: &Leg, table: Option<&LegTable>) -> Value {
        let mut value = Map::new();
        value.insert("node".into(), leg.node.to_string().into());
        value.insert("endpoint".into(), leg.at.to_string().into());
        let origin = self.origins.endpoint(leg).map(|origin| origin.to_string());
        value.insert("endpointPosition".into(), origin.into());
        value.insert("direction".into(), direction(leg.direction).into());
        value.insert("verdict".into(), verdict(leg.verdict()).into());
        if let Some(source) = self.translated_source(leg) {
            value.insert("source".into(), source.to_string().into());
        }
        value.extend(self.decision(Some(leg)));
        let steps: Vec<Value> = leg.explanation.steps.iter().map(|step| self.step(step, leg.direction)).collect();
        value.insert("steps".into(), steps.into());
        value.extend(table.map(|table| ("table".to_owned(), table.whole(leg))));
        value.into()
    }

    fn step(&self, step: &Step, direction: Direction) -> Value {
        match step {
            Step::Failsafe { matched } => json!({"failsafe": {"matched": matched}}),
            Step::Guard { guard, matched } => json!({"guard": {"name": guard.in_words(), "matched": matched}}),
            Step::Policy { tier, policy, staged, rules, ruling: outcome } => {
                let position = self.origins.policy(policy).map(|origin| origin.to_string());
                let rule = |step: &RuleStep| self.rule(policy, direction, step);
                let rules: Vec<Value> = rules.iter().map(rule).collect();
                json!({"policy": {
                    "name": policy.to_string(), "tier": tier.as_str(), "staged": staged, "says": ruling(*outcome),
                    "position": position, "rules": rules,
                }})
            }
            Step::EndOfTier { tier, ruling: outcome } => {
                let position = self.origins.object(&Key::Tier(tier.clone())).map(|origin| origin.to_string());
                json!({"endOfTier": {"tier": tier.as_str(), "says": ruling(*outcome), "position": position}})
            }
            Step::Profile { profile, rules, ruling: outcome } => {
                let rules: Vec<Value> = rules.iter().map(|step| rule_value(step, None, None)).collect();
                let position = self.origins.object(&Key::ProfileRules(profile.clone()));
                let position = position.map(|origin| origin.to_string());
                json!({"profile": {
                    "name": profile.to_string(), "says": ruling(*outcome), "position": position, "rules": rules,
                }})
            }
            Step::EndOfProfiles => json!({"endOfProfiles": {"says": "deny"}}),
            _ => json!({"other": {}}),
        }
    }

    fn rule(&self, policy: &PolicyId, direction: Direction, step: &RuleStep) -> Value {
        let origin = self.origins.rule(policy, direction, step.index).map(|origin| origin.to_string());
        rule_value(step, self.written(policy, direction, step.index), origin.as_deref())
    }

    pub(super) fn written(&self, policy: &PolicyId, direction: Direction, index: usize) -> Option<&Rule> {
        let policy = self.policies.policy(policy)?;
        let rules = match direction {
            Direction::Ingress => &policy.inbound,
            Direction::Egress => &policy.outbound,
        };
        rules.get(index)
    }
}

fn rule_value(step: &RuleStep, written: Option<&Rule>, position: Option<&str>) -> Value {
    json!({
        "rule": step.index,
        "action": step.action.as_str(),
        "matched": step.outcome == RuleOutcome::Matched,
        "byName": step.by_name.is_some(),
        "why": why(&step.outcome, written),
        "position": position,
    })
}

pub(super) fn why(outcome: &RuleOutcome, written: Option<&Rule>) -> Option<String> {
    match outcome {
        RuleOutcome::Matched => None,
        RuleOutcome::Mismatch(mismatch) => Some(mismatch_text(mismatch, written)),
        RuleOutcome::Unknown(Unknown::Names) => {
            Some("it matches if the source has resolved one of its names to the destination".to_owned())
        }
        RuleOutcome::Unknown(_) => Some("it matches by address, and needs --address".to_owned()),
        RuleOutcome::LeftOut(reason) => {
            Some(format!("it is left out, since it cannot be enforced: {}", left_out(*reason)))
        }
    }
}

fn left_out(reason: Unenforceable) -> &'static str {
    match reason {
        Unenforceable::Http => "it matches HTTP requests",
        Unenforceable::ProtocolZero => "it is for protocol 0, which does not exist",
        Unenforceable::IcmpTypeWithoutProtocol => "it has an ICMP type without protocol ICMP or ICMPv6",
        Unenforceable::IcmpCodeWithoutType => "it has an ICMP code without an ICMP type",
        Unenforceable::PortsWithoutProtocol => "it has ports without a protocol that has ports",
        Unenforceable::EmptyPortRange => "the first port of a range is behind its last",
        Unenforceable::IpSetId => "one of its IP sets has no valid name",
        _ => "it has a match that this command does not know",
    }
}

fn mismatch_text(mismatch: &Mismatch, written: Option<&Rule>) -> String {
    let name = |end: End| match end {
        End::Source => "source",
        End::Destination => "destination",
    };
    let side = |end: End| {
        written.map(|rule| match end {
            End::Source => &rule.source,
            End::Destination => &rule.destination,
        })
    };
    match mismatch {
        Mismatch::Family => "it is for the other IP version".to_owned(),
        Mismatch::Contradiction => "it matches nothing".to_owned(),
        Mismatch::Protocol => "it is for another protocol".to_owned(),
        Mismatch::ExcludedProtocol => "it excludes the protocol".to_owned(),
        Mismatch::Icmp => "it is for another ICMP type or code".to_owned(),
        Mismatch::ExcludedIcmp => "it excludes the ICMP type or code".to_owned(),
        Mismatch::Net(end) => format!("the {} is in none of its networks", name(*end)),
        Mismatch::ExcludedNet(end) => format!("it excludes the network of the {}", name(*end)),
        Mismatch::Set(end, id) => match side(*end).and_then(|side| side.selector.as_ref()) {
            Some(selector) => format!("the {} is not selected by {}", name(*end), selector.canonical()),
            None => format!("the {} is not in IP set {id}", name(*end)),
        },
        Mismatch::ExcludedSet(end, id) => match side(*end).and_then(|side| side.extras.not_selector.as_ref()) {
            Some(selector) => format!("it excludes the {}, which is selected by {}", name(*end), selector.canonical()),
            None => format!("it excludes the {}, which is in IP set {id}", name(*end)),
        },
        Mismatch::Port(end) => format!("it is for other {} ports", name(*end)),
        Mismatch::ExcludedPort(end) => format!("it excludes the {} port", name(*end)),
        Mismatch::ExcludedNamedPort(end, _) => format!("it excludes the {} port by its name", name(*end)),
        Mismatch::Service(_) => "the destination is no endpoint of its service".to_owned(),
        Mismatch::Names(_) => "the source knows the destination by none of its names".to_owned(),
        _ => "another match fails".to_owned(),
    }
}
