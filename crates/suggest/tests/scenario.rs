//! A small shop, from its flows to its policies.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

mod common;

use std::collections::BTreeSet;

use common::{Flow, cluster, learned};
use tortie_suggest::{Base, Days, External, Form, Learner, Level, Options, Suggestion, Topic, suggest};

const SHOP: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
";

fn shop() -> String {
    let mut text = SHOP.to_owned();
    text +=
        &common::pod("shop", "web-7c9-abcde", "n1", "10.0.1.2", "app: web, pod-template-hash: 7c9", Some("web-7c9-"));
    text +=
        &common::pod("shop", "web-7c9-fghij", "n2", "10.0.2.2", "app: web, pod-template-hash: 7c9", Some("web-7c9-"));
    let db = "app: db, apps.kubernetes.io/pod-index: '0'";
    text += &common::pod("shop", "db-0", "n2", "10.0.2.3", db, Some("db-"));
    text += &common::pod("shop", "tool", "n1", "10.0.1.4", "", None);
    let dns = "k8s-app: kube-dns, pod-template-hash: 55d";
    text += &common::pod("kube-system", "coredns-55d-aaaaa", "n1", "10.0.1.5", dns, Some("coredns-55d-"));
    text
}

fn flows() -> Vec<Flow> {
    vec![
        Flow::pods("shop/web-7c9-abcde", "10.0.1.2", "shop/db-0", "10.0.2.3", 5432),
        Flow::pods("shop/web-7c9-fghij", "10.0.2.2", "shop/db-0", "10.0.2.3", 5432).day(1),
        Flow::pods("shop/web-7c9-abcde", "10.0.1.2", "kube-system/coredns-55d-aaaaa", "10.0.1.5", 53).udp().count(2, 2),
        Flow::pods("shop/web-7c9-abcde", "10.0.1.2", "kube-system/coredns-55d-aaaaa", "10.0.1.5", 53).udp().day(1),
        Flow::from_node("n2", "172.18.0.3", "shop/web-7c9-abcde", "10.0.1.2", 8080),
        // A probe of the pod's own node.
        Flow::from_node("n1", "172.18.0.2", "shop/web-7c9-abcde", "10.0.1.2", 9090),
        Flow::to_outside("shop/web-7c9-abcde", "10.0.1.2", "203.0.113.7", 443),
        // Refused, not answered, and denied.
        Flow::pods("shop/tool", "10.0.1.4", "shop/db-0", "10.0.2.3", 81).count(1, 1),
        Flow::pods("shop/tool", "10.0.1.4", "shop/db-0", "10.0.2.3", 82).count(3, 0),
        Flow::pods("shop/tool", "10.0.1.4", "shop/db-0", "10.0.2.3", 83).denied(),
        // Late replies of a question.
        Flow::pods("shop/db-0", "10.0.2.3", "shop/tool", "10.0.1.4", 700).udp().source_port(123).at(90),
        Flow::pods("shop/tool", "10.0.1.4", "shop/db-0", "10.0.2.3", 123).udp().source_port(700).at(10),
    ]
}

fn suggested(flows: &[Flow], options: &Options) -> Suggestion {
    let cluster = cluster(&shop());
    let suggestion = suggest(&cluster, &learned(&cluster, flows), options).unwrap();
    assert_eq!(suggestion.denied, [], "{}", suggestion.to_yaml());
    suggestion
}

const EXPECTED: &str = include_str!("scenario.yaml");

#[test]
fn policies_are_short_and_stable() {
    let suggestion = suggested(&flows(), &Options::default());
    assert_eq!(suggestion.to_yaml(), EXPECTED);
    let left_out = |topic| suggestion.report.notes.iter().filter(|note| note.topic == topic).count();
    assert_eq!([Topic::Attempt, Topic::Denied, Topic::SeenOnce].map(left_out), [2, 1, 3], "{}", suggestion.report);
    assert!(!suggestion.report.is_incomplete());
    let shortfall = suggestion.report.shortfall(Days(7)).unwrap();
    assert_eq!((shortfall.as_str(), suggestion.report.shortfall(Days(1))), ("the flows cover 1 of 7 days\n", None));
    let json = suggestion.to_json();
    assert_eq!(json["policies"][2]["metadata"]["name"], "suggest-web");
    assert_eq!((&json["owners"][0]["pods"], &json["incomplete"]), (&1.into(), &false.into()));

    // Any order, and twice.
    let mut shuffled = flows();
    shuffled.reverse();
    shuffled.extend(flows());
    shuffled.rotate_left(5);
    assert_eq!(suggested(&shuffled, &Options::default()).to_yaml(), EXPECTED);
}

