use std::fs;

use tortie_datastore::DirAccess;

use super::*;

/// Returns the report on one manifest, without its place on disk.
fn output_of(manifest: &str, allowed: &[Lint]) -> String {
    let mut input = Input::read(&[], DirAccess::default()).unwrap();
    input.take_text("m.yaml".into(), manifest.into());
    let found = find(&input, allowed, false).unwrap();
    let (skipped, found): (Vec<_>, Vec<_>) = found.into_iter().partition(ReportedProblem::is_skipped);
    let lines = Lines::of(&input.texts);
    let excerpts = Excerpts::new(&lines, false);
    let output: String =
        found.iter().map(|found| format!("{}\n{}", line(found), excerpts.of(&found.problem))).collect();
    format!("{output}{}", report::summary(&skipped, &found, &input))
}

fn args(path: PathBuf, strict: bool) -> Args {
    Args {
        paths: vec![path],
        datastore: None,
        timeout: 1,
        access: AccessArgs::default(),
        strict,
        allow: Vec::new(),
        output: Output::Text,
        color: ColorChoice::Never,
    }
}

fn check(manifest: &str, strict: bool) -> Result<(), Failure> {
    let dir = tempfile::TempDir::new().unwrap();
    fs::write(dir.path().join("m.yaml"), manifest).unwrap();
    run(&args(dir.path().to_owned(), strict))
}

#[test]
fn errors_fail_and_warnings_do_not() {
    assert!(check("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n", true).is_ok());
    let misspelt = "apiVersion: projectcalico.org/v3\nkind: Tir\nmetadata: {name: a}\n";
    assert!(check(misspelt, false).is_ok());
    assert!(matches!(check(misspelt, true), Err(Failure::Reported(1))));
    let unused = "apiVersion: example.org/v1\nkind: Gadget\nmetadata: {name: a}\n";
    assert!(check(unused, true).is_ok());
    assert!(matches!(check("apiVersion: v1\nkind: Namespace\nmetadata: {}\n", false), Err(Failure::Reported(1))));
}

#[test]
fn objects_for_other_programs_are_counted_by_kind() {
    let object = |api: &str, kind: &str| format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: a}}\n---\n");
    let text = object("networking.k8s.io/v1", "Ingress")
        + &object("apps/v1", "Deployment").repeat(3)
        + &object("networking.k8s.io/v1", "Ingress")
        + &object("projectcalico.org/v3", "IPReservation");
    assert_eq!(output_of(&text, &[]), "3 Deployments, 2 Ingresses, 1 IPReservation skipped\nno problems in 1 file\n");
    assert_eq!(output_of(&text, &[Lint::UnusedKind]), "no problems in 1 file\n");
    let other = output_of(&object("cilium.io/v2", "CiliumNetworkPolicy"), &[]);
    assert!(other.contains("kind CiliumNetworkPolicy of cilium.io/v2 is not known here and has no effect"), "{other}");
}

#[test]
fn one_file_can_be_checked() {
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("m.yaml");
    fs::write(&file, "{").unwrap();
    assert!(matches!(run(&args(file, false)), Err(Failure::Reported(1))));
    let missing = run(&args("/no/such/path".into(), false)).unwrap_err();
    assert!(missing.to_string().starts_with("/no/such/path: No such file"), "{missing}");
}

#[test]
fn unsupported_fields_are_warnings_with_their_place() {
    insta::assert_snapshot!(output_of(
        "apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec:
  iptablesBackend: best
  interfacePrefix: cali,a name too long for one
  bpfLogLevel: debug
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods}
spec: {cidr: 10.0.0.0/16, ipipMode: Always}
",
        &[]
    ));
}

