use tortie_model::Interner;

use crate::manifest::{Format, Options, Outcome, read_written};
use crate::{FieldProblem, Severity};

/// Returns the errors of an object that is to be written. It is valid if there are none.
fn errors(kind: &str, metadata: &str, spec: &str) -> Vec<String> {
    let text = format!("apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{{metadata}}}\nspec: {{{spec}}}\n");
    let options = Options { for_writing: true, ..Options::default() };
    let (manifest, _) = read_written(&text, Format::Yaml, &options, &mut Interner::new());
    let [resource] = &manifest.resources[..] else { panic!("{text}: {manifest:?}") };
    let is_error = |problem: &&FieldProblem| problem.severity == Severity::Error;
    let errors: Vec<String> = resource.problems.iter().filter(is_error).map(ToString::to_string).collect();
    assert_eq!(!errors.is_empty(), matches!(resource.outcome, Outcome::Invalid { .. }), "{text}: {errors:?}");
    errors
}

#[track_caller]
fn refused(kind: &str, cases: &[(&str, &str)]) {
    for (spec, expected) in cases {
        let errors = errors(kind, "name: x", spec);
        assert!(errors.len() == 1 && errors[0].starts_with(expected), "{kind} {spec}: {errors:?}");
    }
}

#[track_caller]
fn accepted(kind: &str, name: &str, specs: &[&str]) {
    for spec in specs {
        assert_eq!(errors(kind, &format!("name: {name}"), spec), [""; 0], "{kind} {spec}");
    }
}

#[test]
fn values_of_felix_configurations() {
    refused(
        "FelixConfiguration",
        &[
            ("chainInsertMode: sideways", "spec.chainInsertMode: `sideways` is none of insert, append"),
            ("nftablesMode: Bogus", "spec.nftablesMode: `Bogus` is none of Enabled, Disabled, Auto"),
            ("nftablesMode: enabled", "spec.nftablesMode: "),
            ("iptablesBackend: nft", "spec.iptablesBackend: `nft` is none of Legacy, NFT, Auto"),
            ("logSeverityScreen: Foo", "spec.logSeverityScreen: `Foo` is none of TRACE, DEBUG"),
            ("routeRefreshInterval: -5s", "spec.routeRefreshInterval: `-5s` is not a duration"),
            ("routeRefreshInterval: 5", "spec.routeRefreshInterval: must be text"),
            ("healthPort: 65536", "spec.healthPort: must be between 0 and 65535"),
            ("logActionRateLimitBurst: 10000", "spec.logActionRateLimitBurst: "),
            ("ipv4NormalRoutePriority: 0", "spec.ipv4NormalRoutePriority: "),
            ("wireguardRoutingRulePriority: 32766", "spec.wireguardRoutingRulePriority: "),
            ("goGCThreshold: -2", "spec.goGCThreshold: "),
            ("bpfMaglevMaxServices: 3001", "spec.bpfMaglevMaxServices: "),
            ("chainInsertMod: insert", "spec.chainInsertMod: is not a known field; is `chainInsertMode` meant?"),
            ("healthTimeoutOverrides: [{name: a/b, timeout: 5s}]", "spec.healthTimeoutOverrides[0].name: "),
            ("failsafeInboundHostPorts: [{protocol: tcp, port: 22}]", "spec.failsafeInboundHostPorts[0].protocol: "),
            ("kubeNodePortRanges: [http]", "spec.kubeNodePortRanges[0]: `http` is neither a port"),
            ("routeTableRange: {min: 1, max: 251}", "spec.routeTableRange.max: "),
            ("routeTableRanges: [{min: 9, max: 8}]", "spec.routeTableRanges[0]: `min` is above `max`"),
            ("natOutgoingAddress: 'fd00::1'", "spec.natOutgoingAddress: "),
            ("externalNodesList: ['fd00::/8']", "spec.externalNodesList[0]: "),
            ("featureDetectOverride: SNATFullyRandom=perhaps", "spec.featureDetectOverride: "),
            ("logPrefix: a$b", "spec.logPrefix: "),
            ("bpfConntrackTimeouts: {tcpSynSent: soon}", "spec.bpfConntrackTimeouts.tcpSynSent: "),
            ("bpfLogFilters: {a/b: tcp}", "spec.bpfLogFilters: `a/b` is not the name of an interface"),
            ("wireguardInterfaceName: wireguard-interface", "spec.wireguardInterfaceName: "),
            ("nodeSelector: has(", "spec.nodeSelector: "),
        ],
    );
    let of_node = errors("FelixConfiguration", "name: node.n1", "nodeSelector: all()");
    assert!(of_node.len() == 1 && of_node[0].starts_with("spec.nodeSelector: must not be given"), "{of_node:?}");
    accepted(
        "FelixConfiguration",
        "default",
        &[
            "",
            "chainInsertMode: Insert, logSeverityScreen: info, defaultEndpointToHostAction: Accept, routeSource: ''",
            "iptablesBackend: NFT, nftablesMode: Auto, nftablesLayout: fast, cutDeniedConnections: true",
            "routeRefreshInterval: 90s, iptablesLockProbeInterval: 1.5ms, wireguardKeepAlive: 0s, healthPort: 0",
            "failsafeInboundHostPorts: [], failsafeOutboundHostPorts: [{protocol: UDP, port: 53, net: 10.0.0.0/8}]",
            "healthTimeoutOverrides: [{name: CalculationGraph, timeout: 1m30s}], featureDetectOverride: 'A=true,B=,'",
            "bpfConntrackTimeouts: {tcpSynSent: Auto, udpTimeout: 60s}, bpfLogFilters: {all: tcp}",
            "kubeNodePortRanges: ['30000:32767', 8080], natPortRange: '32768:65535', istioDSCPMark: AF11",
            "routeTableRanges: [{min: 1, max: 250}, {min: 1000, max: 4294967295}], iptablesMarkMask: 4294901760",
        ],
    );
    accepted("FelixConfiguration", "workers", &["nodeSelector: role == 'worker', ipipMTU: 1480"]);
}