#[test]
fn every_form_is_read_back_with_the_same_policies() {
    for form in [Form::Kubernetes, Form::Staged, Form::Calico, Form::CalicoStaged] {
        let mut options = Options::default();
        options.form = form;
        let first = suggested(&flows(), &options).to_yaml();
        let manifest = tortie_resources::manifest::read(
            &first,
            tortie_resources::manifest::Format::Yaml,
            &tortie_resources::manifest::Options::default(),
            &mut tortie_model::Interner::new(),
        );
        assert_eq!(manifest.resources.len(), 3, "{first}");
        let problems = manifest.resources.iter().flat_map(|resource| &resource.problems);
        assert_eq!(problems.map(ToString::to_string).collect::<Vec<_>>(), [""; 0], "{first}");
        options.base = Base::read(&first).unwrap();
        assert_ne!(options.base, Base::default());
        assert_eq!(suggested(&flows(), &options).to_yaml(), first);
    }
}

#[test]
fn a_new_edge_changes_its_own_rules_alone_with_the_last_output() {
    let mut options = Options::default();
    let many = |count: u8| {
        (1..=count).map(|last| Flow::to_outside("shop/tool", "10.0.1.4", &format!("198.51.100.{last}"), 443))
    };
    let before: Vec<Flow> = flows().into_iter().chain(many(20)).collect();
    let first = suggested(&before, &options).to_yaml();
    assert!(first.contains("# widened: 20 addresses"), "{first}");
    options.base = Base::read(&first).unwrap();
    // Fewer addresses, and one more edge: the network stays.
    let new = Flow::pods("shop/tool", "10.0.1.4", "shop/db-0", "10.0.2.3", 5432);
    let after: Vec<Flow> = flows().into_iter().chain(many(3)).chain([new]).collect();
    let second = suggested(&after, &options);
    let names: BTreeSet<String> = changed(&first, &second.to_yaml());
    assert_eq!(names, ["suggest-db".to_owned(), "suggest-tool".to_owned()].into());
    assert!(second.to_yaml().contains("198.51.100.0/24"), "{}", second.to_yaml());
}

/// Returns the names of the documents that only one text has, remarks aside.
fn changed(one: &str, other: &str) -> BTreeSet<String> {
    let documents = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        lines.collect::<Vec<_>>().join("\n").split("---\n").map(|document| document.trim().to_owned()).collect()
    };
    let (one, other) = (documents(one), documents(other));
    let name =
        |document: &String| document.lines().find_map(|line| line.trim().strip_prefix("name: ")).unwrap().to_owned();
    one.symmetric_difference(&other).map(name).collect()
}

#[test]
fn a_namespace_may_have_one_policy_and_a_default_deny() {
    let mut options = Options::default();
    (options.level, options.default_deny) = (Level::Namespace, true);
    let suggestion = suggested(&flows(), &options);
    let names: Vec<&str> = suggestion.policies.iter().map(|policy| &*policy.name).collect();
    assert_eq!(names, ["suggest-default-deny", "suggest-namespace"]);
    options.level = Level::Workload;
    let suggestion = suggested(&flows(), &options);
    let names: Vec<&str> = suggestion.policies.iter().map(|policy| &*policy.name).collect();
    assert_eq!(names, ["suggest-db", "suggest-default-deny", "suggest-tool", "suggest-web"]);
}

#[test]
fn icmp_is_left_out_of_kubernetes_policies_and_listed() {
    let mut with_ping = flows();
    with_ping.push(Flow::pods("shop/web-7c9-abcde", "10.0.1.2", "shop/db-0", "10.0.2.3", 0).ping());
    let mut options = Options::default();
    let kubernetes = suggested(&with_ping, &options);
    assert!(kubernetes.report.is_incomplete());
    assert_eq!(kubernetes.to_yaml(), EXPECTED);
    options.form = Form::Calico;
    let calico = suggested(&with_ping, &options);
    assert!(!calico.report.is_incomplete(), "{}", calico.report);
    assert!(calico.to_yaml().contains("protocol: ICMP"), "{}", calico.to_yaml());
}

const PLATFORM: &str = "
---
{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: platform}, spec: {order: 1}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: platform.db}, spec: {tier: platform,
  selector: app == 'db', types: [Ingress], ingress: [{action: Deny, protocol: TCP, destination: {ports: [5432]}}, {action: Pass}]}}
";

