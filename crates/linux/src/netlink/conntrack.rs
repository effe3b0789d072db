//! Conntrack entries, over ctnetlink (`linux/netfilter/nfnetlink_conntrack.h`).

mod connection;
mod events;
#[cfg(any(test, feature = "fake"))]
mod insert;
mod message;

use std::time::Duration;

use tortie_model::Family;

use super::error::NetlinkError;
use super::socket::Socket;
use super::wire;
use message::{
    IPCTNL_MSG_CT_DELETE, IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_NEW, LISTING, delete_payload, header, parse,
    parse_with_traffic,
};

pub use connection::{Connection, Count, Flow, Traffic, Tuple};
pub use events::{ConnectionEvent, ConnectionEvents};
pub(super) use message::parse_original;

/// Connection to the kernel's connection tracking.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// Opens a connection; every answer must come within `timeout`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open(timeout: Duration) -> Result<Self, NetlinkError> {
        Socket::open_netfilter(timeout).map(|socket| Self { socket })
    }

    /// Returns the tracked connections of both families for which `keep` is true; it is called for
    /// each as it arrives.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn connections(&mut self, keep: impl Fn(&Connection) -> bool) -> Result<Vec<Connection>, NetlinkError> {
        self.socket
            .dump_raw(IPCTNL_MSG_CT_GET, &header(0), LISTING, |kind, payload| Ok(parse(kind, payload)?.filter(&keep)))
    }

    /// Passes the tracked connections of a family to `each` as they arrive, until it fails. Keeps
    /// none. After an error, answers to this call may still arrive: drop the connection then.
    ///
    /// # Errors
    /// If they cannot be read, and the error of `each`; some may have been passed by then.
    pub(crate) fn visit<E: From<NetlinkError>>(
        &mut self,
        family: Family,
        mut each: impl FnMut(Connection) -> Result<(), E>,
    ) -> Result<(), E> {
        let header = header(wire::family_number(family));
        self.socket.visit_raw(IPCTNL_MSG_CT_GET, &header, LISTING, |kind, payload| {
            parse(kind, payload)?.map_or(Ok(()), &mut each)
        })
    }

    /// Passes the tracked connections of both families to `each` as they arrive, with their
    /// counters if the kernel counts (`net.netfilter.nf_conntrack_acct`). Keeps none.
    ///
    /// A connection that begins or ends meanwhile may be missing. While the kernel resizes its
    /// table, a connection may occur twice.
    ///
    /// # Errors
    /// If they cannot be read; some may have been passed by then.
    pub fn traffic(&mut self, mut each: impl FnMut(&Connection, Option<Traffic>)) -> Result<(), NetlinkError> {
        self.socket.visit_raw::<NetlinkError>(IPCTNL_MSG_CT_GET, &header(0), LISTING, |kind, payload| {
            if kind == IPCTNL_MSG_CT_NEW
                && let Some((connection, traffic)) = parse_with_traffic(payload)?
            {
                each(&connection, traffic);
            }
            Ok(())
        })
    }

    /// Deletes conntrack entries, each only if it is still the same connection; reports for each
    /// whether it existed.
    ///
    /// # Errors
    /// If some outcomes are unknown.
    pub fn delete(&mut self, connections: &[Connection]) -> Result<Vec<Result<bool, NetlinkError>>, NetlinkError> {
        let mut outcomes = self.delete_once(connections)?;
        // Where only replies have a zone, the kernel finds the entry by its original direction
        // without one.
        let missed = connections.iter().zip(&mut outcomes);
        let (unzoned, missed): (Vec<Connection>, Vec<_>) = missed
            .filter(|(connection, outcome)| connection.zone != 0 && matches!(outcome, Ok(false)))
            .map(|(connection, outcome)| (Connection { zone: 0, ..*connection }, outcome))
            .unzip();
        for (outcome, again) in missed.into_iter().zip(self.delete_once(&unzoned)?) {
            *outcome = again;
        }
        Ok(outcomes)
    }

    fn delete_once(&mut self, connections: &[Connection]) -> Result<Vec<Result<bool, NetlinkError>>, NetlinkError> {
        let payloads: Vec<Vec<u8>> = connections.iter().map(delete_payload).collect();
        let outcomes = self.socket.batch_raw(IPCTNL_MSG_CT_DELETE, 0, &payloads, "tracked connection")?;
        let was_there = |outcome: Result<(), NetlinkError>| match outcome {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        };
        Ok(outcomes.into_iter().map(was_there).collect())
    }
}

#[cfg(test)]
pub(crate) mod tests;
