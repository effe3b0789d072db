//! Writing: choice of the sets for the next restore, and handling of its failures.

use std::time::Duration;

use tortie_net::IpSetName;

use super::{QUICK_ATTEMPTS, WHOLE_ATTEMPTS, pause, set_pause};
use crate::names::temporary_name;
use crate::plan::{CommandFailure, Plan};
use crate::progress::{Group, InFlight, Reason, WrittenSets};
use crate::sets::{IpSets, Kernel, Need};
use crate::write::RestoreText;

/// The next write.
enum Next {
    Group(Group),
    Sleep(Duration),
    Nothing,
}

impl IpSets {
    #[expect(clippy::expect_used, reason = "a set that is removed is no longer dirty")]
    pub(super) fn next_restore(&mut self, now: Duration) -> Option<Plan> {
        loop {
            let group = match self.next_group(now) {
                Next::Group(group) => group,
                Next::Sleep(time) => return Some(Plan::Sleep(time)),
                Next::Nothing => return None,
            };
            let mut text = RestoreText::new(self.family, self.config.members_per_restore);
            for name in group.names {
                if text.is_full() {
                    // The remaining sets stay dirty and are part of a later restore.
                    break;
                }
                let needs_swap = self.sets.get(&name).is_some_and(|state| state.need(self.family) == Need::Swap);
                let temporary = needs_swap.then(|| self.free_temporary());
                let state = self.sets.get_mut(&name).expect("a dirty set is known");
                match temporary {
                    Some(temporary) => text.swap(&name, &temporary, state),
                    None => text.write(&name, state),
                }
                self.reconsider(&name);
            }
            // Possibly none of them needs a write after all.
            let Some((text, written_sets)) = text.finish() else { continue };
            let sets = written_sets.names().count();
            tracing::Span::current().record("sets", sets).record("bytes", text.len());
            tracing::debug!("writing IP sets");
            self.progress.in_flight = Some(InFlight::Restore { written_sets, failures: group.failures });
            return Some(Plan::Restore(text));
        }
    }

    fn next_group(&mut self, now: Duration) -> Next {
        let Some(round) = &mut self.progress.round else {
            return Next::Nothing;
        };
        let healthy = |name: &IpSetName| self.sets.get(name).is_some_and(|state| state.health.failures == 0);
        while let Some(mut group) = round.groups.pop() {
            group.names.retain(|name| self.dirty.contains(name) && healthy(name));
            if !group.names.is_empty() {
                return Next::Group(group);
            }
        }
        let names: Vec<IpSetName> = self.dirty.iter().filter(|n| healthy(n)).copied().collect();
        if !names.is_empty() {
            return Next::Group(Group { names, failures: 0 });
        }
        // Only failed sets are left; each is written alone.
        let health = |name| self.sets.get(name).map(|state| &state.health);
        let next = self
            .dirty
            .iter()
            .filter_map(|name| Some((name, health(name)?)))
            .filter(|(_, h)| h.retry_at <= now || h.failures <= QUICK_ATTEMPTS)
            .min_by_key(|(_, h)| h.retry_at);
        match next {
            Some((_, health)) if health.retry_at > now => Next::Sleep(health.retry_at - now),
            Some((name, _)) => Next::Group(Group { names: vec![*name], failures: 0 }),
            None => Next::Nothing,
        }
    }

    fn free_temporary(&mut self) -> IpSetName {
        loop {
            let name = temporary_name(self.family, self.next_temporary);
            self.next_temporary += 1;
            if !self.to_destroy.contains(&name) && !self.not_destroyed.contains(&name) {
                return name;
            }
        }
    }

    pub(super) fn restored(&mut self, written_sets: WrittenSets) {
        for name in written_sets.names() {
            if let Some(state) = self.sets.get_mut(name) {
                state.health = Default::default();
            }
        }
        self.to_destroy.extend(written_sets.into_temporaries());
    }

    pub(super) fn restore_failed(
        &mut self,
        now: Duration,
        written_sets: &WrittenSets,
        group_failures: u32,
        failure: CommandFailure,
    ) {
        self.fail(now);
        // Some of the lines may have taken effect.
        self.progress.want_listing(Reason::Check);
        let names: Vec<IpSetName> = written_sets.names().copied().collect();
        for name in &names {
            match self.sets.get_mut(name) {
                Some(state) if state.desired.is_some() => {
                    state.kernel = Kernel::Unread;
                    self.must_read.insert(*name);
                    self.reconsider(name);
                }
                _ => {
                    self.sets.remove(name);
                }
            }
        }
        let culprit = match &names[..] {
            [only] => Some(only),
            _ => failure.line().and_then(|line| written_sets.at_line(line)),
        };
        let Some(culprit) = culprit.copied() else {
            let failures = (group_failures + 1).min(WHOLE_ATTEMPTS);
            if let Some(round) = &mut self.progress.round {
                round.wait_until = now + pause(failures);
                round.retry(names, failures, failures == WHOLE_ATTEMPTS);
            }
            return;
        };
        if let Some(state) = self.sets.get_mut(&culprit) {
            let health = &mut state.health;
            health.failures += 1;
            health.retry_at = now + set_pause(health.failures);
            health.swap_refused |= failure.is_type_mismatch();
            health.last = Some(failure);
        }
        let others = names.into_iter().filter(|name| *name != culprit).collect();
        if let Some(round) = &mut self.progress.round {
            // In halves, so that many refused sets do not cause as many reads of all the others.
            round.retry(others, group_failures, true);
        }
    }
}
