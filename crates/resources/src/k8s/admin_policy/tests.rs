use tortie_model::{Interner, Key, Policy, PolicyId, RuleAction, Update};

use crate::manifest::{Format, Options, Outcome, Resource, UnknownFields, read};

fn options(unknown_fields: UnknownFields) -> Options {
    Options { unknown_fields, ..Options::default() }
}

fn resource(text: &str, unknown_fields: UnknownFields) -> Resource {
    let mut manifest = read(text, Format::Yaml, &options(unknown_fields), &mut Interner::new());
    assert_eq!(manifest.unreadable, []);
    manifest.resources.remove(0)
}

fn policy(outcome: &Outcome) -> (&PolicyId, &Policy) {
    let contributions = match outcome {
        Outcome::Valid(contributions) | Outcome::Invalid { substitute: Some(contributions) } => contributions,
        other => panic!("{other:?}"),
    };
    let [Update::Policy(id, Some(policy)), tiers @ ..] = &contributions[..] else { panic!("{contributions:?}") };
    // The tiers of `ClusterNetworkPolicy` always exist.
    let needed = (!policy.tier.as_str().starts_with("kube-")).then(|| Key::Tier(policy.tier.clone()));
    assert_eq!(tiers.iter().map(Update::key).collect::<Vec<_>>(), Vec::from_iter(needed));
    (id, policy)
}

/// Describes key, tier, order, selector and rules.
fn describe(outcome: &Outcome) -> String {
    let (id, policy) = policy(outcome);
    let mut text = format!(
        "{} {} tier {} order {} {}\n",
        id.kind.as_str(),
        id.name,
        policy.tier,
        policy.order.map_or("none".into(), |order| order.get().to_string()),
        policy.selector.text()
    );
    assert_eq!((policy.types.ingress, policy.types.egress), (!policy.inbound.is_empty(), !policy.outbound.is_empty()));
    for (direction, rules) in [("in", &policy.inbound), ("out", &policy.outbound)] {
        for rule in rules.iter() {
            let side = if direction == "in" { &rule.source } else { &rule.destination };
            text += &format!("{direction} {:?}", rule.action);
            if let Some(protocol) = rule.protocol {
                text += &format!(" {protocol}");
            }
            for port in &*rule.destination.ports {
                text += &format!(" {port}");
            }
            if let Some(selector) = &side.selector {
                text += &format!(" {}", selector.text());
            }
            for net in &side.nets {
                text += &format!(" {net}");
            }
            for (name, value) in &rule.extras.annotations {
                text += &format!(" {name}={value}");
            }
            text += "\n";
        }
    }
    text
}

fn valid(text: &str) -> String {
    let resource = resource(text, UnknownFields::Refuse);
    assert_eq!(resource.problems, []);
    assert!(matches!(resource.outcome, Outcome::Valid(_)));
    describe(&resource.outcome)
}

#[test]
fn a_cluster_network_policy() {
    let text = "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: default.guard}
spec:
  tier: Admin
  priority: 7
  subject: {namespaces: {matchLabels: {team: a}}}
  ingress:
  - name: from-b
    action: Accept
    from: [{namespaces: {matchLabels: {team: b}}}, {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: x}}}}]
    protocols:
    - {udp: {destinationPort: {number: 53}}}
    - {tcp: {destinationPort: {range: {start: 80, end: 90}}}}
    - {tcp: {destinationPort: {number: 91}}}
    - {destinationNamedPort: web}
  - {action: Pass, from: [{namespaces: {}}], protocols: [{sctp: {}}, {sctp: {destinationPort: {number: 1}}}]}
  egress:
  - {action: Deny, to: [{networks: [10.0.0.1/8, 'fd00::/8']}]}
";
    assert_eq!(
        valid(text),
        "KubernetesClusterNetworkPolicy default.guard tier kube-admin order 7 \
         (projectcalico.org/orchestrator == 'k8s') && pcns.team == \"a\"\n\
         in Allow web (pcns.team == \"b\") && (projectcalico.org/orchestrator == 'k8s') name=from-b\n\
         in Allow web (has(projectcalico.org/namespace)) && (projectcalico.org/orchestrator == 'k8s' && app == 'x') \
         name=from-b\n\
         in Allow tcp 80:91 (pcns.team == \"b\") && (projectcalico.org/orchestrator == 'k8s') name=from-b\n\
         in Allow tcp 80:91 (has(projectcalico.org/namespace)) && (projectcalico.org/orchestrator == 'k8s' && app == 'x') \
         name=from-b\n\
         in Allow udp 53 (pcns.team == \"b\") && (projectcalico.org/orchestrator == 'k8s') name=from-b\n\
         in Allow udp 53 (has(projectcalico.org/namespace)) && (projectcalico.org/orchestrator == 'k8s' && app == 'x') \
         name=from-b\n\
         in NextTier sctp (has(projectcalico.org/namespace)) && (projectcalico.org/orchestrator == 'k8s')\n\
         out Deny 10.0.0.0/8 fd00::/8\n"
    );
}

