use insta::assert_debug_snapshot;
use tortie_model::{Key, PolicyTypes, Update};

use super::{contributions, manifest, only};

fn resource(kind: &str, meta: &str, spec: &str) -> String {
    format!("apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {meta}\nspec: {spec}\n")
}

#[test]
fn network_policy() {
    assert_debug_snapshot!(contributions(
        "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: default.web, namespace: shop}
spec:
  order: 10.5
  selector: app == 'web'
  serviceAccountSelector: role == 'front'
  types: [Ingress, Egress]
  performanceHints: [AssumeNeededOnEveryNode]
  ingress:
  - action: Allow
    protocol: TCP
    ipVersion: 4
    source: {nets: [10.1.2.3/16], notNets: [10.1.0.0/24], notPorts: [1]}
    destination: {ports: [80, '8000:8080', http]}
    metadata: {annotations: {why: because}}
    http: {methods: [GET], paths: [{exact: /a}, {prefix: /b}]}
  - action: Pass
    protocol: ICMP
    icmp: {type: 8, code: 0}
    notICMP: {type: 9}
    source: {namespaceSelector: global(), selector: role == 'x', notSelector: has(bad)}
  egress:
  - action: Log
    notProtocol: 47
    destination: {serviceAccounts: {names: [b, a], selector: team == 'x'}}
  - action: Deny
    destination: {services: {name: dns}}
"
    ));
}

#[test]
fn global_network_policy() {
    assert_debug_snapshot!(contributions(&resource(
        "GlobalNetworkPolicy",
        "{name: hosts}",
        "{tier: sec, order: -1, namespaceSelector: env == 'prod', selector: all(), doNotTrack: true, \
         applyOnForward: true, ingress: [{action: Deny}]}"
    )));
}

#[test]
fn default_types() {
    let types = |ingress, egress| PolicyTypes { ingress, egress };
    for (spec, expected) in [
        ("{}", types(true, false)),
        ("{ingress: [{action: Deny}]}", types(true, false)),
        ("{egress: [{action: Deny}]}", types(false, true)),
        ("{ingress: [{action: Deny}], egress: [{action: Deny}]}", types(true, true)),
        ("{types: [Egress], ingress: [{action: Deny}]}", types(false, true)),
    ] {
        let Update::Policy(_, Some(policy)) = only(&resource("GlobalNetworkPolicy", "{name: p}", spec)) else {
            panic!()
        };
        assert_eq!(policy.types, expected, "{spec}");
    }
}

#[test]
fn names_of_policies() {
    let key = |text: String| only(&text).key();
    for (meta, spec, expected) in [
        ("{name: default.a}", "{}", "GlobalNetworkPolicy/default.a"),
        ("{name: default.a}", "{tier: default}", "GlobalNetworkPolicy/default.a"),
        ("{name: default.a}", "{tier: other}", "GlobalNetworkPolicy/default.a"),
        ("{name: x, annotations: {projectcalico.org/metadata: '{\"name\":\"y\"}'}}", "{}", "GlobalNetworkPolicy/y"),
    ] {
        let Key::Policy(id) = key(resource("GlobalNetworkPolicy", meta, spec)) else { panic!() };
        assert_eq!(id.to_string(), expected);
    }
}

#[test]
fn staged_policies() {
    assert_eq!(contributions(&resource("StagedNetworkPolicy", "{name: a}", "{stagedAction: Delete}")), []);
    assert_eq!(contributions(&resource("StagedKubernetesNetworkPolicy", "{name: a}", "{stagedAction: Delete}")), []);
    let spec = "{stagedAction: Learn, podSelector: {}}";
    let update = only(&resource("StagedKubernetesNetworkPolicy", "{name: a}", spec));
    let Update::Policy(id, Some(policy)) = update else { panic!("{update:?}") };
    assert!(id.kind.is_staged());
    assert_eq!(policy.staged_action, Some(tortie_model::StagedAction::Learn));
}

