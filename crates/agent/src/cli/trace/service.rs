//! Answers about a Service: one for each of its backends.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use tortie_evaluate::Verdict;
use tortie_model::{Hostname, NamespacedName};
use tortie_trace::{Backend, Connection};

use super::super::origin::Origins;
use super::answer::{self, Answer};
use super::question::Question;
use super::text;
use super::view::View;

/// What becomes of connections to a Service.
pub(super) struct ServiceAnswer<'a> {
    service: NamespacedName,
    port: u16,
    backends: Vec<(Backend, Connection)>,
    origins: &'a Origins,
    policies: &'a View,
}

impl<'a> ServiceAnswer<'a> {
    /// Asks about each backend.
    pub(super) fn ask(
        view: &'a mut View,
        (service, port): (NamespacedName, u16),
        backends: &[(Backend, Question)],
        node: Option<&Hostname>,
        origins: &'a Origins,
    ) -> Result<Self, String> {
        let ask = |(backend, question): &(Backend, Question)| Ok((*backend, view.ask(question, node)?));
        let backends = backends.iter().map(ask).collect::<Result<_, String>>()?;
        Ok(Self { service, port, backends, origins, policies: view })
    }

    /// Denied if a backend cannot be reached: some connections fail then.
    pub(super) fn verdict(&self) -> Verdict {
        let mut verdicts = self.backends.iter().map(|(_, connection)| connection.verdict());
        let undecided = verdicts.clone().any(|verdict| verdict == Verdict::Undecided);
        match verdicts.any(|verdict| verdict == Verdict::Deny) {
            true => Verdict::Deny,
            false if undecided => Verdict::Undecided,
            false => Verdict::Allow,
        }
    }

    fn denied(&self) -> usize {
        self.backends.iter().filter(|(_, connection)| connection.verdict() == Verdict::Deny).count()
    }

    fn answer<'b>(&'b self, connection: &'b Connection) -> Answer<'b> {
        Answer { connection, origins: self.origins, policies: self.policies }
    }

    /// The verdict and what decides of the first backend that has this verdict, and how many are denied.
    pub(super) fn short(&self) -> Map<String, Value> {
        let verdict = self.verdict();
        let first = self.backends.iter().find(|(_, connection)| connection.verdict() == verdict);
        let mut short = first.map(|(_, connection)| self.answer(connection).short()).unwrap_or_default();
        short.insert("verdict".into(), answer::verdict(verdict).into());
        short.insert("service".into(), self.service.to_string().into());
        short.insert("backends".into(), self.backends.len().into());
        short.insert("denied".into(), self.denied().into());
        short
    }

    /// All that is known.
    pub(super) fn whole(&self) -> Value {
        let backend = |(backend, connection): &(Backend, Connection)| {
            let mut value = Map::new();
            value.insert("address".into(), backend.address.to_string().into());
            value.insert("port".into(), backend.port.into());
            if let Value::Object(rest) = self.answer(connection).whole() {
                value.extend(rest);
            }
            Value::Object(value)
        };
        let mut whole = Map::new();
        whole.insert("verdict".into(), answer::verdict(self.verdict()).into());
        whole.insert("service".into(), self.service.to_string().into());
        whole.insert("port".into(), self.port.into());
        whole.insert("backends".into(), self.backends.iter().map(backend).collect());
        whole.into()
    }

    /// For people.
    pub(super) fn text(&self, verbose: bool) -> String {
        let (service, port, all, denied) = (&self.service, self.port, self.backends.len(), self.denied());
        let said = match denied {
            0 => format!("allowed to all {all} backends of service {service} {port}\n"),
            _ => format!("denied at {denied} of {all} backends of service {service} {port}\n"),
        };
        self.backends.iter().fold(said, |mut out, (backend, connection)| {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{} {}", backend.address, backend.port);
            for line in text::text(&self.answer(connection), verbose).lines() {
                let _ = writeln!(out, "  {line}");
            }
            out
        })
    }
}