#[test]
fn pools() {
    refused(
        "IPPool",
        &[
            ("cidr: 10.0.0.0/28", "spec: `blockSize` is required: 10.0.0.0/28 is smaller than a block"),
            ("cidr: 'fd00::/123'", "spec: `blockSize` is required"),
            ("cidr: 10.0.0.0/16, ipipMode: Always, vxlanMode: Always", "spec: cannot use both"),
            ("cidr: 10.0.0.0/16, blockSize: 19", "spec.blockSize: must be between 20 and 32"),
            ("cidr: 10.0.0.0/16, blockSize: 33", "spec.blockSize: "),
            ("cidr: 10.0.0.0/28, blockSize: 26", "spec.blockSize: is larger than the pool"),
            ("cidr: 10.0.0.1/16", "spec.cidr: "),
            ("cidr: 10.0.0.0/16, assignmentMode: Sometimes", "spec.assignmentMode: "),
            ("cidr: 10.0.0.0/16, allowedUses: [Pods]", "spec.allowedUses[0]: "),
            ("cidr: 10.0.0.0/16, allowedUses: [LoadBalancer], vxlanMode: Always", "spec.allowedUses: "),
            ("cidr: 10.0.0.0/16, allowedUses: [LoadBalancer], nodeSelector: has(a)", "spec.nodeSelector: "),
            ("cidr: 10.0.0.0/16, allowedUses: [Tunnel], namespaceSelector: has(a)", "spec: a pool with"),
            ("cidr: 10.0.0.0/16, nodeSelector: global()", "spec.nodeSelector: "),
            ("cidr: 10.0.0.0/16, natOutgoin: true", "spec.natOutgoin: is not a known field; is `natOutgoing` meant?"),
        ],
    );
    accepted(
        "IPPool",
        "my.ippool-1",
        &[
            "cidr: 10.1.0.0/16, ipipMode: CrossSubnet, natOutgoing: true, disabled: false, nodeSelector: all()",
            "cidr: 10.1.0.0/28, blockSize: 28, vxlanMode: Always, ipipMode: Never, allowedUses: [Workload, Tunnel]",
            "cidr: 10.1.0.0/28, disabled: true",
            "cidr: 192.168.0.0/24, allowedUses: [LoadBalancer], assignmentMode: Automatic, blockSize: 26",
            "cidr: '2001:db8::/64', blockSize: 122, disableBGPExport: true",
        ],
    );
}

