//! Destinations by domain name.

use tortie_model::{DomainPattern, Policy, Update};

use super::{only, problems};

/// Returns a policy with one rule, whose destination is in line 9.
fn policy(kind: &str, list: &str, action: &str, destination: &str) -> String {
    let namespace = if kind.contains("Global") { "" } else { ", namespace: shop" };
    format!(
        "apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{name: p{namespace}}}\nspec:\n  selector: all()\n  \
         {list}:\n  - action: {action}\n    protocol: TCP\n    destination: {destination}\n"
    )
}

fn texts(domains: &[DomainPattern]) -> Vec<&str> {
    domains.iter().map(DomainPattern::as_str).collect()
}

fn domains_of(policy: &Policy) -> Vec<&str> {
    texts(&policy.outbound[0].destination.extras.domains)
}

#[test]
fn policies_name_domains_in_one_normal_form() {
    for kind in ["NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy"] {
        let text = policy(kind, "egress", "Allow", "{domains: [EXAMPLE.com., '*.a.io', example.com], ports: [443]}");
        let Update::Policy(_, Some(policy)) = only(&text) else { panic!("{kind}") };
        assert_eq!(domains_of(&policy), ["*.a.io", "example.com"], "{kind}");
        assert_eq!(policy.outbound[0].destination.selector, None);
    }
}

#[test]
fn misplaced_domains_are_errors_with_their_position() {
    let at = |list: &str, action: &str, destination: &str| {
        problems(&policy("GlobalNetworkPolicy", list, action, destination)).trim_end().to_owned()
    };
    let error = |column: usize, list: &str, message: &str| {
        let field = format!("spec.{list}[0].destination.domains");
        format!("9:{column}: error: GlobalNetworkPolicy/p: {field}: {message}")
    };
    let domains = "{domains: [a.io]}";
    for action in ["Deny", "Pass", "Log"] {
        assert_eq!(at("egress", action, domains), error(28, "egress", "can only be part of an Allow rule"));
    }
    let only_egress = "can only be the destination of an egress rule";
    assert_eq!(at("ingress", "Allow", domains), error(28, "ingress", only_egress));
    assert_eq!(at("egress", "Allow", "{domains: []}"), error(28, "egress", "names no domain"));
    for (field, value) in [
        ("nets", "[10.0.0.0/8]"),
        ("notNets", "[10.0.0.0/8]"),
        ("selector", "has(a)"),
        ("notSelector", "has(a)"),
        ("namespaceSelector", "has(a)"),
        ("serviceAccounts", "{names: [a]}"),
        ("services", "{name: a, namespace: b}"),
    ] {
        let found = at("egress", "Allow", &format!("{{domains: [a.io], {field}: {value}}}"));
        let expected = error(28, "egress", &format!("cannot be combined with `{field}`"));
        assert!(found.lines().any(|line| line == expected), "{found}");
    }

    let text = policy("GlobalNetworkPolicy", "egress", "Allow", domains).replace("destination", "source");
    let expected = format!("9:23: error: GlobalNetworkPolicy/p: spec.egress[0].source.domains: {only_egress}\n");
    assert_eq!(problems(&text), expected);
    let untracked = policy("GlobalNetworkPolicy", "egress", "Allow", domains)
        .replace("selector: all()", "{selector: all(), doNotTrack: true, applyOnForward: true, ")
        .replace(
            "  egress:\n  - action: Allow\n    protocol: TCP\n    destination: ",
            " egress: [{action: Allow, destination: ",
        );
    let untracked = format!("{}}}]}}\n", untracked.trim_end());
    assert!(problems(&untracked).contains("domains: cannot be combined with doNotTrack"), "{}", problems(&untracked));
    let profile = "apiVersion: projectcalico.org/v3\nkind: Profile\nmetadata: {name: p}\nspec:\n  egress:\n  \
                   - {action: Allow, destination: {domains: [a.io]}}\n";
    let expected = "6:44: error: Profile/p: spec.egress[0].destination.domains: can only be part of a policy\n";
    assert_eq!(problems(profile), expected);
}

#[test]
fn an_invalid_name_is_named_with_the_place_of_its_fault() {
    for (name, place, reason) in [
        ("w*.a.io", 31, "`*` must be a whole label, at character 2"),
        ("*.*.a.io", 32, "`*` may occur only once, at character 3"),
        (
            "bücher.example",
            31,
            "is not a letter, digit, `-` or `_`; write labels with other characters as `xn--…`, at character 2",
        ),
        ("*", 30, "`*` must not be the last label, at character 1"),
    ] {
        let text = policy("GlobalNetworkPolicy", "egress", "Allow", &format!("{{domains: ['{name}']}}"));
        let found = problems(&text);
        assert!(found.starts_with(&format!("9:{place}: error: ")), "{name}: {found}");
        assert!(found.trim_end().ends_with(reason), "{name}: {found}");
    }
}

#[test]
fn network_sets_have_allowed_egress_domains() {
    for (kind, namespace) in [("GlobalNetworkSet", ""), ("NetworkSet", ", namespace: shop")] {
        let text = |domains: &str| {
            format!(
                "apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{name: s{namespace}}}\n\
                 spec: {{nets: [10.0.0.0/8], allowedEgressDomains: {domains}}}\n"
            )
        };
        let Update::NetworkSet(_, Some(set)) = only(&text("['*.B.io', a.io, a.io.]")) else { panic!("{kind}") };
        assert_eq!((texts(&set.domains), set.nets.len()), (vec!["*.b.io", "a.io"], 1));
        let Update::NetworkSet(_, Some(set)) = only(&text("[]")) else { panic!("{kind}") };
        assert!(set.domains.is_empty());
        let found = problems(&text("[a.io, a_b.*]"));
        assert!(found.starts_with("4:61: error: ") && found.contains("`*` must not be the last label"), "{found}");
    }
}
