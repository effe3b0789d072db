//! Hearing virtual machines that announce themselves on this node at the end of a live migration
//! (`felix/dataplane/linux/live_migration.go`).
//!
//! Hypervisors send reverse ARP requests then, guests gratuitous ARP packets. One thread with two sockets hears them on all
//! interfaces, as long as there is one on which a machine is expected.

mod listener;
mod packet;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use tortie_dataplane::AnnouncementWatch;

use listener::Listener;

type Report = dyn Fn(u64) + Send + Sync;

/// Listens where announcements are expected.
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
    /// Listens to nothing yet. The number of each watch for which an announcement has come is reported, by another thread.
    pub fn new(report: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { report: Arc::new(report), watches: BTreeSet::new(), listener: None }
    }

    /// From now on announcements are expected here. If nobody can listen that is logged, and the migrations are as if
    /// nothing had been announced.
    pub fn expect(&mut self, watches: BTreeSet<AnnouncementWatch>) {
        if watches == self.watches {
            return;
        }
        if watches.is_empty() {
            self.listener = None;
        } else if !watches.is_subset(&self.watches) {
            // The old one goes when the new one listens, so that nothing is missed. What both hear counts once.
            match Listener::start(watches.iter(), Arc::clone(&self.report)) {
                Ok(listener) => self.listener = Some(listener),
                Err(error) => {
                    let interfaces: Vec<&str> = watches.iter().map(|watch| watch.interface.as_str()).collect();
                    let interfaces = interfaces.join(" ");
                    let what = "Cannot listen for announcements of virtual machines";
                    tracing::warn!(%error, interfaces, "{what}; their routes come when the migrations are over");
                }
            }
        }
        self.watches = watches;
    }
}

#[cfg(test)]
mod tests;
