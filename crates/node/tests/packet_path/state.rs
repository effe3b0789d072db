//! Random clusters with host endpoints of all forms, and policies of all layers.

use std::net::IpAddr;

use proptest::prelude::*;
use proptest::sample::select;
use tortie_config::{Config, Sources};
use tortie_datastore::{DirState, FileContent};
use tortie_model::Update;
use tortie_model::desired::ConfigSource;
use tortie_resources::manifest::Options;

pub(crate) const NODES: [&str; 2] = ["n1", "n2"];

/// A cluster of two nodes with two pods each.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The host endpoints of each node, in order of their names.
    pub(crate) hosts: [Vec<&'static str>; 2],
    pub(crate) policies: Vec<String>,
    pub(crate) has_overlay: bool,
}

pub(crate) fn node_address(node: usize) -> IpAddr {
    format!("192.0.2.{}", node + 1).parse().unwrap()
}

pub(crate) fn tunnel_address(node: usize) -> IpAddr {
    format!("10.0.{}.1", node + 1).parse().unwrap()
}

pub(crate) fn pod_address(node: usize, pod: usize) -> IpAddr {
    format!("10.0.{}.{}", node + 1, pod + 10).parse().unwrap()
}

pub(crate) fn outside() -> IpAddr {
    "203.0.113.9".parse().unwrap()
}

impl State {
    pub(crate) fn text(&self) -> String {
        let mode = if self.has_overlay { "Always" } else { "Never" };
        let mut text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n---\n\
             apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {{name: pods}}\n\
             spec: {{cidr: 10.0.0.0/16, vxlanMode: {mode}}}\n"
        );
        for (at, node) in NODES.iter().enumerate() {
            let tunnel = if self.has_overlay { tunnel_address(at).to_string() } else { String::new() };
            let tunnel =
                if tunnel.is_empty() { tunnel } else { format!(", projectcalico.org/IPv4VXLANTunnelAddr: {tunnel}") };
            text += &format!(
                "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {node}, annotations: \
                 {{projectcalico.org/IPv4Address: {address}/24{tunnel}}}}}\n\
                 status: {{addresses: [{{type: InternalIP, address: {address}}}]}}\n",
                address = node_address(at)
            );
            for pod in 0..2 {
                text += &format!(
                    "---\napiVersion: v1\nkind: Pod\nmetadata: {{namespace: shop, name: {node}-{pod}, labels: {{app: p{pod}}}}}\n\
                     spec: {{nodeName: {node}, containers: [{{name: c}}]}}\n\
                     status: {{phase: Running, podIPs: [{{ip: {}}}]}}\n",
                    pod_address(at, pod)
                );
            }
            for (number, form) in self.hosts[at].iter().enumerate() {
                // Without an overlay no interface has the address.
                if form.contains("TUNNEL") && !self.has_overlay {
                    continue;
                }
                let spec = form
                    .replace("OWN", &node_address(at).to_string())
                    .replace("TUNNEL", &tunnel_address(at).to_string());
                text += &format!(
                    "---\napiVersion: projectcalico.org/v3\nkind: HostEndpoint\n\
                     metadata: {{name: {node}-{number}, labels: {{host: {node}, number: \"{number}\"}}}}\n\
                     spec: {{node: {node}, {spec}}}\n"
                );
            }
        }
        for (order, spec) in self.policies.iter().enumerate() {
            text += &format!(
                "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: policy-{order}}}\n\
                 spec: {{order: {order}, {spec}}}\n"
            );
        }
        text
    }

    pub(crate) fn updates(&self) -> Vec<Update> {
        let text = self.text();
        let mut directory = DirState::new(Options::default());
        let mut updates = directory.take_updates();
        updates.extend(directory.set_file("cluster.yaml".as_ref(), Some(FileContent::Text(&text))));
        assert_eq!(directory.problems().collect::<Vec<_>>(), [], "{text}");
        updates
    }
}

/// Parameters of the nodes.
pub(crate) const PARAMETERS: [(&str, &str); 1] = [("DefaultEndpointToHostAction", "Accept")];

/// Returns the configuration of the nodes, with these parameters as well.
pub(crate) fn config(more: &[(&str, &str)]) -> Config {
    let mut sources = Sources::default();
    let parameters = PARAMETERS.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    sources.set(ConfigSource::DatastoreGlobal, parameters.collect());
    sources.resolve().unwrap().config
}

/// Host endpoints of all three forms. The third and the fourth may have the interface of others.
fn hosts() -> impl Strategy<Value = Vec<&'static str>> {
    let form = select(vec![
        "interfaceName: \"*\"",
        "interfaceName: \"*\"",
        "interfaceName: \"*\", expectedIPs: [OWN], profiles: [projectcalico-default-allow]",
        "interfaceName: eth0, expectedIPs: [OWN]",
        "interfaceName: eth0, expectedIPs: [OWN], profiles: [projectcalico-default-allow]",
        "expectedIPs: [OWN]",
        "interfaceName: lo",
        "interfaceName: vxlan.calico, profiles: [projectcalico-default-allow]",
        "expectedIPs: [TUNNEL]",
    ]);
    prop::collection::vec(form, 0..4)
}

fn rule() -> impl Strategy<Value = String> {
    let protocol = select(vec!["", ", protocol: TCP", ", protocol: UDP"]);
    let source = select(vec!["", "", ", source: {selector: app == 'p0'}", ", source: {nets: [192.0.2.0/24]}"]);
    let destination = select(vec!["", "", ", destination: {selector: app == 'p1'}", ", destination: {ports: [80]}"]);
    let action = select(vec!["Allow", "Allow", "Deny", "Pass", "Log"]);
    (action, protocol, source, destination).prop_filter_map(
        "ports are of a protocol",
        |(action, protocol, from, to)| {
            let is_complete = !to.contains("ports") || !protocol.is_empty();
            is_complete.then(|| format!("{{action: {action}{protocol}{from}{to}}}"))
        },
    )
}

fn policy() -> impl Strategy<Value = String> {
    let selector = select(vec!["has(host)", "has(host)", "host == 'n1'", "number == '0'", "has(app)", "all()"]);
    let kind = select(vec![
        "",
        "applyOnForward: true, ",
        "applyOnForward: true, ",
        "applyOnForward: true, preDNAT: true, ",
        "applyOnForward: true, doNotTrack: true, ",
    ]);
    let rules = || prop::collection::vec(rule(), 0..3);
    (selector, kind, rules(), rules(), 1..4_u8).prop_map(|(selector, kind, ingress, egress, types)| {
        let types = if kind.contains("preDNAT") { 1 } else { types };
        let mut text = format!("selector: \"{selector}\", {kind}types: [");
        text += ["Ingress", "Egress", "Ingress, Egress"][usize::from(types) - 1];
        text += "]";
        if types != 2 {
            text += &format!(", ingress: [{}]", ingress.join(", "));
        }
        if types != 1 {
            text += &format!(", egress: [{}]", egress.join(", "));
        }
        text
    })
}

pub(crate) fn states() -> impl Strategy<Value = State> {
    (hosts(), hosts(), prop::collection::vec(policy(), 0..5), any::<bool>())
        .prop_map(|(first, second, policies, has_overlay)| State { hosts: [first, second], policies, has_overlay })
}
