//! Trials of offers, which are not in force.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tortie_calc::Graph;
use tortie_evaluate::Settings;
use tortie_model::desired::{ConfigUpdate, DesiredUpdate};
use tortie_model::{Key, Update};

use super::admission::{Admission, admissions};
use super::objects::{Governing, for_workloads};
use super::{Cause, Held, HostChanges, Observed, Offer, Unobserved};

/// Interval between trials of held changes, if something has changed.
const RETRY: Duration = Duration::from_secs(2);

/// Settings of evaluation under the parameters of the datastore; `None` if these cannot be used.
pub(crate) type SettingsOf<'a> = &'a dyn Fn(&ConfigUpdate) -> Option<Settings>;

#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) messages: Vec<DesiredUpdate>,
    /// The objects, when each change was noticed, and whether the object governed endpoints of this
    /// node before.
    pub(crate) accepted: Vec<(Update, Instant, bool)>,
    pub(crate) held_changed: bool,
}

impl Settled {
    pub(super) fn accept(&mut self, graph: &Graph, offer: &Offer) {
        let was_active = matches!(&offer.update, Update::Policy(id, _) if graph.is_active(id));
        self.accepted.push((offer.update.clone(), offer.noticed, was_active));
    }
}

struct TrialBase {
    observed: Result<Observed, Unobserved>,
    before: Vec<Admission>,
}

impl TrialBase {
    /// The addresses at the ends of connections; `None` if they are not known.
    fn addresses(&self) -> Option<BTreeSet<IpAddr>> {
        let observed = self.observed.as_ref().ok()?;
        let ends = observed.connections.iter().flat_map(|connection| [connection.remote, connection.local]);
        Some(ends.map(|end| end.ip()).collect())
    }
}

impl HostChanges {
    pub(super) fn follow(&mut self, update: &DesiredUpdate, settings_of: SettingsOf<'_>) {
        if let DesiredUpdate::Config(config) = update
            && let Some(settings) = settings_of(config)
        {
            self.evaluator.set_settings(settings);
        }
        if let Err(error) = self.evaluator.apply(update)
            && !std::mem::replace(&mut self.is_broken, true)
        {
            tracing::error!(%error, "the calculation contradicts itself; changes that govern this host are held back");
        }
    }

    pub(super) fn try_offers(&mut self, graph: &mut Graph, now: Duration, settings_of: SettingsOf<'_>) -> Settled {
        let mut settled = Settled::default();
        if self.offered.is_empty() {
            if self.holding.held.is_some() {
                tracing::info!("the held changes have been reverted");
                settled.held_changed = true;
            }
            if self.holding.held.is_some() || self.holding.held_before.is_some() {
                self.clear_held();
            }
            self.trials.is_due = false;
            return settled;
        }
        if !self.trials.is_due && now < self.trials.next {
            return settled;
        }
        self.trials.next = now.saturating_add(RETRY);
        let observed = self.observed();
        let is_same = self.trials.last.as_ref() == Some(&observed);
        if !self.trials.is_due && !self.trials.has_changed && is_same {
            return settled;
        }
        self.trials.last = Some(observed.clone());
        (self.trials.is_due, self.trials.has_changed, self.record.is_outdated) = (false, false, true);
        let before = observed.as_ref().map(|observed| admissions(&self.evaluator, observed)).unwrap_or_default();
        let base = TrialBase { observed, before };
        let mut governing = Governing::of(&self.evaluator);

        let all: Vec<Key> = self.offered.keys().cloned().collect();
        let Err(cause) = self.attempt(&all, graph, &base, &mut governing, settings_of, &mut settled) else {
            if self.holding.held.is_some() {
                tracing::info!("the held changes would not cut any connection now, and are put in force");
                settled.held_changed = true;
            }
            self.clear_held();
            return settled;
        };
        // New offers may be acceptable without those that are held back already …
        let new: Vec<Key> = self.offered.iter().filter(|(_, offer)| offer.is_new).map(|(key, _)| key.clone()).collect();
        let is_done = new.is_empty()
            || new.len() < all.len()
                && self.attempt(&new, graph, &base, &mut governing, settings_of, &mut settled).is_ok();
        if !is_done {
            // … or only a part of the new ones.
            for part in self.parts(&new, &base, &governing) {
                if self.attempt(&part, graph, &base, &mut governing, settings_of, &mut settled).is_ok() {
                    break;
                }
            }
            self.enforce_for_workloads(graph, &base, &mut governing, settings_of, &mut settled);
        }
        settled.held_changed |= self.hold(cause);
        settled
    }

    /// Returns the parts of new offers that may be accepted without the rest: where no host
    /// endpoint governs this node yet, all but its host endpoints; and all that cannot be the
    /// cause, since they do not concern this host.
    fn parts(&self, new: &[Key], base: &TrialBase, governing: &Governing) -> Vec<Vec<Key>> {
        let addresses = base.addresses();
        let may_be_cause = |key: &Key| {
            self.offered.get(key).is_some_and(|offer| {
                governing.may_be_cause(&self.node, self.in_force.get(key), &offer.update, addresses.as_ref())
            })
        };
        let is_own = |key: &Key| matches!(key, Key::HostEndpoint(key) if key.host == self.node);
        let is_open = !self.in_force.keys().any(is_own);
        let all_but_own = new.iter().filter(|key| is_open && !is_own(key)).cloned().collect();
        let innocent = new.iter().filter(|key| !may_be_cause(key)).cloned().collect();
        // All of them together have been tried already.
        [all_but_own, innocent].into_iter().filter(|part: &Vec<_>| !part.is_empty() && part.len() < new.len()).collect()
    }

