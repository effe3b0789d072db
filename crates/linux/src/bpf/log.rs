//! Log of the programs, which the thread that applies policy passes to the thread that collects
//! flows.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tortie_bpf::{ArrayMap, RingBuffer};
use tortie_ebpf::{DecisionId, LogRecord};
use tortie_evaluate::Verdict;
use tortie_flows::{FlowId, Hit};

/// Maximum number of packets that wait for the collector: more than a ring holds. Further packets
/// are lost and counted.
const WAITING: usize = 20_000;

/// Ring buffer to which programs log, and their counter of lost records.
#[derive(Debug)]
pub struct LogSource {
    /// The records.
    pub ring: RingBuffer,
    /// One value: the number of lost records.
    pub lost: ArrayMap,
}

/// Packet with the decision of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedPacket {
    /// The packet.
    pub id: FlowId,
    /// Its length in bytes, with the IP header.
    pub length: u32,
    /// The decision; `None` for packets that are denied as unknown.
    pub by: Option<Arc<Hit>>,
}

/// Packets that were read together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// The packets, oldest first.
    pub packets: Vec<DecidedPacket>,
    /// Number of further packets that were lost.
    pub lost: u64,
    /// Number of invalid records.
    pub unreadable: u64,
}

/// Log of the programs. The thread that applies policy sets its source and the meaning of the
/// numbers of decisions; the thread that collects flows reads it.
#[derive(Clone, Debug, Default)]
pub struct PacketLog(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    source: Option<LogSource>,
    /// The source's counter of lost records when it was last read.
    lost_before: u64,
    decisions: HashMap<DecisionId, Arc<Hit>>,
    /// Packets that were read before numbers changed their meaning.
    waiting: Decided,
}

impl PacketLog {
    /// Sets the meaning of numbers of decisions. No program may use one of them with its new
    /// meaning yet, or with its old meaning any more.
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

    /// Sets the source of the log.
    pub(super) fn set_source(&self, source: Option<LogSource>) {
        let mut state = self.lock();
        state.read();
        state.source = source;
        // Earlier losses do not count: this process could not have read these records.
        state.lost_before = state.lost().unwrap_or_default();
    }

    /// Returns the packets logged since the last call.
    #[must_use]
    pub fn take(&self) -> Decided {
        let mut state = self.lock();
        state.read();
        std::mem::take(&mut state.waiting)
    }

    /// Returns a file descriptor that becomes readable when new packets are logged; `None` without
    /// a source.
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
    /// Returns the number of records that the source has lost so far.
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
            // A later step of the evaluation decided.
            Some(LogRecord { verdict: Verdict::Undecided, .. }) => {}
            Some(_) if waiting.packets.len() >= WAITING => waiting.lost += 1,
            Some(LogRecord { decision, length, packet, icmp_id, .. }) => {
                let by = decisions.get(&decision).cloned();
                waiting.packets.push(DecidedPacket { id: FlowId { packet, icmp_id }, length, by });
            }
        });
        if let Err(error) = read {
            // Later records cannot be read until programs are loaded again.
            tracing::error!(%error, "the log of eBPF programs cannot be read; flows are reported without their decisions");
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
