//! Monitor of the network interfaces of this network namespace.
//!
//! [`Monitor`] is the state machine; [`spawn`] runs it on a thread that listens to the kernel:
//!
//! ```no_run
//! use std::sync::mpsc;
//! use tortie_linux::monitor::{self, MonitorConfig, MonitorEvent};
//! use tortie_model::with_causes;
//!
//! let (sender, events) = mpsc::sync_channel::<MonitorEvent>(100);
//! let monitor = monitor::spawn(MonitorConfig::default(), sender)?;
//! for event in events {
//!     match event {
//!         MonitorEvent::Link(event) => println!("{event:?}"),
//!         MonitorEvent::InSync => println!("these are all"),
//!         MonitorEvent::Announcement(_) | MonitorEvent::Ruleset(_) => {}
//!         MonitorEvent::Failed(error) => eprintln!("{}; trying again", with_causes(&error)),
//!     }
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

mod damping;
mod ruleset;
mod state;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use regex::Regex;
use tortie_dataplane::{LinkEvent, RulesetEvent};
use tortie_model::with_causes;

pub use damping::FLAP_DAMPING;
pub use ruleset::spawn_ruleset;
pub use state::Monitor;

use crate::Pulse;
use crate::netlink::{Netlink, NetlinkError, Subscription};

/// Maximum wait of the thread, and thus its maximum delay until it notices that it has to stop.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Pause after listening or listing failed.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Configuration of the monitor.
#[derive(Clone, Debug)]
pub struct MonitorConfig {
    /// Interfaces whose addresses are ignored, `InterfaceExclude`.
    pub excluded: Vec<Regex>,
    /// Interval between complete listings, in case a change was missed, `InterfaceRefreshInterval`;
    /// `None` for none; 90 s by default.
    pub resync_interval: Option<Duration>,
    /// Timeout for answers of the kernel, `NetlinkTimeoutSecs`; 10 s by default.
    pub netlink_timeout: Duration,
    /// Signs of life of the thread.
    pub pulse: Pulse,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            excluded: Vec::new(),
            resync_interval: Some(Duration::from_secs(90)),
            netlink_timeout: Duration::from_secs(10),
            pulse: Pulse::default(),
        }
    }
}

/// Report of the monitor.
#[derive(Debug)]
pub enum MonitorEvent {
    /// An interface changed.
    Link(LinkEvent),
    /// All existing interfaces have been reported. Sent after each restart of the monitor.
    InSync,
    /// A virtual machine has announced itself, with the number of the watch for it; sent by
    /// [`Announcements`](crate::announcements::Announcements).
    Announcement(u64),
    /// A process, maybe this one, has changed the watched nftables tables; sent by
    /// [`spawn_ruleset`].
    Ruleset(RulesetEvent),
    /// The monitor could not listen to the kernel or list the interfaces; it restarts soon.
    Failed(NetlinkError),
}