#[test]
fn smaller_kinds() {
    let text = [
        resource("Tier", "{name: sec}", "{order: 5, defaultAction: Pass}"),
        resource("Profile", "{name: p}", "{labelsToApply: {a: b}, ingress: [{action: Allow}]}"),
        resource("NetworkSet", "{name: s, namespace: 'n', labels: {a: b}}", "{nets: [10.0.0.1, 10.2.3.4/8]}"),
        resource("GlobalNetworkSet", "{name: s}", "{nets: ['fd00::/8']}"),
        resource(
            "IPPool",
            "{name: p}",
            "{cidr: 10.0.0.0/16, vxlanMode: CrossSubnet, natOutgoing: true, blockSize: 26}",
        ),
        resource("ClusterInformation", "{name: default}", "{clusterGUID: abc, datastoreReady: true}"),
        resource("BGPConfiguration", "{name: default}", "{serviceClusterIPs: [{cidr: 10.96.0.0/12}]}"),
    ]
    .join("---\n");
    assert_debug_snapshot!(contributions(&text));
}

#[test]
fn endpoints() {
    let text = [
        resource(
            "HostEndpoint",
            "{name: eth, labels: {role: db}}",
            "{node: n1, interfaceName: eth0, expectedIPs: [10.0.0.1, '::1'], profiles: [p], \
             ports: [{name: ssh, protocol: TCP, port: 22}]}",
        ),
        resource(
            "WorkloadEndpoint",
            "{name: node--1-k8s-my--pod-eth0, namespace: 'n', labels: {app: a, pcsa.x: forged}}",
            "{node: node-1, orchestrator: k8s, pod: my-pod, endpoint: eth0, interfaceName: cali1, mac: 'aa:bb:cc:00:11:22',\
             ipNetworks: [10.0.0.9/32], profiles: [kns.n], serviceAccountName: sa, \
             ipNATs: [{internalIP: 10.0.0.9, externalIP: 192.0.2.1}], ports: [{name: web, protocol: TCP, port: 80}]}",
        ),
    ]
    .join("---\n");
    assert_debug_snapshot!(contributions(&text));
}

#[test]
fn an_endpoint_without_a_name_has_the_one_of_its_spec() {
    let spec = "{node: node-1, orchestrator: k8s, pod: my-pod, endpoint: eth0, interfaceName: cali1}";
    let named = contributions(&resource("WorkloadEndpoint", "{name: node--1-k8s-my--pod-eth0, namespace: shop}", spec));
    for metadata in ["{namespace: shop}", "{name: '', namespace: shop}"] {
        assert_eq!(contributions(&resource("WorkloadEndpoint", metadata, spec)), named, "{metadata}");
    }
    let text = resource("WorkloadEndpoint", "{namespace: shop}", &spec.replace("my-pod", "my-"));
    let manifest = manifest(&text);
    let problems: Vec<String> = manifest.resources[0].problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems, ["metadata.name: is required"]);
}

#[test]
fn node() {
    assert_debug_snapshot!(contributions(&format!(
        "{}status: {{wireguardPublicKey: JhM2vJdsaBGYWnPoLQoEbStdQpfedceXNfYDiC+5h1s=}}\n",
        resource(
            "Node",
            "{name: n1}",
            "{bgp: {ipv4Address: 172.16.0.1/24, asNumber: 64512, ipv4IPIPTunnelAddr: 10.9.0.1}, \
             vxlanTunnelMACAddr: 'aa:bb:cc:00:11:22'}"
        )
    )));
}

#[test]
fn felix_configuration() {
    let spec = "{logSeverityScreen: Info, iptablesRefreshInterval: 1m30s, iptablesLockProbeInterval: 50ms, \
                ipipEnabled: true, ipipMTU: 1400, failsafeInboundHostPorts: [{protocol: TCP, port: 22}, \
                {protocol: UDP, port: 68, net: 'fd00::/8'}], failsafeOutboundHostPorts: [], \
                routeTableRanges: [{min: 1, max: 5}], natPortRange: '1:2', nodeSelector: has(x)}";
    let meta = "{name: default, annotations: {config.projectcalico.org/LogSeverityScreen: Debug}}";
    assert_debug_snapshot!(contributions(&resource("FelixConfiguration", meta, spec)));
    let keys = |name: &str| contributions(&resource("FelixConfiguration", &format!("{{name: {name}}}"), spec));
    assert!(keys("node.n1").iter().all(|update| matches!(update, Update::HostConfig(k, _) if k.host.as_str() == "n1")));
    assert!(matches!(&keys("edge")[..], [Update::ScopedConfig(_, Some(c))] if c.parameters.len() == 9));
}