#[test]
fn bgp_peers() {
    refused(
        "BGPPeer",
        &[
            ("peerIP: 10.0.0.1, peerSelector: all()", "spec: `peerIP` and `peerSelector` exclude each other"),
            ("node: a, nodeSelector: all()", "spec: `node` and `nodeSelector` exclude each other"),
            ("peerSelector: all(), asNumber: 64512", "spec: `peerSelector` and `asNumber` exclude each other"),
            ("peerIP: 10.0.0.1, asNumber: many", "spec.asNumber: `many` is not an AS number"),
            ("peerIP: 10.0.0.1, asNumber: 4294967296", "spec.asNumber: "),
            ("peerIP: '10.0.0.1:0', asNumber: 64512", "spec.peerIP: "),
            ("peerIP: router, asNumber: 64512", "spec.peerIP: "),
            ("peerIP: 'fd00::1', reachableBy: 10.0.0.1", "spec.reachableBy: must be of the same family"),
            ("reachableBy: 10.0.0.1", "spec: `reachableBy` needs `peerIP`"),
            ("localWorkloadSelector: all()", "spec: `localWorkloadSelector` needs `asNumber`"),
            ("keepOriginalNextHop: true, nextHopMode: Keep", "spec: `keepOriginalNextHop` and `nextHopMode`"),
            ("sourceAddress: Any", "spec.sourceAddress: "),
            ("maxRestartTime: soon", "spec.maxRestartTime: "),
            ("nodeSelector: has(", "spec.nodeSelector: "),
            ("password: {secretKeyRef: {name: a}}", "spec.password.secretKeyRef.key: is required"),
            ("peerIp: 10.0.0.1", "spec.peerIp: is not a known field; is `peerIP` meant?"),
            ("filters: [A_B]", "spec.filters[0]: "),
        ],
    );
    accepted(
        "BGPPeer",
        "some.name",
        &[
            "node: rack1-host1, peerIP: 192.168.1.1, asNumber: 63400",
            "nodeSelector: rack == 'r1', peerIP: '[fd00::1]:179', asNumber: '1.10', reachableBy: 'fd00::2'",
            "peerSelector: has(route-reflector), filters: [first-bgp-filter, second-bgp-filter]",
            "peerIP: '192.20.30.40:8090', asNumber: 64567, password: {secretKeyRef: {name: s, key: k}}, maxRestartTime: 120s",
            "localWorkloadSelector: app == 'router', asNumber: 64512, keepOriginalNextHop: false, nextHopMode: Self",
        ],
    );
}

