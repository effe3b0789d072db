//! Keeps `WireGuard` from cutting a node off from the servers that send it the keys of other nodes
//! (`felix/wireguard/bootstrap.go`).
//!
//! With `WireguardHostEncryptionEnabled`, nodes encrypt the traffic between them. A node gets no
//! answer from a server in two cases: its device has lost the published key, as after a reboot, or
//! its device does not know the key of the server's node. It then never receives the update that
//! would correct this. So the datastore is read directly before each connection. Device and
//! published key are removed if they do not agree, and servers whose answers would be dropped are
//! left out. [`decision`] decides; this module carries out its steps, with as many attempts as
//! Felix and a time limit.

mod decision;
mod published;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tortie_dataplane::{DeviceChange, DeviceKind, KernelError, Links, WireguardKey};
use tortie_datastore::chance;
use tortie_datastore::store::StoreError;
use tortie_fanout::{DiscoveryError, ServerDiscovery};
use tortie_model::{Family, Hostname};

use decision::{DeviceKeys, Facts, Reason, Step, Unreadable};
#[cfg(feature = "kubernetes")]
pub(crate) use published::KeysInAnnotations;
#[cfg(feature = "etcd")]
pub(crate) use published::KeysInStatus;
pub(crate) use published::PublishedKeys;
use tortie_cli::servers::{Candidate, FindServers};
use tortie_cli::{Cause, with_causes};

use tortie_config::{Config, Sources, settings};
use tortie_linux::stop::Stop;

/// Maximum number of attempts.
const TRIES: u32 = 5;
/// Maximum number of attempts to read the key of another node. Without the key, the server there
/// counts as reachable.
const QUICK_TRIES: u32 = 2;
/// The pause after the first failure; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Time after the first attempt for a connection after which no further attempt begins.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time without any server after which encryption is given up.
const CUT_OFF: Duration = Duration::from_secs(30);

/// Access to the kernel, the engine and the clock.
pub(crate) trait Environment: Send + Sync {
    /// Runs a task on the kernel's devices; `timeout` limits the wait for each answer.
    fn with_kernel(&self, timeout: Duration, task: &mut dyn FnMut(&mut dyn Links));

    /// Makes the engine release its state in the kernel until it has been sent everything again.
    /// Returns whether nothing programs this node any more.
    fn release(&self) -> bool;

    fn now(&self) -> Instant;
}

/// Finds servers, and ensures that their answers can be received.
pub(crate) struct Bootstrap {
    node: Hostname,
    /// Parameters that the node itself sets.
    local: Sources,
    finder: Box<dyn FindServers>,
    published: Box<dyn PublishedKeys>,
    environment: Box<dyn Environment>,
    stop: Stop,
    state: Mutex<State>,
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bootstrap").field("finder", &self.finder).finish_non_exhaustive()
    }
}

/// State that is kept from one connection to the next.
#[derive(Debug, Default)]
struct State {
    /// Whether a server has been connected to since the engine last released the kernel.
    has_connected: bool,
    /// Time since which no server has been connected.
    without_server: Option<Instant>,
    parameters: Option<Parameters>,
    /// Reasons that have been logged already.
    last_words: BTreeMap<Family, Reason>,
}

#[derive(Clone, Debug)]
struct Parameters {
    config: Config,
    /// Whether the datastore's part is known.
    is_whole: bool,
}

impl Bootstrap {
    pub(crate) fn new(
        node: Hostname,
        local: Sources,
        finder: Box<dyn FindServers>,
        published: Box<dyn PublishedKeys>,
        environment: Box<dyn Environment>,
        stop: Stop,
    ) -> Self {
        Self { node, local, finder, published, environment, stop, state: Mutex::default() }
    }

