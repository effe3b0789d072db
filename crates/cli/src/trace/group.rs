//! Answers about several connections: to a Service's backends, or from or to the networks of a
//! network set.

use std::fmt::Write as _;
use std::net::SocketAddr;

use serde_json::{Map, Value};
use tortie_analysis::trace::{Backend, Connection};
use tortie_evaluate::Verdict;
use tortie_model::{Cidr, Hostname, Key};

use super::super::decision::verdict;
use super::super::origin::Origins;
use super::answer::{Answer, DEPENDS};
use super::expansion::{Group, Member};
use super::question::Question;
use super::tables::{LegTable, NodeTables, TablesError, all_agree};
use super::text;
use super::view::{View, ViewError};

struct MemberResult {
    now: Connection,
    pending: Option<Connection>,
    tables: Vec<LegTable>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Tables(#[from] TablesError),
}

pub(super) struct GroupAnswer<'a> {
    group: Group,
    members: Vec<(Member, MemberResult)>,
    origins: &'a Origins,
    policies: &'a View,
}

impl<'a> GroupAnswer<'a> {
    /// Looks connections up in `tables`, if given. Leaves out a network with the same answer as the
    /// one around it.
    pub(super) fn ask(
        view: &'a mut View,
        group: Group,
        members: &[(Member, Question)],
        node: Option<&Hostname>,
        origins: &'a Origins,
        mut tables: Option<NodeTables>,
    ) -> Result<Self, AskError> {
        let mut results: Vec<(Member, MemberResult)> = Vec::new();
        for (member, question) in members {
            let (now, pending) = (view.ask(question, node)?, view.pending(question, node)?);
            let tables = match &mut tables {
                Some(tables) => tables.look_up(view, &now)?,
                None => Vec::new(),
            };
            results.push((*member, MemberResult { now, pending, tables }));
        }
        let mut answer = Self { group, members: results, origins, policies: view };
        answer.omit_repeated_results();
        Ok(answer)
    }

    fn omit_repeated_results(&mut self) {
        // For each backend separately, if there are several.
        let mut shown: Vec<(Option<Backend>, Cidr, Value)> = Vec::new();
        let mut keep = Vec::with_capacity(self.members.len());
        for (member, results) in &self.members {
            let (network, backend) = match member {
                Member::Network(network) => (network, None),
                Member::Pair(network, backend) => (network, Some(*backend)),
                Member::Backend(_) => {
                    keep.push(true);
                    continue;
                }
            };
            let result = Value::Object(self.answer(results).short());
            let is_around =
                |(of, net, _): &&(Option<Backend>, Cidr, Value)| *of == backend && net.contains(network.net.address());
            let is_news = shown.iter().rev().find(is_around).is_none_or(|(.., before)| *before != result);
            keep.push(is_news);
            shown.push((backend, network.net, result));
        }
        let mut keep = keep.into_iter();
        self.members.retain(|_| keep.next().unwrap_or(true));
    }

    /// Returns deny if one of them is denied, since some connections fail then.
    pub(super) fn verdict(&self) -> Verdict {
        let mut verdicts = self.members.iter().map(|(_, results)| results.now.verdict());
        let undecided = verdicts.clone().any(|verdict| verdict == Verdict::Undecided);
        match verdicts.any(|verdict| verdict == Verdict::Deny) {
            true => Verdict::Deny,
            false if undecided => Verdict::Undecided,
            false => Verdict::Allow,
        }
    }

    /// Reports whether the verdict depends on unknown properties of destinations.
    pub(super) fn depends(&self) -> bool {
        let denied_surely =
            |connection: &Connection| connection.verdict() == Verdict::Deny && connection.depends_at().is_none();
        let mut connections = self.members.iter().map(|(_, results)| &results.now);
        !connections.clone().any(denied_surely) && connections.any(|connection| connection.depends_at().is_some())
    }

    pub(super) fn view(&self) -> &View {
        self.policies
    }

    pub(super) fn connection_to(&self, end: SocketAddr) -> Option<&Connection> {
        let is_named = |member: &Member| match member {
            Member::Backend(backend) => (backend.address, backend.port) == (end.ip(), end.port()),
            Member::Network(_) | Member::Pair(..) => false,
        };
        self.members.iter().find(|(member, _)| is_named(member)).map(|(_, results)| &results.now)
    }

    fn denied(&self) -> usize {
        self.members.iter().filter(|(_, results)| results.now.verdict() == Verdict::Deny).count()
    }

    fn answer<'b>(&'b self, MemberResult { now, pending, tables }: &'b MemberResult) -> Answer<'b> {
        Answer { connection: now, pending: pending.as_ref(), origins: self.origins, policies: self.policies, tables }
    }

    pub(super) fn tables_agree(&self) -> bool {
        self.members.iter().all(|(_, results)| all_agree(&results.tables))
    }

