use std::collections::BTreeMap;

use serde_json::{Value, json};
use tortie_analysis::trace::{Connection, EnforcementPoint, Leg};
use tortie_config::settings;
use tortie_ebpf::{Description, EndpointName, Located, Numbered};
use tortie_evaluate::{Answer, DecidedBy, Layer, UpdateError, Verdict};
use tortie_model::Hostname;

use super::super::cluster::ParametersError;
use super::super::decision::verdict;
use super::super::render::calculate;
use super::view::View;

/// Tables of nodes, built at the first lookup.
#[derive(Default)]
pub(super) struct NodeTables {
    nodes: BTreeMap<Hostname, Description>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TablesError {
    #[error("nothing is known of tables at {0}")]
    Unknown(EnforcementPoint),
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    #[error(transparent)]
    Update(#[from] UpdateError),
}

pub(super) struct LegTable {
    /// `None` if no table has the answer.
    located: Option<Located>,
    agrees: bool,
}

impl NodeTables {
    pub(super) fn look_up(&mut self, view: &View, connection: &Connection) -> Result<Vec<LegTable>, TablesError> {
        connection.legs.iter().map(|leg| self.at(view, leg)).collect()
    }

    fn at(&mut self, view: &View, leg: &Leg) -> Result<LegTable, TablesError> {
        if !self.nodes.contains_key(&leg.node) {
            self.nodes.insert(leg.node.clone(), describe(view, &leg.node)?);
        }
        let (endpoint, layer) = match &leg.at {
            EnforcementPoint::Workload(id) | EnforcementPoint::WorkloadToHost(id) => {
                (EndpointName::Workload(id.clone()), Layer::Normal)
            }
            EnforcementPoint::Host(name, layer) => (EndpointName::Host(name.clone()), *layer),
            other => return Err(TablesError::Unknown(other.clone())),
        };
        let answer = &leg.explanation.answer;
        // No table knows the names of a destination.
        let is_asked = answer.by_name.is_none()
            && !matches!(
                answer.decided_by,
                DecidedBy::Failsafe(_) | DecidedBy::Guard(_) | DecidedBy::EndpointInactive | DecidedBy::Contested(_)
            );
        let described = self.nodes.get_mut(&leg.node).filter(|_| is_asked);
        let located = described.and_then(|described| described.locate(&endpoint, layer, leg.direction, &leg.packet));
        let agrees = located.as_ref().is_none_or(|located| agrees((located.verdict, &located.decided_by), answer));
        Ok(LegTable { located, agrees })
    }
}

fn describe(view: &View, node: &Hostname) -> Result<Description, TablesError> {
    let config = view.config(node).map_err(ParametersError::from)?;
    let (desired, _) = calculate(&config, node, view.updates());
    let rules = settings::rules(&config).map_err(ParametersError::from)?;
    let (_, node) = settings::programs(&rules, &config);
    Ok(Description::new(&node, &desired)?)
}

fn agrees(cell: (Verdict, &DecidedBy), answer: &Answer) -> bool {
    match &answer.decided_by {
        // This action is for packets that policy allows.
        DecidedBy::EndpointToHostAction => cell.0 == Verdict::Allow,
        by => cell == (answer.verdict, by),
    }
}

pub(super) fn all_agree(tables: &[LegTable]) -> bool {
    tables.iter().all(|table| table.agrees)
}

impl LegTable {
    pub(super) fn whole(&self, leg: &Leg) -> Value {
        let Some(located) = &self.located else { return Value::Null };
        let numbered = |of: &Numbered| json!({"number": of.number, "is": of.text});
        json!({
            "group": located.group.number,
            "ownClass": numbered(&located.own_class),
            "peerClass": numbered(&located.peer_class),
            "ownRow": located.own_row.as_ref().map(numbered),
            "row": numbered(&located.row),
            "column": numbered(&located.column),
            "sourcePort": located.source_port.as_ref().map(numbered),
            "verdict": verdict(located.verdict),
            "reason": located.decided_by.in_words(leg.direction),
            "agrees": self.agrees,
        })
    }

    pub(super) fn text(&self, leg: &Leg) -> String {
        let Some(Located {
            group,
            own_class,
            peer_class,
            own_row,
            row,
            column,
            source_port,
            verdict: found,
            decided_by: by,
            ..
        }) = &self.located
        else {
            return "    table: none has the answer\n".to_owned();
        };
        let numbered = |what: &str, of: &Numbered| format!("{what} {} ({})", of.number, of.text);
        let mut cell = vec![numbered("group", group)];
        cell.extend(own_row.as_ref().map(|own| numbered("own row", own)));
        cell.extend([numbered("row", row), numbered("column", column)]);
        cell.extend(source_port.as_ref().map(|port| numbered("source ports", port)));
        let mut text =
            format!("    table: {}: {} by {}\n", cell.join(", "), verdict(*found), by.in_words(leg.direction));
        text.push_str(&format!(
            "      {}, {}\n",
            numbered("own address: class", own_class),
            numbered("peer: class", peer_class)
        ));
        if !self.agrees {
            text.push_str("      the table and the calculation do not agree: this is an error of Tortie\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use tortie_model::TierName;

    use super::*;

    #[test]
    fn verdict_and_deciding_rule_must_match_the_calculation() {
        let end = |tier: &str| DecidedBy::EndOfTier { tier: TierName::new(tier) };
        let denied = Answer::new(Verdict::Deny, end("a"));
        assert!(agrees((Verdict::Deny, &end("a")), &denied));
        assert!(!agrees((Verdict::Allow, &end("a")), &denied));
        assert!(!agrees((Verdict::Deny, &end("b")), &denied));
        let by_action = Answer::new(Verdict::Deny, DecidedBy::EndpointToHostAction);
        assert!(agrees((Verdict::Allow, &end("a")), &by_action));
        assert!(!agrees((Verdict::Deny, &end("a")), &by_action));
        assert!(!all_agree(&[LegTable { located: None, agrees: false }]));
    }
}
