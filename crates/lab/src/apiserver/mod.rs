//! A Kubernetes API server on loopback, in this process, with injectable faults.
//!
//! It implements the protocol that clients depend on, as HTTP/1.1, in clear text or over TLS: paged
//! lists, watches with bookmarks from any version that has not been compacted, discovery, and
//! single objects with conflicts. It has no schemas and no admission: it accepts every object that
//! has a name.
//!
//! ```
//! use serde_json::json;
//! use tortie_lab::apiserver::{ApiServer, Fault, On};
//!
//! let server = ApiServer::start()?;
//! server.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
//! assert_eq!(server.get("v1", "Namespace", "", "shop").unwrap()["metadata"]["resourceVersion"], "1");
//! // The next two watches of pods find that their version has expired.
//! server.fail(On::Watch, "pods", Fault::Gone, 2);
//! println!("KUBECONFIG={}", server.kubeconfig().display());
//! # Ok::<(), std::io::Error>(())
//! ```

mod discovery;
mod fault;
mod http;
mod selector;
mod serve;
mod store;
#[cfg(feature = "tls")]
mod tls;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use fault::PlannedFault;
pub use fault::{Fault, On};
use store::{ServedKind, Store};

/// State of a server that [`ApiServer::backup`] has saved.
#[derive(Clone, Debug)]
pub struct Backup(Store);

/// A Kubernetes API server. It stops when dropped.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    listener: TcpListener,
    /// Kubeconfig, token, and certificates if TLS is on.
    files: TempDir,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    connections: Mutex<BTreeMap<usize, TcpStream>>,
    /// Number of times that all connections were cut.
    cuts: AtomicU64,
    refuses: AtomicBool,
    ended: AtomicBool,
    accepted: AtomicUsize,
    /// The server holds back all bytes to clients.
    holds_output: AtomicBool,
    /// Number of watches that have been answered and have not ended.
    watches: AtomicUsize,
    requests: Mutex<BTreeMap<String, usize>>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<rustls::ServerConfig>>,
}

#[derive(Debug)]
struct State {
    store: Store,
    faults: Vec<PlannedFault>,
    /// Forbidden operations, as verb and plural.
    denied: Vec<(String, String)>,
    token: String,
    /// Interval between bookmarks of a watch.
    every: Duration,
}

/// Group, version, plural, kind and whether the kind is namespaced, of the kinds built into
/// Kubernetes.
const BUILT_IN: [(&str, &str, &str, &str, bool); 8] = [
    ("", "v1", "namespaces", "Namespace", false),
    ("", "v1", "serviceaccounts", "ServiceAccount", true),
    ("", "v1", "pods", "Pod", true),
    ("", "v1", "nodes", "Node", false),
    ("", "v1", "services", "Service", true),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", true),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", true),
    ("coordination.k8s.io", "v1", "leases", "Lease", true),
];

/// Plural, kind and whether the kind is namespaced, of Calico's kinds.
const CALICO: [(&str, &str, bool); 20] = [
    ("networkpolicies", "NetworkPolicy", true),
    ("globalnetworkpolicies", "GlobalNetworkPolicy", false),
    ("stagednetworkpolicies", "StagedNetworkPolicy", true),
    ("stagedglobalnetworkpolicies", "StagedGlobalNetworkPolicy", false),
    ("stagedkubernetesnetworkpolicies", "StagedKubernetesNetworkPolicy", true),
    ("tiers", "Tier", false),
    ("networksets", "NetworkSet", true),
    ("globalnetworksets", "GlobalNetworkSet", false),
    ("hostendpoints", "HostEndpoint", false),
    ("ippools", "IPPool", false),
    ("felixconfigurations", "FelixConfiguration", false),
    ("clusterinformations", "ClusterInformation", false),
    ("bgpconfigurations", "BGPConfiguration", false),
    ("bgppeers", "BGPPeer", false),
    ("ipamblocks", "IPAMBlock", false),
    ("ipamconfigs", "IPAMConfig", false),
    ("ipamhandles", "IPAMHandle", false),
    ("ipreservations", "IPReservation", false),
    ("blockaffinities", "BlockAffinity", false),
    ("kubecontrollersconfigurations", "KubeControllersConfiguration", false),
];

