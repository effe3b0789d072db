//! Pods.

mod ports;

use sha1::{Digest, Sha1};
use tortie_model::{
    AddressSource, AdminState, Cidr, Family, InterfaceName, Interner, NatMapping, ProfileName, ShortList, Update,
    WorkloadEndpoint, WorkloadEndpointKey, WorkloadExtras, reserved_range,
};

use super::qos;
use crate::object::reserved::{NAMESPACE_LABEL, ORCHESTRATOR_LABEL, SERVICE_ACCOUNT_LABEL};
use crate::object::{Contributions, Object, UnknownFields};
use crate::scalar;
use crate::tree::{Map, Sink};

const POD_IP: &str = "cni.projectcalico.org/podIP";
const POD_IPS: &str = "cni.projectcalico.org/podIPs";
const AWS_POD_IPS: &str = "vpc.amazonaws.com/pod-ips";
const FLOATING_IPS: &str = "cni.projectcalico.org/floatingIPs";
const SOURCE_PREFIXES: &str = "cni.projectcalico.org/allowedSourcePrefixes";
/// Mark of the mirror of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// Converts a `Pod`. A pod contributes nothing if it is not scheduled, uses the host network, has
/// finished, or has no address yet.
pub(crate) fn pod(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let Some(spec) = object.map.field("spec") else {
        object.map.missing("spec", sink);
        return None;
    };
    let spec = spec.map(sink)?;
    let status = object.map.field("status").and_then(|status| status.map(sink));
    let node = spec.text_or_empty("nodeName", sink);
    if node.is_empty() || spec.flag("hostNetwork", sink) || finished(object, status, sink) {
        return Some(Vec::new());
    }
    let (nets, address_source) = addresses(object, status, sink);
    if nets.is_empty() {
        return Some(Vec::new());
    }
    let (namespace, name) = (&*object.id.namespace, &*object.id.name);
    let account = account_of_pod(object, spec, sink);
    let mut profiles = vec![ProfileName::new(format!("kns.{namespace}"))];
    let mut pairs = object.meta.labels.clone();
    pairs.extend([(NAMESPACE_LABEL, namespace), (ORCHESTRATOR_LABEL, "k8s")]);
    if let Some(written) = written_account(spec, sink) {
        profiles.push(ProfileName::new(format!("ksa.{namespace}.{written}")));
    }
    if !account.is_empty() {
        // The label is set even if the name is too long for a label in Kubernetes, because rules
        // with this account would not match otherwise
        // (`libcalico-go/lib/backend/syncersv1/updateprocessors/workloadendpointprocessor.go`).
        pairs.push((SERVICE_ACCOUNT_LABEL, account));
    }
    let of =
        |family: Family| -> ShortList<Cidr> { nets.iter().copied().filter(|net| net.family() == family).collect() };
    let extras = WorkloadExtras { address_source, ..extras(object, &nets, sink) };
    let endpoint = WorkloadEndpoint {
        state: AdminState::Active,
        iface: interface_name(&object.options.interface_prefix, namespace, name),
        mac: None,
        profiles: profiles.into(),
        ipv4_nets: of(Family::V4),
        ipv6_nets: of(Family::V6),
        labels: scalar::interned(&object.root, pairs, labels, sink),
        ports: ports::named(spec, status, sink).into(),
        generate_name: object.meta.generate_name.map(Into::into),
        extras: (extras != WorkloadExtras::default()).then(|| Box::new(extras)),
    };
    let key = WorkloadEndpointKey::new(node, "k8s", &format!("{namespace}/{name}"), "eth0");
    Some(vec![Update::WorkloadEndpoint(key, Some(object.root.valid(endpoint, sink)?))])
}

/// Returns the name of the service account of a pod; empty if it has none. The plugin
/// `ServiceAccount` of the API server sets `default` in every new pod but the mirror of a static
/// one. Few clusters in files have a `ServiceAccount` of that name: the pod gets no profile of it.
pub(crate) fn account_of_pod<'o>(object: &Object<'_, '_>, spec: Map<'o, '_>, sink: &mut Sink) -> &'o str {
    let is_new = object.options.unknown_fields == UnknownFields::Refuse && object.meta.annotation(MIRROR).is_none();
    written_account(spec, sink).unwrap_or(if is_new { "default" } else { "" })
}

/// The API server makes `serviceAccountName` of the deprecated `serviceAccount`.
fn written_account<'o>(spec: Map<'o, '_>, sink: &mut Sink) -> Option<&'o str> {
    let names = ["serviceAccountName", "serviceAccount"].map(|name| spec.text_or_empty(name, sink));
    names.into_iter().find(|name| !name.is_empty())
}

/// Returns the host-side interface that Calico's CNI plugin creates for a pod; `None` if the prefix
/// is too long for one. The addresses of the pod count nevertheless, and its node reports that it
/// has no interface.
fn interface_name(prefix: &str, namespace: &str, name: &str) -> Option<InterfaceName> {
    let hash = Sha1::digest(format!("{namespace}.{name}"));
    let mut interface: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    interface.truncate(11);
    interface.insert_str(0, prefix);
    interface.parse().ok()
}

