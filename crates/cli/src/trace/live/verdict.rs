use tortie_analysis::trace::{Connection, EnforcementPoint, Leg};
use tortie_evaluate::{DecidedBy, Verdict};
use tortie_model::{Direction, Hostname};

use super::listing::Rules;
use super::owners::{Owner, Owners};
use super::programs::Programs;
use super::steps::{ChainEvent, Exit, Packet, Step};
use crate::decision::direction;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketOutcome {
    Passed(Exit),
    Dropped(usize),
    /// No rule dropped it, but it did not leave the rules.
    Vanished,
}

impl PacketOutcome {
    pub(super) fn of(packet: &Packet, rules: &Rules) -> Self {
        match (packet.out, packet.steps.iter().rposition(|step| rules.denies(step))) {
            (Some(out), _) => Self::Passed(out),
            (None, Some(step)) => Self::Dropped(step),
            (None, None) => Self::Vanished,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) direction: Direction,
    pub(super) owner: Owner,
    /// Index of the rule, from 0, if it is known.
    pub(super) rule: Option<usize>,
}

/// Returns the policies and profiles that decided, in order. Others only matched the packet.
pub(super) fn decisions(packet: &Packet, rules: &Rules, owners: &Owners) -> Vec<Decision> {
    let decision = |step: &Step| {
        let chain = owners.of(step.chain.chain()).filter(|chain| !matches!(chain.owner, Owner::Workload(_)))?;
        let (index, text) = rules.rule(step)?;
        let length = rules.length(&step.chain)?;
        let target = text.and_then(|text| text.target());
        // A rule that allows and is the last of its chain has no RETURN: the end of the chain
        // returns.
        let is_last = index + 1 == length && matches!(target, Some("MARK" | "NFLOG"));
        let decides = rules.denies(step) || target == Some("RETURN") || is_last;
        let rule = owners.rule(chain, index, length);
        decides.then(|| Decision { direction: chain.direction, owner: chain.owner.clone(), rule })
    };
    packet.steps.iter().filter_map(decision).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Agreement {
    Agree,
    Disagree(String),
    NotCompared(String),
}

pub(super) fn compare(
    calculated: &Connection,
    node: &Hostname,
    packet: &Packet,
    (rules, programs): (&Rules, Option<&Programs>),
    owners: &Owners,
) -> Agreement {
    let outcome = PacketOutcome::of(packet, rules);
    if packet.steps.iter().any(|step| is_for_established(step, rules)) {
        let why = "the packet belongs to a connection from before the trace: policy is not evaluated for it again";
        return Agreement::NotCompared(why.to_owned());
    }
    if calculated.depends_at().is_some() {
        let why = "the calculated verdict depends on the names that the source has resolved";
        return Agreement::NotCompared(why.to_owned());
    }
    let legs: Vec<&Leg> = calculated.legs.iter().filter(|leg| leg.node == *node).collect();
    let is_denying = |leg: &&&Leg| leg.verdict() == Verdict::Deny;
    let denying = legs.iter().find(is_denying);
    let is_open = denying.is_none() && legs.iter().any(|leg| leg.verdict() == Verdict::Undecided);
    match (outcome, denying) {
        (PacketOutcome::Vanished, _) => match programs {
            Some(programs) => programs.compare(denying.copied()),
            None => Agreement::NotCompared(
                "no rule drops the packet, but it does not come out: check the routes and the reverse path filter"
                    .into(),
            ),
        },
        _ if is_open => Agreement::NotCompared("rules of others on this node decide".to_owned()),
        (PacketOutcome::Passed(_), Some(leg)) => {
            let by = leg.explanation.answer.decided_by.in_words(leg.direction);
            Agreement::Disagree(format!("the kernel allows a packet that {} denies, by {by}", leg.at))
        }
        (PacketOutcome::Dropped(step), None) => {
            let place = packet.steps.get(step).map(|step| (step.chain.table(), step.chain.chain()));
            let (table, chain) = place.unwrap_or_default();
            Agreement::Disagree(format!(
                "the kernel drops a packet that policy allows, in table {table}, chain {chain}"
            ))
        }
        (PacketOutcome::Passed(_) | PacketOutcome::Dropped(_), _) => {
            // The kernel evaluates no leg after the one that denies.
            let count = legs.iter().take_while(|leg| leg.verdict() != Verdict::Deny).count() + 1;
            let decisions = decisions(packet, rules, owners);
            let other = legs.into_iter().take(count).find_map(|leg| other_rule(leg, &decisions));
            other.map_or(Agreement::Agree, Agreement::Disagree)
        }
    }
}

fn other_rule(leg: &Leg, decisions: &[Decision]) -> Option<String> {
    let (EnforcementPoint::Workload(_), DecidedBy::PolicyRule { policy, index, .. }) =
        (&leg.at, &leg.explanation.answer.decided_by)
    else {
        return None;
    };
    let decision = decisions.iter().rev().find(|decision| decision.direction == leg.direction)?;
    let is_same = match &decision.owner {
        Owner::Policy(id) => id == policy && decision.rule.is_none_or(|rule| rule == *index),
        Owner::Profile(_) | Owner::Workload(_) => false,
    };
    (!is_same).then(|| {
        let by = leg.explanation.answer.decided_by.in_words(leg.direction);
        format!("{} decides at {} in the kernel, and by the calculation {by}", describe(decision), leg.at)
    })
}

fn is_for_established(step: &Step, rules: &Rules) -> bool {
    let ChainEvent::Rule(..) = step.event else { return false };
    let text = rules.rule(step).and_then(|(_, text)| text);
    text.is_some_and(|rule| rule.text.contains("--ctstate") && rule.text.contains("ESTABLISHED"))
}

/// `NetworkPolicy/shop/db, ingress rule 1`
pub(super) fn describe(decision: &Decision) -> String {
    let owner = match &decision.owner {
        Owner::Policy(id) => id.to_string(),
        Owner::Profile(name) => format!("profile {name}"),
        Owner::Workload(name) => name.clone(),
    };
    let direction = direction(decision.direction);
    match decision.rule {
        Some(rule) => format!("{owner}, {direction} rule {rule}"),
        None => format!("{owner}, {direction}"),
    }
}

#[cfg(test)]
mod tests;
