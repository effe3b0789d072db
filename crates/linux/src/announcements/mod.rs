//! Detection of virtual machines that announce themselves on this node at the end of a live
//! migration (`felix/dataplane/linux/live_migration.go`).
//!
//! Hypervisors then send reverse ARP requests, guests gratuitous ARP packets. One thread with two
//! sockets receives them on all interfaces, as long as a machine is expected on one of them.

mod listener;
mod packet;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use tortie_dataplane::AnnouncementWatch;

use listener::Listener;

type Report = dyn Fn(u64) + Send + Sync;

/// Listener for expected announcements.
pub struct Announcements {
    report: Arc<Report>,
    watches: BTreeSet<AnnouncementWatch>,
    listener: Option<Listener>,
}

impl fmt::Debug for Announcements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcements").field("watches", &self.watches).finish_non_exhaustive()
    }
}

impl Announcements {
    /// Creates it without listening yet. Another thread calls `report` with the number of each
    /// watch for which an announcement has come.
    pub fn new(report: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { report: Arc::new(report), watches: BTreeSet::new(), listener: None }
    }

    /// Expects announcements for these watches from now on. If listening fails, the error is
    /// logged, and the migrations proceed as if there were no announcements.
    pub fn expect(&mut self, watches: BTreeSet<AnnouncementWatch>) {
        if watches == self.watches {
            return;
        }
        if watches.is_empty() {
            self.listener = None;
        } else if !watches.is_subset(&self.watches) {
            // The previous listener ends when the new one listens, so that nothing is missed.
            // Packets that both receive count once.
            match Listener::start(watches.iter(), Arc::clone(&self.report)) {
                Ok(listener) => self.listener = Some(listener),
                Err(error) => {
                    let interfaces: Vec<&str> = watches.iter().map(|watch| watch.interface.as_str()).collect();
                    let interfaces = interfaces.join(" ");
                    tracing::warn!(%error, interfaces, "announcements of virtual machines are unavailable; routes follow at the end of migrations");
                }
            }
        }
        self.watches = watches;
    }
}

#[cfg(test)]
mod tests;
