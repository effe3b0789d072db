//! A workload follows its policy through the agent, which enforces the same policy on a real
//! kernel.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program on the kernel")]

#[path = "node/agent.rs"]
mod agent;
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic, reason = "generated code")]
#[path = "../../node/src/policysync/generated/client.rs"]
mod generated;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::Node;
use generated::policy_sync_client::PolicySyncClient;
use hyper_util::rt::TokioIo;
use rustix::process::Signal;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use tortie_protocol::felix::http_match::path_match::PathMatch;
use tortie_protocol::felix::to_dataplane::Payload;
use tortie_protocol::felix::{SyncRequest, ToDataplane};

const PATIENCE: Duration = Duration::from_secs(90);

const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: shop, labels: {who: web}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-friends, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {friend: 'yes'}}}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.65.0.3}]}
";
const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, serviceAccountName: web, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.65.0.2}]}
";

const HTTP_POLICY: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: readers, namespace: shop}
spec:
  selector: app == 'web'
  types: [Ingress]
  ingress:
    - {action: Allow, protocol: TCP, destination: {ports: [8080]}, http: {methods: [GET], paths: [{prefix: /api}]}}
";

fn friend(address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: friend, namespace: shop, labels: {{friend: 'yes'}}}}\nspec: {{nodeName: elsewhere, \
         containers: [{{name: c, image: i}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: {address}}}]}}\n"
    )
}