    /// Enforces held policies without a former version for workloads only, unless they select the
    /// host even then.
    #[expect(clippy::expect_used, reason = "an invariant of attempts")]
    fn enforce_for_workloads(
        &mut self,
        graph: &mut Graph,
        base: &TrialBase,
        governing: &mut Governing,
        settings_of: SettingsOf<'_>,
        settled: &mut Settled,
    ) {
        let is_first = |(key, offer): &(&Key, &Offer)| offer.is_new && !self.in_force.contains_key(key);
        let narrowed = |(key, offer): (&Key, &Offer)| Some((key.clone(), for_workloads(&offer.update)?, offer.noticed));
        let narrowed: Vec<_> = self.offered.iter().filter(is_first).filter_map(narrowed).collect();
        for (key, update, noticed) in narrowed {
            let whole = self.offered.insert(key.clone(), Offer { update, noticed, is_new: true });
            let whole = whole.expect("an attempt accepts no offers but its own");
            // A policy that is not accepted does not affect the next attempts.
            let _ = self.attempt(std::slice::from_ref(&key), graph, base, governing, settings_of, settled);
            self.offered.insert(key, whole);
        }
    }

    fn observed(&mut self) -> Result<Observed, Unobserved> {
        if self.is_broken {
            return Err(Unobserved::Broken);
        }
        let mut observed = self.trials.observe.observe().map_err(|error| Unobserved::Failed(Arc::new(error)))?;
        observed.connections.extend(self.holding.remembered.iter().cloned());
        Ok(observed)
    }

    /// Offers that cut no connection are accepted; otherwise the former state is restored.
    #[expect(clippy::expect_used, reason = "an invariant of the callers")]
    fn attempt(
        &mut self,
        keys: &[Key],
        graph: &mut Graph,
        base: &TrialBase,
        governing: &mut Governing,
        settings_of: SettingsOf<'_>,
        settled: &mut Settled,
    ) -> Result<(), Cause> {
        let mut accepted = Settled::default();
        for key in keys {
            let offer = self.offered.get(key).expect("attempted changes are offered");
            accepted.accept(graph, offer);
            graph.on_update(offer.update.clone());
        }
        graph.flush(&mut accepted.messages);
        let before = self.evaluator.clone();
        for message in &accepted.messages {
            self.follow(message, settings_of);
        }
        governing.add(&self.evaluator);
        let Some(cause) = self.cause(keys, base, governing) else {
            for key in keys {
                let offer = self.offered.remove(key).expect("attempted changes are offered");
                offer.update.apply_to(&mut self.in_force);
            }
            settled.messages.append(&mut accepted.messages);
            settled.accepted.append(&mut accepted.accepted);
            return Ok(());
        };
        for key in keys {
            let in_force = self.in_force.get(key).cloned();
            graph.on_update(in_force.unwrap_or_else(|| Update::delete(key.clone())));
        }
        // These updates cancel the first ones out, so neither are used.
        graph.flush(&mut Vec::new());
        self.evaluator = before;
        Err(cause)
    }

    /// Returns the cause for which offers that are being tried have to be held back, if there is
    /// one.
    fn cause(&self, keys: &[Key], base: &TrialBase, governing: &Governing) -> Option<Cause> {
        if !governing.has_endpoints {
            return None;
        }
        // The evaluator may have failed during this trial.
        let observed = match &base.observed {
            Ok(observed) if !self.is_broken => observed,
            observed => {
                let why = observed.as_ref().err().cloned().unwrap_or(Unobserved::Broken);
                let may_be_cause = |key: &Key| {
                    let offer = self.offered.get(key);
                    offer.is_some_and(|offer| {
                        governing.may_be_cause(&self.node, self.in_force.get(key), &offer.update, None)
                    })
                };
                return keys.iter().any(may_be_cause).then_some(Cause::Unknown(why));
            }
        };
        let after = admissions(&self.evaluator, observed);
        let verdicts = base.before.iter().zip(after);
        let cut: BTreeSet<_> = observed
            .connections
            .iter()
            .zip(verdicts)
            .filter(|(_, (before, after))| before.is_cut_by(*after))
            .map(|(connection, _)| connection.clone())
            .collect();
        (!cut.is_empty()).then_some(Cause::Cuts(cut))
    }

    /// Holds back all offers that are left. Returns whether that changes the held changes or their
    /// cause.
    fn hold(&mut self, cause: Cause) -> bool {
        let held_changed = self.holding.held.as_ref().is_none_or(|held| held.cause != cause)
            || self.offered.values().any(|offer| offer.is_new);
        self.offered.values_mut().for_each(|offer| offer.is_new = false);
        let since = match (&self.holding.held, self.holding.held_before.take()) {
            (Some(held), _) => held.since,
            (None, before) => before.unwrap_or_else(SystemTime::now),
        };
        self.holding.held = Some(Held { since, cause });
        if held_changed && let Some(summary) = self.held() {
            let has_policy = self.offered.keys().any(|key| matches!(key, Key::Policy(_) | Key::Tier(_)));
            tracing::warn!(
                why = summary.reason(),
                objects = summary.objects.join(", "),
                "changes are held back; `tortie confirm` puts them in force, reverting them discards them"
            );
            if has_policy {
                tracing::warn!("pods keep the versions in force of the policies that are held back");
            }
            for endpoint in &summary.unprotected {
                tracing::warn!(%endpoint, "a held host endpoint does NOT PROTECT this host until `tortie confirm`");
            }
        }
        held_changed
    }
}