    fn members_name(&self) -> &'static str {
        match &self.group {
            Group::Service { .. } => "backends",
            Group::NetworkSet(_) => "networks",
            Group::Pairs { .. } => "pairs",
        }
    }

    /// The verdict, the decision of the first member with this verdict, and the number of denied
    /// members.
    pub(super) fn short(&self) -> Map<String, Value> {
        let all = self.verdict();
        let first = self.members.iter().find(|(_, results)| results.now.verdict() == all);
        let mut short = first.map(|(_, results)| self.answer(results).short()).unwrap_or_default();
        let all = if self.depends() { DEPENDS } else { verdict(all) };
        short.insert("verdict".into(), all.into());
        if let Group::Service { service, .. } | Group::Pairs { service, .. } = &self.group {
            short.insert("service".into(), service.to_string().into());
        }
        if let Group::NetworkSet(set) | Group::Pairs { set, .. } = &self.group {
            short.insert("networkSet".into(), set.to_string().into());
        }
        short.insert(self.members_name().into(), self.members.len().into());
        short.insert("denied".into(), self.denied().into());
        short
    }

    pub(super) fn whole(&self) -> Value {
        let member = |(member, results): &(Member, MemberResult)| {
            let mut value = Map::new();
            if let Member::Network(network) | Member::Pair(network, _) = member {
                value.insert("network".into(), network.net.to_string().into());
            }
            match member {
                Member::Network(network) => {
                    value.insert("address".into(), network.example.to_string().into());
                }
                Member::Pair(network, _) => {
                    value.insert("source".into(), network.example.to_string().into());
                }
                Member::Backend(_) => {}
            }
            if let Member::Backend(backend) | Member::Pair(_, backend) = member {
                value.insert("address".into(), backend.address.to_string().into());
                value.insert("port".into(), backend.port.into());
            }
            if let Value::Object(rest) = self.answer(results).whole() {
                value.extend(rest);
            }
            Value::Object(value)
        };
        let members: Value = self.members.iter().map(member).collect::<Vec<Value>>().into();
        let mut whole = Map::new();
        let all = if self.depends() { DEPENDS } else { verdict(self.verdict()) };
        whole.insert("verdict".into(), all.into());
        let position = |key: Key| self.origins.object(&key).map(|origin| origin.to_string());
        if let Group::NetworkSet(set) | Group::Pairs { set, .. } = &self.group {
            whole.insert("networkSet".into(), set.to_string().into());
            whole.insert("networkSetPosition".into(), position(Key::NetworkSet(set.clone())).into());
        }
        if let Group::Service { service, port } | Group::Pairs { service, port, .. } = &self.group {
            whole.insert("service".into(), service.to_string().into());
            whole.insert("servicePosition".into(), position(Key::Service(service.clone())).into());
            whole.insert("port".into(), (*port).into());
        }
        whole.insert(self.members_name().into(), members);
        whole.into()
    }

    pub(super) fn text(&self, verbose: bool) -> String {
        let (all, denied) = (self.members.len(), self.denied());
        let of = match &self.group {
            Group::Service { service, port } => format!("backends of service {service} {port}"),
            Group::NetworkSet(set) => format!("networks of network set {set}"),
            Group::Pairs { set, service, port } => {
                format!("ways from networks of network set {set} to backends of service {service} {port}")
            }
        };
        let summary = match (&self.group, denied) {
            (Group::Service { .. }, 0) => format!("allowed to all {all} {of}\n"),
            (Group::Service { .. }, _) => format!("denied at {denied} of {all} {of}\n"),
            (Group::NetworkSet(_) | Group::Pairs { .. }, 0) => format!("allowed for all {all} {of}\n"),
            (Group::NetworkSet(_) | Group::Pairs { .. }, _) => format!("denied for {denied} of {all} {of}\n"),
        };
        let mut summary = summary;
        if verbose {
            let mut written = |what: &str, key: Key| {
                if let Some(origin) = self.origins.object(&key) {
                    // Writing to a string cannot fail.
                    let _ = writeln!(summary, "  {what}: {origin}");
                }
            };
            if let Group::NetworkSet(set) | Group::Pairs { set, .. } = &self.group {
                written("network set", Key::NetworkSet(set.clone()));
            }
            if let Group::Service { service, .. } | Group::Pairs { service, .. } = &self.group {
                written("service", Key::Service(service.clone()));
            }
        }
        self.members.iter().fold(summary, |mut out, (member, results)| {
            let _ = match member {
                Member::Backend(backend) => writeln!(out, "{} {}", backend.address, backend.port),
                Member::Network(network) => writeln!(out, "{}", network.net),
                Member::Pair(network, backend) => {
                    writeln!(out, "{} → {} {}", network.net, backend.address, backend.port)
                }
            };
            for line in text::text(&self.answer(results), verbose).lines() {
                let _ = writeln!(out, "  {line}");
            }
            out
        })
    }
}
