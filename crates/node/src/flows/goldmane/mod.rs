//! Flows for Goldmane, whose flows Calico's UI shows. The aggregates of each interval go over gRPC
//! to a server, to the process that listens on a socket of the node, or to both.
//!
//! A separate thread sends. The collecting thread never waits for it: a bounded number of flows is
//! kept for a receiver that is slow or gone; beyond it the oldest are lost and counted.

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

/// Time that the last flows are given at the end, if a receiver takes any.
const GRACE: Duration = Duration::from_secs(1);

/// Sends flows to receivers on a thread that ends with this.
#[derive(Debug)]
pub(super) struct Senders {
    outboxes: Vec<(String, Arc<SharedOutbox>)>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Senders {
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
                // Ends on a message as well as when the sender is dropped.
                let _ = stopped.await;
                let drained = async {
                    for outbox in &ending {
                        outbox.drained().await;
                    }
                };
                // Flows that are not sent within that time are lost.
                let _ = tokio::time::timeout(GRACE, drained).await;
            });
            // The lookup of a name may take long, and cannot be cancelled.
            runtime.shutdown_background();
        };
        let thread = Builder::new().name("goldmane".to_owned()).spawn(run)?;
        Ok(Self { outboxes, stop: Some(stop), thread: Some(thread) })
    }

    /// Takes the aggregates of an interval. Does not block.
    pub(super) fn send(&self, aggregates: &[Aggregate], collector: &Collector) {
        if self.outboxes.iter().all(|(_, outbox)| !outbox.is_wanted()) {
            return;
        }
        // Goldmane has no place for reports of host endpoints about forwarded packets: Felix sends
        // none.
        let reported =
            aggregates.iter().filter(|aggregate| !aggregate.key.at_host || collector.is_of_own_end(aggregate));
        let mut flows: Vec<_> = reported.map(|aggregate| Arc::new(convert::flow(aggregate, collector))).collect();
        // The same flows are sent in the same order.
        flows.sort_by_cached_key(|flow| prost::Message::encode_to_vec(&**flow));
        for (_, outbox) in &self.outboxes {
            outbox.push(flows.iter().cloned());
        }
    }

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