    fn with_state<T>(&self, task: impl FnOnce(&mut State) -> T) -> T {
        task(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the candidates that can be connected to, after removal of obstacles.
    fn approve(&self, candidates: Vec<Candidate>) -> Vec<String> {
        let now = self.environment.now();
        let (is_start, is_cut_off, known) = self.with_state(|state| {
            let since = *state.without_server.get_or_insert(now);
            let is_cut_off = now.duration_since(since) > CUT_OFF;
            if is_cut_off {
                state.without_server = Some(now);
            }
            (!state.has_connected, is_cut_off, state.parameters.clone())
        });
        let attempts = Attempts { begin: now, bootstrap: self };
        let parameters = match known {
            Some(parameters) if !is_start => parameters,
            _ => self.parameters(&attempts),
        };
        self.with_state(|state| state.parameters = Some(parameters.clone()));
        let (mut of_v4, mut of_v6, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for candidate in candidates {
            match address(&candidate.address) {
                Some(IpAddr::V4(_)) => of_v4.push(candidate),
                Some(IpAddr::V6(_)) => of_v6.push(candidate),
                // The address and the node of a host name are unknown.
                None => others.push(candidate),
            }
        }
        let mut approved = Vec::new();
        for (family, candidates) in [(Family::V4, of_v4), (Family::V6, of_v6)] {
            let facts = self.facts(family, &parameters, is_start, is_cut_off, candidates);
            approved.extend(self.settle(family, facts, &parameters.config, &attempts));
        }
        approved.extend(others);
        approved.into_iter().map(|candidate| candidate.address).collect()
    }

    fn facts(
        &self,
        family: Family,
        Parameters { config, is_whole }: &Parameters,
        is_start: bool,
        is_cut_off: bool,
        candidates: Vec<Candidate>,
    ) -> Facts {
        let is_enabled = match family {
            Family::V4 => config.wireguard_enabled,
            Family::V6 => config.wireguard_enabled_v6,
        };
        Facts {
            node: self.node.to_string(),
            is_enabled: (is_enabled || *is_whole).then_some(is_enabled),
            encrypts_hosts: config.wireguard_host_encryption_enabled,
            is_start,
            is_cut_off,
            candidates,
            device: None,
            own_key: None,
            node_keys: BTreeMap::new(),
        }
    }

    /// Gathers the missing facts, and carries out the resulting step.
    fn settle(&self, family: Family, mut facts: Facts, config: &Config, attempts: &Attempts<'_>) -> Vec<Candidate> {
        loop {
            match facts.next() {
                Step::ReadDevice => facts.device = Some(self.device(family, config, attempts)),
                Step::ReadOwnKey => facts.own_key = Some(attempts.key(self.node.as_str(), family, TRIES)),
                Step::ReadKeysOf(nodes) => {
                    for node in nodes {
                        let key = attempts.key(&node, family, QUICK_TRIES);
                        facts.node_keys.insert(node, key);
                    }
                }
                Step::Connect(candidates) => {
                    let all = facts.candidates.len();
                    if candidates.len() < all {
                        let servers = candidates.len();
                        tracing::warn!(%family, servers, all, "not connecting to servers on nodes without a known WireGuard key");
                    }
                    self.with_state(|state| state.last_words.remove(&family));
                    return candidates;
                }
                Step::Remove(reason) => {
                    self.remove(family, reason, config, attempts);
                    return facts.candidates;
                }
            }
        }
    }

    fn device(&self, family: Family, config: &Config, attempts: &Attempts<'_>) -> DeviceKeys {
        let name = device_name(family, config);
        let keys = attempts.retry_until_started(TRIES, || {
            let mut keys = Ok(DeviceKeys::default());
            self.environment.with_kernel(config.netlink_timeout, &mut |kernel| keys = read_device(kernel, &name));
            keys
        });
        keys.unwrap_or_else(|error| {
            tracing::warn!(
                error = with_causes(&error),
                device = name,
                "a WireGuard device cannot be read; it counts as absent"
            );
            DeviceKeys::default()
        })
    }

    /// Ends encryption to and from this node.
    fn remove(&self, family: Family, reason: Reason, config: &Config, attempts: &Attempts<'_>) {
        let name = device_name(family, config);
        let removed = self.remove_device(&name, config.netlink_timeout, attempts);
        let unpublished = attempts.retry_until_started(TRIES, || {
            let is_published = !self.published.key(self.node.as_str(), family)?.is_empty();
            if is_published {
                self.published.remove_key(&self.node, family)?;
            }
            Ok::<bool, StoreError>(is_published)
        });
        let is_news = self.with_state(|state| state.last_words.insert(family, reason) != Some(reason));
        match (removed, unpublished) {
            (Ok(false), Ok(false)) => tracing::debug!(%family, %reason, "no WireGuard device or key to remove"),
            (Ok(device), Ok(key)) => {
                tracing::warn!(%family, %reason, device, key, "removed WireGuard's device and published key, so that servers can be reached");
            }
            (device, key) => {
                let errors =
                    [device.err().map(|error| with_causes(&error)), key.err().map(|error| with_causes(&error))];
                let error = errors.into_iter().flatten().collect::<Vec<_>>().join("; ");
                if is_news {
                    tracing::warn!(%family, %reason, error, "WireGuard's device or published key cannot be removed; servers may be unreachable");
                }
            }
        }
    }

    /// Removes a device, if it exists and is a WireGuard device, after the engine has released it.
    /// Returns whether it existed.
    fn remove_device(&self, name: &str, timeout: Duration, attempts: &Attempts<'_>) -> Result<bool, KernelError> {
        let found = attempts.retry_until_started(TRIES, || {
            let mut found = Ok(None);
            self.environment.with_kernel(timeout, &mut |kernel| found = find_device(kernel, name));
            found
        });
        let Some(index) = found? else { return Ok(false) };
        if !self.environment.release() {
            return Err(KernelError::Failed("the device is in use".into()));
        }
        self.with_state(|state| state.has_connected = false);
        attempts.retry_until_started(TRIES, || {
            let mut result = Ok(());
            let delete = DeviceChange::Delete(index);
            self.environment.with_kernel(timeout, &mut |kernel| result = kernel.change_device(&delete));
            match result {
                Ok(()) => Ok(true),
                Err(KernelError::NotFound) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    /// Returns the parameters of this node, as far as they can be read.
    fn parameters(&self, attempts: &Attempts<'_>) -> Parameters {
        let local = self.local.resolve().map(|resolved| resolved.config).unwrap_or_default();
        let parameters =
            attempts.retry_until_started(TRIES, || self.published.parameters(&self.node, &settings::manifests(&local)));
        let resolved = parameters.map_err(Cause::from).and_then(|update| {
            let mut sources = self.local.clone();
            sources.set_datastore(&update);
            Ok(sources.resolve()?)
        });
        match resolved {
            Ok(resolved) => Parameters { config: resolved.config, is_whole: true },
            Err(error) => {
                let was_known = self.with_state(|state| state.parameters.as_ref().is_some_and(|known| !known.is_whole));
                if !was_known {
                    tracing::warn!(
                        error = with_causes(&*error),
                        "the parameters in the datastore cannot be read before a server is connected to; only WireGuard parameters of the node itself apply"
                    );
                }
                Parameters { config: local, is_whole: false }
            }
        }
    }
}

impl ServerDiscovery for Bootstrap {
    fn servers(&self) -> Result<Vec<String>, DiscoveryError> {
        self.finder.find().map(|candidates| self.approve(candidates))
    }

    fn connected(&self) {
        self.with_state(|state| {
            state.has_connected = true;
            state.without_server = None;
        });
    }
}

/// Attempts for one connection.
struct Attempts<'b> {
    begin: Instant,
    bootstrap: &'b Bootstrap,
}

impl Attempts<'_> {
    fn key(&self, node: &str, family: Family, tries: u32) -> Result<String, Unreadable> {
        self.retry_until_started(tries, || self.bootstrap.published.key(node, family)).map_err(|error| {
            tracing::warn!(error = with_causes(&error), node, "the published WireGuard key of a node cannot be read");
            Unreadable
        })
    }

    /// Retries an operation after errors that are not final, within the limits of attempts and
    /// time.
    fn retry_until_started<T, E: Failure>(
        &self,
        tries: u32,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut pause = FIRST_PAUSE;
        for _ in 1..tries {
            match attempt() {
                Err(error) if !error.is_final() => {}
                result => return result,
            }
            let is_late = self.bootstrap.environment.now().duration_since(self.begin) > PATIENCE;
            if is_late || self.bootstrap.stop.wait(pause.mul_f64(1.0 + chance() / 5.0)) {
                break;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        attempt()
    }
}

/// An error that may be retried.
trait Failure: fmt::Display {
    /// Reports whether a retry is useless.
    fn is_final(&self) -> bool;
}

impl Failure for StoreError {
    fn is_final(&self) -> bool {
        !matches!(self, Self::Unavailable(_) | Self::Conflict { .. })
    }
}

impl Failure for KernelError {
    fn is_final(&self) -> bool {
        matches!(self, Self::Unsupported)
    }
}

fn device_name(family: Family, config: &Config) -> String {
    let name = match family {
        Family::V4 => config.wireguard_interface_name,
        Family::V6 => config.wireguard_interface_name_v6,
    };
    name.to_string()
}

/// Returns the index of the device of this name, if it is a `WireGuard` device.
fn find_device(kernel: &mut dyn Links, name: &str) -> Result<Option<u32>, KernelError> {
    let device = kernel.device(name)?;
    let is_wireguard = |kind: &DeviceKind| matches!(kind, DeviceKind::Other(kind) if kind == "wireguard");
    Ok(device.filter(|device| is_wireguard(&device.kind)).map(|device| device.index))
}

fn read_device(kernel: &mut dyn Links, name: &str) -> Result<DeviceKeys, KernelError> {
    let Some(index) = find_device(kernel, name)? else { return Ok(DeviceKeys::default()) };
    let device = match kernel.wireguard(index) {
        Err(KernelError::NotFound) => return Ok(DeviceKeys::default()),
        device => device?,
    };
    let text = |key: &WireguardKey| Some(key).filter(|key| key.0 != [0; 32]).map(ToString::to_string);
    Ok(DeviceKeys {
        own: device.public_key.as_ref().and_then(text),
        peers: device.peers.keys().filter_map(text).collect(),
    })
}

/// Returns the address of a server; `None` for a host name.
fn address(server: &str) -> Option<IpAddr> {
    let (host, _) = server.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.parse().ok()
}

// Keys are kept in memory as they are in etcd.
#[cfg(feature = "etcd")]
#[cfg(test)]
mod tests;
