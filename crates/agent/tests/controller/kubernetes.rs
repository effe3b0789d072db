//! Kubernetes as the datastore.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::{Value, json};
use tortie_controller::run::{FOLLOWED_IN_KUBERNETES, followed_custom};
use tortie_datastore::kubernetes::{ApiResource, CalicoApi, Client, KubeConfig, KubernetesStore};
use tortie_datastore::store::{TextChange, TextStore};
use tortie_lab::apiserver::{ApiServer, Fault, On};

use super::{Controller, PATIENCE, eventually, rules};

const CRD: &str = "crd.projectcalico.org/v1";
const V3: &str = "projectcalico.org/v3";
const HOUR: &str = "1h0m0s";

/// A cluster whose datastore is Kubernetes.
struct Cluster {
    api: ApiServer,
    /// API of Calico's kinds.
    form: &'static str,
    client: Client,
    store: KubernetesStore,
}

impl Cluster {
    /// Returns a cluster with the node `n1`, a pool and a configuration.
    fn new(grace: &str, host_endpoint: &Value) -> Self {
        Self::by(CRD, grace, host_endpoint)
    }

    fn by(form: &'static str, grace: &str, host_endpoint: &Value) -> Self {
        let api = ApiServer::start().unwrap();
        let (group, version) = form.split_once('/').unwrap();
        api.install_calico(group, version);
        let client = Client::new(KubeConfig::file(api.kubeconfig())).unwrap();
        let store = KubernetesStore::discover(client.clone()).unwrap();
        let cluster = Self { api, form, store, client };
        cluster.node("n1", &json!({}));
        cluster.custom("IPPool", "pool", &json!({"cidr": "10.9.0.0/16"}));
        cluster.configure(grace, host_endpoint);
        cluster
    }

    fn custom(&self, kind: &str, name: &str, spec: &Value) {
        self.api.apply(json!({"apiVersion": self.form, "kind": kind, "metadata": {"name": name}, "spec": spec}));
    }

    fn configure(&self, grace: &str, host_endpoint: &Value) {
        let node = json!({"leakGracePeriod": grace, "hostEndpoint": host_endpoint});
        self.custom("KubeControllersConfiguration", "default", &json!({"controllers": {"node": node}}));
    }

