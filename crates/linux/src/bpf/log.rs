//! What programs log, on its way from the thread that has them enforce to the one that collects flows.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tortie_bpf::{ArrayMap, RingBuffer};
use tortie_ebpf::{DecisionId, LogRecord};
use tortie_evaluate::Verdict;
use tortie_flows::{FlowId, Hit};

/// How many packets wait for whoever collects: more than a ring holds. What comes on top is lost and counted.
const WAITING: usize = 20_000;

/// Where programs log, and where they count what had no room.
#[derive(Debug)]
pub struct LogSource {
    /// The records.
    pub ring: RingBuffer,
    /// One value: how many were lost.
    pub lost: ArrayMap,
}

/// A packet that a program has decided about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedPacket {
    /// The packet.
    pub id: FlowId,
    /// Its length in bytes, with the IP header.
    pub length: u32,
    /// What decided; `None` for what is denied because it is not known.
    pub by: Option<Arc<Hit>>,
}

/// What was read at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// The packets, oldest first.
    pub packets: Vec<DecidedPacket>,
    /// How many more there were.
    pub lost: u64,
    /// How many records were none.
    pub unreadable: u64,
}

/// What programs log. Plain data: the thread that has programs enforce says where that is and what numbers of decisions mean, and
/// the one that collects reads.
#[derive(Clone, Debug, Default)]
pub struct PacketLog(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    source: Option<LogSource>,
    /// How many of the source were lost when that was looked at last.
    lost_before: u64,
    decisions: HashMap<DecisionId, Arc<Hit>>,
    /// What was read before numbers came to mean something else.
    waiting: Decided,
}

impl PacketLog {
    /// Says what numbers of decisions mean from now on. No program may give a packet one of them with its new meaning yet, and none
    /// with the old one any more.
    pub(super) fn name(&self, named: impl IntoIterator<Item = (DecisionId, Option<Hit>)>) {
        let mut state = self.lock();
        state.read();
        for (number, hit) in named {
            match hit {
                Some(hit) => drop(state.decisions.insert(number, Arc::new(hit))),
                None => drop(state.decisions.remove(&number)),
            }
        }
    }

    /// Says where programs log from now on.
    pub(super) fn set_source(&self, source: Option<LogSource>) {
        let mut state = self.lock();
        state.read();
        state.source = source;
        // What was lost before is nothing that this process could have read.
        state.lost_before = state.lost().unwrap_or_default();
    }

    /// Takes what has been logged.
    #[must_use]
    pub fn take(&self) -> Decided {
        let mut state = self.lock();
        state.read();
        std::mem::take(&mut state.waiting)
    }

    /// What becomes readable when something is logged that had not to be read yet.
    ///
    /// # Errors
    /// If there are too many file descriptors.
    pub fn readable(&self) -> io::Result<Option<OwnedFd>> {
        let state = self.lock();
        state.source.as_ref().map(|source| source.ring.as_fd().try_clone_to_owned()).transpose()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How many the source has lost so far.
    fn lost(&self) -> Option<u64> {
        let mut value = [0; 8];
        self.source.as_ref()?.lost.read(0, &mut value).ok()?;
        Some(u64::from_ne_bytes(value))
    }

    fn read(&mut self) {
        let lost = self.lost();
        let Self { source: Some(source), lost_before, decisions, waiting } = self else { return };
        let read = source.ring.read(|bytes| match LogRecord::from_bytes(bytes) {
            None => waiting.unreadable += 1,
            // What was asked next decided.
            Some(LogRecord { verdict: Verdict::Undecided, .. }) => {}
            Some(_) if waiting.packets.len() >= WAITING => waiting.lost += 1,
            Some(LogRecord { decision, length, packet, icmp_id, .. }) => {
                let by = decisions.get(&decision).cloned();
                waiting.packets.push(DecidedPacket { id: FlowId { packet, icmp_id }, length, by });
            }
        });
        if let Err(error) = read {
            // Nothing behind it can be read, until programs are loaded anew.
            tracing::error!(%error, "the log of eBPF programs cannot be read; flows are told without their decisions");
            self.source = None;
        }
        if let Some(lost) = lost {
            waiting.lost += lost.saturating_sub(*lost_before);
            *lost_before = lost;
        }
    }
}

#[cfg(test)]
mod tests;
