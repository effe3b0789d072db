//! Converted Kubernetes network policies have the meaning that Kubernetes documents.
//!
//! The test generates clusters of a few namespaces, pods and policies. It evaluates each connection
//! twice: by the rules of the Kubernetes documentation on the generated objects, and by the
//! converted objects.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tortie_model::{Cidr, Protocol};

mod model;

use model::Model;
use tortie_model::{Interner, Update};
use tortie_resources::manifest::{Format, Options, Outcome, read};
use tortie_resources::to_v3;

type Labels = BTreeMap<String, String>;

#[derive(Clone, Debug)]
struct Namespace {
    labels: Labels,
}

#[derive(Clone, Debug)]
struct Pod {
    namespace: usize,
    labels: Labels,
    /// The TCP port named `web`.
    web: Option<u16>,
}

#[derive(Clone, Debug)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

#[derive(Clone, Debug)]
struct LabelSelector {
    labels: Labels,
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug)]
enum Peer {
    Selectors { pods: Option<LabelSelector>, namespaces: Option<LabelSelector> },
    Block { cidr: &'static str, except: Vec<&'static str> },
}

#[derive(Clone, Debug)]
enum Port {
    Any,
    One(u16),
    Range(u16, u16),
    Web,
}

#[derive(Clone, Debug)]
struct NetRule {
    peers: Vec<Peer>,
    ports: Vec<(&'static str, Port)>,
}

#[derive(Clone, Debug)]
struct NetPolicy {
    namespace: usize,
    pods: LabelSelector,
    ingress: Vec<NetRule>,
    egress: Vec<NetRule>,
    types: Vec<&'static str>,
}

#[derive(Clone, Debug)]
struct Cluster {
    namespaces: Vec<Namespace>,
    pods: Vec<Pod>,
    policies: Vec<NetPolicy>,
}

/// One end of a connection.
#[derive(Clone, Copy)]
enum Side {
    Pod(usize),
    Outside(IpAddr),
}

impl LabelSelector {
    fn matches(&self, labels: &Labels) -> bool {
        let value = |key: &String| labels.get(key);
        self.labels.iter().all(|(k, v)| value(k) == Some(v))
            && self.requirements.iter().all(|requirement| match requirement {
                Requirement::In(k, set) => value(k).is_some_and(|v| set.contains(v)),
                Requirement::NotIn(k, set) => !value(k).is_some_and(|v| set.contains(v)),
                Requirement::Exists(k) => value(k).is_some(),
                Requirement::DoesNotExist(k) => value(k).is_none(),
            })
    }

    fn json(&self) -> Json {
        let expressions: Vec<Json> = self
            .requirements
            .iter()
            .map(|requirement| match requirement {
                Requirement::In(k, set) => json!({"key": k, "operator": "In", "values": set}),
                Requirement::NotIn(k, set) => json!({"key": k, "operator": "NotIn", "values": set}),
                Requirement::Exists(k) => json!({"key": k, "operator": "Exists"}),
                Requirement::DoesNotExist(k) => json!({"key": k, "operator": "DoesNotExist"}),
            })
            .collect();
        json!({"matchLabels": self.labels, "matchExpressions": expressions})
    }
}

/// Evaluation by the Kubernetes documentation.
impl Cluster {
    fn address(&self, end: Side) -> IpAddr {
        match end {
            Side::Pod(pod) => IpAddr::from([10, 0, 0, u8::try_from(pod).expect("few pods") + 1]),
            Side::Outside(address) => address,
        }
    }

    fn peer_matches(&self, policy: &NetPolicy, peer: &Peer, end: Side) -> bool {
        match peer {
            Peer::Block { cidr, except } => {
                let within = |net: &str| net.parse::<Cidr>().expect("a network").contains(self.address(end));
                within(cidr) && !except.iter().any(|net| within(net))
            }
            Peer::Selectors { pods, namespaces } => {
                let Side::Pod(pod) = end else { return false };
                let pod = &self.pods[pod];
                let in_namespace = match namespaces {
                    Some(selector) => selector.matches(&self.namespaces[pod.namespace].labels),
                    None => pod.namespace == policy.namespace,
                };
                in_namespace && pods.as_ref().is_none_or(|selector| selector.matches(&pod.labels))
            }
        }
    }

    fn rule_matches(
        &self,
        policy: &NetPolicy,
        rule: &NetRule,
        peer: Side,
        to: Side,
        protocol: &str,
        port: u16,
    ) -> bool {
        let web = match to {
            Side::Pod(pod) => self.pods[pod].web,
            Side::Outside(_) => None,
        };
        let port_matches = |(of, spec): &(&str, Port)| {
            *of == protocol
                && match spec {
                    Port::Any => true,
                    Port::One(one) => *one == port,
                    Port::Range(first, last) => (*first..=*last).contains(&port),
                    Port::Web => protocol == "TCP" && web == Some(port),
                }
        };
        (rule.peers.is_empty() || rule.peers.iter().any(|p| self.peer_matches(policy, p, peer)))
            && (rule.ports.is_empty() || rule.ports.iter().any(port_matches))
    }

