//! The cluster of the faults, as manifests.

use std::{collections::BTreeMap, fmt::Write, net::IpAddr};

use tortie_lab::{
    overlay::{self, Encapsulation, tunnel_addresses},
    pods::{Pod, node_addresses, node_name},
};

/// Name of the node.
pub(super) const NODE: &str = "node1";

/// Initial pairs. The policy of `db` allows `stranger`, whose own egress policy denies it.
pub(super) const BASE: [Pair; 8] = [
    ("friend", "web", true),
    ("stranger", "web", false),
    ("outside", "web", false),
    ("web", "db", true),
    ("friend", "db", false),
    ("stranger", "db", false),
    ("stranger", "open", true),
    ("outside", "open", true),
];

/// Effect of removing the policy of `web`; [`WEB_CLOSED`] is the effect of restoring it.
pub(super) const WEB_OPEN: [Pair; 2] = [("stranger", "web", true), ("outside", "web", true)];
/// See [`WEB_OPEN`].
pub(super) const WEB_CLOSED: [Pair; 2] = [("stranger", "web", false), ("outside", "web", false)];

/// Number of additional rules without matching peers, where there are many rules.
const OTHERS: u16 = 10;

/// Source, destination, and whether policy allows it.
pub(super) type Pair = (&'static str, &'static str, bool);

/// Names of the initial pods.
pub(super) const PODS: [&str; 5] = ["web", "db", "friend", "stranger", "open"];

/// Address families of the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Both.
    Dual,
}

/// Returns the addresses of the pod of this number.
pub(super) fn addresses(families: Families, number: u16) -> Vec<IpAddr> {
    let v4 = IpAddr::from([10, 66, (number / 250).to_be_bytes()[1], (number % 250 + 2).to_be_bytes()[1]]);
    let v6 = IpAddr::from([0xfd00, 0x66, 0, 0, 0, 0, 0, number + 2]);
    match families {
        Families::V4 => vec![v4],
        Families::V6 => vec![v6],
        Families::Dual => vec![v4, v6],
    }
}

/// Contents of the datastore, as files.
#[derive(Debug, Clone)]
pub(super) struct World {
    families: Families,
    /// Pods by name, with their labels besides `app`.
    pub(super) pods: BTreeMap<String, WorldPod>,
    /// Values of the `app` label that `web` allows, besides `friend: "yes"`.
    pub(super) web_admits: Vec<String>,
    /// Name of the policy of `web`.
    pub(super) web_name: String,
    /// Selector of the policy of `web`.
    pub(super) web_selector: String,
    /// Whether policies have enough rules that the fast layout looks them up by maps. Verdicts are
    /// the same.
    pub(super) many_rules: bool,
    /// Whether `web` has its policy.
    pub(super) web_policy: bool,
    /// `datastoreReady` of Calico's `ClusterInformation`; `None` without this object.
    pub(super) ready: Option<bool>,
    /// `spec` of the default `FelixConfiguration`; `None` without this object.
    pub(super) felix: Option<String>,
    /// Additional files.
    pub(super) files: BTreeMap<String, String>,
    /// Whether all objects are in one file, `all.yaml`.
    pub(super) in_one_file: bool,
    /// Nodes connected by VXLAN; empty with a single node.
    pub(super) nodes: BTreeMap<String, WorldNode>,
    /// Encapsulation of the pools, with several nodes.
    pub(super) encapsulation: Encapsulation,
}

/// One of several nodes.
#[derive(Debug, Clone)]
pub(super) struct WorldNode {
    pub(super) addresses: [IpAddr; 2],
    pub(super) tunnels: [IpAddr; 2],
}

/// A pod of the node.
#[derive(Debug, Clone)]
pub(super) struct WorldPod {
    pub(super) addresses: Vec<IpAddr>,
    /// Labels besides `app`, as YAML.
    pub(super) labels: String,
    /// Name of its node.
    pub(super) node: String,
}

impl World {
    pub(super) fn new(families: Families, nodes: usize) -> Self {
        let mut world = Self {
            families,
            pods: BTreeMap::new(),
            web_admits: Vec::new(),
            web_name: "web".to_owned(),
            web_selector: "app: web".to_owned(),
            many_rules: false,
            web_policy: true,
            ready: None,
            felix: None,
            files: BTreeMap::new(),
            in_one_file: false,
            nodes: BTreeMap::new(),
            encapsulation: Encapsulation::Always,
        };
        if nodes > 1 {
            world.add_nodes(nodes);
        } else {
            for (number, name) in (1..).zip(PODS) {
                world.add_pod(name, number);
            }
        }
        world.set_friend("friend", true);
        world
    }

    /// Adds a pod on this node.
    pub(super) fn add_pod(&mut self, name: &str, number: u16) {
        let addresses = addresses(self.families, number);
        self.pods.insert(name.to_owned(), WorldPod { addresses, labels: String::new(), node: NODE.to_owned() });
    }

    /// Adds nodes and their pods, each in an IPAM block of its node. Most pairs are on different
    /// nodes.
    fn add_nodes(&mut self, nodes: usize) {
        for number in 0..nodes {
            let node = WorldNode { addresses: node_addresses(0, number), tunnels: tunnel_addresses(number) };
            self.nodes.insert(node_name(number), node);
        }
        for ((number, name), node) in (1..).zip(PODS).zip([0, 2, 1, 2, 1]) {
            let node = node % nodes;
            self.add_pod(name, number + 64 * u16::try_from(node).unwrap_or(0));
            if let Some(pod) = self.pods.get_mut(name) {
                pod.node = node_name(node);
            }
        }
    }