#[test]
fn the_older_kinds() {
    let text = "
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: guard}
spec:
  priority: 3
  subject: {pods: {namespaceSelector: {matchLabels: {team: a}}, podSelector: {}}}
  ingress:
  - {action: Pass, from: [{namespaces: {}}], ports: [{portNumber: {port: 80}}, {portNumber: {protocol: UDP, port: 53}}]}
  egress:
  - {action: Allow, to: [{networks: [10.0.0.0/8]}], ports: [{portRange: {start: 1, end: 9}}, {namedPort: dns}]}
";
    assert_eq!(
        valid(text),
        "GlobalNetworkPolicy kanp.adminnetworkpolicy.guard tier adminnetworkpolicy order 3 \
         (projectcalico.org/orchestrator == 'k8s') && pcns.team == \"a\"\n\
         in NextTier tcp 80 (has(projectcalico.org/namespace)) && (projectcalico.org/orchestrator == 'k8s')\n\
         in NextTier udp 53 (has(projectcalico.org/namespace)) && (projectcalico.org/orchestrator == 'k8s')\n\
         out Allow dns 10.0.0.0/8\n\
         out Allow tcp 1:9 10.0.0.0/8\n"
    );
    let text = "
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec:
  subject: {namespaces: {}}
  ingress: [{action: Deny, from: [{namespaces: {}}]}]
";
    assert_eq!(
        valid(text),
        "GlobalNetworkPolicy kbanp.baselineadminnetworkpolicy.default tier baselineadminnetworkpolicy order 1000 \
         (projectcalico.org/orchestrator == \"k8s\" && has(projectcalico.org/namespace))\n\
         in Deny (has(projectcalico.org/namespace)) && (projectcalico.org/orchestrator == 'k8s')\n"
    );
}

/// Returns a policy with one ingress rule.
fn with_rule(rule: &str) -> String {
    format!(
        "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: p}}\nspec:\n  \
         tier: Baseline\n  priority: 1\n  subject: {{namespaces: {{}}}}\n  ingress:\n  - {rule}\n  \
         - {{action: Accept, from: [{{namespaces: {{}}}}], protocols: [{{tcp: {{}}}}]}}\n"
    )
}

#[test]
fn an_unreadable_rule_allows_nothing() {
    for rule in [
        "{action: ACTION}",
        "{action: ACTION, from: []}",
        "{action: ACTION, from: [{}]}",
        "{action: ACTION, from: [{namespaces: {}, pods: {}}]}",
        "{action: ACTION, from: [{namespaces: {}}, {domainNames: [a.org]}]}",
        "{action: ACTION, from: [{networks: [10.0.0.0/8]}]}",
        "{action: ACTION, from: [{namespaces: {matchExpressions: [{key: a, operator: Near, values: [b]}]}}]}",
        "{action: ACTION, from: [{namespaces: {}}], protocols: [{}]}",
        "{action: ACTION, from: [{namespaces: {}}], protocols: [{icmp: {}}]}",
        "{action: ACTION, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {}}}]}",
        "{action: ACTION, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 0}}}]}",
        "{action: ACTION, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {start: 9, end: 1}}}}]}",
        "{action: ACTION, from: [{namespaces: {}}], protocols: [{tcp: {}, udp: {}}]}",
        "{action: ACTION, from: [{namespaces: {}}], protocols: [{destinationNamedPort: 'No Port'}]}",
        "{action: ACTION, from: [{namespaces: {}}], hour: 12}",
    ] {
        for (action, closed) in [("Deny", true), ("Pass", true), ("Perhaps", true), ("Accept", false)] {
            let text = with_rule(&rule.replace("ACTION", action));
            // From a datastore the rest of the policy holds.
            let stored = resource(&text, UnknownFields::Ignore);
            assert!(matches!(stored.outcome, Outcome::Valid(_)) && !stored.problems.is_empty(), "{text}");
            // From a file the policy is refused, and the same stands in for it.
            let written = resource(&text, UnknownFields::Refuse);
            assert!(matches!(written.outcome, Outcome::Invalid { .. }), "{text}");
            for outcome in [&stored.outcome, &written.outcome] {
                let (_, policy) = policy(outcome);
                let actions: Vec<RuleAction> = policy.inbound.iter().map(|rule| rule.action).collect();
                let expected: &[RuleAction] =
                    if closed { &[RuleAction::Deny, RuleAction::Allow] } else { &[RuleAction::Allow] };
                assert_eq!(actions, expected, "{text}");
                if closed {
                    assert_eq!(policy.inbound[0].source.selector, None, "everything is denied");
                }
            }
        }
    }
}