#[test]
fn messages_name_the_place_and_a_suggestion() {
    let policy = |name: &str, spec: &str| {
        format!(
            "---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {{name: {name}}}
spec:
  {spec}
"
        )
    };
    let text = [
        policy("action", "ingress: [{action: Permit, protocol: TCP}]"),
        policy("port", "ingress: [{action: Allow, protocol: TCP, destination: {ports: [99999999999999999999]}}]"),
        policy("equals", "ingress: [{action: Allow, source: {selector: \"app = 'web'\"}}]"),
        policy("number", "ingress: [{action: Allow, source: {selector: 'tier == \"ä\" && app == 5'}}]"),
        policy("types", "types: [Ingres]"),
        "---\n# A comment.\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nspec: {}\n".into(),
        "---\napiVersion: extensions/v1beta1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: {}\n".into(),
    ];
    // Several documents of a file that has a broken one are still checked.
    insta::assert_snapshot!(output_of(&format!("a: [1, 2\n{}", text.concat()), &[]));
}

#[test]
fn a_value_that_is_wrong_is_named_once() {
    let text = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: {interfacePrefix: x y}\n";
    insta::assert_snapshot!(output_of(text, &[]));
}

#[test]
fn a_parameter_that_another_leaves_nothing_to_do_is_named_where_it_is_set() {
    let configuration = |name: &str, spec: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
        )
    };
    let global = configuration("default", "nftablesMode: Enabled, ipsetsRefreshInterval: 7s");
    let output = output_of(&global, &[]);
    assert!(output.contains("IpsetsRefreshInterval: has no effect beside NFTablesMode=Enabled: "), "{output}");
    assert!(output.contains("(warning) [parameter-overruled]") && output.contains("m.yaml:1:1: "), "{output}");
    assert_eq!(output_of(&global, &[Lint::ParameterOverruled]), "no problems in 1 file\n");
    let of_node = configuration("node.n1", "ipsetsRefreshInterval: 7s");
    let both = output_of(&(configuration("default", "nftablesMode: Enabled") + "---\n" + &of_node), &[]);
    assert!(
        both.contains("m.yaml:6:1: ") && both.contains("IpsetsRefreshInterval of node n1: has no effect beside "),
        "{both}"
    );
    for alone in ["nftablesMode: Auto, ipsetsRefreshInterval: 7s", "nftablesMode: Enabled"] {
        assert_eq!(output_of(&configuration("default", alone), &[]), "no problems in 1 file\n", "{alone}");
    }
}

#[test]
fn merge_keys_are_followed_and_must_be_mappings() {
    let policy = |rule: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: merged}}\nspec:\n  ingress:\n    \
             - &rule {{action: Allow, protocol: TCP, destination: {{ports: [80]}}}}\n    - {rule}\n"
        )
    };
    assert_eq!(output_of(&policy("{<<: *rule, protocol: UDP}"), &[]), "no problems in 1 file\n");
    insta::assert_snapshot!(output_of(
        &(policy("{<<: 1, action: Deny}") + "---\n" + &policy("{<<: *rule, action: Permit}")),
        &[]
    ));
}

#[test]
fn nothing_to_check_is_an_error() {
    let dir = tempfile::TempDir::new().unwrap();
    let error_of = |path: &Path| {
        let found = find(&Input::read(&[path.to_owned()], DirAccess::default()).unwrap(), &[], false).unwrap();
        let output: Vec<String> =
            found.iter().map(|found| line(found).replace(&dir.path().display().to_string(), "DIR")).collect();
        output.join("\n")
    };
    let none = "DIR: there are no objects in files below it that end in .yaml, .yml or .json";
    assert_eq!(error_of(dir.path()), none);
    assert!(matches!(run(&args(dir.path().to_owned(), false)), Err(Failure::Reported(1))));
    fs::write(dir.path().join("notes.txt"), "kind: Tier\n").unwrap();
    let file = dir.path().join("m.yaml");
    fs::write(&file, "# Nothing yet.\n---\n").unwrap();
    assert_eq!(error_of(dir.path()), none);
    assert_eq!(error_of(&file), "DIR/m.yaml: there are no objects in it");
    fs::write(&file, "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n").unwrap();
    assert_eq!((error_of(dir.path()), error_of(&file)), (String::new(), String::new()));
    // For an unreadable file there is one error, and no second one about missing objects.
    fs::write(&file, b"\xff\xfe").unwrap();
    assert!(!error_of(dir.path()).is_empty() && !error_of(dir.path()).contains("there are no objects"));
}

