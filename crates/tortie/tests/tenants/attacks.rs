//! Objects that a user of namespace `dev` may write.

use std::fmt::Write;

/// Objects of namespace `dev`, as YAML documents.
pub(crate) struct Attack {
    pub(crate) name: String,
    pub(crate) manifest: String,
}

/// Addresses that are not those of a pod in `dev`: a pod's, another node's pod's, a node's, a
/// gateway's, outside of every pool, and special ones.
const FOREIGN: [&str; 18] = [
    "10.0.0.50",
    "10.0.0.50/32",
    "10.0.0.0/24",
    "10.0.1.60",
    "10.96.0.10",
    "192.168.0.1",
    "192.168.0.2",
    "192.168.0.254",
    "0.0.0.0/0",
    "127.0.0.1",
    "169.254.169.254",
    "224.0.0.1",
    "0.0.0.0",
    "198.51.100.7",
    "::ffff:10.0.0.50",
    "fd00:10::50",
    "::1",
    "fe80::1",
];

/// Labels by which objects of `dev` could pass for those of others.
const LABELS: [(&str, &str); 17] = [
    ("projectcalico.org/namespace", "prod"),
    ("projectcalico.org/name", "prod"),
    ("projectcalico.org/orchestrator", "k8s"),
    ("projectcalico.org/serviceaccount", "default"),
    ("projectcalico.org/created-by", "calico-kube-controllers"),
    ("pcns.kubernetes.io/metadata.name", "prod"),
    ("pcns.projectcalico.org/name", "prod"),
    ("pcns.team", "platform"),
    ("pcsa.role", "trusted"),
    ("pcsa.projectcalico.org/name", "default"),
    ("pcnode.projectcalico.org/node", ""),
    ("pcnode.role", "monitoring"),
    ("kubernetes.io/metadata.name", "prod"),
    ("team", "platform"),
    ("role", "trusted"),
    ("app", "web"),
    ("partner", "true"),
];

/// Every attack by one object.
pub(crate) fn attacks() -> Vec<Attack> {
    let mut all = Vec::new();
    for address in FOREIGN {
        all.extend(pods_beside(address));
        all.extend(services(address));
    }
    for (key, value) in LABELS {
        all.extend(labelled(&[(key, value)]));
    }
    all.extend(labelled(&LABELS));
    all.extend(pods());
    all.extend(policies());
    all
}

/// Pods that claim an address of others.
pub(crate) fn pods_beside(address: &str) -> Vec<Attack> {
    let mut all = Vec::new();
    let annotations = [
        ("cni.projectcalico.org/podIP", address.to_owned()),
        ("cni.projectcalico.org/podIPs", format!("{address},10.0.0.51/32")),
        ("vpc.amazonaws.com/pod-ips", address.to_owned()),
        ("cni.projectcalico.org/floatingIPs", format!("[\"{address}\"]")),
        ("cni.projectcalico.org/allowedSourcePrefixes", format!("[\"{address}\"]")),
    ];
    for (key, value) in annotations {
        for (phase, status) in [("pending", "{phase: Pending}"), ("running", RUNNING)] {
            for name in ["a", "zz"] {
                all.push(Attack {
                    name: format!("{phase} pod {name} with {key}: {value}"),
                    manifest: pod(name, "{app: x}", &format!("{{{key}: '{value}'}}"), SPEC, status),
                });
            }
        }
    }
    all
}

const RUNNING: &str = "{phase: Running, podIPs: [{ip: 10.0.0.21}, {ip: 'fd00:10::21'}]}";
const SPEC: &str = "{nodeName: n1, serviceAccountName: default, containers: [{name: c, image: x}]}";

fn pod(name: &str, labels: &str, annotations: &str, spec: &str, status: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: dev, labels: {labels}, annotations: \
         {annotations}}}\nspec: {spec}\nstatus: {status}\n"
    )
}

/// Every kind with labels of its user's choice.
fn labelled(labels: &[(&str, &str)]) -> Vec<Attack> {
    let mut map = String::new();
    for (key, value) in labels {
        write!(map, "{key}: '{value}', ").expect("writing to a string does not fail");
    }
    let map = format!("{{{map}}}");
    let kinds = [
        ("Pod", pod("a", &map, "{}", SPEC, RUNNING)),
        (
            "NetworkSet",
            format!(
                "apiVersion: projectcalico.org/v3\nkind: NetworkSet\nmetadata: {{name: a, namespace: dev, labels: \
                 {map}}}\nspec: {{nets: [0.0.0.0/0, 10.0.0.50/32]}}\n"
            ),
        ),
        (
            "ServiceAccount",
            format!("apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: a, namespace: dev, labels: {map}}}\n"),
        ),
        (
            "NetworkPolicy",
            format!(
                "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: a, namespace: dev, labels: \
                 {map}}}\nspec: {{podSelector: {{}}, ingress: [{{}}]}}\n"
            ),
        ),
    ];
    kinds.map(|(kind, manifest)| Attack { name: format!("{kind} with labels {map}"), manifest }).into()
}