#[test]
fn each_unsupported_peer_is_one_error_with_its_name() {
    let text = |peer: &str| {
        format!(
            "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {{name: p}}\nspec:\n  \
             priority: 1\n  subject: {{namespaces: {{}}}}\n  egress:\n  - {{action: Deny, to: [{peer}]}}\n"
        )
    };
    for (peer, expected) in [
        (
            "{domainNames: [example.com, '*.example.org']}",
            "8:39 spec.egress[0].to[0].domainNames: are only for rules of administrators that allow",
        ),
        ("{node: {}}", "8:26 spec.egress[0].to[0].node: is not a known field; is `nodes` meant?"),
        (
            "{networks: [x]}",
            "8:37 spec.egress[0].to[0].networks[0]: `x` is neither an IP address nor a network in CIDR notation",
        ),
        ("{networks: []}", "8:25 spec.egress[0].to[0]: names no network"),
        ("{}", "8:25 spec.egress[0].to[0]: must give one of namespaces, pods, nodes, networks, domainNames"),
    ] {
        let found = resource(&text(peer), UnknownFields::Refuse);
        let problems: Vec<String> = found.problems.iter().map(|p| format!("{} {p}", p.position)).collect();
        assert_eq!(problems, [expected]);
        // A second peer has its own error.
        let found = resource(&text(&format!("{{namespaces: {{}}}}, {peer}, {peer}")), UnknownFields::Refuse);
        assert_eq!(found.problems.len(), 2, "{:?}", found.problems);
    }
    for (name, value) in [("domainNames", "[a.org]"), ("networks", "[10.0.0.0/8]")] {
        let ingress = with_rule(&format!("{{action: Deny, from: [{{{name}: {value}}}]}}"));
        let problems = resource(&ingress, UnknownFields::Refuse).problems;
        let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(messages, [format!("spec.ingress[0].from[0].{name}: is not a peer of ingress rules")]);
    }
}

#[test]
fn domain_peers_belong_to_rules_of_administrators_that_accept() {
    let text = |kind: &str, tier: &str, action: &str, peer: &str, rest: &str| {
        let version = if kind == "ClusterNetworkPolicy" { "v1alpha2" } else { "v1alpha1" };
        let name = if kind.starts_with("Baseline") { "default" } else { "p" };
        let priority = if kind.starts_with("Baseline") { "" } else { "priority: 1, " };
        format!(
            "apiVersion: policy.networking.k8s.io/{version}\nkind: {kind}\nmetadata: {{name: {name}}}\n\
             spec: {{{tier}{priority}subject: {{namespaces: {{}}}}, egress: [{{action: {action}, to: [{peer}]{rest}}}]}}\n"
        )
    };
    let peer = "{domainNames: ['*.Example.com', a.io.]}";
    for (kind, tier, action) in
        [("ClusterNetworkPolicy", "tier: Admin, ", "Accept"), ("AdminNetworkPolicy", "", "Allow")]
    {
        let found = resource(&text(kind, tier, action, peer, ""), UnknownFields::Refuse);
        assert_eq!(found.problems, [], "{kind}");
        let (_, found) = policy(&found.outcome);
        let domains: Vec<_> = found.outbound[0].destination.extras.domains.iter().map(ToString::to_string).collect();
        assert_eq!((found.outbound.len(), domains), (1, vec!["*.example.com".to_owned(), "a.io".to_owned()]));
    }
    let refused = "are only for rules of administrators that allow";
    let many = format!("{{domainNames: [{}]}}", (0..26).map(|n| format!("n{n}.io")).collect::<Vec<_>>().join(", "));
    let named = ", protocols: [{destinationNamedPort: web}]";
    let cluster = "ClusterNetworkPolicy";
    for (kind, tier, action, peer, rest, expected) in [
        (cluster, "tier: Admin, ", "Deny", peer, "", refused),
        (cluster, "tier: Admin, ", "Pass", peer, "", refused),
        (cluster, "tier: Baseline, ", "Accept", peer, "", refused),
        ("BaselineAdminNetworkPolicy", "", "Allow", peer, "", refused),
        (cluster, "tier: Admin, ", "Accept", peer, named, "cannot be combined with named ports"),
        (cluster, "tier: Admin, ", "Accept", "{domainNames: [www.*.a.io]}", "", "has `*` behind another label"),
        (cluster, "tier: Admin, ", "Accept", "{domainNames: ['*.io']}", "", "needs two labels behind `*`"),
        (cluster, "tier: Admin, ", "Accept", "{domainNames: [io]}", "", "needs two labels"),
        (cluster, "tier: Admin, ", "Accept", "{domainNames: []}", "", "names no domain"),
        (cluster, "tier: Admin, ", "Accept", &many, "", "has 26 names, at most 25 are allowed"),
    ] {
        let manifest = text(kind, tier, action, peer, rest);
        let found = resource(&manifest, UnknownFields::Refuse).problems;
        assert_eq!(found.iter().map(|problem| &*problem.message).collect::<Vec<_>>(), [expected], "{manifest}");
        // In a datastore the rest holds; the rule opens nothing.
        let tolerated = resource(&manifest, UnknownFields::Ignore);
        let (_, found) = policy(&tolerated.outcome);
        let rules: Vec<RuleAction> = found.outbound.iter().map(|rule| rule.action).collect();
        let accepts = matches!(action, "Accept" | "Allow");
        assert_eq!(rules, if accepts { vec![] } else { vec![RuleAction::Deny] }, "{manifest}");
    }
}