    fn node(&self, name: &str, labels: &Value) {
        self.api.apply(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels, "annotations": {"projectcalico.org/IPv4Address": "192.0.2.1/24"}},
            "status": {"addresses": [{"type": "InternalIP", "address": "198.51.100.1"}, {"type": "Hostname", "address": name}]}}));
    }

    fn pod(&self, name: &str, node: &str, address: &str) {
        self.api.apply(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop"},
            "spec": {"nodeName": node}, "status": {"podIP": address, "podIPs": [{"ip": address}]}}));
    }

    /// Adds a block of 10.9.0.0/16 whose first addresses are allocated to these owners, with its
    /// affinity and the handles.
    fn block(&self, number: u8, node: &str, owners: &[Value]) {
        let cidr = format!("10.9.{number}.0/26");
        let allocations: Vec<Value> = (0..64).map(|n| if n < owners.len() { n.into() } else { Value::Null }).collect();
        let handle = |n: usize| format!("h{number}.{n}");
        let attributes: Vec<Value> =
            (0..).zip(owners).map(|(n, owner)| json!({"handle_id": handle(n), "secondary": owner})).collect();
        let sequences: serde_json::Map<String, Value> = (0..owners.len()).map(|n| (n.to_string(), n.into())).collect();
        let block = json!({"cidr": cidr, "affinity": format!("host:{node}"), "deleted": false, "strictAffinity": false,
            "allocations": allocations, "unallocated": (owners.len()..64).collect::<Vec<_>>(), "attributes": attributes,
            "sequenceNumber": owners.len(), "sequenceNumberForAllocation": sequences});
        for n in 0..owners.len() {
            self.custom(
                "IPAMHandle",
                &handle(n),
                &json!({"handleID": handle(n), "block": {&cidr: 1}, "deleted": false}),
            );
        }
        self.custom("IPAMBlock", &block_name(number), &block);
        self.affinity(number, node, "confirmed");
    }

    fn affinity(&self, number: u8, node: &str, state: &str) {
        let spec = json!({"node": node, "type": "host", "state": state, "cidr": format!("10.9.{number}.0/26"),
            "deleted": if self.form == CRD { json!("false") } else { json!(false) }});
        self.custom("BlockAffinity", &format!("{node}-{}", block_name(number)), &spec);
    }

    fn spec(&self, kind: &str, name: &str) -> Option<Value> {
        self.get(kind, name).map(|object| object["spec"].clone())
    }

    fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.api.get(self.form, kind, "", name)
    }

    /// Returns the addresses of a block that are not free.
    fn allocated(&self, number: u8) -> Vec<usize> {
        let block = self.spec("IPAMBlock", &block_name(number)).unwrap_or_default();
        let allocations = block["allocations"].as_array().cloned().unwrap_or_default();
        (0..allocations.len()).filter(|n| !allocations[*n].is_null()).collect()
    }

    fn names(&self, plural: &'static str) -> BTreeSet<String> {
        let (group, version) = self.form.split_once('/').unwrap();
        let resource = ApiResource::new(group, version, plural);
        let found = self.client.list(resource, "", "").unwrap();
        found.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Changes a block as a CNI plugin does; retries after concurrent writes.
    fn edit(&self, number: u8, edit: impl Fn(&mut Value)) {
        let path = format!("/calico/ipam/v2/assignment/ipv4/block/10.9.{number}.0-26");
        let until = Instant::now() + PATIENCE;
        loop {
            let kept = self.store.text(&path).unwrap().unwrap();
            let mut block: Value = serde_json::from_str(&kept.text).unwrap();
            edit(&mut block);
            let change =
                TextChange { path: path.clone(), expected: Some(kept.revision), text: Some(block.to_string()) };
            if self.store.commit(&[change]).unwrap().is_some() {
                return;
            }
            assert!(Instant::now() < until, "others are always faster");
        }
    }

    fn start(&self, more: &[&str]) -> Controller {
        Controller::start(&self.api, "kubernetes:", more)
    }
}

fn block_name(number: u8) -> String {
    format!("10-9-{number}-0-26")
}

fn pod_of(name: &str, node: &str) -> Value {
    json!({"pod": name, "namespace": "shop", "node": node})
}

fn tunnel_of(node: &str) -> Value {
    json!({"node": node, "type": "vxlanTunnelAddress"})
}

/// Returns a metric of a node's addresses in the pool; `None` if there is none yet.
fn addresses(controller: &Controller, name: &str, node: &str) -> Option<f64> {
    controller.sample(&format!("{name}{{ippool=\"pool\",node=\"{node}\"}}"))
}

fn at_rest(controller: &Controller) {
    eventually("at rest", || controller.is_ready() && controller.metric("tortie_controller_waiting") == 0.0);
}