/// Running monitor. It stops when this or the receiver is dropped.
#[derive(Debug)]
pub struct MonitorThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MonitorThread {
    /// Reports whether the thread still runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for MonitorThread {
    fn drop(&mut self) {
        // The thread may block in `send` until the receiver is gone, so it is not waited for.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Starts a thread that watches the interfaces of the caller's network namespace. Its events are
/// converted to the receiver's type, so that it can share a channel with other senders.
///
/// # Errors
/// If the thread cannot be started.
pub fn spawn<E>(config: MonitorConfig, events: SyncSender<E>) -> io::Result<MonitorThread>
where
    E: From<MonitorEvent> + Send + 'static,
{
    let stop = Arc::new(AtomicBool::new(false));
    let watcher = Watcher { config, events, stop: Arc::clone(&stop), started: Instant::now() };
    let thread = thread::Builder::new().name("interfaces".to_owned()).spawn(move || watcher.run())?;
    Ok(MonitorThread { stop, thread: Some(thread) })
}

struct Watcher<E> {
    config: MonitorConfig,
    events: SyncSender<E>,
    stop: Arc<AtomicBool>,
    started: Instant,
}

/// Reason for the end of a watch.
enum WatchEnd {
    /// The monitor or its receiver was dropped.
    Stop,
    /// Changes may have been missed.
    Lost(NetlinkError),
}

impl From<NetlinkError> for WatchEnd {
    fn from(error: NetlinkError) -> Self {
        Self::Lost(error)
    }
}

impl<E: From<MonitorEvent>> Watcher<E> {
    fn run(self) {
        let mut monitor = Monitor::new(self.config.excluded.clone());
        // The known state survives a restart, so that only the changes in between are reported.
        while let Err(WatchEnd::Lost(error)) = self.watch(&mut monitor) {
            self.config.pulse.beat();
            if matches!(error, NetlinkError::Overflow) {
                tracing::info!("interfaces changed faster than they were read; listing all again");
                continue;
            }
            tracing::warn!(error = %with_causes(&error), "the monitor of interfaces has failed; trying again");
            if self.send(MonitorEvent::Failed(error)).is_err() {
                return;
            }
            thread::sleep(RETRY_DELAY);
        }
        if self.stop.load(Ordering::Relaxed) {
            self.config.pulse.rest();
        }
    }

    /// Listens until an error or the end. Never returns `Ok`.
    fn watch(&self, monitor: &mut Monitor) -> Result<std::convert::Infallible, WatchEnd> {
        // Listening begins before the listing, so that no change in between is missed.
        let mut subscription = Subscription::open()?;
        let mut netlink = Netlink::open(self.config.netlink_timeout)?;
        monitor.discard_held();
        self.resync(monitor, &mut netlink)?;
        self.send(MonitorEvent::InSync)?;
        let mut next_resync = self.config.resync_interval.map(|interval| self.now() + interval);
        loop {
            let deadline = [monitor.next_deadline(), next_resync].into_iter().flatten().min();
            let wait = deadline.map_or(LONGEST_WAIT, |deadline| deadline.saturating_sub(self.now()).min(LONGEST_WAIT));
            let notices = subscription.receive(wait)?;
            self.config.pulse.beat();
            let now = self.now();
            for notice in notices {
                monitor.on_notice(notice, now);
            }
            monitor.advance(now);
            let stale = monitor.take_stale();
            if !stale.is_empty() {
                for (index, addresses) in addresses_of(stale, &mut netlink)? {
                    monitor.on_addresses(index, addresses);
                }
            }
            self.report(monitor)?;
            if let Some(interval) = self.config.resync_interval
                && next_resync.is_some_and(|at| at <= now)
            {
                self.resync(monitor, &mut netlink)?;
                next_resync = Some(now + interval);
            }
        }
    }

    fn resync(&self, monitor: &mut Monitor, netlink: &mut Netlink) -> Result<(), WatchEnd> {
        let links = netlink.all_links()?;
        monitor.resync(links, netlink.local_addresses(None)?);
        self.report(monitor)
    }

    fn report(&self, monitor: &mut Monitor) -> Result<(), WatchEnd> {
        monitor.take_events().into_iter().try_for_each(|event| self.send(MonitorEvent::Link(event)))?;
        if self.stop.load(Ordering::Relaxed) { Err(WatchEnd::Stop) } else { Ok(()) }
    }

    fn send(&self, event: MonitorEvent) -> Result<(), WatchEnd> {
        // The queue is full while the main thread, which reports itself, is busy.
        self.config.pulse.rest();
        let sent = self.events.send(event.into());
        self.config.pulse.beat();
        sent.map_err(|_| WatchEnd::Stop)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Returns the addresses of these links. Each link takes a separate listing; for more than a few
/// links, all addresses are listed at once.
fn addresses_of(links: BTreeSet<u32>, netlink: &mut Netlink) -> Result<Vec<(u32, BTreeSet<IpAddr>)>, NetlinkError> {
    const FEW: usize = 8;
    let mut all = if links.len() > FEW { Some(netlink.local_addresses(None)?) } else { None };
    let mut of = |index| match &mut all {
        Some(all) => Ok(all.remove(&index).unwrap_or_default()),
        None => Ok(netlink.local_addresses(Some(index))?.remove(&index).unwrap_or_default()),
    };
    links.into_iter().map(|index| Ok((index, of(index)?))).collect()
}

#[cfg(test)]
mod tests;
