//! Defaults that Calico fills in before it writes a resource: those of the definitions in
//! `api/config/crd`, which `libcalico-go/lib/validator/v3/crd_schemas.go` applies, and those of
//! `api/pkg/defaults`, `libcalico-go/lib/resources/tier.go` and `libcalico-go/lib/clientv3`.

use serde_json::{Map, Value, json};
use tortie_model::Cidr;

use super::part::{ObjectError, TIER_LABEL, part};
use super::{API_VERSION, ResourceKey, ResourceKind, tier_of};
use crate::object::reserved::{NAMESPACE_LABEL, ORCHESTRATOR_LABEL};
use crate::v3::tiers;

type Fields = Map<String, Value>;

/// Returns the profile that every datastore has without storing it, if the kind is that of profiles
/// (`libcalico-go/lib/resources/static.go`).
#[must_use]
pub fn built_in_profile(kind: ResourceKind) -> Option<Value> {
    let allow = json!([{"action": "Allow", "source": {}, "destination": {}}]);
    (kind == ResourceKind::Profile).then(|| {
        json!({
            "apiVersion": API_VERSION,
            "kind": "Profile",
            "metadata": {"name": tiers::DEFAULT_ALLOW_PROFILE, "resourceVersion": "1"},
            "spec": {"ingress": allow, "egress": allow},
        })
    })
}

/// Fills in the missing fields of an object whose `spec` is normalized.
pub(super) fn fill_in(key: &ResourceKey, object: &mut Fields) -> Result<(), ObjectError> {
    // Types that have a status always write it.
    match key.kind() {
        ResourceKind::Tier | ResourceKind::Node | ResourceKind::KubeControllersConfiguration => {
            part(object, "status", "status")?;
        }
        ResourceKind::CalicoNodeStatus => node_status(part(object, "status", "status")?),
        _ => {}
    }
    if key.kind().has_tier() {
        let is_staged =
            matches!(key.kind(), ResourceKind::StagedNetworkPolicy | ResourceKind::StagedGlobalNetworkPolicy);
        return policy(is_staged, object);
    }
    let spec = part(object, "spec", "spec")?;
    match key.kind() {
        ResourceKind::Tier => {
            fill(spec, [("order", json!(tiers::DEFAULT_TIER_ORDER)), ("defaultAction", json!("Deny"))]);
        }
        ResourceKind::IpPool => pool(spec),
        ResourceKind::StagedKubernetesNetworkPolicy => {
            fill(spec, [("stagedAction", json!("Set")), ("podSelector", json!({}))]);
        }
        ResourceKind::FelixConfiguration => felix(spec),
        ResourceKind::BgpConfiguration => {
            fill(spec, [("logSeverityScreen", json!("Info")), ("serviceLoadBalancerAggregation", json!("Enabled"))]);
        }
        // The defaults of its definition are different, but Calico's type has false before they
        // apply.
        ResourceKind::IpamConfiguration => {
            fill(spec, [("strictAffinity", json!(false)), ("autoAllocateBlocks", json!(false))]);
        }
        ResourceKind::KubeControllersConfiguration => kube_controllers(spec),
        ResourceKind::WorkloadEndpoint => return workload_endpoint(key, object),
        _ => {}
    }
    Ok(())
}

/// Fills in fields that are missing.
fn fill<const N: usize>(fields: &mut Fields, defaults: [(&str, Value); N]) {
    for (name, default) in defaults {
        fields.entry(name).or_insert(default);
    }
}

fn policy(is_staged: bool, object: &mut Fields) -> Result<(), ObjectError> {
    let spec = part(object, "spec", "spec")?;
    let action = spec.get("stagedAction").and_then(Value::as_str);
    if action == Some("Delete") {
        // A deletion has no types.
        spec.shift_remove("types");
    } else if !spec.contains_key("types") {
        let types = match (spec.contains_key("ingress"), spec.contains_key("egress")) {
            (_, false) => json!(["Ingress"]),
            (false, true) => json!(["Egress"]),
            (true, true) => json!(["Ingress", "Egress"]),
        };
        spec.insert("types".into(), types);
    }
    let tier = tier_of(spec).to_owned();
    fill(spec, [("tier", json!("default"))]);
    if is_staged {
        fill(spec, [("stagedAction", json!("Set"))]);
    }
    let metadata = part(object, "metadata", "metadata")?;
    part(metadata, "labels", "metadata.labels")?.insert(TIER_LABEL.into(), tier.into());
    Ok(())
}