    fn allows(&self, from: Side, to: Side, protocol: &str, port: u16) -> bool {
        let side = |own: Side, peer: Side, ingress: bool| {
            let Side::Pod(pod) = own else { return true };
            let pod = &self.pods[pod];
            let mut isolated = false;
            for policy in &self.policies {
                let (name, rules) = if ingress { ("Ingress", &policy.ingress) } else { ("Egress", &policy.egress) };
                let governs = if policy.types.is_empty() {
                    ingress || !policy.egress.is_empty()
                } else {
                    policy.types.contains(&name)
                };
                if !governs || policy.namespace != pod.namespace || !policy.pods.matches(&pod.labels) {
                    continue;
                }
                isolated = true;
                if rules.iter().any(|rule| self.rule_matches(policy, rule, peer, to, protocol, port)) {
                    return true;
                }
            }
            !isolated
        };
        side(from, to, false) && side(to, from, true)
    }

    fn manifest(&self) -> String {
        json!({"apiVersion": "v1", "kind": "List", "items": self.objects()}).to_string()
    }

    fn objects(&self) -> Vec<Json> {
        let mut items = Vec::new();
        for (i, namespace) in self.namespaces.iter().enumerate() {
            let mut labels = json!(namespace.labels);
            // The API server sets this label on every namespace.
            labels["kubernetes.io/metadata.name"] = format!("n{i}").into();
            let metadata = json!({"name": format!("n{i}"), "labels": labels});
            items.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
        }
        for (i, pod) in self.pods.iter().enumerate() {
            let ports: Vec<Json> = pod.web.iter().map(|port| json!({"name": "web", "containerPort": port})).collect();
            items.push(json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("p{i}"), "namespace": format!("n{}", pod.namespace), "labels": pod.labels},
                "spec": {"nodeName": "node", "containers": [{"ports": ports}]},
                "status": {"podIPs": [{"ip": self.address(Side::Pod(i))}]},
            }));
        }
        for (i, policy) in self.policies.iter().enumerate() {
            let rules = |rules: &[NetRule], peers: &str| rules.iter().map(|r| rule_json(r, peers)).collect::<Vec<_>>();
            items.push(json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"name": format!("np{i}"), "namespace": format!("n{}", policy.namespace)},
                "spec": {
                    "podSelector": policy.pods.json(), "policyTypes": policy.types,
                    "ingress": rules(&policy.ingress, "from"), "egress": rules(&policy.egress, "to"),
                },
            }));
        }
        items
    }
}

fn rule_json(rule: &NetRule, peers_name: &str) -> Json {
    let ports: Vec<Json> = rule
        .ports
        .iter()
        .map(|(protocol, port)| match port {
            Port::Any => json!({"protocol": protocol}),
            Port::One(port) => json!({"protocol": protocol, "port": port}),
            Port::Range(first, last) => json!({"protocol": protocol, "port": first, "endPort": last}),
            Port::Web => json!({"protocol": protocol, "port": "web"}),
        })
        .collect();
    let peers: Vec<Json> = rule
        .peers
        .iter()
        .map(|peer| match peer {
            Peer::Block { cidr, except } => json!({"ipBlock": {"cidr": cidr, "except": except}}),
            Peer::Selectors { pods, namespaces } => json!({
                "podSelector": pods.as_ref().map(LabelSelector::json),
                "namespaceSelector": namespaces.as_ref().map(LabelSelector::json),
            }),
        })
        .collect();
    json!({"ports": ports, peers_name: peers})
}

fn labels() -> impl Strategy<Value = Labels> {
    prop::collection::btree_map("[ab]", "[xy]?", 0..3)
}

fn label_selector() -> impl Strategy<Value = LabelSelector> {
    let values = || prop::collection::vec("[xy]?", 1..3);
    let requirement = prop_oneof![
        ("[ab]", values()).prop_map(|(k, v)| Requirement::In(k, v)),
        ("[ab]", values()).prop_map(|(k, v)| Requirement::NotIn(k, v)),
        "[ab]".prop_map(Requirement::Exists),
        "[ab]".prop_map(Requirement::DoesNotExist),
    ];
    let labels = prop::collection::btree_map("[ab]", "[xy]?", 0..2);
    (labels, prop::collection::vec(requirement, 0..2))
        .prop_map(|(labels, requirements)| LabelSelector { labels, requirements })
}