fn finished(object: &Object<'_, '_>, status: Option<Map<'_, '_>>, sink: &mut Sink) -> bool {
    let phase = status.as_ref().map(|status| status.text_or_empty("phase", sink)).unwrap_or_default();
    let released = |name| object.meta.annotation(name) == Some("");
    matches!(phase, "Failed" | "Succeeded" | "Completed")
        || object.meta.deleting && (released(POD_IP) || released(AWS_POD_IPS))
}

/// Returns the addresses of the first source that has any.
fn addresses(object: &Object<'_, '_>, status: Option<Map<'_, '_>>, sink: &mut Sink) -> (Vec<Cidr>, AddressSource) {
    if let Some(status) = &status {
        let all = status.list("podIPs", sink, |ip, sink| {
            let map = ip.map(sink)?;
            let field = map.field("ip")?;
            scalar::cidr(field, sink).map(Cidr::masked)
        });
        if !all.is_empty() {
            return (all, AddressSource::Platform);
        }
        if let Some(field) = status.field("podIP")
            && !field.text(sink).is_none_or(str::is_empty)
        {
            let address = scalar::cidr(field, sink).map(Cidr::masked);
            return (address.into_iter().collect(), AddressSource::Platform);
        }
    }
    for annotation in [POD_IPS, POD_IP, AWS_POD_IPS] {
        let Some(text) = object.meta.annotation(annotation).filter(|text| !text.is_empty()) else { continue };
        return (claimed(object, annotation, text, sink), AddressSource::Annotation(annotation.into()));
    }
    (Vec::new(), AddressSource::Platform)
}

/// Returns the addresses that an annotation claims: one of each family, as the CNI plugin writes
/// them. A pod's creator can write anything else.
fn claimed(object: &Object<'_, '_>, annotation: &str, text: &str, sink: &mut Sink) -> Vec<Cidr> {
    let mut nets: Vec<Cidr> = Vec::new();
    for text in text.split(',').map(str::trim) {
        // A warning reports an unusable address.
        let Some(net) = single(object, annotation, text, sink) else { continue };
        if nets.iter().any(|other| other.family() == net.family()) {
            unused(object, annotation, net, "a second address of its family", sink);
        } else {
            nets.push(net);
        }
    }
    nets
}

/// Parses an address of an annotation that an endpoint can have.
fn single(object: &Object<'_, '_>, annotation: &str, text: &str, sink: &mut Sink) -> Option<Cidr> {
    let net = parsed(object, annotation, text, sink)?;
    let is_wide = (!net.is_host()).then_some("a network with more than one address");
    match is_wide.or_else(|| reserved_range(net.address())) {
        None => Some(net),
        Some(flaw) => {
            unused(object, annotation, net, flaw, sink);
            None
        }
    }
}

fn unused(object: &Object<'_, '_>, annotation: &str, net: Cidr, flaw: &str, sink: &mut Sink) {
    object.root.warn(sink, format!("annotation {annotation}: `{net}` is {flaw}; not used"));
}

/// Parses a network of an annotation. The pod counts without an unreadable one: its creator could
/// otherwise keep nodes from being ready.
fn parsed(object: &Object<'_, '_>, annotation: &str, text: &str, sink: &mut Sink) -> Option<Cidr> {
    match text.parse::<Cidr>() {
        Ok(net) => Some(net.masked()),
        Err(error) => {
            object.root.warn(sink, format!("annotation {annotation}: {error}; not used"));
            None
        }
    }
}

fn extras(object: &Object<'_, '_>, nets: &[Cidr], sink: &mut Sink) -> WorkloadExtras {
    let mut extras = WorkloadExtras { qos: qos::controls(object, sink), ..WorkloadExtras::default() };
    if let Some(status) = object.meta.annotation(NETWORK_STATUS) {
        extras.annotations = [(NETWORK_STATUS.into(), status.into())].into();
    }
    extras.allowed_source_prefixes = list(object, SOURCE_PREFIXES, sink)
        .iter()
        .filter_map(|net| parsed(object, SOURCE_PREFIXES, net, sink))
        .collect();
    let mut nats = (Vec::new(), Vec::new());
    for text in list(object, FLOATING_IPS, sink) {
        // A warning reports an unusable address.
        let Some(external) = single(object, FLOATING_IPS, &text, sink) else { continue };
        // A family in which the pod has no address is left out.
        let Some(internal) = nets.iter().find(|net| net.family() == external.family()) else { continue };
        let nat = NatMapping { internal: internal.address(), external: external.address() };
        match external.family() {
            Family::V4 => nats.0.push(nat),
            Family::V6 => nats.1.push(nat),
        }
    }
    extras.ipv4_nat = nats.0.into();
    extras.ipv6_nat = nats.1.into();
    extras
}

/// Reads an annotation with a JSON list of text.
fn list(object: &Object<'_, '_>, annotation: &str, sink: &mut Sink) -> Vec<String> {
    let Some(text) = object.meta.annotation(annotation).filter(|text| !text.is_empty()) else { return Vec::new() };
    serde_json::from_str(text).unwrap_or_else(|_| {
        object.root.warn(sink, format!("annotation {annotation}: must be a JSON list of text; not used"));
        Vec::new()
    })
}