fn pool(spec: &mut Fields) {
    let cidr: Option<Cidr> = spec.get("cidr").and_then(Value::as_str).and_then(|cidr| cidr.parse().ok());
    let is_v6 = cidr.is_some_and(|cidr| cidr.address().is_ipv6());
    if let Some(cidr) = cidr {
        spec.insert("cidr".into(), cidr.to_string().into());
    }
    let defaults = [
        ("nodeSelector", json!("all()")),
        ("blockSize", json!(if is_v6 { 122_u64 } else { 26 })),
        ("allowedUses", json!(["Workload", "Tunnel"])),
        ("assignmentMode", json!("Automatic")),
        ("ipipMode", json!("Never")),
        ("vxlanMode", json!("Never")),
    ];
    fill(spec, defaults);
}

/// Fills in the defaults like `setDefaults` of `clientv3/felixconfig.go`: the older of two
/// equivalent parameters decides, if it is present.
fn felix(spec: &mut Fields) {
    if let Some(enabled) = spec.get("bpfConnectTimeLoadBalancingEnabled").and_then(Value::as_bool) {
        let mode = if enabled { "Enabled" } else { "Disabled" };
        spec.insert("bpfConnectTimeLoadBalancing".into(), mode.into());
        spec.insert("bpfHostNetworkedNATWithoutCTLB".into(), "Disabled".into());
    }
    let defaults = [
        ("bpfConnectTimeLoadBalancing", json!("TCP")),
        ("bpfHostNetworkedNATWithoutCTLB", json!("Enabled")),
        ("bpfLogLevel", json!("")),
        ("floatingIPs", json!("Disabled")),
        ("nftablesFlowTableOffload", json!("Disabled")),
        ("nftablesMode", json!("Auto")),
    ];
    fill(spec, defaults);
}

fn kube_controllers(spec: &mut Fields) {
    fill(
        spec,
        [("healthChecks", json!("Enabled")), ("prometheusMetricsPort", json!(9094)), ("controllers", json!({}))],
    );
    let controllers = [
        ("node", "leakGracePeriod", "15m0s"),
        ("loadBalancer", "assignIPs", "AllServices"),
        ("migration", "policyNameMigrator", "Enabled"),
    ];
    for (controller, field, default) in controllers {
        let there = spec.get_mut("controllers").and_then(|all| all.get_mut(controller));
        if let Some(Value::Object(controller)) = there {
            fill(controller, [(field, json!(default))]);
        }
    }
}

fn workload_endpoint(key: &ResourceKey, object: &mut Fields) -> Result<(), ObjectError> {
    let spec = part(object, "spec", "spec")?;
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        // A value that is no mapping is unchanged; its readers reject it.
        let Value::Object(port) = port else { continue };
        fill(port, [("hostPort", json!(0)), ("hostIP", json!(""))]);
    }
    let orchestrator = spec.get("orchestrator").cloned().unwrap_or_else(|| "".into());
    let labels = part(part(object, "metadata", "metadata")?, "labels", "metadata.labels")?;
    labels.insert(NAMESPACE_LABEL.into(), key.namespace().into());
    labels.insert(ORCHESTRATOR_LABEL.into(), orchestrator);
    Ok(())
}

fn node_status(status: &mut Fields) {
    fill(status, [("lastUpdated", Value::Null), ("agent", json!({})), ("bgp", json!({})), ("routes", json!({}))]);
    if let Some(Value::Object(agent)) = status.get_mut("agent") {
        fill(agent, [("birdV4", json!({})), ("birdV6", json!({}))]);
    }
    if let Some(Value::Object(bgp)) = status.get_mut("bgp") {
        let counts = ["numberEstablishedV4", "numberNotEstablishedV4", "numberEstablishedV6", "numberNotEstablishedV6"];
        fill(bgp, counts.map(|count| (count, json!(0))));
    }
}