#[test]
fn leaked_addresses_are_released_after_the_grace_period() {
    let cluster = Cluster::new(HOUR, &json!({}));
    let gone: Vec<Value> = (2..40).map(|n| pod_of(&format!("gone-{n}"), "n1")).collect();
    cluster.block(0, "n1", &[&[pod_of("alive", "n1"), tunnel_of("n1")], &gone[..]].concat());
    cluster.block(1, "n1", &[]);
    cluster.pod("alive", "n1", "10.9.0.0");
    let controller = cluster.start(&[]);
    eventually("ready", || controller.is_ready());
    eventually("suspected", || addresses(&controller, "ipam_allocations_gc_candidates", "n1") == Some(38.0));
    assert_eq!(addresses(&controller, "ipam_allocations_in_use", "n1"), Some(40.0));
    // One pod exists again in time.
    cluster.pod("gone-2", "n1", "10.9.0.2");
    eventually("it is in use", || addresses(&controller, "ipam_allocations_gc_candidates", "n1") == Some(37.0));
    assert_eq!(cluster.allocated(0).len(), 40);

    // While addresses are released, a plugin changes the block repeatedly.
    cluster.pod("new", "n1", "10.9.0.60");
    cluster.configure("1s", &json!({}));
    for n in 0..100 {
        cluster.edit(0, |block| {
            let attributes = json!({"handle_id": "plugin", "secondary": pod_of("new", "n1")});
            let place = 60 + n % 4;
            let list = block["attributes"].as_array_mut().unwrap();
            let index = list.iter().position(|found| *found == attributes).unwrap_or_else(|| {
                list.push(attributes.clone());
                list.len() - 1
            });
            for other in 60..64 {
                block["allocations"][other] = if other == place { index.into() } else { Value::Null };
            }
            let sequence = block["sequenceNumber"].as_u64().unwrap();
            block["sequenceNumberForAllocation"][place.to_string()] = sequence.into();
            block["sequenceNumber"] = (sequence + 1).into();
        });
    }
    eventually("released", || cluster.allocated(0).into_iter().filter(|n| *n < 60).eq([0, 1, 2]));
    eventually("counted", || addresses(&controller, "ipam_allocations_gc_reclamations", "n1") >= Some(37.0));
    eventually("the empty block is released", || cluster.spec("IPAMBlock", &block_name(1)).is_none());
    eventually("and its affinity", || cluster.names("blockaffinities").len() == 1);
    eventually("handles", || cluster.names("ipamhandles").len() == 3);
    assert_eq!(cluster.spec("IPAMBlock", &block_name(0)).unwrap()["strictAffinity"], false);
    controller.stop();
}

#[test]
fn addresses_of_a_deleted_node_are_released() {
    [CRD, V3].into_iter().for_each(release_addresses_of_a_node);
}

fn release_addresses_of_a_node(form: &'static str) {
    let cluster = Cluster::by(form, HOUR, &json!({}));
    cluster.node("n2", &json!({}));
    cluster.block(0, "n1", &[pod_of("stays", "n1"), tunnel_of("n1")]);
    cluster.block(1, "n2", &[pod_of("last", "n2"), pod_of("gone", "n2"), tunnel_of("n2")]);
    cluster.block(2, "n2", &[]);
    for (name, node, address) in [("stays", "n1", "10.9.0.0"), ("last", "n2", "10.9.1.0")] {
        cluster.pod(name, node, address);
    }
    let controller = cluster.start(&[]);
    eventually("ready", || controller.is_ready());
    eventually("suspected", || addresses(&controller, "ipam_allocations_gc_candidates", "n2") == Some(1.0));
    cluster.api.delete("v1", "Node", "", "n2");
    // An existing pod keeps its address, and the tunnel's address is needed as long.
    eventually("released without grace", || cluster.allocated(1) == [0, 2]);
    cluster.api.delete("v1", "Pod", "shop", "last");
    let left = |plural| cluster.names(plural).into_iter().collect::<Vec<_>>();
    eventually("blocks", || left("ipamblocks") == [block_name(0)]);
    eventually("affinities", || left("blockaffinities") == [format!("n1-{}", block_name(0))]);
    eventually("handles", || left("ipamhandles") == ["h0.0", "h0.1"]);
    assert_eq!(cluster.allocated(0), [0, 1]);
    controller.stop();
}

/// State of controllers that were killed between two writes is cleaned up.
#[test]
fn interrupted_releases_are_completed() {
    [CRD, V3].into_iter().for_each(complete_releases);
}