/// Version, plural and kind of `policy.networking.k8s.io`.
const ADMIN: [(&str, &str, &str); 3] = [
    ("v1alpha2", "clusternetworkpolicies", "ClusterNetworkPolicy"),
    ("v1alpha1", "adminnetworkpolicies", "AdminNetworkPolicy"),
    ("v1alpha1", "baselineadminnetworkpolicies", "BaselineAdminNetworkPolicy"),
];

impl ApiServer {
    /// Starts a server without TLS that serves the kinds built into Kubernetes.
    ///
    /// # Errors
    /// If no port can be bound, or no files can be written.
    pub fn start() -> io::Result<Self> {
        let files = tempfile::tempdir()?;
        Self::serve(files, "http", "", Shared::new)
    }

    /// Starts a server with TLS. It rejects clients without a certificate of its authority.
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    #[cfg(feature = "tls")]
    pub fn start_tls() -> io::Result<Self> {
        let files = tempfile::tempdir()?;
        let config = tls::prepare(files.path())?;
        let (dir, user) = (files.path().display().to_string(), tls::USER);
        let user = user.replace("DIR", &dir);
        Self::serve(files, "https", &user, || Shared { tls: Some(config), ..Shared::new() })
    }

    fn serve(files: TempDir, scheme: &str, user: &str, shared: impl FnOnce() -> Shared) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(shared());
        let dir = files.path().display();
        let authority =
            if user.is_empty() { String::new() } else { format!("\n    certificate-authority: {dir}/ca.pem") };
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters:\n- name: test\n  cluster:\n    server: {scheme}://{address}{authority}\n\
             contexts:\n- name: test\n  context: {{cluster: test, user: test}}\n\
             users:\n- name: test\n  user:\n    tokenFile: {dir}/token{user}\n"
        );
        std::fs::write(files.path().join("kubeconfig"), config)?;
        let server = Self { shared: Arc::clone(&shared), address, listener: listener.try_clone()?, files };
        server.rotate_token("first-token")?;
        for (group, version, plural, kind, namespaced) in BUILT_IN {
            server.add_kind(group, version, plural, kind, namespaced, true);
        }
        thread::spawn(move || accept(&shared, &listener));
        Ok(server)
    }

    /// Returns the path of a kubeconfig for this server.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.files.path().join("kubeconfig")
    }

    /// Returns the directory of the kubeconfig and of the files to which it refers.
    #[must_use]
    pub fn files(&self) -> &Path {
        self.files.path()
    }

    /// Returns the listening address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts only this token from now on, and writes it to the file that the kubeconfig names.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn rotate_token(&self, token: &str) -> io::Result<()> {
        std::fs::write(self.files.path().join("token"), token)?;
        self.shared.lock().token = token.into();
        Ok(())
    }

    /// Accepts from now on only a token other than the one in the file.
    pub fn expire_token(&self) {
        self.shared.lock().token = "unknown to every client".into();
    }

    /// Adds a kind, as a `CustomResourceDefinition` does.
    pub fn install(&self, group: &str, version: &str, plural: &str, kind: &str, namespaced: bool) {
        self.add_kind(group, version, plural, kind, namespaced, false);
    }

    fn add_kind(&self, group: &str, version: &str, plural: &str, kind: &str, namespaced: bool, built_in: bool) {
        let [group, version, plural, kind] = [group, version, plural, kind].map(str::to_owned);
        let kind = ServedKind { group, version, plural, kind, namespaced, built_in };
        self.shared.lock().store.kinds.push(kind);
    }

    /// Adds all of Calico's kinds, as `crd.projectcalico.org/v1` or `projectcalico.org/v3`.
    pub fn install_calico(&self, group: &str, version: &str) {
        for (plural, kind, namespaced) in CALICO {
            let (plural, kind) = match (group, plural) {
                ("projectcalico.org", "ipamconfigs") => ("ipamconfigurations", "IPAMConfiguration"),
                _ => (plural, kind),
            };
            self.install(group, version, plural, kind, namespaced);
        }
    }

    /// Adds the kinds of `policy.networking.k8s.io`.
    pub fn install_admin(&self) {
        for (version, plural, kind) in ADMIN {
            self.install("policy.networking.k8s.io", version, plural, kind, false);
        }
    }

    /// Removes a kind with its objects, without an event to its watches.
    pub fn uninstall(&self, group: &str, plural: &str) {
        let mut state = self.shared.lock();
        state.store.kinds.retain(|kind| kind.group != group || kind.plural != plural);
        state.store.remove_objects(group, plural);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Creates an object, or replaces it.
    ///
    /// # Panics
    /// If its kind is not installed or it has no name.
    pub fn apply(&self, object: Value) {
        let mut state = self.shared.lock();
        let store = &mut state.store;
        let Some(kind) = store.kind_of(&object) else { panic!("no such kind: {object}") };
        let namespace = namespace_of(&kind, &object);
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let before = store.get(&kind, &namespace, &name).map(|before| before["metadata"].clone());
        let written = if let Ok(before) = before {
            let mut object = object;
            for field in ["resourceVersion", "uid"] {
                object["metadata"][field] = before[field].clone();
            }
            store.replace(&kind, &namespace, &name, object)
        } else {
            store.create(&kind, &namespace, object)
        };
        if let Err(refusal) = written {
            panic!("{}", refusal.message);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Deletes an object.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn delete(&self, api_version: &str, kind: &str, namespace: &str, name: &str) {
        let mut state = self.shared.lock();
        let type_meta = serde_json::json!({"apiVersion": api_version, "kind": kind});
        let Some(kind) = state.store.kind_of(&type_meta) else { panic!("no such kind: {type_meta}") };
        if let Err(refusal) = state.store.delete(&kind, namespace, name, &Value::Null) {
            panic!("{}", refusal.message);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Returns the present state of an object.
    #[must_use]
    pub fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let state = self.shared.lock();
        let kind = state.store.kind_of(&serde_json::json!({"apiVersion": api_version, "kind": kind}))?;
        state.store.get(&kind, namespace, name).ok().cloned()
    }

    /// Makes the next `times` requests of this sort meet a fault; only those of this plural unless
    /// it is empty.
    pub fn fail(&self, on: On, plural: &str, fault: Fault, times: usize) {
        self.shared.lock().faults.push(PlannedFault { on, plural: plural.into(), fault, left: times });
    }

    /// Discards the faults that have not yet occurred.
    pub fn behave(&self) {
        self.shared.lock().faults.clear();
    }

    /// Forbids a verb on a kind, given as `PLURAL` or `PLURAL.GROUP`, or `get` of `readyz`, from
    /// now on: requests get 403, and access reviews of a plural report the denial.
    pub fn deny(&self, verb: &str, plural: &str) {
        self.shared.lock().denied.push((verb.to_owned(), plural.to_owned()));
    }

    /// Returns the number of faults still to come.
    #[must_use]
    pub fn faults_left(&self) -> usize {
        self.shared.lock().faults.iter().map(|fault| fault.left).sum()
    }

    /// Sets the interval between bookmarks of watches; one minute by default.
    pub fn bookmark_every(&self, interval: Duration) {
        self.shared.lock().every = interval;
    }

    /// Deletes the history: watches can no longer begin at earlier versions, and lists cannot be
    /// continued.
    pub fn compact(&self) {
        self.shared.lock().store.compact();
        self.shared.changed.notify_all();
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.shared.cuts.fetch_add(1, Ordering::SeqCst);
        let connections = std::mem::take(&mut *self.shared.connections());
        for connection in connections.values() {
            // It may have ended by itself.
            let _ = connection.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }

    /// Cuts all connections and closes new ones immediately, until [`ApiServer::heal`].
    pub fn partition(&self) {
        self.shared.refuses.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Holds back all bytes to clients until [`ApiServer::heal`], without closing connections or
    /// refusing new ones.
    pub fn hold_output(&self) {
        self.shared.holds_output.store(true, Ordering::SeqCst);
    }

    /// Accepts connections again, and sends the bytes that were held back.
    pub fn heal(&self) {
        self.shared.refuses.store(false, Ordering::SeqCst);
        self.shared.holds_output.store(false, Ordering::SeqCst);
    }

    /// Returns the number of open watches.
    #[must_use]
    pub fn watches(&self) -> usize {
        self.shared.watches.load(Ordering::SeqCst)
    }

    /// Restarts the server, which keeps only its objects: all connections are cut, and no earlier
    /// version can be watched from.
    pub fn restart(&self) {
        self.partition();
        self.shared.lock().store.version += 1;
        self.compact();
        self.heal();
    }

    /// Returns a copy of all objects and of the current version, for a later
    /// [`ApiServer::restore`].
    #[must_use]
    pub fn backup(&self) -> Backup {
        Backup(self.shared.lock().store.clone())
    }

    /// Restarts the server with the objects and the version of a backup, as when its etcd is
    /// restored.
    pub fn restore(&self, backup: Backup) {
        self.partition();
        self.shared.lock().store = backup.0;
        self.compact();
        self.heal();
    }

    /// Returns the number of requests with this method and path, without query. The method of
    /// watches is `WATCH`.
    #[must_use]
    pub fn requests(&self, request: &str) -> usize {
        let requests = self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.get(request).copied().unwrap_or_default()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.partition();
        // Unblocks the accepting thread; if this fails, the thread stays blocked.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

fn namespace_of(kind: &ServedKind, object: &Value) -> String {
    if !kind.namespaced {
        return String::new();
    }
    object["metadata"]["namespace"].as_str().filter(|namespace| !namespace.is_empty()).unwrap_or("default").to_owned()
}

impl State {
    fn is_denied(&self, verb: &str, plural: &str) -> bool {
        self.denied.iter().any(|denied| *denied == (verb.to_owned(), plural.to_owned()))
    }
}

impl Shared {
    fn new() -> Self {
        let state = State {
            store: Store::default(),
            faults: Vec::new(),
            denied: Vec::new(),
            token: String::new(),
            every: Duration::from_secs(60),
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            connections: Mutex::default(),
            cuts: AtomicU64::new(0),
            refuses: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
            holds_output: AtomicBool::new(false),
            watches: AtomicUsize::new(0),
            requests: Mutex::default(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> MutexGuard<'_, BTreeMap<usize, TcpStream>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admits(&self, token: Option<&str>) -> bool {
        token == Some(&self.lock().token)
    }

    fn count(&self, request: &http::Request) {
        let method = if matches!(request.query("watch"), "true" | "1") { "WATCH" } else { &request.method };
        let request = format!("{method} /{}", request.path.join("/"));
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(request).or_default() += 1;
    }

    fn cut(&self) -> u64 {
        self.cuts.load(Ordering::SeqCst)
    }

    fn was_cut(&self, since: u64) -> bool {
        self.cut() != since || self.ended.load(Ordering::SeqCst)
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for stream in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        if shared.refuses.load(Ordering::SeqCst) {
            continue;
        }
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let Ok(handle) = stream.try_clone() else { continue };
        shared.connections().insert(number, handle);
        if shared.refuses.load(Ordering::SeqCst) {
            // The fault was set between the check above and the insertion.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            // Clients that disconnect or are cut off end with an error.
            let gated = GatedStream { stream, shared: Arc::clone(&shared) };
            let _ = serve::connection(&shared, shared.wrapped(gated));
            if let Some(stream) = shared.connections().remove(&number) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }
}

/// A connection that holds back all output while the server is silent.
struct GatedStream {
    stream: TcpStream,
    shared: Arc<Shared>,
}

impl Read for GatedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl Write for GatedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        while self.shared.holds_output.load(Ordering::SeqCst) && !self.shared.ended.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(2));
        }
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Shared {
    fn wrapped(&self, stream: GatedStream) -> Box<dyn serve::Stream> {
        // Small events must be sent without delay.
        let _ = stream.stream.set_nodelay(true);
        #[cfg(feature = "tls")]
        if let Some(config) = &self.tls {
            return tls::accept(config, stream);
        }
        Box::new(stream)
    }
}