/// Pods whose name or specification resembles those of others.
fn pods() -> Vec<Attack> {
    let named = |name: &str| (format!("pod {name}"), pod(name, "{}", "{}", SPEC, "{phase: Pending}"));
    let spec = |field: &str| {
        let spec = format!("{{nodeName: n1, containers: [{{name: c, image: x}}], {field}}}");
        (format!("pod with {field}"), pod("a", "{}", "{}", &spec, RUNNING))
    };
    let annotated = |annotation: &str| {
        let labels = "{app: x}";
        (format!("pod with {annotation}"), pod("a", labels, &format!("{{{annotation}}}"), SPEC, RUNNING))
    };
    let collision = |status: &str| {
        let annotations = "{cni.projectcalico.org/podIP: 10.0.0.50/32}";
        ("pod with the interface name of prod/db-5".to_owned(), pod(COLLIDING, "{}", annotations, SPEC, status))
    };
    [
        named("db"),
        named("web"),
        named(COLLIDING),
        collision("{phase: Pending}"),
        spec("serviceAccountName: prod.default"),
        spec("serviceAccountName: default, hostNetwork: true"),
        spec("serviceAccountName: ../prod/default"),
        spec("initContainers: [{name: i, image: x, restartPolicy: Always, ports: [{name: sql, containerPort: 1}, {name: http, containerPort: 2}]}]"),
        annotated("k8s.v1.cni.cncf.io/network-status: '[{\"name\": \"prod/x\", \"ips\": [\"10.0.0.50\"]}]'"),
        annotated("k8s.ovn.org/pod-networks: '{\"default\": {\"ip_address\": \"10.0.0.50/24\"}}'"),
        annotated("cni.projectcalico.org/ipAddrsNoIpam: '[\"10.0.0.50\"]'"),
        annotated("cni.projectcalico.org/containerID: prod"),
        annotated("projectcalico.org/metadata: '{\"name\": \"db\", \"namespace\": \"prod\"}'"),
    ]
    .map(|(name, manifest)| Attack { name, manifest })
    .into()
}

/// Pod of `dev` whose interface has the name of the interface of `prod/db-5`.
const COLLIDING: &str = "haaaoazogvch";

/// Services and slices that name an address of others.
fn services(address: &str) -> Vec<Attack> {
    let service = |field: String| {
        let manifest = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: db, namespace: dev}}\nspec: {{clusterIP: 10.96.0.99, \
             {field}, ports: [{{name: sql, port: 5432}}]}}\n"
        );
        Attack { name: format!("service with {field}"), manifest }
    };
    let slice = |label: &str| Attack {
        name: format!("slice of {label} with {address}"),
        manifest: format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: db-abcde, namespace: dev, labels: \
             {{kubernetes.io/service-name: {label}}}, ownerReferences: [{{apiVersion: v1, kind: Service, name: db, uid: \
             u}}]}}\naddressType: {}\nports: [{{name: sql, port: 5432, protocol: TCP}}]\nendpoints: [{{addresses: \
             ['{address}'], targetRef: {{kind: Pod, namespace: prod, name: db}}}}]\n",
            if address.contains(':') { "IPv6" } else { "IPv4" }
        ),
    };
    vec![
        service(format!("externalIPs: ['{address}']")),
        service(format!("type: LoadBalancer, loadBalancerIP: '{address}'")),
        service(format!("type: ExternalName, externalName: '{address}'")),
        slice("db"),
        slice("prod/db"),
    ]
}

/// Policies of every namespaced kind whose name, tier or selector resembles those of others.
fn policies() -> Vec<Attack> {
    let calico = |name: &str, kind: &str, api: &str, annotations: &str, spec: &str| Attack {
        name: format!("{api} {kind} {name} {annotations} {spec}"),
        manifest: format!(
            "apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}, namespace: dev, annotations: \
             {annotations}}}\nspec: {spec}\n"
        ),
    };
    let mut all = Vec::new();
    let open =
        "{selector: all(), order: -1, types: [Ingress, Egress], ingress: [{action: Allow}], egress: [{action: Allow}]}";
    let platform = "{tier: platform, selector: all(), order: -1, types: [Ingress], ingress: [{action: Allow}]}";
    let reaching = "{namespaceSelector: all(), selector: all(), serviceAccountSelector: all(), types: [Ingress], \
                    ingress: [{action: Allow}]}";
    let escaping = "{selector: \"all() || projectcalico.org/namespace == 'prod'\", types: [Ingress], ingress: [{action: \
                    Deny}]}";
    let host = "{selector: all(), types: [Ingress], doNotTrack: true, applyOnForward: true, preDNAT: true, ingress: \
                [{action: Deny}]}";
    let poses = "{projectcalico.org/metadata: '{\"name\": \"web\", \"namespace\": \"prod\"}'}";
    for api in ["projectcalico.org/v3", "crd.projectcalico.org/v1"] {
        for kind in ["NetworkPolicy", "StagedNetworkPolicy"] {
            for name in ["web", "default.web", "knp.default.deny-all", "platform.partners", "'prod/web'", "prod.web"] {
                for annotations in ["{}", poses] {
                    for spec in [open, platform, reaching, escaping, host] {
                        all.push(calico(name, kind, api, annotations, spec));
                    }
                }
            }
        }
    }
    let kubernetes = "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}";
    for (api, kind) in
        [("networking.k8s.io/v1", "NetworkPolicy"), ("projectcalico.org/v3", "StagedKubernetesNetworkPolicy")]
    {
        for name in ["deny-all", "db", "web", "prod.deny-all"] {
            all.push(calico(name, kind, api, poses, kubernetes));
        }
    }
    let migration = "{vmiName: db, source: prod/db, target: a}";
    all.push(calico("a", "VirtualMachineInstanceMigration", "kubevirt.io/v1", "{}", migration));
    all.push(calico(
        "a",
        "LiveMigration",
        "projectcalico.org/v3",
        "{}",
        "{source: {name: db}, destination: {name: a}}",
    ));
    all
}