fn complete_releases(form: &'static str) {
    let cluster = Cluster::by(form, HOUR, &json!({}));
    cluster.block(0, "n1", &[tunnel_of("n1")]);
    // Blocks marked for deletion, with and without an affinity.
    cluster.block(1, "n1", &[]);
    cluster.affinity(1, "n1", "pendingDeletion");
    cluster.edit(1, |block| block["deleted"] = true.into());
    cluster.block(2, "n1", &[]);
    cluster.edit(2, |block| {
        block["deleted"] = true.into();
        block["affinity"] = Value::Null;
    });
    // An affinity of an existing node whose block is gone, and affinities of a missing node.
    cluster.affinity(3, "n1", "pendingDeletion");
    cluster.affinity(4, "gone", "confirmed");
    cluster.affinity(5, "gone", "pendingDeletion");
    // An affinity whose block belongs to another node meanwhile, and one that is being claimed.
    cluster.affinity(0, "n2", "pendingDeletion");
    cluster.affinity(6, "n1", "pending");
    let controller = cluster.start(&[]);
    let named = |node: &str, number: u8| format!("{node}-{}", block_name(number));
    eventually("blocks", || cluster.names("ipamblocks") == BTreeSet::from([block_name(0)]));
    let expected = BTreeSet::from([named("n1", 0), named("n1", 2), named("n1", 6)]);
    eventually("affinities", || cluster.names("blockaffinities") == expected);
    controller.stop();
}

/// After failures of requests and a kill of the leader, the state converges.
#[test]
fn it_goes_on_after_failures() {
    let cluster = Cluster::new(HOUR, &json!({}));
    cluster.node("n2", &json!({}));
    cluster.block(0, "n1", &[pod_of("alive", "n1"), pod_of("gone", "n1")]);
    for number in 1..6 {
        cluster.block(number, "n2", &[pod_of(&format!("gone-{number}"), "n2"), tunnel_of("n2")]);
    }
    cluster.pod("alive", "n1", "10.9.0.0");
    let quick = ["--leader-elect", "--lease-duration", "3", "--lease", "kube-system/test"];
    let first = cluster.start(&quick);
    eventually("the first leads", || first.leads() && first.is_ready());
    let second = cluster.start(&quick);
    eventually("the second is ready", || second.is_ready());
    for plural in ["ipamblocks", "blockaffinities", "ipamhandles"] {
        for fault in [Fault::Internal, Fault::Hangup, Fault::DropInside, Fault::Truncate, Fault::Hangup] {
            cluster.api.fail(On::Object, plural, fault, 1);
        }
    }
    cluster.api.delete("v1", "Node", "", "n2");
    let left = |plural| cluster.names(plural).len();
    eventually("half of it", || left("ipamblocks") < 5);
    drop(first);
    eventually("blocks", || cluster.names("ipamblocks") == BTreeSet::from([block_name(0)]));
    eventually("affinities", || left("blockaffinities") == 1);
    eventually("the second leads", || second.leads());
    assert_eq!(cluster.allocated(0), [0, 1]);
    // Handles may remain if a controller was killed while it released them.
    assert!(cluster.names("ipamhandles").is_superset(&["h0.0", "h0.1"].map(str::to_owned).into()));
    second.stop();
}

fn ours() -> Value {
    json!({"projectcalico.org/created-by": "calico-kube-controllers"})
}

#[test]
fn nodes_have_host_endpoints() {
    [CRD, V3].into_iter().for_each(make_host_endpoints);
}

