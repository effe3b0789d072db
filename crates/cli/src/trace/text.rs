use std::fmt::Write;

use tortie_analysis::trace::Leg;
use tortie_evaluate::{Alternative, Explanation, Guard, RuleOutcome, RuleStep, Step, Unknown, Verdict};
use tortie_model::{Direction, Key};

use super::super::origin::Origin;
use super::answer::{Answer, alternative, ruling, why};

/// One line if denied, one for each end if allowed; with `verbose`, all evaluated policies and
/// rules.
pub(super) fn text(answer: &Answer<'_>, verbose: bool) -> String {
    let mut out = String::new();
    let legs = &answer.connection.legs;
    let depends = answer.connection.depends_at().and_then(alternative);
    match (answer.connection.verdict(), answer.connection.denied_by()) {
        _ if depends.is_some() => {}
        (_, Some(leg)) => line(&mut out, "", leg, answer),
        (Verdict::Undecided, _) => out.push_str("undecided: rules of others on the node decide\n"),
        _ if legs.is_empty() => out.push_str("allowed: no policy applies\n"),
        _ => out.push_str("allowed\n"),
    }
    if let Some((leg, alternative)) = depends {
        both_ways(&mut out, leg, alternative, answer);
    }
    let is_short = answer.connection.denied_by().is_some() || depends.is_some();
    let is_told = verbose || !answer.tables.is_empty() || !is_short;
    let shown = if is_told { &legs[..] } else { &[] };
    for (place, leg) in shown.iter().enumerate() {
        line(&mut out, "  ", leg, answer);
        if verbose {
            if let Some(origin) = answer.origins.endpoint(leg) {
                let _ = writeln!(out, "    endpoint: {origin}");
            }
            leg.explanation.steps.iter().for_each(|step| self::step(&mut out, step, leg.direction, answer));
        }
        out.extend(answer.tables.get(place).map(|table| table.text(leg)));
    }
    if let Some(pending) = answer.pending.filter(|pending| pending.verdict() != answer.connection.verdict()) {
        match (pending.verdict(), pending.denied_by()) {
            (_, Some(leg)) => line(&mut out, "with all staged policies in force: ", leg, answer),
            (Verdict::Undecided, _) => out.push_str("with all staged policies in force: undecided\n"),
            _ => out.push_str("with all staged policies in force: allowed\n"),
        }
    }
    out
}

/// Writes the answers for both cases of an unknown property.
fn both_ways(out: &mut String, leg: &Leg, alternative: &Alternative, answer: &Answer<'_>) {
    let (subject, condition) = match alternative.unknown {
        Unknown::Names => {
            ("the names that the source has resolved", "if it has resolved a name of this rule to the destination")
        }
        _ => ("the address of the destination", "if this rule matches the address"),
    };
    let _ = writeln!(out, "depends on {subject}");
    let mut other = leg.clone();
    other.explanation = Explanation { answer: alternative.answer.clone(), steps: Vec::new() };
    line(out, &format!("  {condition}: "), &other, answer);
    line(out, "  if not: ", leg, answer);
}

/// Writing to a string cannot fail, here and below.
fn line(out: &mut String, begin: &str, leg: &Leg, answer: &Answer<'_>) {
    let _ = write!(out, "{begin}{leg}");
    if let Some(source) = answer.translated_source(leg) {
        let _ = write!(out, ", from {source}");
    }
    if let Some(origin) = answer.origins.decided_by(&leg.explanation.answer.decided_by, leg.direction) {
        let _ = write!(out, ": {origin}");
    }
    out.push('\n');
}

fn step(out: &mut String, step: &Step, direction: Direction, answer: &Answer<'_>) {
    match step {
        Step::Policy { tier, policy, staged, rules, ruling: outcome } => {
            let staged = if *staged { ", staged" } else { "" };
            let _ = write!(out, "    tier {tier}: {policy}{staged}: {}", ruling(*outcome));
            if let Some(origin) = answer.origins.policy(policy) {
                let _ = write!(out, " ({origin})");
            }
            out.push('\n');
            for rule in rules {
                let because = why(&rule.outcome, answer.written(policy, direction, rule.index));
                let origin = answer.origins.rule(policy, direction, rule.index).map(|origin| origin.to_string());
                self::rule(out, rule, because, origin);
            }
        }
        Step::Profile { profile, rules, ruling: outcome } => {
            let origin = answer.origins.object(&Key::ProfileRules(profile.clone()));
            let _ = writeln!(out, "    profile {profile}: {}{}", ruling(*outcome), in_brackets(origin));
            rules.iter().for_each(|rule| self::rule(out, rule, why(&rule.outcome, None), None));
        }
        Step::EndOfTier { tier, ruling: outcome } => {
            let origin = answer.origins.object(&Key::Tier(tier.clone()));
            let _ = writeln!(out, "    end of tier {tier}: {}{}", ruling(*outcome), in_brackets(origin));
        }
        Step::EndOfProfiles => out.push_str("    end of profiles: deny\n"),
        Step::Failsafe { matched } => {
            let _ = writeln!(out, "    failsafe ports: {}", if *matched { "allow" } else { "none" });
        }
        Step::Guard { matched: false, .. } => {}
        Step::Guard { guard, matched: true } => {
            let says = if *guard == Guard::RouterIcmpv6 { "allow" } else { "deny" };
            let _ = writeln!(out, "    {}: {says}", guard.in_words());
        }
        _ => out.push_str("    something that this command does not know\n"),
    }
}

fn in_brackets(origin: Option<Origin<'_>>) -> String {
    origin.map(|origin| format!(" ({origin})")).unwrap_or_default()
}

fn rule(out: &mut String, step: &RuleStep, because: Option<String>, origin: Option<String>) {
    let _ = write!(out, "      rule {}, {}: ", step.index, step.action.as_str());
    match (&step.outcome, because) {
        (RuleOutcome::Matched, _) if step.by_name.is_some() => out.push_str("matches by name"),
        (RuleOutcome::Matched, _) => out.push_str("matches"),
        (_, Some(because)) => out.push_str(&because),
        (_, None) => {}
    }
    if let Some(origin) = origin {
        let _ = write!(out, " ({origin})");
    }
    out.push('\n');
}