/// Does the work of the CSI driver for a pod. Returns the future path of the socket.
fn volume(prefix: &Path, pod: &str) -> PathBuf {
    let folder = prefix.join("mount").join(format!("csi-{pod}"));
    fs::create_dir_all(&folder).unwrap();
    fs::create_dir_all(prefix.join("creds")).unwrap();
    let new = prefix.join(format!("csi-{pod}.json"));
    fs::write(&new, format!(r#"{{"UID":"1","Workload":"{pod}","Namespace":"shop","ServiceAccount":"web"}}"#)).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();
    fs::rename(new, prefix.join("creds").join(format!("csi-{pod}.json"))).unwrap();
    folder.join("socket")
}

struct Client {
    runtime: Runtime,
    stream: Streaming<ToDataplane>,
}

impl Client {
    fn new(socket: PathBuf) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stream = runtime.block_on(async {
            let stream = async {
                let mut client = PolicySyncClient::new(connect(socket).await);
                client.sync(SyncRequest {}).await.unwrap().into_inner()
            };
            tokio::time::timeout(PATIENCE, stream).await.unwrap()
        });
        Self { runtime, stream }
    }

    /// Returns the messages up to the first one that matches.
    fn up_to(&mut self, is_last: impl Fn(&Payload) -> bool) -> Vec<Payload> {
        let mut all = Vec::new();
        while all.last().is_none_or(|payload| !is_last(payload)) {
            let next = async { tokio::time::timeout(PATIENCE, self.stream.message()).await };
            let message = self.runtime.block_on(next).unwrap_or_else(|_| panic!("{all:#?}"));
            all.push(message.unwrap().unwrap().payload.unwrap());
        }
        all
    }
}

async fn connect(socket: PathBuf) -> Channel {
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    loop {
        match Endpoint::from_static("http://policy-sync").connect_with_connector(connect.clone()).await {
            Ok(channel) => break channel,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

tortie_lab::kernel_test! {
    fn a_workload_follows_the_enforced_state_through_changes_and_restarts() {
        let mut node = Node::new("nft", CLUSTER);
        node.write("web.yaml", WEB);
        let prefix = node.folder().join("nodeagent");
        node.set("FELIX_POLICYSYNCPATHPREFIX", prefix.to_str().unwrap());
        node.start();
        let mut web = Client::new(volume(&prefix, "web"));
        let received = web.up_to(|payload| matches!(payload, Payload::InSync(_)));
        let endpoints: Vec<_> = received.iter().filter_map(|payload| match payload {
            Payload::WorkloadEndpointUpdate(update) => Some(update.id.as_ref().unwrap().workload_id.as_str()),
            _ => None,
        }).collect();
        assert_eq!(endpoints, ["shop/web"]);
        let policies: Vec<_> = received.iter().filter_map(|payload| match payload {
            Payload::ActivePolicyUpdate(update) => Some(update.id.as_ref().unwrap().name.as_str()),
            _ => None,
        }).collect();
        assert_eq!(policies, ["from-friends"]);
        assert!(received.iter().any(|payload| matches!(payload, Payload::ServiceAccountUpdate(account) if account.labels["who"] == "web")));
        assert!(received.iter().any(|payload| matches!(payload, Payload::NamespaceUpdate(_))));

        node.write("friend.yaml", &friend("10.65.9.9"));
        let has_member = |address: &'static str| move |payload: &Payload| {
            matches!(payload, Payload::IpsetDeltaUpdate(delta) if delta.added_members == [address])
        };
        web.up_to(has_member("10.65.9.9/32"));

        // The session restarts, and the client stays connected.
        let felix = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: \
                     {iptablesFilterDenyAction: Reject}\n";
        node.write("felix.yaml", felix);
        node.until("denied packets are rejected", |state| state.contains("Unknown interface\" -j REJECT"));
        node.write("friend.yaml", &friend("10.65.8.8"));
        let received = web.up_to(has_member("10.65.8.8/32"));
        assert_eq!(received.len(), 1, "nothing but the difference: {received:#?}");

        fs::remove_file(node.manifests().join("web.yaml")).unwrap();
        web.up_to(|payload| matches!(payload, Payload::WorkloadEndpointRemove(_)));
        assert!(web.runtime.block_on(web.stream.message()).unwrap().is_none());

        node.stop(Signal::TERM);
        assert!(!prefix.join("mount/csi-web/socket").exists());
    }

    fn the_kernel_allows_what_an_http_rule_may_match_and_the_proxy_is_told_the_rest() {
        let mut node = Node::new("nft", CLUSTER);
        node.write("web.yaml", WEB);
        node.write("http.yaml", HTTP_POLICY);
        // Without a proxy, nothing checks the method and the path.
        node.start();
        node.until_ready("");
        assert!(!node.kernel_state().contains("--dports 8080"));
        node.stop(Signal::TERM);
        let prefix = node.folder().join("nodeagent");
        node.set("FELIX_POLICYSYNCPATHPREFIX", prefix.to_str().unwrap());
        node.start();
        node.until("traffic to the port is allowed", |state| state.contains("--dports 8080"));
        let mut web = Client::new(volume(&prefix, "web"));
        let received = web.up_to(|payload| matches!(payload, Payload::InSync(_)));
        let rules = received.iter().find_map(|payload| match payload {
            Payload::ActivePolicyUpdate(update) if update.id.as_ref().unwrap().name == "readers" => {
                Some(&update.policy.as_ref().unwrap().inbound_rules)
            }
            _ => None,
        });
        let [rule] = &rules.unwrap()[..] else { panic!("{received:#?}") };
        let http = rule.http_match.as_ref().unwrap();
        let paths: Vec<_> = http.paths.iter().map(|path| path.path_match.clone().unwrap()).collect();
        assert_eq!((&http.methods[..], paths), (&["GET".to_owned()][..], vec![PathMatch::Prefix("/api".to_owned())]));
        assert_eq!(rule.dst_ports.iter().map(|range| (range.first, range.last)).collect::<Vec<_>>(), [(8080, 8080)]);
    }

    fn a_driver_changes_nothing_for_workloads() {
        let mut node = Node::new("nft", CLUSTER);
        node.write("web.yaml", WEB);
        let prefix = node.folder().join("nodeagent");
        node.set("FELIX_POLICYSYNCPATHPREFIX", prefix.to_str().unwrap());
        node.drive();
        node.start();
        let mut web = Client::new(volume(&prefix, "web"));
        let received = web.up_to(|payload| matches!(payload, Payload::InSync(_)));
        assert!(received.iter().any(|payload| matches!(payload, Payload::WorkloadEndpointUpdate(_))), "{received:#?}");
    }
}