    /// Labels a pod so that `web` allows it, or does not.
    pub(super) fn set_friend(&mut self, name: &str, friend: bool) {
        if let Some(pod) = self.pods.get_mut(name) {
            pod.labels = if friend { ", friend: 'yes'".to_owned() } else { String::new() };
        }
    }

    /// Returns the pods for a laboratory. The prober serves their ports.
    pub(super) fn lab_pods(&self) -> Vec<Pod> {
        let on = |pod: &WorldPod| self.nodes.keys().position(|node| *node == pod.node).unwrap_or(0);
        self.pods.iter().map(|(name, pod)| Pod::new("shop", name, pod.addresses.clone(), []).on(on(pod))).collect()
    }

    /// Returns the objects of the overlay.
    fn overlay_text(&self) -> String {
        let nodes = self.nodes.iter().map(|(name, node)| overlay::node(name, node.addresses, node.tunnels));
        let pools = ["10.66.0.0/16", "fd00:66::/32"].into_iter().zip(["pool4", "pool6"]);
        let pools = pools.map(|(cidr, name)| overlay::pool(name, cidr, self.encapsulation));
        let of_existing_nodes = self.pods.values().filter(|pod| self.nodes.contains_key(&pod.node));
        let addresses =
            of_existing_nodes.flat_map(|pod| pod.addresses.iter().map(|address| (*address, pod.node.clone())));
        let objects = nodes.chain(pools).chain(overlay::blocks_of(addresses));
        objects.map(|object| format!("---\n{object}\n")).collect()
    }

    /// Returns all files with their contents.
    pub(super) fn files(&self) -> BTreeMap<String, String> {
        let mut files = self.files.clone();
        let mut add = |name: &str, text: String| drop(files.insert(name.to_owned(), text));
        add("namespace.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n".to_owned());
        let mut pods = String::new();
        for (name, pod) in &self.pods {
            let ips: Vec<String> = pod.addresses.iter().map(|address| format!("{{ip: '{address}'}}")).collect();
            let (labels, node, ips) = (&pod.labels, &pod.node, ips.join(", "));
            let _ = write!(
                pods,
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {name}{labels}}}}}\n\
                 spec: {{nodeName: {node}, containers: [{{name: c, image: i}}]}}\n\
                 status: {{phase: Running, podIPs: [{ips}]}}\n"
            );
        }
        add("pods.yaml", pods);
        if !self.nodes.is_empty() {
            add("overlay.yaml", self.overlay_text());
        }
        if self.web_policy {
            add("web.yaml", self.web_policy_text());
        }
        add("db.yaml", self.db_policy_text());
        add(
            "stranger.yaml",
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: stranger, namespace: shop}\nspec:\n  \
             podSelector: {matchLabels: {app: stranger}}\n  policyTypes: [Egress]\n  egress:\n  - to:\n    \
             - podSelector: {matchLabels: {app: web}}\n    - podSelector: {matchLabels: {app: open}}\n"
                .to_owned(),
        );
        if let Some(ready) = self.ready {
            add(
                "ready.yaml",
                format!(
                    "apiVersion: crd.projectcalico.org/v1\nkind: ClusterInformation\nmetadata: {{name: default}}\n\
                     spec: {{datastoreReady: {ready}}}\n"
                ),
            );
        }
        if let Some(spec) = &self.felix {
            add(
                "felix.yaml",
                format!(
                    "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {{name: default}}\nspec: {{{spec}}}\n"
                ),
            );
        }
        if self.in_one_file {
            let all: Vec<String> = files.into_values().collect();
            return BTreeMap::from([("all.yaml".to_owned(), all.join("---\n"))]);
        }
        files
    }

    /// Returns the policy of `db`. With many rules, a map looks them up by port.
    fn db_policy_text(&self) -> String {
        let mut text =
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: shop}\nspec:\n  \
             podSelector: {matchLabels: {app: db}}\n  ingress:\n  - from:\n    \
             - podSelector: {matchLabels: {app: web}}\n    - podSelector: {matchLabels: {app: stranger}}\n    \
             ports: [{port: 8000, protocol: UDP}, {port: 8000, protocol: TCP}]\n"
                .to_owned();
        for number in 1..=if self.many_rules { OTHERS } else { 0 } {
            let port = 8000 + number;
            let _ = writeln!(
                text,
                "  - from: [{{podSelector: {{matchLabels: {{friend: c{number}}}}}}}]\n    \
                 ports: [{{port: {port}, protocol: UDP}}, {{port: 8000, protocol: TCP}}]"
            );
        }
        text
    }

    /// Returns the policy of `web`. With many rules, a map looks them up by address.
    pub(super) fn web_policy_text(&self) -> String {
        let mut rules = vec!["{matchLabels: {friend: 'yes'}}".to_owned()];
        // No other policy needs this IP set.
        let admitted =
            |app: &String| format!("{{matchExpressions: [{{key: app, operator: In, values: [{app}, unused]}}]}}");
        rules.extend(self.web_admits.iter().map(admitted));
        let mut ingress = String::new();
        if self.many_rules {
            rules.extend((1..=OTHERS).map(|number| format!("{{matchLabels: {{friend: c{number}}}}}")));
            for (from, last) in rules.iter().zip(8001..) {
                let _ = writeln!(
                    ingress,
                    "  - from: [{{podSelector: {from}}}]\n    \
                     ports: [{{port: 8000, endPort: {last}, protocol: UDP}}, {{port: 8000, endPort: {last}, protocol: TCP}}]"
                );
            }
        } else {
            ingress.push_str("  - from:\n");
            for from in rules {
                let _ = writeln!(ingress, "    - podSelector: {from}");
            }
        }
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {}, namespace: shop}}\nspec:\n  \
             podSelector: {{matchLabels: {{{}}}}}\n  ingress:\n{ingress}",
            self.web_name, self.web_selector
        )
    }
}
