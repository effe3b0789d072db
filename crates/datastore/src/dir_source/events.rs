//! What file events tell of files.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RenameMode};
use notify::{Event, EventKind};

use super::settling::Sign;
use crate::scan::{self, Stamp};

/// How many events wait to be looked at; of more, none is believed.
const MANY: usize = 64 * 1024;

/// What has been heard of files since it was last taken note of.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) notes: Vec<(Sign, Stamp, Duration)>,
    /// Events have been lost, so that what was heard before may not be true any more.
    pub(super) lost: bool,
}

impl Heard {
    /// Takes an event; `None` for one that could not be received. Files are told apart by their numbers, as names may lead
    /// to another one by now.
    pub(super) fn hear(&mut self, event: Option<&Event>, begun: Instant) {
        let Some(event) = event.filter(|event| !event.need_rescan() && self.notes.len() < MANY) else {
            self.notes.clear();
            self.lost = true;
            return;
        };
        let Some(path) = event.paths.first() else { return };
        let now = begun.elapsed();
        match event.kind {
            EventKind::Create(CreateKind::File | CreateKind::Any) if !is_link(path) => {
                self.note(Sign::Created, Stamp::at(path), now);
            }
            EventKind::Modify(ModifyKind::Data(_)) => self.note(Sign::Written, Stamp::at(path), now),
            EventKind::Modify(ModifyKind::Metadata(_)) => self.note(Sign::Touched, Stamp::at(path), now),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => {
                // A directory, or a link to one, appears with everything in it, as the versions of a `ConfigMap` do.
                for (_, stamp) in scan::scan(path).unwrap_or_default().files {
                    self.note(Sign::Renamed, Some(stamp), now);
                }
            }
            kind if is_end_of_writing(kind) => self.note(Sign::Closed, Stamp::at(path), now),
            _ => {}
        }
    }

    /// A file that is gone by now needs no note.
    fn note(&mut self, sign: Sign, stamp: Option<Stamp>, now: Duration) {
        let Some(stamp) = stamp else { return };
        let is_repeated = |(last, of, _): &(Sign, Stamp, Duration)| *last == sign && of.file() == stamp.file();
        if sign == Sign::Written && self.notes.last().is_some_and(is_repeated) {
            self.notes.pop();
        }
        self.notes.push((sign, stamp, now));
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
}

pub(super) fn is_end_of_writing(kind: EventKind) -> bool {
    kind == EventKind::Access(AccessKind::Close(AccessMode::Write))
}
