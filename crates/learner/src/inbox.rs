//! Messages to the thread `dns`, which also wake it while it waits for packets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};

use rustix::event::{EventfdFlags, eventfd};
use tortie_dataplane::{LearnerCommand, LearnerError};

use super::kernel_sets::SetsError;
use super::machine::SetPart;
use super::question::Lookup;
use super::writes::{KernelMember, Written};

/// Message to the thread.
#[derive(Debug)]
pub(super) enum Message {
    /// Commands; the answer follows when the kernel's sets follow them.
    Apply(Vec<LearnerCommand>, SyncSender<Result<(), LearnerError>>),
    /// A question of another thread.
    Lookup(Lookup),
    /// Result of the last batch.
    Written(Written),
    /// The members of sets in the kernel, after the last batch whose result was sent.
    Listed(Vec<SetPart>, Result<Vec<KernelMember>, SetsError>),
    /// The running save has ended.
    Saved,
    /// A thread beside this one has ended.
    WorkerEnded(&'static str),
    /// The thread is to end.
    Stop,
}

/// Sender of messages.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    messages: Sender<Message>,
    event: Arc<OwnedFd>,
}

impl Outbox {
    /// Sends a message. Reports whether the thread still runs.
    pub(super) fn send(&self, message: Message) -> bool {
        let is_sent = self.messages.send(message).is_ok();
        // A counter that is full wakes the thread as well.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        is_sent
    }
}

/// Receiver of messages. Its descriptor is readable while there are some.
#[derive(Debug)]
pub(super) struct Inbox {
    messages: Receiver<Message>,
    event: Arc<OwnedFd>,
}

impl Inbox {
    /// Makes both ends.
    pub(super) fn new() -> io::Result<(Outbox, Self)> {
        let (sender, messages) = channel();
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok((Outbox { messages: sender, event: Arc::clone(&event) }, Self { messages, event }))
    }

    /// Returns the next message without waiting.
    pub(super) fn next(&self) -> Option<Message> {
        self.messages.try_recv().ok()
    }

    /// Takes note of all messages so far, before they are read.
    pub(super) fn begin(&self) {
        // Without an event there is nothing to take.
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