fn peer() -> impl Strategy<Value = Peer> {
    let selectors =
        (prop::option::of(label_selector()), prop::option::of(label_selector())).prop_map(|(pods, namespaces)| {
            let pods = if namespaces.is_none() {
                pods.or(Some(LabelSelector { labels: Labels::new(), requirements: vec![] }))
            } else {
                pods
            };
            Peer::Selectors { pods, namespaces }
        });
    let block = prop_oneof![
        Just(Peer::Block { cidr: "0.0.0.0/0", except: vec!["10.0.0.0/30", "192.0.2.128/25"] }),
        Just(Peer::Block { cidr: "10.0.0.0/24", except: vec![] }),
        Just(Peer::Block { cidr: "192.0.2.0/24", except: vec!["192.0.2.1/32"] }),
    ];
    prop_oneof![3 => selectors, 1 => block]
}

fn rule() -> impl Strategy<Value = NetRule> {
    let port = prop_oneof![
        Just(Port::Any),
        Just(Port::One(80)),
        Just(Port::One(81)),
        Just(Port::Range(80, 90)),
        Just(Port::Web),
    ];
    let port = (prop_oneof![3 => Just("TCP"), 1 => Just("UDP"), 1 => Just("SCTP")], port);
    (prop::collection::vec(peer(), 0..3), prop::collection::vec(port, 0..4))
        .prop_map(|(peers, ports)| NetRule { peers, ports })
}

fn policy() -> impl Strategy<Value = NetPolicy> {
    let types =
        prop_oneof![Just(vec![]), Just(vec!["Ingress"]), Just(vec!["Egress"]), Just(vec!["Ingress", "Egress"]),];
    let rules = || prop::collection::vec(rule(), 0..3);
    (0..2usize, label_selector(), rules(), rules(), types)
        .prop_map(|(namespace, pods, ingress, egress, types)| NetPolicy { namespace, pods, ingress, egress, types })
}

fn cluster() -> impl Strategy<Value = Cluster> {
    let namespace = labels().prop_map(|labels| Namespace { labels });
    let web = prop::option::of(prop_oneof![Just(80u16), Just(81)]);
    let pod = (0..2usize, labels(), web).prop_map(|(namespace, labels, web)| Pod { namespace, labels, web });
    (prop::collection::vec(namespace, 2..=2), prop::collection::vec(pod, 1..5), prop::collection::vec(policy(), 0..4))
        .prop_map(|(namespaces, pods, policies)| Cluster { namespaces, pods, policies })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn conversion_keeps_the_meaning(cluster in cluster()) {
        let model = Model::read(&cluster.manifest());
        let outside = ["192.0.2.1", "192.0.2.200", "10.0.0.77"].map(|a| Side::Outside(a.parse().expect("an address")));
        let ends: Vec<Side> = (0..cluster.pods.len()).map(Side::Pod).chain(outside).collect();
        for from in &ends {
            for to in &ends {
                for (protocol, port) in [("TCP", 80), ("TCP", 81), ("TCP", 90), ("UDP", 80), ("SCTP", 81)] {
                    let expected = cluster.allows(*from, *to, protocol, port);
                    let named = tortie_model::NamedProtocol::from_name(protocol).expect("a protocol");
                    let (source, destination) = (cluster.address(*from), cluster.address(*to));
                    let (out, into) = model.allows(source, destination, Protocol::Named(named), port);
                    let found = out && into;
                    prop_assert_eq!(found, expected, "{} to {} {} {}", source, destination, protocol, port);
                }
            }
        }
    }

    /// The resources for a separate Calico datastore have the same meaning as the Kubernetes
    /// objects.
    #[test]
    fn conversion_to_resources_keeps_the_meaning(cluster in cluster()) {
        let mut interner = Interner::new();
        for object in cluster.objects() {
            let converted = match &object["kind"] {
                kind if kind == "NetworkPolicy" => to_v3::network_policy(&object),
                kind if kind == "Namespace" => to_v3::namespace(&object),
                _ => to_v3::pod(&object, &Options::default()),
            };
            prop_assert_eq!(&converted.problems, &[]);
            let to_v3::Conversion::Resource(resource) = converted.outcome else { panic!("no resource of {object}") };
            let direct = contributions(&object, &mut interner);
            let through = contributions(&resource, &mut interner);
            prop_assert_eq!(direct.len(), through.len());
            for (direct, through) in direct.into_iter().zip(through) {
                match (&direct, &through) {
                    (Update::Policy(direct_id, direct), Update::Policy(id, through)) => {
                        prop_assert_eq!(format!("knp.default.{}", direct_id.name), id.name.to_string());
                        prop_assert_eq!(&direct_id.namespace, &id.namespace);
                        prop_assert_eq!(direct, through, "{}", resource);
                    }
                    _ => prop_assert_eq!(&direct, &through, "{}", resource),
                }
            }
        }
    }
}

fn contributions(object: &Json, interner: &mut Interner) -> Vec<Update> {
    let mut manifest = read(&object.to_string(), Format::Json, &Options::default(), interner);
    let resource = manifest.resources.pop().expect("one resource");
    assert!(resource.problems.is_empty(), "{:?} of {object}", resource.problems);
    let Outcome::Valid(contributions) = resource.outcome else { panic!("{object} is sound") };
    contributions
}
