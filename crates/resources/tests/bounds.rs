//! Objects beyond a bound: the policy denies its selected endpoints, and the error names the bound.

use tortie_model::{Interner, RuleAction, Update};
use tortie_resources::manifest::{self, Format, Options, Outcome};

/// Reads a policy beyond a bound. Returns the problems and the selector of the denying policy in
/// its place.
fn refused(text: &str) -> (Vec<String>, String) {
    let manifest = manifest::read(text, Format::Yaml, &Options::default(), &mut Interner::new());
    let [resource] = &manifest.resources[..] else { panic!("{} resources", manifest.resources.len()) };
    let problems = resource.problems.iter().map(ToString::to_string).collect();
    let Outcome::Invalid { substitute: Some(substitute) } = &resource.outcome else {
        panic!("{:?}", resource.problems)
    };
    let [Update::Policy(_, Some(policy))] = &substitute[..] else { panic!("{substitute:?}") };
    let allows = policy.inbound.iter().chain(policy.outbound.iter()).any(|rule| rule.action != RuleAction::Deny);
    assert!(!allows, "{:?}", policy.inbound);
    (problems, policy.selector.to_string())
}

fn calico(rules: &str) -> String {
    format!(
        "{{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {{name: big, namespace: dev}}, \
         spec: {{selector: app == 'db', types: [Ingress], ingress: [{rules}]}}}}"
    )
}

fn kubernetes(rule: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: big, namespace: dev}}, \
         spec: {{podSelector: {{matchLabels: {{app: db}}}}, policyTypes: [Ingress], ingress: [{rule}]}}}}"
    )
}

#[test]
fn too_many_rules() {
    let (problems, selector) = refused(&calico(&vec!["{action: Allow}"; 10_001].join(",")));
    assert_eq!(problems, ["inbound_rules: 10001 rules, at most 10000 are allowed"]);
    assert_eq!(selector, r#"(app == "db" && projectcalico.org/namespace == "dev")"#);
}

#[test]
fn a_selector_of_too_many_conditions() {
    let selector = vec!["has(a)"; 10_001].join(" || ");
    let (problems, _) = refused(&calico(&format!("{{action: Allow, source: {{selector: {selector}}}}}")));
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("spec.ingress[0].source.selector: "), "{}", &problems[0][..80]);
    assert!(problems[0].ends_with(": more than 10000 conditions and values"));
}

/// Each peer is a rule with all ports, so that the list of 20 KB expands to 90,000 ports.
#[test]
fn peers_times_ports() {
    let peers = vec!["{podSelector: {}}"; 300].join(",");
    let ports: Vec<String> = (0..300).map(|n| format!("{{port: {}}}", 2 * n + 1)).collect();
    let (problems, selector) = refused(&kubernetes(&format!("{{from: [{peers}], ports: [{}]}}", ports.join(","))));
    let bound =
        "with the rules before it stands for 90000 networks, ports and domains in rules, at most 50000 are allowed";
    assert_eq!(problems, [format!("spec.ingress[0]: {bound}")]);
    let pods = r#"(projectcalico.org/orchestrator == "k8s" && app == "db")"#;
    assert_eq!(selector, format!(r#"({pods} && projectcalico.org/namespace == "dev")"#));
}

#[test]
fn many_problems_are_cut() {
    let (problems, _) = refused(&calico(&vec!["{}"; 1000].join(",")));
    assert_eq!(problems.len(), 101);
    assert_eq!(problems[0], "spec.ingress[0].action: is required");
    assert_eq!(problems[100], "has more problems than the 100 that are listed");
}
