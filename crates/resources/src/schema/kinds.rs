//! Fields of the kinds.

use std::collections::BTreeSet;

use tortie_model::{Cidr, Family, parse_address};

use super::shape::Rule::{Check, Needs, NotBoth};
use super::shape::Shape::{Any, AnyCase, Bool, Int, List, Mapping as Fields, Text, Texts, Value, Word};
use super::shape::{Mapping, Shape, fields, has_value};
use super::value;
use crate::stored::ResourceKind;
use crate::tree::{Map, Sink};

/// Returns the mapping `spec` of a kind; `None` if the readers for Felix check all of it.
pub(super) fn spec(kind: ResourceKind) -> Option<&'static Mapping> {
    match kind {
        ResourceKind::BgpConfiguration => Some(&BGP_CONFIGURATION),
        ResourceKind::BgpFilter => Some(&BGP_FILTER),
        ResourceKind::BgpPeer => Some(&BGP_PEER),
        ResourceKind::CalicoNodeStatus => Some(&NODE_STATUS),
        ResourceKind::ClusterInformation => Some(&CLUSTER_INFORMATION),
        ResourceKind::HostEndpoint => Some(&HOST_ENDPOINT),
        ResourceKind::IpamConfiguration => Some(&IPAM_CONFIGURATION),
        ResourceKind::IpPool => Some(&POOL),
        ResourceKind::IpReservation => Some(&RESERVATION),
        ResourceKind::KubeControllersConfiguration => Some(&KUBE_CONTROLLERS),
        ResourceKind::Node => Some(&NODE),
        _ => None,
    }
}

pub(super) const MANY: usize = usize::MAX;
const SWITCH: Shape = Word(&["Enabled", "Disabled"]);
const PRIORITY: Shape = Int(1, 2_147_483_646);
const SEVERITIES: &[&str] = &["Trace", "Debug", "Info", "Warning", "Error", "Fatal"];
const CLUSTER_ROUTES: Shape = Word(&["Enabled", "Disabled", "EnabledIPIPOnly", "EnabledNoEncapOnly"]);

static PASSWORD: Mapping = fields(&[("secretKeyRef", Fields(&SECRET))]);
static SECRET: Mapping = Mapping { required: &["key"], ..fields(&[("name", Text), ("key", Text), ("optional", Bool)]) };

static BGP_PEER: Mapping = Mapping {
    fields: &[
        ("node", Value(value::name)),
        ("nodeSelector", Value(value::selector)),
        ("peerIP", Value(value::peer_address)),
        ("asNumber", Value(value::as_number)),
        ("localASNumber", Value(value::as_number)),
        ("peerSelector", Value(value::selector)),
        ("keepOriginalNextHop", Bool),
        ("nextHopMode", Word(&["Auto", "Self", "Keep"])),
        ("password", Fields(&PASSWORD)),
        ("sourceAddress", Word(&["UseNodeIP", "None"])),
        ("maxRestartTime", Value(value::duration)),
        ("keepaliveTime", Value(value::duration)),
        ("numAllowedLocalASNumbers", Int(0, i32::MAX as i64)),
        ("ttlSecurity", Int(0, 255)),
        ("reachableBy", Value(value::address)),
        ("filters", List(0, MANY, &Value(value::name))),
        ("localWorkloadSelector", Value(value::selector)),
        ("reversePeering", Word(&["Auto", "Manual"])),
    ],
    required: &[],
    rules: &[
        NotBoth("node", "nodeSelector"),
        NotBoth("peerIP", "peerSelector"),
        NotBoth("peerSelector", "asNumber"),
        NotBoth("localWorkloadSelector", "peerIP"),
        NotBoth("localWorkloadSelector", "peerSelector"),
        NotBoth("keepOriginalNextHop", "nextHopMode"),
        Needs("localWorkloadSelector", "asNumber"),
        Needs("reachableBy", "peerIP"),
        Check(families_of_peer),
    ],
};

