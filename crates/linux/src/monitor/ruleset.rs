//! Watch of changes to nftables tables.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;

use tortie_dataplane::RulesetEvent;
use tortie_model::with_causes;
use tortie_nftables::TableId;

use super::{LONGEST_WAIT, MonitorEvent, MonitorThread, RETRY_DELAY};
use crate::Pulse;
use crate::netlink::{NetlinkError, RulesetSubscription};

/// Starts a thread that counts the transactions on these tables of the caller's network namespace.
/// Its events are converted to the receiver's type, so that it can share a channel with other
/// senders.
///
/// # Errors
/// If the thread cannot be started.
pub fn spawn_ruleset<E>(tables: Vec<TableId>, events: SyncSender<E>, pulse: Pulse) -> io::Result<MonitorThread>
where
    E: From<MonitorEvent> + Send + 'static,
{
    let stop = Arc::new(AtomicBool::new(false));
    let is_stopped = Arc::clone(&stop);
    let run = move || {
        while !is_stopped.load(Ordering::Relaxed) {
            pulse.beat();
            let send = |event| {
                // The queue is full while the main thread, which reports itself, is busy.
                pulse.rest();
                let sent = events.send(MonitorEvent::Ruleset(event).into()).is_ok();
                pulse.beat();
                sent
            };
            match watch(&tables, &is_stopped, &send, &pulse) {
                Ok(()) => break,
                Err(NetlinkError::Overflow) => {
                    tracing::info!("nftables changed faster than the changes were read; tables are read again");
                }
                Err(error) => {
                    tracing::warn!(error = %with_causes(&error), "the monitor of nftables has failed; trying again");
                    thread::sleep(RETRY_DELAY);
                }
            }
        }
        if is_stopped.load(Ordering::Relaxed) {
            pulse.rest();
        }
    };
    let thread = thread::Builder::new().name("nftables".to_owned()).spawn(run)?;
    Ok(MonitorThread { stop, thread: Some(thread) })
}

/// Listens until the thread has to stop or the receiver is gone.
fn watch(
    tables: &[TableId],
    stop: &AtomicBool,
    send: &impl Fn(RulesetEvent) -> bool,
    pulse: &Pulse,
) -> Result<(), NetlinkError> {
    let mut subscription = RulesetSubscription::open(tables, LONGEST_WAIT)?;
    // Sent after listening has begun, so that tables read afterwards miss no change.
    let mut goes_on = send(RulesetEvent::Restarted);
    while goes_on && !stop.load(Ordering::Relaxed) {
        let received = subscription.receive()?;
        pulse.beat();
        if let Some(transactions) = received {
            goes_on = send(RulesetEvent::Transactions(transactions));
        }
    }
    Ok(())
}
