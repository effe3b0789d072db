//! Changes that would cut management connections of the host, in a session.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tortie_config::{Sources, settings};
use tortie_model::Update;
use tortie_model::desired::{ConfigUpdate, DesiredUpdate};

use super::{Session, SessionError};
use crate::engine::enforcement::Enforcement;
use crate::engine::inspect::Answer;
use crate::host_changes::{ConfirmedChanges, HeldChanges, Settled};
use tortie_telemetry::health::Reporter;

fn evaluation(sources: &Sources, config: &ConfigUpdate) -> Option<tortie_evaluate::Settings> {
    let mut sources = sources.clone();
    sources.set_datastore(config);
    let resolved = sources.resolve().ok()?;
    settings::rules(&resolved.config).ok().map(|rules| settings::evaluation(&rules))
}

impl<E: Enforcement> Session<E> {
    /// Adds updates that cut no management connection. Returns a configuration that requires a new
    /// session first.
    pub(super) fn settle_host_changes(
        &mut self,
        pending: &mut Vec<DesiredUpdate>,
    ) -> Result<Option<ConfigUpdate>, SessionError> {
        let now = self.enforcement.now();
        let Some(changes) = &mut self.host_changes else { return Ok(None) };
        let settings_of = |config: &ConfigUpdate| evaluation(&self.fixed.sources, config);
        pending.iter().for_each(|update| changes.on_update(update, &settings_of));
        if let Some(config) = pending.iter().find_map(|update| match update {
            DesiredUpdate::Config(config) => Some(config.clone()),
            _ => None,
        }) && self.asks_for_restart(&config)
        {
            return Ok(Some(config));
        }
        let Some(changes) = &mut self.host_changes else { return Ok(None) };
        let settings_of = |config: &ConfigUpdate| evaluation(&self.fixed.sources, config);
        let mut settled = changes.settle(&mut self.graph, now, &settings_of);
        let is_in_sync = |update: &DesiredUpdate| matches!(update, DesiredUpdate::InSync);
        // Enforcement begins with `InSync`, which comes once, so it must be last.
        let in_sync = pending.pop_if(|update| is_in_sync(update));
        pending.append(&mut settled.messages);
        pending.extend(in_sync);
        let held_changed = settled.held_changed;
        self.on_settled(settled, false);
        if held_changed {
            self.report_held_changes();
        }
        Ok(None)
    }

    /// Passes the accepted changes on; also to the calculation if `is_unknown`, when it does not
    /// have them.
    fn on_settled(&mut self, settled: Settled, is_unknown: bool) {
        let has_enforced = self.enforcement.has_enforced();
        for (update, noticed, was_active) in settled.accepted {
            if let Update::Policy(id, _) = &update
                && has_enforced
            {
                self.desired.policy_changes.changed(id, noticed, was_active);
            }
            self.enforcement.on_object(&update);
            if is_unknown {
                self.graph.on_update(update);
            }
        }
    }

    /// Puts the held changes in force. Answers [`Answer::Busy`] while they are not known.
    pub(in crate::engine) fn confirm_host_changes(&mut self, reply: &SyncSender<Answer>) {
        let answer = match &mut self.host_changes {
            None => Some(Answer::Confirmed(ConfirmedChanges::default())),
            Some(_) if !self.input.in_sync => None,
            Some(changes) => changes.confirm(&self.graph).map(|(confirmed, settled)| {
                self.on_settled(settled, true);
                self.report_held_changes();
                Answer::Confirmed(confirmed)
            }),
        };
        let _ = reply.try_send(answer.unwrap_or(Answer::Busy));
    }

    pub(in crate::engine) fn held_changes(&self) -> Option<HeldChanges> {
        self.host_changes.as_ref()?.held()
    }

    pub(super) fn next_trial(&self, now: Duration) -> Duration {
        let next = self.host_changes.as_ref().and_then(|changes| changes.next_trial(now));
        let is_asked = self.hold.is_none() && self.enforcement.takes_more();
        next.filter(|_| is_asked).unwrap_or(Duration::MAX)
    }

    fn report_held_changes(&mut self) {
        let count = self.held_changes().map_or(0, |held| held.objects.len());
        self.metrics.lock().datastore.held_changes = count as u64;
        self.health.report(Reporter::CalculationGraph, self.condition());
    }
}
