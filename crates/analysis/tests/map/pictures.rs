//! Contents, omissions and foldings of pictures of an example.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that reads manifests")]

use std::fs;

use tortie_analysis::map::classes::evaluate::Settings;
use tortie_analysis::map::{Access, Anchor, Map, Options, dot, layout, map, svg};
use tortie_calc::GraphConfig;
use tortie_model::{Interner, Order, Protocol, Tier, TierDefaultAction, TierName, Update, Valid, WorkloadEndpointKey};
use tortie_resources::manifest::{Format, Outcome, read};

fn example() -> Vec<Update> {
    // Every datastore has this tier.
    let order = Order::new(1_000_000.0);
    let tier = Tier { order, default_action: Some(TierDefaultAction::Deny) };
    let mut updates = vec![Update::Tier(TierName::default_tier(), Some(tier))];
    for file in ["cluster.yaml", "policies.yaml"] {
        let path = format!("{}/../../examples/tiers/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(path).unwrap();
        let manifest = read(&text, Format::Yaml, &tortie_resources::manifest::Options::default(), &mut Interner::new());
        for resource in manifest.resources {
            assert!(resource.problems.is_empty(), "{:?}", resource.problems);
            let Outcome::Valid(contributions) = resource.outcome else { panic!("{file}") };
            updates.extend(contributions);
        }
    }
    updates
}

fn options() -> Options {
    Options::new(GraphConfig::new("any".into()), Settings::default())
}

/// Returns the edges as text, in order.
fn edges(map: &Map) -> Vec<String> {
    let text = |edge: &tortie_analysis::map::Edge| {
        let part = if edge.is_part { " (some)" } else { "" };
        format!("{} -> {}: {}{part}", map.name(edge.from), map.name(edge.to), edge.label)
    };
    map.edges.iter().map(text).collect()
}

#[test]
fn edges_of_complete_groups_are_merged() {
    let map = map(&example(), &options()).unwrap();
    let found = edges(&map);
    for expected in [
        "all pods -> kube-system/coredns: tcp 53; udp 53",
        "all networks -> shop/web: tcp 80,443",
        "payments/* -> card-networks: tcp 443",
        "offices -> monitoring/grafana-1: tcp 3000",
        "monitoring/prometheus-0 -> payments/*: tcp 9090-9099",
        "shop/web -> shop/api: tcp 8080",
    ] {
        assert!(found.iter().any(|edge| edge == expected), "{expected} is not in {found:#?}");
    }
    let tiers: Vec<String> = map.tiers.iter().map(ToString::to_string).collect();
    assert_eq!(tiers, ["security", "platform", "default"]);
    let edge = map.edges.iter().find(|edge| edge.label == "tcp 9090-9099").unwrap();
    assert_eq!(edge.tiers, [1]);
    let toolbox = map.nodes.iter().find(|node| node.title == "toolbox").unwrap();
    assert_eq!((&toolbox.ingress, &toolbox.egress), (&Access::Everything, &Access::Everything));
}

#[test]
fn the_order_of_objects_is_irrelevant() {
    let (one, mut updates) = (map(&example(), &options()).unwrap(), example());
    updates.reverse();
    let other = map(&updates, &options()).unwrap();
    let text = |map: &Map| (svg(map, &layout(map), &|by, _| format!("{by:?}")), dot(map, &|by, _| format!("{by:?}")));
    assert_eq!(text(&one), text(&other));
}

#[test]
fn a_partial_map_has_the_edges_of_the_full_map() {
    let whole = map(&example(), &options()).unwrap();
    let mut options = options();
    options.namespaces = vec!["payments".into()];
    let part = map(&example(), &options).unwrap();
    let expected: Vec<String> = edges(&whole).into_iter().filter(|edge| edge.contains("payments")).collect();
    let found: Vec<String> = edges(&part).into_iter().filter(|edge| edge.contains("payments/")).collect();
    assert_eq!(found.iter().filter(|edge| expected.contains(edge)).count(), expected.len(), "{found:#?}");
    assert!(part.nodes.iter().all(|node| node.title != "db-0") && part.left_out[1] > 0);
    // Edges between other nodes are left out.
    assert!(edges(&part).iter().all(|edge| !edge.contains("shop/web")), "{:#?}", edges(&part));
}

#[test]
fn requested_ports_are_named() {
    let mut options = options();
    options.ports = vec![(Protocol::UDP, 53)];
    let map = map(&example(), &options).unwrap();
    assert!(edges(&map).contains(&"all pods -> kube-system/coredns: udp 53".to_owned()), "{:#?}", edges(&map));
    assert!(map.edges.iter().all(|edge| edge.label == "udp 53"), "{:#?}", edges(&map));
}

/// Assigns the address, and optionally the interface, of one workload to another.
fn with_the_claim_of(
    mut updates: Vec<Update>,
    claimant: &str,
    owner: &str,
    (interface, is_on_same_node): (bool, bool),
) -> Vec<Update> {
    let found = updates.iter().find_map(|update| match update {
        Update::WorkloadEndpoint(key, Some(endpoint)) if key.workload() == owner => {
            Some((key.host().to_owned(), endpoint.clone()))
        }
        _ => None,
    });
    let (host, owned) = found.unwrap();
    for update in &mut updates {
        let Update::WorkloadEndpoint(key, Some(endpoint)) = update else { continue };
        if key.workload() == claimant {
            let mut claims = (**endpoint).clone();
            if interface {
                claims.iface = owned.iface;
            } else {
                claims.ipv4_nets = owned.ipv4_nets.clone();
            }
            *endpoint = Valid::new(claims).unwrap();
            let host = if is_on_same_node { &*host } else { "elsewhere" };
            *key = WorkloadEndpointKey::new(host, key.orchestrator(), key.workload(), key.endpoint());
        }
    }
    updates
}

#[test]
fn workloads_that_claim_the_same_are_denied_and_named() {
    let mut options = options();
    options.ports = vec![(Protocol::TCP, 3000)];
    let open = map(&example(), &options).unwrap();
    let access = |map: &Map, name: &str| {
        let node = map.nodes.iter().find(|node| node.members.iter().any(|member| **member == *name));
        node.map(|node| (node.ingress.clone(), node.egress.clone()))
    };
    assert!(open.contested.is_empty() && edges(&open).iter().any(|edge| edge.contains("grafana-1")));
    let (one, other) = ("monitoring/grafana-1", "sandbox/toolbox");
    assert_ne!(access(&open, one), Some((Access::Nothing, Access::Nothing)));
    for interface in [false, true] {
        let denied = map(&with_the_claim_of(example(), other, one, (interface, true)), &options).unwrap();
        for (name, rival) in [(one, other), (other, one)] {
            assert_eq!(access(&denied, name), Some((Access::Nothing, Access::Nothing)), "{name}");
            let claimed = if interface { "interface cali" } else { "address 10.1.2.2" };
            let is_remark = |remark: &String| {
                remark.starts_with(&format!("{name}: contested: {claimed}"))
                    && remark.ends_with(&format!("is also claimed by {rival}; denied."))
            };
            assert_eq!(
                denied.remarks().iter().filter(|remark| is_remark(remark)).count(),
                1,
                "{:#?}",
                denied.remarks()
            );
        }
        assert!(edges(&denied).iter().all(|edge| !edge.contains("grafana")), "{:#?}", edges(&denied));
        assert!(dot(&denied, &|by, _| format!("{by:?}")).contains(&format!("// {one}: contested")));
        // Endpoints of different nodes may share an interface name.
        let apart = map(&with_the_claim_of(example(), other, one, (interface, false)), &options).unwrap();
        assert!(apart.contested.is_empty(), "{:?}", apart.contested);
        for name in [one, other] {
            assert_eq!(access(&apart, name), access(&open, name), "{name}");
        }
    }
    // A picture of other workloads does not name them.
    options.namespaces = vec!["payments".into()];
    assert!(map(&with_the_claim_of(example(), other, one, (false, true)), &options).unwrap().contested.is_empty());
}

#[test]
fn too_many_nodes_are_folded() {
    let mut options = options();
    options.max_nodes = 8;
    let map = map(&example(), &options).unwrap();
    assert!(map.nodes.len() <= 8 && map.unfolded == Some(12), "{} of {:?}", map.nodes.len(), map.unfolded);
    assert!(map.remarks().iter().any(|remark| remark.contains("12 classes")));
    // Some pods of `shop` reach some of `payments`.
    assert!(
        edges(&map).contains(&"shop/all pods -> payments/all pods: tcp 8443 (some)".to_owned()),
        "{:#?}",
        edges(&map)
    );
    // With fewer nodes than namespaces, the smallest namespaces are one node.
    options.max_nodes = 3;
    let map = tortie_analysis::map::map(&example(), &options).unwrap();
    assert_eq!(map.nodes.len(), 3, "{:#?}", map.nodes);
    let members: usize = map.nodes.iter().filter(|node| !node.is_networks()).map(|node| node.members.len()).sum();
    assert!(members >= 12, "{members}");
}

#[test]
fn elements_do_not_overlap() {
    let map = map(&example(), &options()).unwrap();
    let layout = layout(&map);
    let overlaps = |one: &tortie_analysis::map::Rect, other: &tortie_analysis::map::Rect| {
        one.x < other.x + other.width
            && other.x < one.x + one.width
            && one.y < other.y + other.height
            && other.y < one.y + one.height
    };
    for (place, one) in layout.groups.iter().enumerate() {
        assert!(layout.groups.iter().skip(place + 1).all(|other| !overlaps(one, other)), "{layout:#?}");
    }
    for (place, one) in layout.nodes.iter().enumerate() {
        assert!(layout.nodes.iter().skip(place + 1).all(|other| !overlaps(one, other)), "{layout:#?}");
        let group = layout.groups[map.nodes[place].group];
        assert!(one.x > group.x && one.x + one.width < group.x + group.width, "{layout:#?}");
    }
    assert!(map.edges.iter().all(|edge| edge.from != Anchor::AnyPeer || edge.to != Anchor::AnyPeer));
}

#[test]
fn a_remark_mentions_policies_for_forwarded_packets() {
    let hosts = "apiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {name: all, labels: {role: host}}\n\
                 spec: {node: n1, interfaceName: \"*\"}\n---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\n\
                 metadata: {name: hosts}\nspec: {selector: role == 'host', applyOnForward: true, types: [Ingress]}\n";
    let remarks = |text: &str| {
        let manifest = read(text, Format::Yaml, &tortie_resources::manifest::Options::default(), &mut Interner::new());
        let contributions = manifest.resources.into_iter().flat_map(|resource| {
            let Outcome::Valid(contributions) = resource.outcome else { panic!("{:?}", resource.problems) };
            contributions
        });
        let updates: Vec<Update> = example().into_iter().chain(contributions).collect();
        map(&updates, &options()).unwrap().remarks()
    };
    assert_eq!(remarks(&hosts.replace("applyOnForward: true, ", "")), [""; 0]);
    let found = remarks(hosts);
    assert!(matches!(&found[..], [remark] if remark.contains("applyOnForward")), "{found:?}");
}

/// Returns two pods of which one may connect to names.
fn with_names() -> Vec<Update> {
    let text = "apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: db, labels: {app: db}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.2}]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: shop, name: names}
spec:
  selector: app == 'web'
  types: [Egress]
  egress:
  - {action: Allow, protocol: TCP, destination: {domains: ['*.a.io'], ports: [443]}}
  - {action: Allow, protocol: TCP, destination: {domains: [x.a.io], ports: [80]}}
";
    let manifest = read(text, Format::Yaml, &tortie_resources::manifest::Options::default(), &mut Interner::new());
    let updates = manifest.resources.into_iter().flat_map(|resource| match resource.outcome {
        Outcome::Valid(contributions) => contributions.into_iter().collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    });
    updates.collect()
}

#[test]
fn names_that_patterns_distinguish_are_nodes_to_which_edges_lead() {
    let map = map(&with_names(), &options()).unwrap();
    let found = edges(&map);
    for expected in ["shop/web -> *.a.io but not x.a.io: tcp 443", "shop/web -> x.a.io: tcp 80,443"] {
        assert!(found.iter().any(|edge| edge == expected), "{expected} is not in {found:#?}");
    }
    let names: Vec<&str> = map.nodes.iter().filter(|node| node.is_domains).map(|node| node.title.as_str()).collect();
    assert_eq!(names, ["*.a.io but not x.a.io", "x.a.io"]);
    let is_name = |anchor| matches!(anchor, Anchor::Node(number) if map.nodes[number].is_domains);
    assert!(map.edges.iter().all(|edge| !is_name(edge.from)), "no connection comes from a name: {found:#?}");
    assert!(
        !map.nodes.iter().any(|node| node.members.iter().any(|member| member.starts_with("240."))),
        "{:?}",
        map.nodes
    );
}