#[test]
fn a_template_that_is_no_manifest_yet_is_known_as_one() {
    let output = output_of("kind: NetworkPolicy\nmetadata: {name: {{ .Values.name }}}\n", &[]);
    assert!(output.contains("; is it a template that is to be rendered first?\n"), "{output}");
    assert!(!output_of("a: [1, 2\n", &[]).contains("template"));
}

#[test]
fn the_stand_in_of_an_invalid_policy_has_no_findings() {
    let pod = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: web, \
               namespace: shop}\nspec: {nodeName: n1}\nstatus: {podIP: 10.0.0.1}\n";
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: shop}\nspec: {podSelector: \
                  {matchLabels: {app: db}}, ingres: []}\n";
    let output = output_of(&format!("{pod}---\n{policy}"), &[]);
    assert!(output.ends_with("1 error in 1 file\n") && output.contains("is `ingress` meant?"), "{output}");
}

const LINTS: &str = "apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1}
status: {podIP: 10.0.0.1}
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: n1-eth0}
spec: {node: n1, interfaceName: eth0}
---
apiVersion: crd.projectcalico.org/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  tier: platform
  selector: app == 'nobody'
  ingress:
    - {action: Allow, source: {nets: [10.1.2.3/8]}}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: first, namespace: shop}
spec:
  order: 1
  selector: app == 'web'
  ingress:
    - action: Deny
    - {action: Allow, protocol: TCP, source: {selector: app == 'web'}}
  egress:
    - {action: Allow, destination: {services: {name: db, namespace: shop}}}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: second, namespace: shop}
spec:
  order: 2
  selector: app == 'web'
  ingress:
    - {action: Allow, source: {selector: \"app == '{{ .Values.app }}'\"}}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: third, namespace: shop}
spec: {order: 3, selector: app == 'web', ingress: [{action: Allow, protocol: TCP}]}
";

#[test]
fn valid_but_unusual_values_are_warnings() {
    insta::assert_snapshot!(output_of(LINTS, &[]));
}

#[test]
fn the_table_budget_is_that_of_the_manifests() {
    let rules: String = (0..600_u32)
        .map(|n| format!("    - {{action: Allow, source: {{nets: [10.{}.{}.0/24]}}}}\n", n / 100, n % 100))
        .collect();
    let cluster = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{nodeName: n1, containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.0.0.1}}]}}\n---\n\
         apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: wide, namespace: shop}}\n\
         spec:\n  ingress:\n{rules}"
    );
    let budget = "---\napiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata:\n  name: default\n  annotations: \
                  {config.projectcalico.org/PolicyTableGroupMemoryMB: \"1\"}\n";
    let over = |manifest: &str| output_of(manifest, &[]).matches("exceed the table budget of 131072 bytes").count();
    assert_eq!((over(&cluster), over(&format!("{cluster}{budget}"))), (0, 1));
}

/// Returns a cluster with a pod of `shop` on each node, and a policy of this number of rules with
/// distant networks.
fn cluster_of_blocks(nodes: u32, rules: u32) -> String {
    let on_node = |node: u32| {
        let rule = |n: u32| {
            let ports: String =
                (0..4).map(|part| format!("{},", 1024 + (n * 100 + part * 7919 + node) % 64000)).collect();
            let net = format!("2001:db8:{node:x}:{:x}::/64", n.wrapping_mul(0x9e37) & 0xffff);
            format!(
                "    - {{action: Allow, protocol: TCP, source: {{nets: ['{net}']}}, destination: {{ports: [{ports}]}}}}\n"
            )
        };
        let rules: String = (0..rules).map(rule).collect();
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: web-{node}, namespace: shop, labels: {{app: web-{node}}}}}\n\
             spec: {{nodeName: n{node}, containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.0.0.{node}}}]}}\n\
             ---\napiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: wide-{node}, namespace: shop}}\n\
             spec:\n  selector: app == 'web-{node}'\n  ingress:\n{rules}"
        )
    };
    (1..=nodes).map(on_node).collect()
}