#[test]
fn bgp_filters() {
    refused(
        "BGPFilter",
        &[
            ("exportV4: [{cidr: 10.0.0.0/8, matchOperator: In}]", "spec.exportV4[0].action: is required"),
            ("exportV4: [{action: Allow}]", "spec.exportV4[0].action: `Allow` is none of Accept, Reject"),
            ("exportV4: [{action: Accept, cidr: 10.0.0.0/8}]", "spec.exportV4[0]: `cidr` needs `matchOperator`"),
            ("importV6: [{action: Accept, cidr: 10.0.0.0/8, matchOperator: In}]", "spec.importV6[0].cidr: "),
            ("importV4: [{action: Accept, cidr: 10.0.0.1/8, matchOperator: In}]", "spec.importV4[0].cidr: "),
            ("importV4: [{action: Accept, prefixLength: {min: 8}}]", "spec.importV4[0]: `prefixLength` needs `cidr`"),
            (
                "importV4: [{action: Accept, cidr: 10.0.0.0/8, matchOperator: In, prefixLength: {max: 33}}]",
                "spec.importV4[0].prefixLength.max: ",
            ),
            ("exportV4: [{action: Accept, source: Anyone}]", "spec.exportV4[0].source: "),
            ("exportV4: [{action: Accept, interface: a/b}]", "spec.exportV4[0].interface: "),
            (
                "exportV4: [{action: Accept, communities: {values: ['1:2:3:4']}}]",
                "spec.exportV4[0].communities.values[0]: ",
            ),
            (
                "exportV4: [{action: Reject, operations: [{setPriority: {value: 5}}]}]",
                "spec.exportV4[0]: `operations` need",
            ),
            (
                "exportV4: [{action: Accept, operations: [{setPriority: {value: 0}}]}]",
                "spec.exportV4[0].operations[0].setPriority",
            ),
            ("export: []", "spec.export: is not a known field"),
        ],
    );
    accepted(
        "BGPFilter",
        "first-bgp-filter",
        &[
            "exportV4: [{action: Accept, matchOperator: In, cidr: 77.0.0.0/16, source: RemotePeers, interface: '*.calico'}]",
            "importV6: [{action: Reject, matchOperator: NotEqual, cidr: '9000::/64', prefixLength: {min: 70, max: 128}}]",
            "exportV4: [{action: Accept, peerType: eBGP, communities: {values: ['65001:20']}, operations: [{addCommunity: {value: '1:2:3'}}]}]",
        ],
    );
}

#[test]
fn bgp_configurations() {
    refused(
        "BGPConfiguration",
        &[
            ("logSeverityScreen: Foo", "spec.logSeverityScreen: "),
            ("asNumber: many", "spec.asNumber: "),
            ("listenPort: 0", "spec.listenPort: "),
            ("bindMode: All", "spec.bindMode: "),
            ("serviceClusterIPs: [{cidr: 10.96.0.1/12}]", "spec.serviceClusterIPs[0].cidr: "),
            ("serviceLoadBalancerAggregation: On", "spec.serviceLoadBalancerAggregation: "),
            ("communities: [{name: a, value: '1:2'}]", "spec: `communities` needs `prefixAdvertisements`"),
            (
                "communities: [{name: a, value: '65536:2'}], prefixAdvertisements: [{cidr: 10.0.0.0/8, communities: [a]}]",
                "spec.communities[0].value: ",
            ),
            (
                "prefixAdvertisements: [{cidr: 10.0.0.0/8, communities: [b]}]",
                "spec.prefixAdvertisements[0].communities[0]: `b` is neither a community",
            ),
            ("nodeToNodeMeshEnabled: false, nodeMeshMaxRestartTime: 2m", "spec.nodeMeshMaxRestartTime: needs"),
            ("ignoredInterfaces: ['*']", "spec.ignoredInterfaces[0]: "),
            ("localWorkloadPeeringIPV4: 'fd00::1'", "spec.localWorkloadPeeringIPV4: "),
            ("nodeToNodeMesh: true", "spec.nodeToNodeMesh: is not a known field"),
        ],
    );
    accepted(
        "BGPConfiguration",
        "default",
        &[
            "logSeverityScreen: Info, nodeToNodeMeshEnabled: true, nodeMeshMaxRestartTime: 120s, asNumber: 63400",
            "serviceClusterIPs: [{cidr: 10.96.0.0/12}], serviceExternalIPs: [{cidr: 104.244.42.129/32}], listenPort: 178",
            "communities: [{name: bgp-large-community, value: '63400:300:100'}], prefixAdvertisements: \
             [{cidr: 172.218.4.0/26, communities: [bgp-large-community, '63400:120']}], bindMode: NodeIP",
        ],
    );
}

