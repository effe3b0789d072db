//! Table of the defaults of Calico and its API server, and their treatment here.

use serde_json::{Value as Json, json};

use super::Reader::{self, Etcd, EtcdStored, File, Kubernetes};

/// A default of Calico.
pub(crate) struct Row {
    pub(crate) kind: &'static str,
    /// The field's path; `[]` is the first item of a list, `~` a dot within a name.
    pub(crate) field: &'static str,
    pub(crate) default: Json,
    /// Place in Calico, or in the API server before it, that fills it in.
    pub(crate) source: &'static str,
    /// An object without the field.
    pub(crate) object: Json,
    pub(crate) ours: Ours,
}

/// Treatment of an object without the field.
pub(crate) enum Ours {
    /// The same as with the field, through every reader. In the form for Felix, this value is at
    /// this pointer.
    Same(&'static str, Json),
    /// The field has no meaning for the model, for this reason.
    NotRead(&'static str),
    /// Different from an object with the field, through at least one reader, for this reason.
    Differs { at: &'static str, reads: Vec<(Reader, Json)>, why: &'static str },
}

use Ours::{Differs, NotRead, Same};

fn calico(kind: &str, metadata: Json, spec: Json) -> Json {
    let mut object = json!({"apiVersion": "projectcalico.org/v3", "kind": kind});
    (object["metadata"], object["spec"]) = (metadata, spec);
    object
}

fn everywhere(value: &Json) -> Vec<(Reader, Json)> {
    [File, Kubernetes, Etcd, EtcdStored].map(|reader| (reader, value.clone())).into()
}

/// Returns the rows of the same default in several kinds.
fn of_kinds(kinds: &[&'static str], row: impl Fn(&'static str) -> Row) -> Vec<Row> {
    kinds.iter().map(|kind| row(kind)).collect()
}

const CRD: &str = "api/config/crd";

const POLICIES: [&str; 4] =
    ["NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy"];

fn policy(kind: &'static str, spec: Json) -> Json {
    let namespaced = !kind.contains("Global");
    calico(kind, if namespaced { json!({"name": "p", "namespace": "n"}) } else { json!({"name": "p"}) }, spec)
}

fn of_policies() -> Vec<Row> {
    let staged = &["StagedNetworkPolicy", "StagedGlobalNetworkPolicy", "StagedKubernetesNetworkPolicy"];
    let mut rows = of_kinds(&POLICIES, |kind| Row {
        kind,
        field: "spec.tier",
        default: json!("default"),
        source: CRD,
        object: policy(kind, json!({"selector": "all()", "types": ["Ingress"]})),
        ours: Same("/tier", json!("default")),
    });
    rows.extend(of_kinds(staged, |kind| Row {
        kind,
        field: "spec.stagedAction",
        default: json!("Set"),
        source: CRD,
        object: policy(
            kind,
            if kind.contains("Kubernetes") { json!({"podSelector": {}}) } else { json!({"types": ["Ingress"]}) },
        ),
        ours: Same("/staged_action", json!("Set")),
    }));
    let by_rules = [
        (json!({}), json!(["Ingress"])),
        (json!({"ingress": [{"action": "Allow"}]}), json!(["Ingress"])),
        (json!({"egress": [{"action": "Allow"}]}), json!(["Egress"])),
        (json!({"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]}), json!(["Ingress", "Egress"])),
    ];
    for (spec, default) in by_rules {
        let lower: Json = default
            .as_array()
            .expect("a list")
            .iter()
            .map(|word| word.as_str().expect("text").to_lowercase())
            .collect();
        let both = json!(["ingress", "egress"]);
        rows.extend(of_kinds(&POLICIES, |kind| Row {
            kind,
            field: "spec.types",
            default: default.clone(),
            source: "api/pkg/defaults/networkpolicy.go",
            object: policy(kind, spec.clone()),
            ours: Differs {
                at: "/types",
                reads: vec![
                    (File, lower.clone()),
                    (Kubernetes, both.clone()),
                    (Etcd, lower.clone()),
                    (EtcdStored, both.clone()),
                ],
                why: "the default is filled in when a policy is written; Felix takes one that got around that for a \
                      policy of both directions (felix/calc/policy_sorter.go)",
            },
        }));
    }
    rows.push(Row {
        kind: "NetworkPolicy",
        field: "spec.policyTypes",
        default: json!(["Ingress"]),
        source: "Kubernetes pkg/apis/networking/v1/defaults.go",
        object: json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "n"}, "spec": {"podSelector": {}}}),
        ours: Same("/types", json!(["ingress"])),
    });
    rows.push(Row {
        kind: "NetworkPolicy",
        field: "spec.policyTypes",
        default: json!(["Ingress", "Egress"]),
        source: "Kubernetes pkg/apis/networking/v1/defaults.go; if there are egress rules",
        object: json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "n"}, "spec": {"podSelector": {}, "egress": [{}]}}),
        ours: Same("/types", json!(["ingress", "egress"])),
    });
    rows.push(Row {
        kind: "NetworkPolicy",
        field: "spec.ingress[].ports[].protocol",
        default: json!("TCP"),
        source: "Kubernetes pkg/apis/networking/v1/defaults.go; libcalico-go/lib/backend/k8s/conversion/conversion.go",
        object: json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "n"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 80}]}]}}),
        ours: Same("/inbound_rules/0/protocol", json!("tcp")),
    });
    rows.push(Row {
        kind: "NetworkPolicy",
        field: "spec.podSelector",
        default: json!({}),
        source: "Kubernetes staging/src/k8s.io/api/networking/v1/types.go",
        object: json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "n"}, "spec": {"policyTypes": ["Ingress"]}}),
        ours: Same("/types", json!(["ingress"])),
    });
    rows.push(Row {
        kind: "StagedKubernetesNetworkPolicy",
        field: "spec.policyTypes",
        default: json!(["Ingress"]),
        source: "api/admission/networkpolicy.mutatingadmissionpolicy.yaml; libcalico-go/lib/backend/k8s/conversion/conversion.go",
        object: policy("StagedKubernetesNetworkPolicy", json!({"podSelector": {}})),
        ours: Same("/types", json!(["ingress"])),
    });
    rows.extend(of_kinds(&["AdminNetworkPolicy", "BaselineAdminNetworkPolicy"], |kind| Row {
        kind,
        field: "spec.ingress[].ports[].portNumber.protocol",
        default: json!("TCP"),
        source: "sigs.k8s.io/network-policy-api config/crd/policy.networking.k8s.io_*.yaml",
        object: {
            let mut spec = json!({"subject": {"namespaces": {}}, "ingress": [
                {"action": "Allow", "from": [{"namespaces": {}}], "ports": [{"portNumber": {"port": 80}}]}]});
            if kind == "AdminNetworkPolicy" {
                spec["priority"] = json!(1);
            }
            let name = if kind == "AdminNetworkPolicy" { "p" } else { "default" };
            json!({"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
        },
        ours: Same("/inbound_rules/0/protocol", json!("tcp")),
    }));
    rows
}

fn of_tiers() -> Vec<Row> {
    let tier = || calico("Tier", json!({"name": "t"}), json!({}));
    vec![
        Row {
            kind: "Tier",
            field: "spec.defaultAction",
            default: json!("Deny"),
            source: CRD,
            object: tier(),
            ours: Same("/defaultAction", json!("Deny")),
        },
        // For an object that etcd has without an order, Calico's `calicoctl get` shows this order
        // as well, while Felix evaluates the tier last. Such tiers come from releases up to 3.29,
        // when the default tier had no order either. Beside a default tier with an order, the last
        // place would be a different one.
        Row {
            kind: "Tier",
            field: "spec.order",
            default: json!(1_000_000.0),
            source: "libcalico-go/lib/resources/tier.go",
            object: tier(),
            ours: Same("/order", json!(1_000_000)),
        },
    ]
}

fn of_pools() -> Vec<Row> {
    let pool = |spec: Json| {
        let mut spec = spec;
        spec["cidr"] = json!("10.0.0.0/16");
        calico("IPPool", json!({"name": "p"}), spec)
    };
    let row =
        |field, default, source, ours| Row { kind: "IPPool", field, default, source, object: pool(json!({})), ours };
    const IPAM: &str = "only IPAM reads it";
    vec![
        row("spec.assignmentMode", json!("Automatic"), CRD, Same("/assignment_mode", json!("Automatic"))),
        row("spec.nodeSelector", json!("all()"), CRD, NotRead(IPAM)),
        row("spec.blockSize", json!(26), "libcalico-go/lib/clientv3/ippool.go", NotRead(IPAM)),
        row("spec.ipipMode", json!("Never"), "libcalico-go/lib/clientv3/ippool.go", Same("/ipip_mode", json!(""))),
        row("spec.vxlanMode", json!("Never"), "libcalico-go/lib/clientv3/ippool.go", Same("/vxlan_mode", json!(""))),
        row(
            "spec.allowedUses",
            json!(["Workload", "Tunnel"]),
            "libcalico-go/lib/clientv3/ippool.go",
            Differs {
                at: "/allowed_uses",
                reads: vec![
                    (File, Json::Null),
                    (Kubernetes, Json::Null),
                    (Etcd, json!(["Workload", "Tunnel"])),
                    (EtcdStored, Json::Null),
                ],
                why: "filled in when a pool is written; who reads pools asks only for those that are for load balancers \
                      alone (felix/dataplane/linux/masq_mgr.go)",
            },
        ),
    ]
}

fn of_configuration() -> Vec<Row> {
    const FELIX: &str = "a parameter that is not set has this default in Felix, too; written out, it would hide one of \
                         less precedence";
    let felix = |field, default: Json, source, name: &'static str| {
        let pointer = "/metadata/annotations";
        Row {
            kind: "FelixConfiguration",
            field,
            default,
            source,
            object: calico("FelixConfiguration", json!({"name": "by-selector"}), json!({"nodeSelector": "all()"})),
            ours: Differs {
                at: pointer,
                reads: {
                    let empty = scoped(&[]);
                    let filled = scoped(&[
                        ("BPFConnectTimeLoadBalancing", "TCP"),
                        ("BPFHostNetworkedNATWithoutCTLB", "Enabled"),
                        ("FloatingIPs", "Disabled"),
                        ("NFTablesFlowTableOffload", "Disabled"),
                        ("NFTablesMode", "Auto"),
                    ]);
                    assert!(name.is_empty() || filled.to_string().contains(name));
                    vec![(File, empty.clone()), (Kubernetes, empty.clone()), (Etcd, filled), (EtcdStored, empty)]
                },
                why: FELIX,
            },
        }
    };
    let bgp = |field, default| Row {
        kind: "BGPConfiguration",
        field,
        default,
        source: CRD,
        object: calico(
            "BGPConfiguration",
            json!({"name": "default"}),
            json!({"serviceClusterIPs": [{"cidr": "10.96.0.0/12"}]}),
        ),
        ours: NotRead("only confd reads it"),
    };
    vec![
        felix("spec.nftablesMode", json!("Auto"), CRD, "NFTablesMode"),
        felix("spec.nftablesFlowTableOffload", json!("Disabled"), CRD, "NFTablesFlowTableOffload"),
        felix("spec.floatingIPs", json!("Disabled"), "libcalico-go/lib/clientv3/felixconfig.go", "FloatingIPs"),
        felix(
            "spec.bpfConnectTimeLoadBalancing",
            json!("TCP"),
            "libcalico-go/lib/clientv3/felixconfig.go",
            "BPFConnectTimeLoadBalancing",
        ),
        felix(
            "spec.bpfHostNetworkedNATWithoutCTLB",
            json!("Enabled"),
            "libcalico-go/lib/clientv3/felixconfig.go",
            "BPFHostNetworkedNATWithoutCTLB",
        ),
        bgp("spec.logSeverityScreen", json!("Info")),
        bgp("spec.serviceLoadBalancerAggregation", json!("Enabled")),
        bgp("spec.nodeMeshPassword.secretKeyRef.name", json!("")),
        Row {
            kind: "BGPPeer",
            field: "spec.password.secretKeyRef.name",
            default: json!(""),
            source: CRD,
            object: calico(
                "BGPPeer",
                json!({"name": "p"}),
                json!({"peerIP": "192.0.2.1", "asNumber": 64512, "password": {"secretKeyRef": {"key": "k"}}}),
            ),
            ours: Differs {
                at: "/spec/password/secretKeyRef/name",
                reads: everywhere(&Json::Null),
                why: "passed on as it is; an absent text and an empty one are the same to who reads it",
            },
        },
        Row {
            kind: "IPAMBlock",
            field: "spec.sequenceNumber",
            default: json!(0),
            source: CRD,
            object: calico(
                "IPAMBlock",
                json!({"name": "10-0-0-0-26"}),
                json!({"cidr": "10.0.0.0/26", "affinity": "host:h", "allocations": [], "attributes": [], "unallocated": [], "strictAffinity": false, "deleted": false}),
            ),
            ours: NotRead("only IPAM reads it"),
        },
    ]
}

