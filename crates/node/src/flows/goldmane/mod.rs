//! Flows for Goldmane, whose flows Calico's UI shows: what was counted together in each interval goes over gRPC to a server, to
//! whoever listens on a socket of the node, or to both.
//!
//! A thread of its own sends. Who has flows to send never waits for it: so many are kept for a receiver that is slow or gone,
//! and then the oldest are lost and counted.

mod client;
mod convert;
mod outbox;
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
#[path = "generated/goldmane.rs"]
mod proto;
mod receiver;

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;
use tortie_flows::{Aggregate, Collector};

use super::ReceiverMetrics;
use client::{Pace, Sender};
use outbox::SharedOutbox;
pub use receiver::{Receiver, TlsFiles};

/// For how long the last flows may take at the end, where a receiver takes any.
const GRACE: Duration = Duration::from_secs(1);

/// Sends flows to receivers on a thread that ends with this.
#[derive(Debug)]
pub(super) struct Senders {
    outboxes: Vec<(String, Arc<SharedOutbox>)>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Senders {
    /// Starts to send to each of these.
    ///
    /// # Errors
    /// If there can be no thread, or nothing that it could wait with.
    pub(super) fn start(receivers: &[Receiver]) -> std::io::Result<Self> {
        Self::start_at(receivers, Pace::default())
    }

    fn start_at(receivers: &[Receiver], pace: Pace) -> std::io::Result<Self> {
        let outboxes: Vec<_> =
            receivers.iter().map(|receiver| (receiver.to_string(), Arc::new(SharedOutbox::default()))).collect();
        if receivers.is_empty() {
            return Ok(Self { outboxes, stop: None, thread: None });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let senders = receivers.iter().cloned().zip(&outboxes);
        let senders: Vec<Sender> =
            senders.map(|(receiver, (_, outbox))| Sender::new(receiver, Arc::clone(outbox), pace)).collect();
        let ending: Vec<_> = outboxes.iter().map(|(_, outbox)| Arc::clone(outbox)).collect();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            runtime.block_on(async {
                for sender in senders {
                    tokio::spawn(sender.run());
                }
                // Whether somebody says so or is gone.
                let _ = stopped.await;
                let drained = async {
                    for outbox in &ending {
                        outbox.drained().await;
                    }
                };
                // What does not go within that time is lost.
                let _ = tokio::time::timeout(GRACE, drained).await;
            });
            // Looking up a name may take long, and cannot be broken off.
            runtime.shutdown_background();
        };
        let thread = Builder::new().name("goldmane".to_owned()).spawn(run)?;
        Ok(Self { outboxes, stop: Some(stop), thread: Some(thread) })
    }

    /// Takes what was counted in an interval. Waits for nothing.
    pub(super) fn send(&self, aggregates: &[Aggregate], collector: &Collector) {
        if self.outboxes.iter().all(|(_, outbox)| !outbox.is_wanted()) {
            return;
        }
        // What host endpoints say of what the node only forwards has no place there: the original tells of none.
        let told = aggregates.iter().filter(|aggregate| !aggregate.key.at_host || collector.is_of_own_end(aggregate));
        let mut flows: Vec<_> = told.map(|aggregate| Arc::new(convert::flow(aggregate, collector))).collect();
        // The same flows in the same order.
        flows.sort_by_cached_key(|flow| prost::Message::encode_to_vec(&**flow));
        for (_, outbox) in &self.outboxes {
            outbox.push(flows.iter().cloned());
        }
    }

    /// What became of the flows of each receiver.
    pub(super) fn metrics(&self) -> Vec<ReceiverMetrics> {
        let metrics = |(receiver, outbox): &(String, Arc<SharedOutbox>)| outbox.metrics(receiver);
        self.outboxes.iter().map(metrics).collect()
    }
}

impl Drop for Senders {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