fn make_host_endpoints(form: &'static str) {
    let off = json!({"autoCreate": "Disabled"});
    let cluster = Cluster::by(form, HOUR, &off);
    cluster.node("n1", &json!({"rack": "a"}));
    // A user's endpoint, and the leftover endpoint of a node that is gone, as kube-controllers
    // writes it.
    cluster.custom("HostEndpoint", "mine", &json!({"node": "n1", "interfaceName": "eth0"}));
    let kept = json!({"labels": ours()});
    let metadata = match form {
        CRD => json!({"name": "gone-auto-hep", "annotations": {"projectcalico.org/metadata": kept.to_string()}}),
        _ => json!({"name": "gone-auto-hep", "labels": ours()}),
    };
    let spec = json!({"node": "gone", "interfaceName": "*"});
    cluster.api.apply(json!({"apiVersion": form, "kind": "HostEndpoint", "spec": spec, "metadata": metadata}));
    let mine = cluster.get("HostEndpoint", "mine");
    let controller = cluster.start(&[]);
    let names = || cluster.names("hostendpoints").into_iter().collect::<Vec<_>>();
    eventually("the leftovers of a node are deleted", || names() == ["mine"]);
    let configuration = || cluster.get("KubeControllersConfiguration", "default").unwrap();
    let status = || configuration()["status"].clone();
    eventually("the status", || status()["runningConfig"]["controllers"]["node"]["leakGracePeriod"] == HOUR);
    assert_eq!(status()["environmentVars"], json!({"DATASTORE_TYPE": "kubernetes"}));
    assert_eq!(status()["runningConfig"]["controllers"].as_object().unwrap().len(), 1);
    assert_eq!(status()["runningConfig"]["controllers"]["node"]["syncLabels"], "Disabled");

    let templates = json!([{"generateName": "lan", "interfaceCIDRs": ["198.51.100.0/24"], "labels": {"net": "lan"}}]);
    cluster.configure(HOUR, &json!({"autoCreate": "Enabled", "templates": templates}));
    eventually("made", || names() == ["mine", "n1-auto-hep", "n1-lan-auto-hep"]);
    let endpoint = || cluster.get("HostEndpoint", "n1-auto-hep").unwrap_or_default();
    let labels = || {
        if form == V3 {
            return endpoint()["metadata"]["labels"].clone();
        }
        let text = endpoint()["metadata"]["annotations"]["projectcalico.org/metadata"].as_str().map(str::to_owned);
        serde_json::from_str::<Value>(&text.unwrap_or_default()).unwrap_or_default()["labels"].clone()
    };
    eventually("labels", || labels()["rack"] == "a" && labels()["projectcalico.org/created-by"].is_string());
    if form == CRD {
        assert_eq!(endpoint()["metadata"]["labels"], ours());
    }
    assert_eq!(endpoint()["spec"]["expectedIPs"], json!(["192.0.2.1", "198.51.100.1"]));
    assert_eq!(cluster.spec("HostEndpoint", "n1-lan-auto-hep").unwrap()["expectedIPs"], json!(["198.51.100.1"]));

    // The node changes, another node is added, and a user edits and deletes endpoints of the
    // controller.
    cluster.node("n1", &json!({"rack": "b"}));
    eventually("relabelled", || labels()["rack"] == "b");
    cluster.custom("HostEndpoint", "n1-lan-auto-hep", &json!({"node": "n1", "interfaceName": "nonsense"}));
    let foreign = cluster.get("HostEndpoint", "n1-lan-auto-hep");
    eventually("it is the user's now", || controller.ask("/readiness").contains("not made by this controller"));
    assert_eq!(cluster.get("HostEndpoint", "n1-lan-auto-hep"), foreign);
    cluster.api.delete(form, "HostEndpoint", "", "n1-lan-auto-hep");
    cluster.api.delete(form, "HostEndpoint", "", "n1-auto-hep");
    cluster.api.fail(On::Object, "hostendpoints", Fault::Internal, 3);
    eventually("made again", || names() == ["mine", "n1-auto-hep", "n1-lan-auto-hep"]);
    cluster.node("n2", &json!({}));
    eventually("of the other", || names().len() == 5);
    cluster.api.delete("v1", "Node", "", "n1");
    eventually("with its node", || names() == ["mine", "n2-auto-hep", "n2-lan-auto-hep"]);
    cluster.configure(HOUR, &off);
    eventually("not wanted any more", || names() == ["mine"]);
    assert_eq!(cluster.get("HostEndpoint", "mine"), mine);
    at_rest(&controller);
    controller.stop();
}

#[test]
fn a_configuration_is_made_and_policies_are_left_alone() {
    [CRD, V3].into_iter().for_each(make_a_configuration);
}