#[test]
fn kinds_for_other_programs() {
    refused(
        "IPReservation",
        &[("reservedCIDRs: [10.0.0.0/33]", "spec.reservedCIDRs[0]: "), ("cidrs: []", "spec.cidrs: ")],
    );
    accepted("IPReservation", "r", &["", "reservedCIDRs: [192.168.2.3, 10.0.2.3/32, 'cafe:f00d::/123']"]);
    refused(
        "CalicoNodeStatus",
        &[
            ("classes: [BGP], updatePeriodSeconds: 10", "spec.node: is required"),
            ("node: n1, classes: [], updatePeriodSeconds: 10", "spec.classes: must have 1 to 3 items"),
            ("node: n1, classes: [BGP, BGP], updatePeriodSeconds: 10", "spec.classes[1]: `BGP` is given twice"),
            ("node: n1, classes: [Bird], updatePeriodSeconds: 10", "spec.classes[0]: "),
            ("node: n1, classes: [BGP], updatePeriodSeconds: 86401", "spec.updatePeriodSeconds: "),
        ],
    );
    accepted(
        "CalicoNodeStatus",
        "my.status",
        &["classes: [Agent, BGP, Routes], node: my-node, updatePeriodSeconds: 10"],
    );
    refused(
        "KubeControllersConfiguration",
        &[
            ("logSeverityScreen: Trace", "spec.logSeverityScreen: "),
            ("healthChecks: yes", "spec.healthChecks: "),
            ("prometheusMetricsPort: 70000", "spec.prometheusMetricsPort: "),
            ("controllers: {node: {syncLabels: On}}", "spec.controllers.node.syncLabels: "),
            ("controllers: {node: {reconcilerPeriod: 5}}", "spec.controllers.node.reconcilerPeriod: "),
            ("controllers: {nodes: {}}", "spec.controllers.nodes: is not a known field; is `node` meant?"),
            ("controllers: {loadBalancer: {assignIPs: All}}", "spec.controllers.loadBalancer.assignIPs: "),
        ],
    );
    accepted(
        "KubeControllersConfiguration",
        "default",
        &[
            "logSeverityScreen: Info, healthChecks: Enabled, prometheusMetricsPort: 9094, controllers: {node: {reconcilerPeriod: 5m, \
             syncLabels: Enabled, hostEndpoint: {autoCreate: Disabled}}, policy: {reconcilerPeriod: 5m}}",
            "controllers: {node: {leakGracePeriod: 15m, hostEndpoint: {autoCreate: Enabled, templates: [{generateName: t, \
             interfaceCIDRs: [10.0.0.0/8], labels: {a: b}, nodeSelector: all()}]}}, loadBalancer: {assignIPs: AllServices}}",
        ],
    );
    refused(
        "IPAMConfiguration",
        &[
            ("strictAffinity: perhaps", "spec.strictAffinity: "),
            ("maxBlocksPerHost: -1", "spec.maxBlocksPerHost: "),
            ("kubeVirtVMAddressPersistence: On", "spec.kubeVirtVMAddressPersistence: "),
            ("strictAffinities: true", "spec.strictAffinities: is not a known field"),
        ],
    );
    accepted(
        "IPAMConfiguration",
        "default",
        &["strictAffinity: true, maxBlocksPerHost: 4", "autoAllocateBlocks: true"],
    );
}

#[test]
fn nodes_and_host_endpoints() {
    refused(
        "Node",
        &[
            ("bgp: {asNumber: many, ipv4Address: 10.0.0.1/24}", "spec.bgp.asNumber: "),
            ("bgp: {ipv4Adress: 10.0.0.1/24}", "spec.bgp.ipv4Adress: is not a known field"),
            ("bgp: {ipv4Address: 'fd00::1'}", "spec.bgp.ipv4Address: "),
            ("ipv4VXLANTunnelAddr: 'fd00::1'", "spec.ipv4VXLANTunnelAddr: "),
            ("vxlanTunnelMACAddr: xx", "spec.vxlanTunnelMACAddr: "),
        ],
    );
    accepted(
        "Node",
        "node-hostname",
        &[
            "bgp: {asNumber: 64512, ipv4Address: 10.244.0.1/24, ipv6Address: '2001:db8:85a3::8a2e:370:7334/120', ipv4IPIPTunnelAddr: 192.168.0.1}",
            "addresses: [{address: 10.0.0.1/24, type: CalicoNodeIP}], orchRefs: [{nodeName: n1, orchestrator: k8s}]",
        ],
    );
    refused(
        "HostEndpoint",
        &[
            ("node: A_B, interfaceName: eth0", "spec.node: "),
            ("node: n1, interfaceName: eth0, profiles: [A_B]", "spec.profiles[0]: "),
            ("node: n1", "spec: must give an interface"),
            ("node: n1, interfaceName: eth0, port: []", "spec.port: is not a known field"),
        ],
    );
    accepted(
        "HostEndpoint",
        "some.name",
        &["node: myhost, interfaceName: '*', profiles: [p.q], expectedIPs: [10.0.0.1]"],
    );
}