/// Returns the encoded form of a `FelixConfiguration` for selected nodes.
fn scoped(parameters: &[(&str, &str)]) -> Json {
    let annotations: serde_json::Map<String, Json> =
        parameters.iter().map(|(name, value)| (format!("config.projectcalico.org/{name}"), json!(value))).collect();
    if annotations.is_empty() { Json::Null } else { json!(annotations) }
}

fn of_services() -> Vec<Row> {
    const SOURCE: &str = "Kubernetes pkg/apis/core/v1/defaults.go";
    let row = |field, default, source, spec: Json, ours| {
        let metadata = json!({"name": "s", "namespace": "n"});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        Row { kind: "Service", field, default, source, object, ours }
    };
    let port = || json!({"ports": [{"port": 80}]});
    let addresses = json!(["10.96.0.1"]);
    let families = "the addresses have families";
    vec![
        row("spec.type", json!("ClusterIP"), SOURCE, json!({}), Same("/spec/type", json!("ClusterIP"))),
        row("spec.ports[].protocol", json!("TCP"), SOURCE, port(), Same("/spec/ports/0/protocol", json!("TCP"))),
        row(
            "spec.ports[].targetPort",
            json!(80),
            SOURCE,
            port(),
            NotRead("endpoint slices have the ports of endpoints"),
        ),
        row(
            "spec.clusterIPs",
            addresses.clone(),
            "mirror of spec.clusterIP: Kubernetes pkg/registry/core/service/strategy.go",
            json!({"clusterIP": "10.96.0.1"}),
            Same("/spec/clusterIPs", addresses.clone()),
        ),
        row(
            "spec.clusterIP",
            json!("10.96.0.1"),
            "mirror of spec.clusterIPs: Kubernetes pkg/registry/core/service/strategy.go",
            json!({"clusterIPs": addresses}),
            Same("/spec/clusterIPs", addresses),
        ),
        row(
            "spec.ipFamilies",
            json!(["IPv4"]),
            "Kubernetes pkg/registry/core/service/storage/alloc.go",
            json!({}),
            NotRead(families),
        ),
        row(
            "spec.ipFamilyPolicy",
            json!("SingleStack"),
            "Kubernetes pkg/registry/core/service/storage/alloc.go",
            json!({}),
            NotRead(families),
        ),
        row(
            "spec.sessionAffinity",
            json!("None"),
            SOURCE,
            json!({}),
            NotRead("a verdict holds for every endpoint of the Service"),
        ),
        row(
            "spec.internalTrafficPolicy",
            json!("Cluster"),
            SOURCE,
            json!({}),
            Same("/spec/internalTrafficPolicy", Json::Null),
        ),
        row(
            "spec.externalTrafficPolicy",
            json!("Cluster"),
            SOURCE,
            json!({"type": "NodePort"}),
            Same("/spec/externalTrafficPolicy", Json::Null),
        ),
    ]
}