/// Policies of [`cluster_of_blocks`] whose endpoints eBPF programs deny, for this reason.
fn denied_by_programs(cluster: &str, parameters: &[(&str, &str)], why: &str) -> Vec<u32> {
    let text = output_of(&format!("{cluster}{}", felix_configuration("default", parameters)), &[]);
    let says = |node: &u32| {
        let message =
            format!("NetworkPolicy/shop/wide-{node}: endpoints that it selects are denied by eBPF programs: {why}");
        text.contains(&message)
    };
    let found: Vec<u32> = (1..10).filter(says).collect();
    assert_eq!(found.len(), text.matches("by eBPF programs").count(), "{text}");
    found
}

#[test]
fn policies_without_blocks_are_reported_by_the_share_of_their_node() {
    let programs = ("BPFEnabled", "true");
    let few = [programs, ("BPFMaxBlocks", "1024")];
    let why =
        "its rules need more blocks of eBPF maps than its namespace's share of 1024 has left (warning) [over-budget]";
    let denied = |cluster: &str, parameters| denied_by_programs(cluster, parameters, why);
    let (small, large) = (cluster_of_blocks(3, 500), cluster_of_blocks(1, 1_000));
    assert_eq!(denied(&large, &few), [1]);
    assert!(denied(&large, &few[..1]).is_empty());
    assert!(denied(&large, &few[1..]).is_empty());
    // The pods of one node would be over the bound together.
    assert!(denied(&small, &few).is_empty());
    let uneven = small.replace("nodeName: n3", "nodeName: n1");
    assert_eq!(denied(&uneven, &few).len(), 1);
    let of_another = felix_configuration("node.n2", &[("BPFMaxBlocks", "2048")]);
    assert_eq!(denied(&format!("{uneven}{of_another}"), &few).len(), 1);
}

#[test]
fn policies_without_blocks_for_addresses_are_reported() {
    let parameters = [("BPFEnabled", "true"), ("BPFMaxBlocks", "196608")];
    let why = "its networks exceed the budget of 65536 blocks for addresses (warning) [over-budget]";
    let cluster = cluster_of_blocks(1, 1);
    let net = |n: u32| format!("'2001:db8:{:x}:{:x}:{n:x}::/96',", n.wrapping_mul(0x9e37_79b1) >> 16, n & 0xff);
    let nets: String = (0..9_000).map(net).collect();
    let cluster = cluster.replace("nets: ['", &format!("nets: [{nets}'"));
    assert_eq!(denied_by_programs(&cluster, &parameters, why), [1]);
    assert!(denied_by_programs(&cluster, &parameters[..1], why).is_empty());
}

/// Returns a cluster with a pod on node `n1` whose policy has rules for 4,000 addresses, each for a
/// source port.
fn cluster_of_members() -> String {
    let nets: String = (0..4_000_u32).map(|n| format!("10.9.{}.{}/32,", n / 250, n % 250)).collect();
    let rules: String = (1..=8)
        .map(|port| {
            format!("    - {{action: Allow, protocol: TCP, source: {{selector: wide == 'yes', ports: [{port}]}}}}\n")
        })
        .collect();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{nodeName: n1, containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.0.0.1}}]}}\n---\n\
         apiVersion: projectcalico.org/v3\nkind: NetworkSet\nmetadata: {{name: wide, namespace: shop, labels: {{wide: 'yes'}}}}\n\
         spec: {{nets: [{nets}]}}\n---\n\
         apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: wide, namespace: shop}}\n\
         spec:\n  ingress:\n{rules}"
    )
}

/// Parameters of all nodes (`default`) or of one (`node.NAME`).
fn felix_configuration(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String =
        parameters.iter().map(|(name, value)| format!("    config.projectcalico.org/{name}: \"{value}\"\n")).collect();
    format!(
        "---\napiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata:\n  name: {name}\n  annotations:\n{parameters}"
    )
}