#[test]
fn names_and_metadata() {
    let pool = "cidr: 10.0.0.0/16";
    for (kind, name, spec, is_valid) in [
        ("IPPool", "a..b", pool, false),
        ("IPPool", "a.b-c.d", pool, true),
        ("IPPool", "A", pool, false),
        ("IPPool", "a_b", pool, false),
        ("IPReservation", "a..b", "", false),
        ("IPReservation", "a-", "", false),
        ("IPReservation", "a.b", "", true),
        ("BGPFilter", "A", "", false),
        ("Tier", "a.b", "order: 1", false),
        ("NetworkPolicy", "a.b", "selector: all()", true),
        ("NetworkPolicy", "a.b.c", "selector: all()", false),
        ("NetworkPolicy", "knp.default.a.b", "selector: all()", true),
        ("GlobalNetworkPolicy", "a.b.c", "selector: all()", false),
        ("GlobalNetworkPolicy", "a.b", "selector: all()", true),
        ("Profile", "ksa.default.a.b", "", true),
    ] {
        let errors = errors(kind, &format!("name: {name}"), spec);
        assert_eq!(errors.is_empty(), is_valid, "{kind} {name}: {errors:?}");
        assert!(is_valid || errors.iter().all(|error| error.starts_with("metadata.name: ")), "{errors:?}");
    }
    for (metadata, field) in [
        ("name: a, label: {a: b}", "metadata.label: is not a known field; is `labels` meant?"),
        ("name: a, labels: {a b: c}", "metadata.labels: "),
        ("name: a, annotations: {a b: c}", "metadata.annotations: `a b` is not the name of an annotation"),
    ] {
        for (kind, spec) in [("IPReservation", ""), ("IPPool", pool)] {
            let errors = errors(kind, metadata, spec);
            assert!(errors.len() == 1 && errors[0].starts_with(field), "{kind} {metadata}: {errors:?}");
        }
    }
    assert_eq!(errors("IPReservation", "name: a, annotations: {Example.com/A: b}, labels: {a/b: c}", ""), [""; 0]);
}

#[test]
fn readers_stay_tolerant() {
    for (kind, spec) in [
        ("FelixConfiguration", "chainInsertMode: sideways, colour: blue"),
        ("BGPPeer", "peerIP: 10.0.0.1, peerSelector: all(), colour: blue"),
        ("IPPool", "cidr: 10.0.0.0/28, colour: blue"),
        ("IPReservation", "reservedCIDRs: [everything]"),
        ("BGPConfiguration", "logSeverityScreen: Foo"),
    ] {
        let text = format!("apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{{spec}}}\n");
        let (manifest, _) = read_written(&text, Format::Yaml, &Options::default(), &mut Interner::new());
        let problems = &manifest.resources[0].problems;
        assert!(problems.iter().all(|problem| problem.severity == Severity::Warning), "{kind}: {problems:?}");
    }
}

#[test]
fn bounds_of_all_parameters_are_numbers() {
    let kinds = tortie_parameters::parameters().iter().map(|parameter| parameter.kind);
    let bounds = kinds.filter_map(|kind| kind.strip_prefix("int(")?.strip_suffix(')'));
    let read: Vec<(i64, i64)> = bounds.map(super::felix::bounds).collect();
    assert!(read.len() > 20 && read.iter().all(|(min, max)| min < max), "{read:?}");
    assert!(read.contains(&(-1, i64::MAX)) && read.contains(&(0, 65_535)), "{read:?}");
}