fn make_a_configuration(form: &'static str) {
    let cluster = Cluster::by(form, HOUR, &json!({}));
    cluster.api.delete(form, "KubeControllersConfiguration", "", "default");
    cluster.api.uninstall(form.split_once('/').unwrap().0, "ipreservations");
    cluster
        .api
        .apply(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}},
        "metadata": {"name": "web", "namespace": "shop"}}));
    let controller = cluster.start(&[]);
    let made = || cluster.get("KubeControllersConfiguration", "default").unwrap_or_default();
    eventually("made", || made()["status"]["runningConfig"]["controllers"]["node"]["leakGracePeriod"] == "15m0s");
    assert_eq!(made()["spec"]["controllers"]["node"]["leakGracePeriod"], "15m0s");
    at_rest(&controller);
    assert_eq!(cluster.names("networkpolicies"), BTreeSet::new());
    assert_eq!(cluster.api.requests("GET /apis/networking.k8s.io/v1/networkpolicies"), 0);
    controller.stop();
}

/// All that the controller knows is of the first API.
#[test]
fn the_controller_ends_once_resources_have_moved_to_another_api() {
    let cluster = Cluster::new(HOUR, &json!({}));
    let lock = |form: &str, ready: bool| {
        cluster.api.apply(json!({"apiVersion": form, "kind": "ClusterInformation", "metadata": {"name": "default"},
            "spec": {"datastoreReady": ready}}));
    };
    lock(CRD, true);
    let mut controller = cluster.start(&[]);
    at_rest(&controller);
    cluster.api.install_calico("projectcalico.org", "v3");
    lock(V3, false);
    lock(CRD, false);
    lock(V3, true);
    eventually("the end", || controller.process.try_wait().unwrap().is_some());
    assert_eq!(controller.process.wait().unwrap().code(), Some(1));
    let next = cluster.start(&[]);
    eventually("the configuration in the new API", || {
        cluster.api.get(V3, "KubeControllersConfiguration", "", "default").is_some()
    });
    next.stop();
}

#[test]
fn without_calicos_kinds_the_controller_is_not_ready() {
    let api = ApiServer::start().unwrap();
    let controller = Controller::start(&api, "kubernetes:", &[]);
    eventually("the reason", || controller.ask("/readiness").contains("no API of Calico's resources: the API server"));
    assert!(!controller.is_ready());
    api.install_calico("projectcalico.org", "v3");
    at_rest(&controller);
    controller.stop();
}

/// The roles in `deploy/controller-kubernetes.yaml` allow the controller's requests, and nothing
/// else.
#[test]
fn roles_allow_exactly_the_performed_requests() {
    let manifest = "controller-kubernetes.yaml";
    let right = |verb: &str, resource: &str| {
        ["crd.projectcalico.org", "projectcalico.org"].map(|group| format!("{verb} {group}/{resource} null"))
    };
    let written = [
        ("ipamblocks", &["get", "update", "delete"][..]),
        ("blockaffinities", &["get", "update", "delete"]),
        ("ipamhandles", &["get", "update", "delete"]),
        ("hostendpoints", &["get", "create", "update", "delete"]),
        ("kubecontrollersconfigurations", &["get", "create"]),
        ("kubecontrollersconfigurations/status", &["update"]),
    ];
    let custom = [CalicoApi::CrdV1, CalicoApi::V3].into_iter().flat_map(followed_custom);
    let mut expected: Vec<String> = FOLLOWED_IN_KUBERNETES
        .into_iter()
        .chain(custom)
        .flat_map(|(_, of)| ["list", "watch"].map(|verb| format!("{verb} {}/{} null", of.group, of.plural)))
        .chain(["get /nodes null", "get /pods null"].map(str::to_owned))
        .chain(written.iter().flat_map(|(resource, verbs)| verbs.iter().flat_map(move |verb| right(verb, resource))))
        .collect();
    expected.sort();
    assert_eq!(rules(manifest, "ClusterRole"), expected);
    assert_eq!(rules(manifest, "Role"), rules("controller.yaml", "Role"));
}