fn families_of_peer(spec: &Map<'_, '_>, sink: &mut Sink) {
    let quiet = &mut Sink::default();
    let gateway = parse_address(spec.text_or_empty("reachableBy", quiet));
    let peer = value::parse_peer(spec.text_or_empty("peerIP", quiet));
    if let (Some(gateway), Some(peer), Some(field)) = (gateway, peer, spec.field("reachableBy"))
        && gateway.is_ipv4() != peer.is_ipv4()
    {
        field.error(sink, "must be of the same family as `peerIP`");
    }
}

static BGP_CONFIGURATION: Mapping = Mapping {
    fields: &[
        ("logSeverityScreen", AnyCase(SEVERITIES)),
        ("nodeToNodeMeshEnabled", Bool),
        ("asNumber", Value(value::as_number)),
        ("serviceLoadBalancerIPs", List(0, MANY, &Fields(&BLOCK))),
        ("serviceExternalIPs", List(0, MANY, &Fields(&BLOCK))),
        ("serviceClusterIPs", List(0, MANY, &Fields(&BLOCK))),
        ("serviceLoadBalancerAggregation", SWITCH),
        ("communities", List(0, 500, &Fields(&COMMUNITY))),
        ("prefixAdvertisements", List(0, 500, &Fields(&ADVERTISEMENT))),
        ("listenPort", Int(1, 65535)),
        ("nodeMeshPassword", Fields(&PASSWORD)),
        ("nodeMeshMaxRestartTime", Value(value::duration)),
        ("bindMode", Word(&["None", "NodeIP"])),
        ("ignoredInterfaces", List(0, MANY, &Value(value::ignored_interface))),
        ("localWorkloadPeeringIPV4", Value(value::ipv4)),
        ("localWorkloadPeeringIPV6", Value(value::ipv6)),
        ("programClusterRoutes", CLUSTER_ROUTES),
        ("ipv4NormalRoutePriority", PRIORITY),
        ("ipv6NormalRoutePriority", PRIORITY),
    ],
    required: &[],
    rules: &[Needs("communities", "prefixAdvertisements"), Check(mesh), Check(advertised_communities)],
};
static BLOCK: Mapping = fields(&[("cidr", Value(value::net))]);
static COMMUNITY: Mapping = Mapping {
    required: &["name", "value"],
    ..fields(&[("name", Value(value::name)), ("value", Value(value::community))])
};
static ADVERTISEMENT: Mapping = Mapping {
    required: &["cidr", "communities"],
    ..fields(&[("cidr", Value(value::net)), ("communities", List(0, 50, &Text))])
};

fn mesh(spec: &Map<'_, '_>, sink: &mut Sink) {
    let is_off = spec.field("nodeToNodeMeshEnabled").and_then(|field| field.boolean(sink)) == Some(false);
    for name in ["nodeMeshPassword", "nodeMeshMaxRestartTime"] {
        if let Some(field) = spec.field(name).filter(|_| is_off) {
            field.error(sink, "needs `nodeToNodeMeshEnabled`");
        }
    }
}

/// Checks that each advertised community is a value, or the name of a defined one.
fn advertised_communities(spec: &Map<'_, '_>, sink: &mut Sink) {
    let quiet = &mut Sink::default();
    let defined: BTreeSet<&str> = spec
        .list("communities", quiet, |community, sink| Some(community.map(sink)?.text_or_empty("name", sink)))
        .into_iter()
        .collect();
    spec.list("prefixAdvertisements", sink, |advertisement, sink| {
        advertisement.map(sink)?.list("communities", sink, |field, sink| {
            let text = field.text(sink)?;
            if !value::is_community(text) && !defined.contains(text) {
                field.error(sink, format!("`{text}` is neither a community nor the name of one in `communities`"));
            }
            Some(())
        });
        Some(())
    });
}