#[test]
fn edges_that_other_policies_deny_by_now_are_named() {
    let cluster = cluster(&(shop() + PLATFORM));
    let record = learned(&cluster, &flows());
    let mut options = Options::default();
    let isolated = suggest(&cluster, &record, &options).unwrap();
    let db = isolated.policies.iter().find(|policy| &*policy.name == "suggest-db").unwrap();
    assert!(db.ingress.is_none() && db.egress.is_some(), "the platform isolates ingress already");
    assert_eq!(isolated.denied, []);
    options.all = true;
    let suggestion = suggest(&cluster, &record, &options).unwrap();
    let [denied] = &suggestion.denied[..] else { panic!("{:?}", suggestion.denied) };
    assert_eq!(denied.edge.to_string(), "shop/deployment/web -> shop/statefulset/db TCP 5432");
    assert!(denied.to_string().contains(" is denied by GlobalNetworkPolicy/platform.db"), "{denied}");
    assert!(denied.decided_by.starts_with("GlobalNetworkPolicy/platform.db, ingress rule 0"), "{denied:?}");
}

#[test]
fn pods_that_are_gone_need_labels_or_a_former_owner() {
    let gone = |name: &str| Flow::pods(name, "10.0.1.9", "shop/db-0", "10.0.2.3", 5432);
    // A pod of another revision of a Deployment.
    let former = suggested(&[gone("shop/web-5d8-zzzzz")], &Options::default());
    assert!(!former.report.is_incomplete() && former.to_yaml().contains("app: web"), "{}", former.report);
    let unknown = suggested(&[gone("shop/copy-29012345-abcde")], &Options::default());
    assert!(unknown.report.is_incomplete(), "{}", unknown.report);
    let mut job = gone("shop/copy-29012345-abcde");
    job.0["source"]["labels"] = serde_json::json!({"app": "copy", "job-name": "copy-29012345"});
    let known = suggested(&[job], &Options::default());
    assert!(!known.report.is_incomplete(), "{}", known.report);
    assert!(known.to_yaml().contains("name: suggest-copy\n"), "{}", known.to_yaml());
}

#[test]
fn many_clients_are_the_public_or_networks() {
    let text = |addresses: &[&str]| {
        let clients = addresses.iter().map(|address| Flow::from_outside(address, "shop/tool", "10.0.1.4", 443));
        let blocks = suggested(&clients.collect::<Vec<_>>(), &Options::default()).to_yaml();
        blocks.lines().filter_map(|line| line.trim().strip_prefix("cidr: ").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(text(&["203.0.113.7", "198.51.100.7"]), ["\"198.51.100.7/32\"", "\"203.0.113.7/32\""]);
    assert_eq!(text(&["203.0.113.7", "198.51.100.7", "192.0.2.7"]), ["\"0.0.0.0/0\""]);
    let private: Vec<String> = (1..=9).map(|last| format!("192.168.7.{last}")).collect();
    let private: Vec<&str> = private.iter().map(String::as_str).collect();
    assert_eq!(text(&private), ["\"192.168.7.0/24\""]);
    assert_eq!(text(&private[..8]).len(), 8);
    // More networks than the record keeps.
    let networks: Vec<String> = (0..70).map(|network| format!("198.51.{network}.7")).collect();
    let networks: Vec<&str> = networks.iter().map(String::as_str).collect();
    assert_eq!(text(&networks), ["\"::/0\"", "\"0.0.0.0/0\""].iter().rev().copied().collect::<Vec<_>>());
}

#[test]
fn addresses_that_the_record_lacks_need_any() {
    let cluster = cluster(&shop());
    let mut learner = Learner::new(&cluster);
    learner.read(
        r#"{"start_time": "2026-01-05T10:00:00.000Z", "end_time": "2026-01-05T10:05:00.000Z", "reporter": "egress",
           "verdict": "allow", "source": {"kind": "workload", "namespace": "shop", "name": "web-7c9-*"},
           "destination": {"kind": "public"}, "protocol": "TCP", "port": 443, "policies": [], "connections_started": 2,
           "connections_ended": 2, "connections_live": 2, "attempts": 2, "packets": 20, "bytes": 1, "reply_packets": 20,
           "reply_bytes": 1}"#
            .replace('\n', " ")
            .as_str(),
    );
    assert_eq!((learner.flows(), learner.unreadable()), (1, 0));
    let record = learner.finish();
    let mut options = Options::default();
    assert!(suggest(&cluster, &record, &options).unwrap().report.is_incomplete());
    options.external = External::Any;
    let suggestion = suggest(&cluster, &record, &options).unwrap();
    assert!(!suggestion.report.is_incomplete(), "{}", suggestion.report);
    assert!(suggestion.to_yaml().contains("cidr: \"0.0.0.0/0\""), "{}", suggestion.to_yaml());
}
