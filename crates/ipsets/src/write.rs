//! Writing restore texts.

use std::fmt::{Display, Write as _};

use tortie_net::{Family, IpSetName};

use crate::list::Listing;
use crate::progress::WrittenSets;
use crate::sets::{IpSets, Kernel, Need, SetState};
use crate::spec::SetSpec;

/// A restore text under construction.
///
/// Written members count as in sync at once. If the restore fails, every set in the text is read
/// again, so that no record of its content is needed, which can have a million lines.
pub(crate) struct RestoreText {
    family: Family,
    text: String,
    lines: usize,
    /// Number of members that may follow.
    room: usize,
    written_sets: WrittenSets,
}

fn push_line(text: &mut String, verb: &str, name: &IpSetName, member: &dyn Display, end: &str) {
    text.push_str(verb);
    text.push_str(name.as_str());
    text.push(' ');
    // Writing to a String cannot fail.
    let _ = write!(text, "{member}");
    text.push_str(end);
}

impl RestoreText {
    pub(crate) fn new(family: Family, room: usize) -> Self {
        Self { family, text: String::new(), lines: 0, room: room.max(1), written_sets: WrittenSets::default() }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.room == 0
    }

    /// Returns the text, unless it is empty.
    pub(crate) fn finish(mut self) -> Option<(String, WrittenSets)> {
        if self.written_sets.is_empty() {
            return None;
        }
        self.text.push_str("COMMIT\n");
        Some((self.text, self.written_sets))
    }

    /// Writes the changes of the set within the remaining room, except a swap.
    #[expect(clippy::expect_used, reason = "a set that is not desired needs nothing")]
    pub(crate) fn write(&mut self, name: &IpSetName, state: &mut SetState) {
        let need = state.need(self.family);
        if matches!(need, Need::Nothing | Need::Swap) {
            return;
        }
        let spec = state.desired.expect("only a desired set needs a write");
        self.begin(name);
        if need == Need::Recreate {
            self.text.push_str("destroy ");
            self.text.push_str(name.as_str());
            self.text.push('\n');
            self.lines += 1;
        }
        if need == Need::Members {
            self.delete_members(name, state);
        } else {
            spec.write_create(&mut self.text, name, self.family);
            self.lines += 1;
            state.members.clear_observed();
        }
        let room = self.room;
        let added = self.add_members(name, state, &spec, room);
        self.room = self.room.saturating_sub(added);
        state.kernel = Kernel::Present(Listing::written(spec, self.family));
    }

    /// Fills the temporary set with all desired members, and swaps.
    #[expect(clippy::expect_used, reason = "a set that is not desired needs no swap")]
    pub(crate) fn swap(&mut self, name: &IpSetName, temporary: &IpSetName, state: &mut SetState) {
        let spec = state.desired.expect("only a desired set needs a write");
        self.begin(name);
        spec.write_create(&mut self.text, temporary, self.family);
        state.members.clear_observed();
        let added = self.add_members(temporary, state, &spec, usize::MAX);
        self.room = self.room.saturating_sub(added);
        let _ = writeln!(self.text, "swap {name} {temporary}");
        self.lines += 2;
        state.kernel = Kernel::Present(Listing::written(spec, self.family));
        self.written_sets.replace_into(*temporary);
    }

    fn begin(&mut self, name: &IpSetName) {
        self.written_sets.begin(self.lines + 1, *name);
    }

    fn delete_members(&mut self, name: &IpSetName, state: &mut SetState) {
        let text = &mut self.text;
        let deleted = state.members.drain_surplus(|member| push_line(text, "del ", name, member, " --exist\n"));
        self.lines += deleted;
        self.room = self.room.saturating_sub(deleted);
    }

    /// Adds up to `limit` members within the maximum. The lines have no `--exist`, because an
    /// "already added" error shows that the kernel differs from the observed state.
    fn add_members(&mut self, name: &IpSetName, state: &mut SetState, spec: &SetSpec, limit: usize) -> usize {
        let free = spec.max_elements().saturating_sub(state.members.in_sync_len());
        let text = &mut self.text;
        let added = state.members.drain_missing(limit.min(free), |member| {
            push_line(text, "add ", name, member, "\n");
        });
        self.lines += added;
        added
    }
}

impl IpSets {
    /// Returns the complete input of `ipset restore` for a clean node, `COMMIT` line included.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        for (name, state) in &self.sets {
            let Some(spec) = state.desired else {
                continue;
            };
            spec.write_create(&mut text, name, self.family);
            let members = state.members.desired();
            for member in members.iter().take(spec.max_elements()) {
                push_line(&mut text, "add ", name, member, "\n");
            }
        }
        text.push_str("COMMIT\n");
        text
    }
}