fn of_endpoints() -> Vec<Row> {
    const SOURCE: &str = "Kubernetes pkg/apis/discovery/v1/defaults.go";
    const CONDITIONS: &str = "staging/src/k8s.io/api/discovery/v1/types.go: absent is to be read as this";
    let metadata = || json!({"name": "s", "namespace": "n"});
    let row = |field, default, source, ours| Row {
        kind: "EndpointSlice",
        field,
        default,
        source,
        object: json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "metadata": metadata(),
            "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]}),
        ours,
    };
    let of_endpoint = || Same("/endpoints/0", json!({"addresses": ["10.0.0.1"], "conditions": {}}));
    vec![
        row("ports[].protocol", json!("TCP"), SOURCE, Same("/ports/0/protocol", json!("TCP"))),
        row("ports[].name", json!(""), SOURCE, Same("/ports/0/port", json!(80))),
        row("endpoints[].conditions.ready", json!(true), CONDITIONS, of_endpoint()),
        row("endpoints[].conditions.serving", json!(true), CONDITIONS, of_endpoint()),
        row("endpoints[].conditions.terminating", json!(false), CONDITIONS, of_endpoint()),
        Row {
            kind: "Endpoints",
            field: "subsets[].ports[].protocol",
            default: json!("TCP"),
            source: "Kubernetes pkg/apis/core/v1/zz_generated.defaults.go",
            object: json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata(),
                "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]}),
            ours: Same("/ports/0/protocol", json!("TCP")),
        },
    ]
}