#[test]
fn refused_layouts_are_reported_where_the_manifests_request_them() {
    let fast = ("NFTablesLayout", "Fast");
    let (small, large) = (("PolicyTableGroupMemoryMB", "1"), ("PolicyTableGroupMemoryMB", "100"));
    let over = |name: &str, parameters: &[(&str, &str)]| {
        let text = output_of(&format!("{}{}", cluster_of_members(), felix_configuration(name, parameters)), &[]);
        let message = "NetworkPolicy/shop/wide: NFTablesLayout=Fast evaluates its rules one after the other: the layout of its chains \
                    exceeds the table budget of 1048576 bytes (warning) [over-budget]";
        text.matches(message).count() == 1 && text.matches("NFTablesLayout=Fast").count() == 1 || {
            assert!(!text.contains("NFTablesLayout=Fast"), "{text}");
            false
        }
    };
    assert!(over("default", &[fast, small]));
    assert!(over("node.n1", &[fast, small]));
    assert!(!over("node.n2", &[fast, small]));
    assert!(!over("default", &[small]));
    assert!(!over("default", &[fast, large]));
    assert!(!over("default", &[fast, small, ("NFTablesMode", "Disabled")]));
    assert!(!over("default", &[fast, small, ("BPFEnabled", "true")]));
}

#[test]
fn claims_are_checked_by_node() {
    let endpoint = |node: &str, pod: &str, address: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: WorkloadEndpoint\n\
             metadata: {{name: {node}-k8s-{pod}-eth0, namespace: shop, labels: {{app: {pod}}}}}\n\
             spec: {{orchestrator: k8s, node: {node}, pod: {pod}, endpoint: eth0, interfaceName: cali0, ipNetworks: [{address}/32]}}\n---\n"
        )
    };
    let policy = "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\n\
                  spec: {selector: app == 'web', ingress: [{action: Allow, source: {selector: app == 'db'}}]}\n";
    let pods = |node: &str, address: &str| {
        output_of(&format!("{}{}{policy}", endpoint("n1", "web", "10.0.0.1"), endpoint(node, "db", address)), &[])
    };
    for address in ["10.0.0.2", "10.0.0.1"] {
        assert_eq!(pods("n2", address), "no problems in 1 file\n");
        let text = pods("n1", address);
        assert_eq!(text.matches("interface cali0 is also claimed by").count(), 2, "{text}");
    }
}

#[test]
fn host_endpoints_and_untracked_policies_that_are_not_enforced_are_named() {
    let host_endpoint = |name: &str, spec: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {{name: {name}, labels: {{host: n1}}}}\n\
             spec: {{node: n1, profiles: [projectcalico-default-allow], {spec}}}\n---\n"
        )
    };
    let untracked = "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: early}\n\
                     spec: {selector: host == 'n1', doNotTrack: true, applyOnForward: true, ingress: [{action: Deny}]}\n";
    let of = |specs: &[(&str, &str)]| {
        let hosts: String = specs.iter().map(|(name, spec)| host_endpoint(name, spec)).collect();
        output_of(&format!("{hosts}{untracked}"), &[])
    };
    let all = ("a", "interfaceName: \"*\"");
    let text = of(&[all]);
    assert!(text.contains("GlobalNetworkPolicy/early: is not enforced for host endpoint a: untracked"), "{text}");
    assert!(text.contains("[untracked-for-all-interfaces]"), "{text}");
    let (named, expecting) =
        (("b", "interfaceName: eth0, expectedIPs: [192.0.2.1]"), ("c", "expectedIPs: [192.0.2.1]"));
    assert_eq!(of(&[named]), "no problems in 1 file\n");
    for (second, interface) in
        [(expecting, "the interface with address 192.0.2.1"), (("d", "interfaceName: eth0"), "interface eth0")]
    {
        let text = of(&[named, second]);
        let message = format!("is not enforced: host endpoint b, the first by name, has {interface} as well");
        assert!(text.contains(&message) && text.contains("[host-endpoint-of-same-interface]"), "{text}");
    }
    assert_eq!(of(&[named, ("d", "interfaceName: eth1")]), "no problems in 1 file\n");
}

