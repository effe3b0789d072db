use super::super::columns::aligned;
use tortie_node::flows::{EndRecord, FlowRecord, HitRecord};
use tortie_telemetry::escape;

const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const FAINT: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    pub(super) coloured: bool,
    pub(super) staged: bool,
}

impl Text {
    pub(super) fn table(self, flows: &[FlowRecord]) -> String {
        let rows: Vec<Vec<String>> = flows.iter().map(|flow| self.cells(flow)).collect();
        let text = aligned(&rows);
        text.lines().zip(flows).map(|(line, flow)| self.coloured(line, flow) + "\n").collect()
    }

    pub(super) fn line(self, flow: &FlowRecord) -> String {
        self.coloured(&escape::line(&self.cells(flow).join("  ")), flow) + "\n"
    }

    fn coloured(self, line: &str, flow: &FlowRecord) -> String {
        let colour = match (flow.verdict.as_str(), flow.stage.as_str()) {
            _ if !self.coloured => return line.to_owned(),
            ("deny", _) => RED,
            (_, "ended") => FAINT,
            _ => GREEN,
        };
        format!("{colour}{line}{RESET}")
    }

    fn cells(self, flow: &FlowRecord) -> Vec<String> {
        let state = match (flow.verdict.as_str(), flow.stage.as_str()) {
            ("deny", "started") => "denied".to_owned(),
            ("deny", _) => format!("denied {}×", flow.attempts),
            (_, stage) => stage.to_owned(),
        };
        let kind = flow.icmp_type.map_or_else(|| flow.protocol.clone(), |kind| format!("{} {kind}", flow.protocol));
        let service = flow.service.as_ref().map(|service| format!("service {} {}", service.name, service.port));
        let translated = match (service, &flow.sent_to) {
            (Some(service), _) => format!(" ({service})"),
            (None, Some(sent_to)) => format!(" (sent to {sent_to})"),
            (None, None) => String::new(),
        };
        vec![
            flow.time.clone(),
            state,
            kind,
            format!("{} → {}{translated}", end(&flow.source, false), end(&flow.destination, true)),
            self.why(flow),
        ]
    }

    fn why(self, flow: &FlowRecord) -> String {
        if self.staged {
            let denials = flow.staged.iter().filter(|staged| staged.verdict == "deny");
            let parts: Vec<String> =
                denials.map(|staged| format!("{} would deny it ({})", staged.policy, staged.direction)).collect();
            return parts.join(", ");
        }
        let mut parts = Vec::new();
        for (way, hits) in [("egress", &flow.egress), ("ingress", &flow.ingress), ("host", &flow.host)] {
            let decision = hits.last().filter(|hit| hit.verdict != "pass");
            if let Some(hit) = decision.filter(|hit| flow.verdict != "deny" || hit.verdict == "deny") {
                parts.push(format!("{way}: {}", rule(hit)));
            }
        }
        if flow.verdict != "deny" && flow.stage != "started" {
            let (sent, received) = (flow.bytes, flow.reply_bytes);
            parts.push(format!("{sent} B sent, {received} B received"));
        }
        parts.join(", ")
    }
}

/// The port of a source is left out, as it has no meaning for people.
fn end(end: &EndRecord, with_port: bool) -> String {
    let name = if end.name.is_empty() { &end.address } else { &end.name };
    match end.port.filter(|_| with_port) {
        Some(port) => format!("{name} {port}"),
        None => name.clone(),
    }
}

fn rule(hit: &HitRecord) -> String {
    let index = |text: String| hit.rule.map_or_else(|| text.clone(), |rule| format!("{text} rule {rule}"));
    match (&hit.policy, &hit.profile, &hit.tier) {
        (Some(policy), ..) => index(policy.clone()),
        (None, Some(profile), _) => index(format!("profile {profile}")),
        (None, None, Some(tier)) => format!("end of tier {tier}"),
        (None, None, None) => "no profile allows it".to_owned(),
    }
}

#[cfg(test)]
mod tests;
