//! Clients made from the protocol's file, on real sockets.

use std::fs;
use std::future::Future;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tortie_model::RuleAction;
use tortie_model::desired::DesiredUpdate as U;
use tortie_protocol::felix::to_dataplane::Payload;
use tortie_protocol::felix::{DataplaneStats, SyncRequest, ToDataplane};

use super::authority::tests::recorded;
use super::fixture::{delta, endpoint, namespace, pod, policy, policy_id, profile, service_account, set};
use super::generated::policy_sync_client::PolicySyncClient;
use super::{Feed, PolicySync};
use crate::engine::Observer;
use tortie_telemetry::health::Health;

const PATIENCE: Duration = Duration::from_secs(60);

/// A node with the folders that a CSI driver makes.
struct Node {
    folder: TempDir,
    runtime: Arc<Runtime>,
    policy_sync: PolicySync,
    feed: Feed,
}

impl Node {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        for part in ["mount", "creds"] {
            fs::create_dir(folder.path().join(part)).unwrap();
        }
        let mut policy_sync = PolicySync::new(Health::default());
        let feed = policy_sync.begin(folder.path().to_str().unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { folder, runtime: runtime.into(), policy_sync, feed }
    }

    fn with_shop() -> Self {
        let mut node = Self::new();
        shop().iter().for_each(|update| node.feed.on_update(update));
        node.volume("v-web", "web");
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// A pod has a volume.
    fn volume(&self, volume: &str, pod: &str) {
        fs::create_dir_all(self.path("mount").join(volume)).unwrap();
        self.credentials(volume, pod);
    }

    fn credentials(&self, volume: &str, pod: &str) {
        let text = format!(r#"{{"UID":"1","Workload":"{pod}","Namespace":"shop","ServiceAccount":"default"}}"#);
        let new = self.path("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();
        fs::rename(new, self.path("creds").join(format!("{volume}.json"))).unwrap();
    }

    fn socket(&self, volume: &str) -> PathBuf {
        self.path("mount").join(volume).join("socket")
    }

    fn send(&mut self, updates: &[U]) {
        updates.iter().for_each(|update| self.feed.on_update(update));
    }

    fn within<T>(&self, future: impl Future<Output = T>) -> T {
        within(&self.runtime, future)
    }

    /// A connection to the socket of a volume, as soon as there is one.
    fn connect(&self, volume: &str) -> Channel {
        let path = self.socket(volume);
        let connect = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://policy-sync");
        self.within(async {
            loop {
                match endpoint.connect_with_connector(connect.clone()).await {
                    Ok(channel) => break channel,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        })
    }

    fn follow(&self, volume: &str) -> Follower {
        Follower::new(Arc::clone(&self.runtime), PolicySyncClient::new(self.connect(volume)))
    }
}

fn within<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await }).expect("in time")
}

fn until(condition: &str, done: impl Fn() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < patience, "waiting until {condition}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A call of `Sync`.
struct Follower {
    runtime: Arc<Runtime>,
    client: PolicySyncClient<Channel>,
    stream: Streaming<ToDataplane>,
}

impl Follower {
    fn new(runtime: Arc<Runtime>, mut client: PolicySyncClient<Channel>) -> Self {
        let stream = within(&runtime, client.sync(SyncRequest {})).unwrap().into_inner();
        Self { runtime, client, stream }
    }

    fn message(&mut self) -> Result<Option<ToDataplane>, Status> {
        within(&self.runtime, self.stream.message())
    }

    fn next(&mut self) -> String {
        let message = self.message().unwrap().expect("a message");
        assert_eq!(message.sequence_number, 0);
        shown(&message.payload.unwrap())
    }

    /// Messages up to this one.
    fn up_to(&mut self, last: &str) -> Vec<String> {
        let mut all = Vec::new();
        while all.last().is_none_or(|message| message != last) {
            all.push(self.next());
        }
        all
    }

    fn assert_ended(&mut self) {
        assert_eq!(self.message().unwrap(), None);
    }
}

fn shown(payload: &Payload) -> String {
    match payload {
        Payload::IpsetUpdate(set) => format!("set {} {}", set.id, set.members.join(" ")),
        Payload::IpsetDeltaUpdate(delta) => {
            format!("delta {} +{} -{}", delta.id, delta.added_members.join(" "), delta.removed_members.join(" "))
        }
        Payload::IpsetRemove(set) => format!("no set {}", set.id),
        Payload::ActivePolicyUpdate(policy) => {
            let actions: Vec<_> = policy.policy.iter().flat_map(|policy| &policy.inbound_rules).collect();
            let actions: Vec<_> =
                actions.iter().map(|rule| format!("{} {}", rule.action, rule.src_ip_set_ids.join(" "))).collect();
            format!("policy {} {}", policy.id.as_ref().unwrap().name, actions.join(", "))
        }
        Payload::ActivePolicyRemove(policy) => format!("no policy {}", policy.id.as_ref().unwrap().name),
        Payload::ActiveProfileUpdate(profile) => format!("profile {}", profile.id.as_ref().unwrap().name),
        Payload::ActiveProfileRemove(profile) => format!("no profile {}", profile.id.as_ref().unwrap().name),
        Payload::WorkloadEndpointUpdate(endpoint) => {
            let id = endpoint.id.as_ref().unwrap();
            format!("endpoint {} {} {}", id.orchestrator_id, id.workload_id, id.endpoint_id)
        }
        Payload::WorkloadEndpointRemove(endpoint) => {
            format!("no endpoint {}", endpoint.id.as_ref().unwrap().workload_id)
        }
        Payload::ServiceAccountUpdate(account) => format!("account {}", account.id.as_ref().unwrap().name),
        Payload::NamespaceUpdate(namespace) => format!("namespace {}", namespace.id.as_ref().unwrap().name),
        Payload::InSync(_) => "in sync".to_owned(),
        other => format!("{other:?}"),
    }
}

fn shop() -> Vec<U> {
    vec![
        set("a", [1, 2]),
        set("b", [9]),
        policy("p", &["a"], RuleAction::Allow),
        policy("q", &["b"], RuleAction::Deny),
        profile("open", &[]),
        endpoint("web", &["p"], &["open"]),
        endpoint("db", &["q"], &["open"]),
        service_account("default", "x"),
        namespace("shop", "x"),
        U::InSync,
    ]
}

const OF_WEB: [&str; 7] = [
    "set a 10.0.0.1/32 10.0.0.2/32",
    "policy p allow a",
    "profile open",
    "endpoint k8s shop/web eth0",
    "account default",
    "namespace shop",
    "in sync",
];

#[test]
fn a_workload_follows_its_policy() {
    let mut node = Node::with_shop();
    let mut web = node.follow("v-web");
    assert_eq!(web.up_to("in sync"), OF_WEB);
    node.send(&[delta("a", [3], [1])]);
    assert_eq!(web.next(), "delta a +10.0.0.3/32 -10.0.0.1/32");
    node.send(&[delta("b", [3], []), policy("q", &["b"], RuleAction::Allow), policy("p", &["a"], RuleAction::Deny)]);
    assert_eq!(web.next(), "policy p deny a");
    node.send(&[set("c", [5]), policy("r", &["c"], RuleAction::Allow), endpoint("web", &["r"], &["open"])]);
    node.send(&[U::PolicyRemove(policy_id("p")), U::IpSetRemove("a".into())]);
    let expected = ["set c 10.0.0.5/32", "policy r allow c", "endpoint k8s shop/web eth0", "no policy p", "no set a"];
    assert_eq!(web.up_to("no set a"), expected);
    // It leaves and calls again.
    drop(web);
    let mut again = node.follow("v-web");
    assert_eq!(again.up_to("in sync")[..2], ["set c 10.0.0.5/32", "policy r allow c"]);
}

#[test]
fn a_client_that_names_the_path_of_the_socket_as_its_authority_is_served() {
    let node = Node::with_shop();
    drop(node.connect("v-web"));
    let update = node.within(async {
        let mut connection = UnixStream::connect(node.socket("v-web")).await.unwrap();
        connection.write_all(&recorded()).await.unwrap();
        loop {
            let mut head = [0; 9];
            connection.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            connection.read_exact(&mut payload).await.unwrap();
            match (head[3], head[8]) {
                (3, 1) => panic!("the call is refused: error {payload:?}"),
                (0, 1) => break payload,
                _ => {}
            }
        }
    });
    assert!(String::from_utf8_lossy(&update).contains("10.0.0.1/32"), "{update:?}");
}

#[test]
fn early_clients_receive_updates_as_they_arrive() {
    let mut node = Node::new();
    node.volume("v-web", "web");
    let mut web = node.follow("v-web");
    node.send(&[namespace("shop", "x")]);
    assert_eq!(web.next(), "namespace shop");
    node.send(&shop());
    let received = web.up_to("in sync");
    assert!(OF_WEB[..5].iter().all(|message| received.iter().any(|one| one == message)), "{received:?}");
}

#[test]
fn each_workload_has_its_own_socket_and_the_last_call_counts() {
    let mut node = Node::with_shop();
    node.volume("v-db", "db");
    let mut db = node.follow("v-db");
    assert_eq!(db.up_to("in sync")[..2], ["set b 10.0.0.9/32", "policy q deny b"]);
    let mut first = node.follow("v-web");
    assert_eq!(first.up_to("in sync"), OF_WEB);
    let mut second = node.follow("v-web");
    assert_eq!(second.up_to("in sync"), OF_WEB);
    first.assert_ended();
    // On the same connection, too.
    let mut third = Follower::new(Arc::clone(&first.runtime), first.client.clone());
    assert_eq!(third.up_to("in sync"), OF_WEB);
    second.assert_ended();
    drop(first);
    node.send(&[delta("a", [7], [])]);
    assert_eq!(third.next(), "delta a +10.0.0.7/32 -");
    node.send(&[delta("b", [8], [])]);
    assert_eq!(db.next(), "delta b +10.0.0.8/32 -");
}

#[test]
fn an_endpoint_that_goes_ends_its_call() {
    let mut node = Node::with_shop();
    let mut web = node.follow("v-web");
    web.up_to("in sync");
    node.send(&[U::WorkloadEndpointRemove(pod("web"))]);
    assert_eq!(web.next(), "no endpoint shop/web");
    web.assert_ended();
    let mut again = node.follow("v-web");
    assert_eq!(again.up_to("in sync"), ["account default", "namespace shop", "in sync"]);
    node.send(&[endpoint("web", &[], &["open"])]);
    assert_eq!(again.up_to("endpoint k8s shop/web eth0"), ["profile open", "endpoint k8s shop/web eth0"]);
}

#[test]
fn a_slow_client_delays_no_other_and_converges() {
    const LARGE: u32 = 150_000;
    const ROUNDS: u32 = 300;
    let mut node = Node::with_shop();
    node.volume("v-db", "db");
    // More than the connection takes without being read.
    node.send(&[set("a", 0..LARGE), policy("q", &["a"], RuleAction::Deny)]);
    let mut slow = node.follow("v-web");
    let mut quick = node.follow("v-db");
    quick.up_to("in sync");
    for round in 0..ROUNDS {
        node.send(&[delta("a", [LARGE + round], [round])]);
        quick.up_to(&format!("delta a +{} -{}", net(LARGE + round), net(round)));
    }
    node.send(&[policy("p", &["a"], RuleAction::Log)]);
    let mut members = std::collections::BTreeSet::new();
    let (mut messages, mut count) = (0, 0);
    loop {
        match slow.message().unwrap().unwrap().payload.unwrap() {
            Payload::IpsetUpdate(set) => members.extend(set.members),
            Payload::IpsetDeltaUpdate(delta) => {
                members.extend(delta.added_members);
                delta.removed_members.iter().for_each(|member| assert!(members.remove(member)));
                messages += 1;
            }
            // Only the last version was sent.
            Payload::ActivePolicyUpdate(policy) => {
                count += 1;
                assert_eq!(policy.policy.unwrap().inbound_rules[0].action, "log");
            }
            Payload::InSync(_) => break,
            _ => {}
        }
    }
    assert_eq!(count, 1);
    assert!(messages < LARGE / 8_192 + ROUNDS / 2, "{messages} messages");
    assert_eq!(members, (ROUNDS..LARGE + ROUNDS).map(net).collect());
}

fn net(number: u32) -> String {
    format!("{}/32", std::net::Ipv4Addr::from(0x0a00_0000 + number))
}

#[test]
fn clients_stay_while_the_session_restarts() {
    let mut node = Node::with_shop();
    let prefix = node.folder.path().to_str().unwrap().to_owned();
    let mut web = node.follow("v-web");
    assert_eq!(web.up_to("in sync"), OF_WEB);
    let mut feed = node.policy_sync.begin(&prefix).unwrap();
    for update in shop() {
        match update {
            U::IpSet(_) => feed.on_update(&update),
            U::Policy(id, _) if id == policy_id("p") => feed.on_update(&policy("p", &["a", "b"], RuleAction::Allow)),
            update => feed.on_update(&update),
        }
    }
    assert_eq!(web.up_to("policy p allow a, allow b"), ["set b 10.0.0.9/32", "policy p allow a, allow b"]);
    // Another place is another server, and so is none.
    assert!(node.policy_sync.begin("").is_none());
    assert!(web.message().is_err());
    assert!(!node.socket("v-web").exists());
}

#[test]
fn credentials_that_go_take_socket_and_connections_with_them() {
    let node = Node::with_shop();
    let mut web = node.follow("v-web");
    web.up_to("in sync");
    fs::remove_file(node.path("creds/v-web.json")).unwrap();
    assert!(web.message().is_err());
    until("the socket is gone", || !node.socket("v-web").exists());
    // The volume belongs to another pod now.
    node.credentials("v-web", "db");
    let mut db = node.follow("v-web");
    assert_eq!(db.up_to("in sync")[..2], ["set b 10.0.0.9/32", "policy q deny b"]);
    // Without a moment in between, too.
    node.credentials("v-web", "web");
    assert!(db.message().is_err());
    assert_eq!(node.follow("v-web").up_to("in sync"), OF_WEB);
}

#[test]
fn a_socket_that_is_removed_comes_back() {
    let node = Node::with_shop();
    until("there is a socket", || node.socket("v-web").exists());
    fs::remove_file(node.socket("v-web")).unwrap();
    assert_eq!(node.follow("v-web").up_to("in sync"), OF_WEB);
    let mode = fs::symlink_metadata(node.socket("v-web")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o777, "the user of the workload is unknown");
}

#[test]
fn symlinks_of_a_workload_are_not_followed() {
    let node = Node::new();
    let secret = node.path("secret");
    fs::write(&secret, "x").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(node.path("mount/v-web")).unwrap();
    symlink(&secret, node.socket("v-web")).unwrap();
    node.credentials("v-web", "web");
    until("there is a socket", || {
        fs::symlink_metadata(node.socket("v-web")).is_ok_and(|found| found.file_type().is_socket())
    });
    assert_eq!(fs::read_to_string(&secret).unwrap(), "x");
    assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
    // A folder that is a link belongs to no workload.
    fs::create_dir(node.path("elsewhere")).unwrap();
    symlink(node.path("elsewhere"), node.path("mount/v-link")).unwrap();
    node.credentials("v-link", "web");
    node.volume("v-db", "db");
    until("the one after it is there", || node.socket("v-db").exists());
    node.volume("v-api", "api");
    until("everything has been looked at again", || node.socket("v-api").exists());
    assert!(!node.path("elsewhere/socket").exists());
}

#[test]
fn writable_credentials_are_refused_and_failures_are_retried() {
    let node = Node::with_shop();
    until("there is a socket", || node.socket("v-web").exists());
    fs::set_permissions(node.path("creds/v-web.json"), fs::Permissions::from_mode(0o666)).unwrap();
    until("it is gone", || !node.socket("v-web").exists());
    fs::set_permissions(node.path("creds/v-web.json"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(node.follow("v-web").up_to("in sync"), OF_WEB);
    // The volume's folder comes late.
    node.credentials("v-db", "db");
    node.volume("v-api", "api");
    until("the others have been looked at", || node.socket("v-api").exists());
    fs::create_dir(node.path("mount/v-db")).unwrap();
    assert_eq!(node.follow("v-db").next(), "set b 10.0.0.9/32");
    // Names that lead elsewhere.
    for file in [".json", "..json", "...json"] {
        fs::copy(node.path("creds/v-web.json"), node.path("creds").join(file)).unwrap();
    }
    node.volume("v-last", "last");
    until("the others have been looked at", || node.socket("v-last").exists());
    assert!(!node.path("mount/socket").exists() && !node.path("socket").exists());
}

#[test]
fn reports_are_not_taken_and_other_methods_not_known() {
    let node = Node::with_shop();
    let channel = node.connect("v-web");
    let report = DataplaneStats { src_ip: "10.0.0.1".into(), ..DataplaneStats::default() };
    let result = node.within(PolicySyncClient::new(channel.clone()).report(report));
    assert!(!result.unwrap().into_inner().successful);
    let path = http::uri::PathAndQuery::from_static("/felix.PolicySync/Other");
    let status = node.within(async {
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<SyncRequest, ToDataplane>::default();
        grpc.unary(tonic::Request::new(SyncRequest {}), path, codec).await.unwrap_err()
    });
    assert_eq!(status.code(), Code::Unimplemented);
}

#[test]
fn a_workload_has_few_connections() {
    let mut node = Node::with_shop();
    let mut web = node.follow("v-web");
    web.up_to("in sync");
    let path = node.socket("v-web");
    let greeting = |mut stream: UnixStream| async move {
        let mut byte = [0];
        (stream.read(&mut byte).await.unwrap_or(0), stream)
    };
    let mut open = Vec::new();
    for _ in 0..3 {
        let (read, stream) = node.within(async { greeting(UnixStream::connect(&path).await.unwrap()).await });
        // The server's settings come first.
        assert_eq!(read, 1);
        open.push(stream);
    }
    let (read, _) = node.within(async { greeting(UnixStream::connect(&path).await.unwrap()).await });
    assert_eq!(read, 0, "it is closed");
    node.send(&[delta("a", [7], [])]);
    assert_eq!(web.next(), "delta a +10.0.0.7/32 -");
    drop(open);
    until("there is room again", || {
        let mut client = PolicySyncClient::new(node.connect("v-web"));
        node.within(client.sync(SyncRequest {})).is_ok()
    });
}