/// A pod with a policy of these egress rules, and the node's DNS server.
fn with_egress(rules: &str, more: &str) -> String {
    let objects = format!(
        "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {{name: default}}\n\
         spec: {{dnsTrustedServers: [192.0.2.53], workloadSourceSpoofing: Any}}\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata: {{namespace: shop, name: api, labels: {{app: api}}, annotations: {{{more}}}}}\n\
         spec: {{nodeName: n1, containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.0.1.2}}]}}\n---\n\
         apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n---\n\
         apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: names, namespace: shop}}\n\
         spec: {{selector: app == 'api', egress: [{rules}]}}\n"
    );
    output_of(&objects, &[])
}

#[test]
fn rules_by_name_are_checked_for_mistakes() {
    let dns = "{action: Allow, protocol: UDP, destination: {nets: [192.0.2.53/32], ports: [53]}}";
    let named = |domains: &str| {
        format!("{{action: Allow, protocol: TCP, destination: {{domains: [{domains}], ports: [443]}}}}")
    };
    let of = |domains: &str| with_egress(&format!("{dns}, {}", named(domains)), "");
    assert_eq!(of("api.example.com, '*.example.com', '*.co.uk'"), "no problems in 1 file\n");
    for (domain, lint, text) in [
        ("'*.com'", "domain-top-level", "egress rule 2: `*.com` is every name of a top-level domain"),
        ("db.shop.svc.cluster.local", "domain-of-service", "egress rule 2: `db.shop.svc.cluster.local`: a Service"),
        ("'*.svc.cluster.local'", "domain-of-service", "`*.svc.cluster.local`: a Service"),
    ] {
        let found = of(domain);
        assert!(found.contains(&format!("[{lint}]")) && found.contains(text), "{found}");
    }
    let closed = with_egress(&named("a.example.com"), "");
    assert!(
        closed.contains("egress rule 1: shop/api may not send queries") && closed.contains("[dns-server-unreachable]"),
        "{closed}"
    );
    let tls = "{action: Allow, protocol: TCP, destination: {ports: [853]}}";
    let encrypted = with_egress(&format!("{dns}, {}, {tls}", named("a.example.com")), "");
    assert!(encrypted.contains("egress rule 3: port 853") && encrypted.contains("[encrypted-dns]"), "{encrypted}");
    // Without rules by name, nothing reads answers.
    let without = with_egress(&format!("{dns}, {tls}"), "");
    assert_eq!(without, "no problems in 1 file\n");
    let prefixes = "cni.projectcalico.org/allowedSourcePrefixes: '[\"192.0.2.0/24\"]'";
    let forging = with_egress(&format!("{dns}, {}", named("a.example.com")), prefixes);
    assert!(forging.contains("may send from 192.0.2.0/24") && forging.contains("[dns-server-forgeable]"), "{forging}");
}

#[test]
fn suppressed_findings_are_not_reported() {
    let all: Vec<Lint> = <Lint as clap::ValueEnum>::value_variants().to_vec();
    assert_eq!(output_of(LINTS, &all), "no problems in 1 file\n");
    for lint in all {
        let of = |text: &str| text.matches(&format!("[{lint}]")).count();
        assert_eq!(of(&output_of(LINTS, &[lint])), 0, "{lint}");
        // Separate tests cover these.
        let elsewhere = [
            Lint::DnsServerForgeable,
            Lint::DnsServerUnreachable,
            Lint::DomainOfService,
            Lint::DomainTopLevel,
            Lint::EncryptedDns,
            Lint::HostEndpointOfSameInterface,
            Lint::Other,
            Lint::OverBudget,
            Lint::ParameterOverruled,
            Lint::ProfileAbsent,
            Lint::RuleNeverMatches,
            Lint::UntrackedForAllInterfaces,
            Lint::UnusedKind,
        ];
        assert!(of(&output_of(LINTS, &[])) > 0 || elsewhere.contains(&lint), "{lint}");
    }
}

#[test]
fn programs_read_the_same() {
    let mut input = Input::read(&[], DirAccess::default()).unwrap();
    input.take_text(
        "a,b.yaml".into(),
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {a: \"$A,\"}}\n".into(),
    );
    let found = find(&input, &[], true).unwrap();
    insta::assert_snapshot!([report::json(&found), report::github(&found), report::sarif(&found)].join("\n"));
}
