//! Answers to a question that stands for several: about a Service, of its backends; about a network set, of its networks.

use std::fmt::Write as _;
use std::net::SocketAddr;

use serde_json::{Map, Value};
use tortie_evaluate::Verdict;
use tortie_model::{Cidr, Hostname, NamespacedName, NetworkSetName};
use tortie_trace::{Backend, Connection, SetNetwork};

use super::super::origin::Origins;
use super::answer::{self, Answer};
use super::question::Question;
use super::tables::{LegTable, NodeTables, all_agree};
use super::text;
use super::view::View;

/// What a question is about that stands for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Service { service: NamespacedName, port: u16 },
    NetworkSet(NetworkSetName),
}

/// One of several that a question stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    Backend(Backend),
    Network(SetNetwork),
}

/// What becomes of several connections.
pub(super) struct GroupAnswer<'a> {
    group: Group,
    members: Vec<(Member, Connection, Vec<LegTable>)>,
    origins: &'a Origins,
    policies: &'a View,
}

impl<'a> GroupAnswer<'a> {
    /// Asks about each, and `tables` as well if they are given. A network of which the same is true as of the one around it is
    /// left out.
    pub(super) fn ask(
        view: &'a mut View,
        group: Group,
        members: &[(Member, Question)],
        node: Option<&Hostname>,
        origins: &'a Origins,
        mut tables: Option<NodeTables>,
    ) -> Result<Self, String> {
        let mut asked: Vec<(Member, Connection, Vec<LegTable>)> = Vec::new();
        for (member, question) in members {
            let connection = view.ask(question, node)?;
            let looked_up = match &mut tables {
                Some(tables) => tables.look_up(view, &connection, &view.packet(question)?)?,
                None => Vec::new(),
            };
            asked.push((*member, connection, looked_up));
        }
        let mut answer = Self { group, members: asked, origins, policies: view };
        answer.leave_out_what_is_said_of_more();
        Ok(answer)
    }

    fn leave_out_what_is_said_of_more(&mut self) {
        let mut told: Vec<(Cidr, Value)> = Vec::new();
        let mut keep = Vec::with_capacity(self.members.len());
        for (member, connection, tables) in &self.members {
            let Member::Network(network) = member else {
                keep.push(true);
                continue;
            };
            let said = Value::Object(self.answer(connection, tables).short());
            let around = told.iter().rev().find(|(net, _)| net.contains(network.net.address()));
            let is_news = around.is_none_or(|(_, before)| *before != said);
            keep.push(is_news);
            told.push((network.net, said));
        }
        let mut keep = keep.into_iter();
        self.members.retain(|_| keep.next().unwrap_or(true));
    }

    /// Denied if one of them is: some connections fail then.
    pub(super) fn verdict(&self) -> Verdict {
        let mut verdicts = self.members.iter().map(|(_, connection, _)| connection.verdict());
        let undecided = verdicts.clone().any(|verdict| verdict == Verdict::Undecided);
        match verdicts.any(|verdict| verdict == Verdict::Deny) {
            true => Verdict::Deny,
            false if undecided => Verdict::Undecided,
            false => Verdict::Allow,
        }
    }

    /// The cluster that was asked.
    pub(super) fn view(&self) -> &View {
        self.policies
    }

    /// What becomes of connections to the backend that has this address and port.
    pub(super) fn connection_to(&self, end: SocketAddr) -> Option<&Connection> {
        let is_meant = |member: &Member| match member {
            Member::Backend(backend) => (backend.address, backend.port) == (end.ip(), end.port()),
            Member::Network(_) => false,
        };
        self.members.iter().find(|(member, ..)| is_meant(member)).map(|(_, connection, _)| connection)
    }

    fn denied(&self) -> usize {
        self.members.iter().filter(|(_, connection, _)| connection.verdict() == Verdict::Deny).count()
    }

    fn answer<'b>(&'b self, connection: &'b Connection, tables: &'b [LegTable]) -> Answer<'b> {
        Answer { connection, origins: self.origins, policies: self.policies, tables }
    }

    /// Whether tables say what was calculated, as far as they were asked.
    pub(super) fn tables_agree(&self) -> bool {
        self.members.iter().all(|(.., tables)| all_agree(tables))
    }

    /// The verdict and what decides of the first that has this verdict, and how many are denied.
    pub(super) fn short(&self) -> Map<String, Value> {
        let verdict = self.verdict();
        let first = self.members.iter().find(|(_, connection, _)| connection.verdict() == verdict);
        let mut short =
            first.map(|(_, connection, tables)| self.answer(connection, tables).short()).unwrap_or_default();
        short.insert("verdict".into(), answer::verdict(verdict).into());
        let (name, members) = match &self.group {
            Group::Service { service, .. } => (("service", service.to_string()), "backends"),
            Group::NetworkSet(set) => (("networkSet", set.to_string()), "networks"),
        };
        short.insert(name.0.into(), name.1.into());
        short.insert(members.into(), self.members.len().into());
        short.insert("denied".into(), self.denied().into());
        short
    }

    /// All that is known.
    pub(super) fn whole(&self) -> Value {
        let member = |(member, connection, tables): &(Member, Connection, Vec<LegTable>)| {
            let mut value = Map::new();
            match member {
                Member::Backend(backend) => {
                    value.insert("address".into(), backend.address.to_string().into());
                    value.insert("port".into(), backend.port.into());
                }
                Member::Network(network) => {
                    value.insert("network".into(), network.net.to_string().into());
                    value.insert("address".into(), network.example.to_string().into());
                }
            }
            if let Value::Object(rest) = self.answer(connection, tables).whole() {
                value.extend(rest);
            }
            Value::Object(value)
        };
        let members = self.members.iter().map(member).collect();
        let mut whole = Map::new();
        whole.insert("verdict".into(), answer::verdict(self.verdict()).into());
        match &self.group {
            Group::Service { service, port } => {
                whole.insert("service".into(), service.to_string().into());
                whole.insert("port".into(), (*port).into());
                whole.insert("backends".into(), members);
            }
            Group::NetworkSet(set) => {
                whole.insert("networkSet".into(), set.to_string().into());
                whole.insert("networks".into(), members);
            }
        }
        whole.into()
    }

    /// For people.
    pub(super) fn text(&self, verbose: bool) -> String {
        let (all, denied) = (self.members.len(), self.denied());
        let of = match &self.group {
            Group::Service { service, port } => format!("backends of service {service} {port}"),
            Group::NetworkSet(set) => format!("networks of network set {set}"),
        };
        let said = match (&self.group, denied) {
            (Group::Service { .. }, 0) => format!("allowed to all {all} {of}\n"),
            (Group::Service { .. }, _) => format!("denied at {denied} of {all} {of}\n"),
            (Group::NetworkSet(_), 0) => format!("allowed for all {all} {of}\n"),
            (Group::NetworkSet(_), _) => format!("denied for {denied} of {all} {of}\n"),
        };
        self.members.iter().fold(said, |mut out, (member, connection, tables)| {
            // Writing to a string cannot fail.
            let _ = match member {
                Member::Backend(backend) => writeln!(out, "{} {}", backend.address, backend.port),
                Member::Network(network) => writeln!(out, "{}", network.net),
            };
            for line in text::text(&self.answer(connection, tables), verbose).lines() {
                let _ = writeln!(out, "  {line}");
            }
            out
        })
    }
}