static BGP_FILTER: Mapping = fields(&[
    ("exportV4", List(0, MANY, &Fields(&FILTER_RULE_V4))),
    ("importV4", List(0, MANY, &Fields(&FILTER_RULE_V4))),
    ("exportV6", List(0, MANY, &Fields(&FILTER_RULE_V6))),
    ("importV6", List(0, MANY, &Fields(&FILTER_RULE_V6))),
]);
static FILTER_RULE_V4: Mapping = Mapping { fields: &filter_fields(Value(value::net_v4), &LENGTH_V4), ..FILTER_RULE };
static FILTER_RULE_V6: Mapping = Mapping { fields: &filter_fields(Value(value::net_v6), &LENGTH_V6), ..FILTER_RULE };
static LENGTH_V4: Mapping = fields(&[("min", Int(0, 32)), ("max", Int(0, 32))]);
static LENGTH_V6: Mapping = fields(&[("min", Int(0, 128)), ("max", Int(0, 128))]);
const FILTER_RULE: Mapping = Mapping {
    fields: &[],
    required: &["action"],
    rules: &[
        Needs("cidr", "matchOperator"),
        Needs("matchOperator", "cidr"),
        Needs("prefixLength", "cidr"),
        Check(operations),
    ],
};

const fn filter_fields(net: Shape, length: &'static Mapping) -> [(&'static str, Shape); 11] {
    [
        ("cidr", net),
        ("prefixLength", Fields(length)),
        ("source", Word(&["RemotePeers"])),
        ("interface", Value(value::interface_pattern)),
        ("matchOperator", Word(&["Equal", "NotEqual", "In", "NotIn"])),
        ("peerType", Word(&["eBGP", "iBGP"])),
        ("communities", Fields(&COMMUNITIES)),
        ("asPathPrefix", List(0, MANY, &Value(value::as_number))),
        ("priority", PRIORITY),
        ("action", Word(&["Accept", "Reject"])),
        ("operations", List(1, 10, &FILTER_OPERATION)),
    ]
}

static COMMUNITIES: Mapping =
    Mapping { required: &["values"], ..fields(&[("values", List(1, 1, &Value(value::community)))]) };
static FILTER_OPERATION: Shape = Fields(&OPERATION);
static OPERATION: Mapping = Mapping {
    fields: &[
        ("addCommunity", Fields(&ADD_COMMUNITY)),
        ("prependASPath", Fields(&PREPEND_AS_PATH)),
        ("setPriority", Fields(&SET_PRIORITY)),
    ],
    required: &[],
    rules: &[
        NotBoth("addCommunity", "prependASPath"),
        NotBoth("addCommunity", "setPriority"),
        NotBoth("prependASPath", "setPriority"),
    ],
};
static ADD_COMMUNITY: Mapping = Mapping { required: &["value"], ..fields(&[("value", Value(value::community))]) };
static PREPEND_AS_PATH: Mapping =
    Mapping { required: &["prefix"], ..fields(&[("prefix", List(1, 10, &Value(value::as_number)))]) };
static SET_PRIORITY: Mapping = Mapping { required: &["value"], ..fields(&[("value", PRIORITY)]) };

fn operations(rule: &Map<'_, '_>, sink: &mut Sink) {
    if has_value(rule, "operations") && rule.text("action", &mut Sink::default()) != Some("Accept") {
        rule.error(sink, "`operations` need the action Accept");
    }
}

static NODE_STATUS: Mapping = Mapping {
    fields: &[
        ("node", Value(value::name)),
        ("classes", List(1, 3, &Word(&["Agent", "BGP", "Routes"]))),
        ("updatePeriodSeconds", Int(0, 86_400)),
    ],
    required: &["node", "classes", "updatePeriodSeconds"],
    rules: &[Check(distinct_classes)],
};

