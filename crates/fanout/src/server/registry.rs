//! Who is connected, and who has to go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tortie_datastore::chance;

/// A client is to go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// After this time its connection is closed.
    pub(crate) within: Duration,
    /// Why, in words for its log.
    pub(crate) reason: &'static str,
}

/// All connections; clones are the same registry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    connections: Arc<Mutex<Connections>>,
}

#[derive(Debug, Default)]
struct Connections {
    last: u64,
    open: BTreeMap<u64, Option<oneshot::Sender<Order>>>,
}

/// A place in the registry, for as long as it is held.
#[derive(Debug)]
pub(crate) struct Ticket {
    registry: Registry,
    id: u64,
    order: Option<oneshot::Receiver<Order>>,
}

impl Registry {
    /// Registers a connection unless there are `limit` already.
    pub(crate) fn enter(&self, limit: usize) -> Option<Ticket> {
        let mut connections = self.lock();
        if connections.open.len() >= limit {
            return None;
        }
        let (sender, order) = oneshot::channel();
        connections.last += 1;
        let id = connections.last;
        connections.open.insert(id, Some(sender));
        Some(Ticket { registry: self.clone(), id, order: Some(order) })
    }

    /// How many connections are open.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }

    /// How many connections have not been told to go.
    pub(crate) fn staying(&self) -> usize {
        self.lock().open.values().flatten().count()
    }

    /// Tells one connection, by chance, to go; `false` if all have been told.
    pub(crate) fn send_away(&self, order: Order) -> bool {
        let mut connections = self.lock();
        let mut staying: Vec<&mut Option<oneshot::Sender<Order>>> =
            connections.open.values_mut().filter(|sender| sender.is_some()).collect();
        if staying.is_empty() {
            return false;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "between 0 and a number of connections"
        )]
        let at = ((chance() * staying.len() as f64) as usize).min(staying.len() - 1);
        // One that ends at this moment need not hear it.
        let _ = staying.get_mut(at).and_then(|sender| sender.take()).map(|sender| sender.send(order));
        true
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// The number of the connection.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the order to go, which comes once at the most.
    pub(crate) async fn told_to_go(&mut self) -> Order {
        if let Some(order) = &mut self.order {
            let told = order.await;
            self.order = None;
            if let Ok(told) = told {
                return told;
            }
        }
        std::future::pending().await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.registry.lock().open.remove(&self.id);
    }
}

/// This server's share of the connections, by the numbers of nodes, of syncers and of servers: a fifth more than an equal
/// share of what the others would have without it, for each syncer, as a node has a connection for each
/// (`typha/pkg/k8s/rebalance.go`).
///
/// ```
/// # use tortie_fanout::server::fair_share;
/// assert_eq!(fair_share(1000, 1, 3, 400, 10_000), 601);
/// assert_eq!(fair_share(1000, 2, 3, 400, 10_000), 1202);
/// assert_eq!(fair_share(50, 1, 3, 400, 10_000), 400);
/// // Nobody to send them to.
/// assert_eq!(fair_share(1000, 1, 1, 400, 10_000), 10_000);
/// ```
#[must_use]
pub fn fair_share(nodes: usize, syncers: usize, servers: usize, least: usize, most: usize) -> usize {
    match servers.saturating_sub(1) {
        0 => most,
        others => syncers.saturating_mul(1 + nodes.saturating_mul(120) / others / 100).max(least).min(most),
    }
}
