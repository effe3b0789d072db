//! Registry of the connections, and the order to leave.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tortie_datastore::chance;

/// Order for a client to use another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Time after which its connection is closed.
    pub(crate) within: Duration,
    /// Reason, for its log.
    pub(crate) reason: &'static str,
}

/// Maximum numbers of open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of all addresses.
    pub(crate) total: usize,
    /// Of one address.
    pub(crate) per_address: usize,
    /// Of one address, before their hello is complete.
    pub(crate) before_hello: usize,
}

/// The limit that a connection exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    Total,
    Address,
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
    addresses: HashMap<IpAddr, Count>,
}

/// The connections of one address.
#[derive(Debug, Default)]
struct Count {
    open: usize,
    before_hello: usize,
}

/// A place in the registry, for as long as it is held.
#[derive(Debug)]
pub(crate) struct Ticket {
    registry: Registry,
    id: u64,
    address: IpAddr,
    order: Option<oneshot::Receiver<Order>>,
}

/// A connection whose hello is not complete, for as long as this is held.
#[derive(Debug)]
pub(crate) struct BeforeHello {
    registry: Registry,
    address: IpAddr,
}

impl Registry {
    /// Registers a connection whose hello is still to come.
    ///
    /// # Errors
    /// [`Excess`] if a limit has been reached.
    pub(crate) fn enter(&self, peer: IpAddr, limits: Limits) -> Result<(Ticket, BeforeHello), Excess> {
        let address = peer.to_canonical();
        let mut connections = self.lock();
        if connections.open.len() >= limits.total {
            return Err(Excess::Total);
        }
        let (open, before_hello) =
            connections.addresses.get(&address).map_or((0, 0), |count| (count.open, count.before_hello));
        if open >= limits.per_address || before_hello >= limits.before_hello {
            return Err(Excess::Address);
        }
        let count = connections.addresses.entry(address).or_default();
        count.open += 1;
        count.before_hello += 1;
        let (sender, order) = oneshot::channel();
        connections.last += 1;
        let id = connections.last;
        connections.open.insert(id, Some(sender));
        let before_hello = BeforeHello { registry: self.clone(), address };
        Ok((Ticket { registry: self.clone(), id, address, order: Some(order) }, before_hello))
    }

    /// Returns the number of open connections.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }

    /// Returns the number of connections without an order to leave.
    pub(crate) fn staying(&self) -> usize {
        self.lock().open.values().flatten().count()
    }

    /// Orders one connection, chosen at random, to leave; `false` if all have the order.
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
        // A connection that ends at this moment does not need the order.
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

    /// Waits for the order to leave, which comes at most once.
    pub(crate) async fn order_to_leave(&mut self) -> Order {
        if let Some(order) = &mut self.order {
            let received = order.await;
            self.order = None;
            if let Ok(received) = received {
                return received;
            }
        }
        std::future::pending().await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut connections = self.registry.lock();
        connections.open.remove(&self.id);
        connections.leave(self.address, |count| count.open -= 1);
    }
}

impl Drop for BeforeHello {
    fn drop(&mut self) {
        self.registry.lock().leave(self.address, |count| count.before_hello -= 1);
    }
}

impl Connections {
    fn leave(&mut self, address: IpAddr, change: impl FnOnce(&mut Count)) {
        if let Entry::Occupied(mut entry) = self.addresses.entry(address) {
            change(entry.get_mut());
            if entry.get().open == 0 && entry.get().before_hello == 0 {
                entry.remove();
            }
        }
    }
}

/// Returns this server's share of the connections, between `least` and `most`. For each syncer, it
/// is 1 plus 120 % of the nodes divided by the number of other servers
/// (`typha/pkg/k8s/rebalance.go`). A node has one connection per syncer.
///
/// ```
/// # use tortie_fanout::server::fair_share;
/// assert_eq!(fair_share(1000, 1, 3, 400, 10_000), 601);
/// assert_eq!(fair_share(1000, 2, 3, 400, 10_000), 1202);
/// assert_eq!(fair_share(50, 1, 3, 400, 10_000), 400);
/// // No other server.
/// assert_eq!(fair_share(1000, 1, 1, 400, 10_000), 10_000);
/// ```
#[must_use]
pub fn fair_share(nodes: usize, syncers: usize, servers: usize, least: usize, most: usize) -> usize {
    match servers.saturating_sub(1) {
        0 => most,
        others => syncers.saturating_mul(1 + nodes.saturating_mul(120) / others / 100).max(least).min(most),
    }
}

#[cfg(test)]
mod tests;