fn distinct_classes(spec: &Map<'_, '_>, sink: &mut Sink) {
    let mut seen = BTreeSet::new();
    spec.list("classes", sink, |class, sink| {
        let text = class.text(sink)?;
        if !seen.insert(text) {
            class.error(sink, format!("`{text}` is given twice"));
        }
        Some(())
    });
}

static CLUSTER_INFORMATION: Mapping = fields(&[
    ("clusterGUID", Text),
    ("clusterType", Text),
    ("calicoVersion", Text),
    ("datastoreReady", Bool),
    ("variant", Text),
]);

static HOST_ENDPOINT: Mapping = fields(&[
    ("node", Value(value::name)),
    ("interfaceName", Any),
    ("expectedIPs", Any),
    ("profiles", List(0, MANY, &Value(value::name))),
    ("ports", Any),
]);

static IPAM_CONFIGURATION: Mapping = fields(&[
    ("strictAffinity", Bool),
    ("autoAllocateBlocks", Bool),
    ("maxBlocksPerHost", Int(0, 1_000_000)),
    ("ipCooldownSeconds", Int(0, 1_200)),
    ("kubeVirtVMAddressPersistence", SWITCH),
]);

static RESERVATION: Mapping = fields(&[("reservedCIDRs", List(0, MANY, &Value(value::cidr)))]);

static POOL: Mapping = Mapping {
    fields: &[
        ("cidr", Any),
        ("vxlanMode", Any),
        ("ipipMode", Any),
        ("natOutgoing", Bool),
        ("disabled", Bool),
        ("disableBGPExport", Bool),
        ("blockSize", Any),
        ("nodeSelector", Any),
        ("namespaceSelector", Any),
        ("allowedUses", Any),
        ("assignmentMode", Word(&["Automatic", "Manual"])),
    ],
    required: &[],
    rules: &[Check(pool_uses), Check(pool_selectors), Check(default_block_size)],
};

fn pool_uses(spec: &Map<'_, '_>, sink: &mut Sink) {
    let uses = spec.texts("allowedUses", &mut Sink::default());
    let text = |name| spec.text_or_empty(name, &mut Sink::default());
    if uses.contains(&"LoadBalancer") {
        let encapsulates = ["ipipMode", "vxlanMode"].iter().any(|mode| !matches!(text(mode), "" | "Never"));
        for (is_wrong, field, rule) in [
            (encapsulates, "allowedUses", "LoadBalancer excludes IP-in-IP and VXLAN"),
            (has_value(spec, "disableBGPExport"), "disableBGPExport", "must be false for LoadBalancer"),
            (!matches!(text("nodeSelector"), "" | "all()"), "nodeSelector", "must be `all()` for LoadBalancer"),
        ] {
            if let Some(field) = spec.field(field).filter(|_| is_wrong) {
                field.error(sink, rule);
            }
        }
    }
    if uses.contains(&"Tunnel") && has_value(spec, "namespaceSelector") {
        spec.error(sink, "a pool with `namespaceSelector` cannot have the use Tunnel");
    }
}

fn pool_selectors(spec: &Map<'_, '_>, sink: &mut Sink) {
    for name in ["nodeSelector", "namespaceSelector"] {
        if let Some(field) = spec.field(name)
            && field.text(sink).is_some_and(|text| text.contains("global("))
        {
            field.error(sink, "must not have `global()`");
        }
    }
}

/// Checks that a pool without a block size holds a block of the default size.
fn default_block_size(spec: &Map<'_, '_>, sink: &mut Sink) {
    let quiet = &mut Sink::default();
    let cidr: Option<Cidr> = spec.text("cidr", quiet).and_then(|text| text.parse().ok());
    let Some(cidr) = cidr.filter(|_| !has_value(spec, "blockSize") && !spec.flag("disabled", quiet)) else { return };
    let default = match cidr.family() {
        Family::V4 => 26,
        Family::V6 => 122,
    };
    if cidr.prefix_len() > default {
        spec.error(
            sink,
            format!("`blockSize` is required: {cidr} is smaller than a block of the default size {default}"),
        );
    }
}

