//! Health of a session, for readiness.

use super::{STAYS, Session};
use crate::engine::enforcement::Enforcement;
use tortie_telemetry::health::Condition;

impl<E: Enforcement> Session<E> {
    pub(super) fn condition(&self) -> Condition {
        let unavailable =
            self.input.unavailable.as_ref().map(|(why, _)| format!("the datastore cannot be read: {why}"));
        if !self.input.in_sync {
            return Condition::waiting(unavailable.as_deref().unwrap_or("the datastore has not been read completely"));
        }
        if let Some(hold) = &self.hold {
            let details = [Some(format!("{hold}; {STAYS}")), unavailable];
            return Condition::waiting(details.into_iter().flatten().collect::<Vec<_>>().join("; "));
        }
        let held = self.held_changes().map(|held| {
            let more = held.objects.len().saturating_sub(1);
            let first = held.objects.first().map_or("", String::as_str);
            let rest = if more == 0 { String::new() } else { format!(" (and {more} more)") };
            format!("held back until `tortie confirm` comes: {first}{rest}: {}", held.reason())
        });
        let mut condition = Condition::good();
        condition.ready = self.input.unknown.is_none() && held.is_none();
        if let Some(detail) = unavailable {
            condition.detail = detail;
            return condition;
        }
        if let Some(held) = held.filter(|_| self.input.unknown.is_none()) {
            condition.detail = held;
            return condition;
        }
        let fallback = self.fallbacks().next().map(ToString::to_string);
        let of_input = self.input.unknown.as_ref().or(self.input.problems.first()).or(self.input.ignored.1.as_ref());
        if let Some(first) = of_input.or(fallback.as_ref()) {
            let more = (self.input.problems.len() + self.input.ignored.0).saturating_sub(1);
            condition.detail = if more == 0 { first.clone() } else { format!("{first} (and {more} more problems)") };
        }
        condition
    }
}