fn of_pods() -> Vec<Row> {
    const SOURCE: &str = "Kubernetes pkg/apis/core/v1/zz_generated.defaults.go";
    const HOST: &str = "a pod in the network of its host is no endpoint";
    let row = |field, default, source, object, ours| Row { kind: "Pod", field, default, source, object, ours };
    let port = || json!([{"name": "c", "ports": [{"name": "web", "containerPort": 80}]}]);
    let tcp = || Same("/ports/0/protocol", json!("tcp"));
    let mut with_sidecar = pod(json!([]));
    with_sidecar["spec"]["initContainers"] = port();
    with_sidecar["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
    let mut with_list = pod(json!([]));
    with_list["status"] = json!({"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]});
    let mut with_old_account = pod(json!([]));
    with_old_account["spec"]["serviceAccount"] = json!("robot");
    let address = || Same("/ipv4_nets", json!(["10.0.0.1/32"]));
    vec![
        row("spec.containers[].ports[].protocol", json!("TCP"), SOURCE, pod(port()), tcp()),
        row("spec.initContainers[].ports[].protocol", json!("TCP"), SOURCE, with_sidecar, tcp()),
        row(
            "spec.restartPolicy",
            json!("Always"),
            "Kubernetes pkg/apis/core/v1/defaults.go",
            pod(json!([])),
            NotRead("only that of an init container counts, and has no default"),
        ),
        row(
            "status.podIPs",
            json!([{"ip": "10.0.0.1"}]),
            "mirror of status.podIP: Kubernetes pkg/apis/core/v1/conversion.go",
            pod(json!([])),
            address(),
        ),
        row(
            "status.podIP",
            json!("10.0.0.1"),
            "mirror of status.podIPs: Kubernetes pkg/apis/core/v1/conversion.go",
            with_list,
            address(),
        ),
        row(
            "status.hostIP",
            json!("192.0.2.1"),
            "mirror of status.hostIPs: set by the kubelet",
            pod(json!([])),
            NotRead(HOST),
        ),
        row(
            "status.hostIPs",
            json!([{"ip": "192.0.2.1"}]),
            "mirror of status.hostIP: set by the kubelet",
            pod(json!([])),
            NotRead(HOST),
        ),
        row(
            "spec.serviceAccountName",
            json!("robot"),
            "mirror of spec.serviceAccount: Kubernetes pkg/apis/core/v1/conversion.go",
            with_old_account,
            Same("/profile_ids", json!(["kns.n", "ksa.n.robot"])),
        ),
        row(
            "spec.serviceAccountName",
            json!("default"),
            "Kubernetes plugin/pkg/admission/serviceaccount",
            pod(json!([])),
            Differs {
                at: "/labels/projectcalico.org~1serviceaccount",
                reads: vec![(File, json!("default")), (Kubernetes, Json::Null)],
                why: "in files, as the name that policies match; labels of the ServiceAccount `default` count for pods \
                      that name it. Not applied to mirrors of static pods",
            },
        ),
    ]
}

fn of_kubernetes() -> Vec<Row> {
    let pod_cidrs = json!(["10.2.0.0/24"]);
    vec![
        Row {
            kind: "Namespace",
            field: "metadata.labels.kubernetes~io/metadata~name",
            default: json!("shop"),
            source: "mirror of metadata.name: Kubernetes pkg/apis/core/v1/defaults.go",
            object: json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
            ours: Same("/inbound_rules/0/action", json!("allow")),
        },
        Row {
            kind: "Node",
            field: "spec.podCIDRs",
            default: pod_cidrs.clone(),
            source: "mirror of spec.podCIDR: Kubernetes pkg/apis/core/v1/conversion.go",
            object: json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "h"}, "spec": {"podCIDR": "10.2.0.0/24"}}),
            ours: Same("/status/podCIDRs", pod_cidrs),
        },
    ]
}

fn pod(containers: Json) -> Json {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"},
        "spec": {"nodeName": "h"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}});
    pod["spec"]["containers"] = containers;
    pod
}

pub(crate) fn rows() -> Vec<Row> {
    let calico = [of_tiers(), of_pools(), of_configuration()];
    let kubernetes = [of_policies(), of_kubernetes(), of_services(), of_endpoints(), of_pods()];
    kubernetes.into_iter().chain(calico).flatten().collect()
}