#[test]
fn node_peers_select_nodes_by_their_labels() {
    for (nodes, expected) in [
        ("{}", "has(pcnode.projectcalico.org/node)"),
        (
            "{matchLabels: {rack: a}, matchExpressions: [{key: k8s.io/gpu, operator: DoesNotExist}]}",
            "has(pcnode.projectcalico.org/node) && pcnode.rack == 'a' && ! has(pcnode.k8s.io/gpu)",
        ),
        (
            "{matchExpressions: [{key: zone, operator: In, values: [x, z]}]}",
            "has(pcnode.projectcalico.org/node) && pcnode.zone in { 'x', 'z' }",
        ),
    ] {
        let found =
            resource(&with_rule(&format!("{{action: Accept, from: [{{nodes: {nodes}}}]}}")), UnknownFields::Refuse);
        assert_eq!(found.problems, []);
        let (_, found) = policy(&found.outcome);
        let selector = found.inbound[0].source.selector.as_ref().unwrap();
        assert_eq!(selector.text(), expected);
        assert!(tortie_model::selects_nodes(selector));
        for kind in ["AdminNetworkPolicy", "BaselineAdminNetworkPolicy"] {
            let text = format!(
                "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: {kind}\nmetadata: {{name: default}}\nspec:\n  \
                 priority: 1\n  subject: {{namespaces: {{}}}}\n  egress:\n  - {{action: Deny, to: [{{nodes: {nodes}}}]}}\n"
            );
            let found = resource(&text, UnknownFields::Ignore);
            let (_, found) = policy(&found.outcome);
            assert_eq!(found.outbound[0].destination.selector.as_ref(), Some(selector));
            let ingress = resource(&text.replace("egress", "ingress").replace("to:", "from:"), UnknownFields::Refuse);
            let messages: Vec<String> = ingress.problems.iter().map(ToString::to_string).collect();
            assert!(messages.contains(&"spec.ingress[0].from[0].nodes: is not a peer of ingress rules".to_owned()));
        }
    }
}

#[test]
fn a_subject_and_a_tier_are_required() {
    let good = with_rule("{action: Deny, from: [{namespaces: {}}]}");
    for (from, to) in [
        ("tier: Baseline", "tier: Ground"),
        ("tier: Baseline", ""),
        ("subject: {namespaces: {}}", "subject: {}"),
        ("subject: {namespaces: {}}", "subject: {namespaces: {}, pods: {}}"),
        ("subject: {namespaces: {}}", "subject: {namespaces: {matchLabels: {a: 'b c'}}}"),
        ("subject: {namespaces: {}}", ""),
    ] {
        let found = resource(&good.replace(from, to), UnknownFields::Ignore);
        assert_eq!(found.outcome, Outcome::Invalid { substitute: None }, "{to}");
        assert!(!found.problems.is_empty());
    }
    // Without a priority it comes first.
    for priority in ["", "priority: -1", "priority: soon"] {
        let found = resource(&good.replace("priority: 1", priority), UnknownFields::Ignore);
        let Outcome::Invalid { substitute: Some(_) } = &found.outcome else { panic!("{:?}", found.outcome) };
        assert_eq!(policy(&found.outcome).1.order.map(tortie_model::Order::get), Some(f64::MIN));
    }
}