static KUBE_CONTROLLERS: Mapping = fields(&[
    ("logSeverityScreen", Word(&["None", "Debug", "Info", "Warning", "Error", "Fatal", "Panic"])),
    ("healthChecks", SWITCH),
    ("etcdV3CompactionPeriod", Value(value::duration)),
    ("prometheusMetricsPort", Int(0, 65535)),
    ("debugProfilePort", Int(0, 65535)),
    ("controllers", Fields(&CONTROLLERS)),
]);
static CONTROLLERS: Mapping = fields(&[
    ("node", Fields(&NODE_CONTROLLER)),
    ("policy", Fields(&CONTROLLER)),
    ("workloadEndpoint", Fields(&CONTROLLER)),
    ("serviceAccount", Fields(&CONTROLLER)),
    ("namespace", Fields(&CONTROLLER)),
    ("loadBalancer", Fields(&LOAD_BALANCER)),
    ("migration", Fields(&MIGRATION)),
]);
static CONTROLLER: Mapping = fields(&[("reconcilerPeriod", Value(value::duration))]);
static LOAD_BALANCER: Mapping = fields(&[("assignIPs", Word(&["AllServices", "RequestedServicesOnly"]))]);
static MIGRATION: Mapping = fields(&[("policyNameMigrator", SWITCH)]);
static NODE_CONTROLLER: Mapping = fields(&[
    ("reconcilerPeriod", Value(value::duration)),
    ("syncLabels", SWITCH),
    ("hostEndpoint", Fields(&AUTO_HOST_ENDPOINT)),
    ("leakGracePeriod", Value(value::duration)),
]);
static AUTO_HOST_ENDPOINT: Mapping = fields(&[
    ("autoCreate", SWITCH),
    ("createDefaultHostEndpoint", SWITCH),
    ("templates", List(0, MANY, &Fields(&TEMPLATE))),
]);
static TEMPLATE: Mapping = fields(&[
    ("generateName", Value(value::name)),
    ("interfaceCIDRs", List(0, MANY, &Value(value::cidr))),
    ("interfacePattern", Text),
    ("labels", Value(value::labels)),
    ("annotations", Texts),
    ("nodeSelector", Value(value::selector)),
]);

static NODE: Mapping = fields(&[
    ("bgp", Fields(&NODE_BGP)),
    ("ipv4VXLANTunnelAddr", Value(value::ipv4)),
    ("vxlanTunnelMACAddr", Value(value::mac)),
    ("ipv6VXLANTunnelAddr", Value(value::ipv6)),
    ("vxlanTunnelMACAddrV6", Value(value::mac)),
    ("orchRefs", List(0, MANY, &Fields(&ORCHESTRATOR))),
    ("wireguard", Fields(&WIREGUARD)),
    ("addresses", List(0, MANY, &Fields(&NODE_ADDRESS))),
    ("interfaces", List(0, MANY, &Fields(&NODE_INTERFACE))),
]);
static NODE_BGP: Mapping = fields(&[
    ("asNumber", Value(value::as_number)),
    ("ipv4Address", Any),
    ("ipv6Address", Any),
    ("ipv4IPIPTunnelAddr", Value(value::ipv4)),
    ("routeReflectorClusterID", Value(value::ipv4)),
]);
static ORCHESTRATOR: Mapping = fields(&[("nodeName", Text), ("orchestrator", Text)]);
static WIREGUARD: Mapping =
    fields(&[("interfaceIPv4Address", Value(value::ipv4)), ("interfaceIPv6Address", Value(value::ipv6))]);
static NODE_ADDRESS: Mapping = fields(&[("address", Value(value::cidr)), ("type", Text)]);
static NODE_INTERFACE: Mapping = fields(&[("name", Text), ("addresses", List(0, MANY, &Text))]);
