//! Pods.

use std::collections::BTreeMap;

use serde_json::{Map as JsonMap, Value as Json, json};
use tortie_model::{Interner, NatMapping, Protocol, QosControls, Update, WorkloadEndpoint};

use super::{Conversion, metadata, resource};
use crate::object::reserved::{NAMESPACE_LABEL, ORCHESTRATOR_LABEL, SERVICE_ACCOUNT_LABEL};
use crate::object::{Kind, Object, Options, with_object};
use crate::scalar::resource_protocol_name;
use crate::stored::{EndpointNameError, endpoint_name};
use crate::tree::{Cursor, Node, Sink, UnknownField};
use crate::{FieldProblem, k8s};

/// Name of the interface in a pod, as Calico's CNI plugin sets it.
const INTERFACE: &str = "eth0";
const CONTAINER_ID: &str = "cni.projectcalico.org/containerID";

/// Fields of a pod that its endpoints follow after the CNI plugin has created them
/// (`kube-controllers/pkg/converter/pod_converter.go`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointFacts {
    /// Labels of the endpoint: those of the pod without reserved ones of namespaces and service
    /// accounts, and those of its place.
    pub labels: BTreeMap<String, String>,
    /// The name of the service account; may be empty.
    pub service_account: String,
    /// The node; empty until the pod is scheduled.
    pub node: String,
}

/// Returns the fields of a pod that endpoints follow; `None` if the pod has no endpoint because it
/// uses the host network.
///
/// # Errors
/// The problems of the pod.
pub fn endpoint_facts(pod: &Json) -> Result<Option<EndpointFacts>, Vec<FieldProblem>> {
    let node = Node::from(pod);
    let mut sink = Sink { unknown_fields: UnknownField::Ignored, ..Sink::default() };
    let facts = with_object(Cursor::root(&node), Kind::Pod, &Options::default(), &mut sink, |object, sink| {
        let spec = object.map.field("spec")?.map(sink)?;
        if spec.flag("hostNetwork", sink) {
            return None;
        }
        let account = spec.text_or_empty("serviceAccountName", sink);
        let labels = labels(object, account).map(|(name, value)| (name.to_owned(), value.to_owned()));
        let node = spec.text_or_empty("nodeName", sink).to_owned();
        Some(EndpointFacts { labels: labels.collect(), service_account: account.to_owned(), node })
    });
    if sink.has_errors() { Err(sink.problems.into_list()) } else { Ok(facts.flatten()) }
}

fn labels<'o>(object: &'o Object<'_, '_>, account: &'o str) -> impl Iterator<Item = (&'o str, &'o str)> {
    let own = object.meta.labels.iter().copied();
    let place = [(NAMESPACE_LABEL, &*object.id.namespace), (ORCHESTRATOR_LABEL, "k8s")];
    // A longer name does not become a label; the specification has it nevertheless.
    let account = (!account.is_empty() && account.len() < 63).then_some((SERVICE_ACCOUNT_LABEL, account));
    own.chain(place).chain(account)
}

/// Returns the name of the endpoint of a pod on a node, with the interface `eth0`.
///
/// # Errors
/// [`EndpointNameError`] if one of the names cannot be a part of it.
pub fn workload_endpoint_name(node: &str, pod: &str) -> Result<String, EndpointNameError> {
    endpoint_name([node, "k8s", pod, INTERFACE])
}

#[expect(clippy::indexing_slicing, reason = "`resource` returns an object")]
pub(super) fn workload_endpoint(object: &Object<'_, '_>, interner: &mut Interner, sink: &mut Sink) -> Conversion {
    const UNUSABLE: Conversion = Conversion::Unusable { substitute: None };
    let contributions = k8s::pod(object, interner, sink);
    if sink.has_errors() {
        return UNUSABLE;
    }
    let endpoint = contributions.into_iter().flatten().find_map(|update| match update {
        Update::WorkloadEndpoint(_, endpoint) => endpoint,
        _ => None,
    });
    let Some(endpoint) = endpoint else { return Conversion::Nothing };
    let Some(spec) = object.map.field("spec").and_then(|spec| spec.map(sink)) else { return UNUSABLE };
    let node = spec.text_or_empty("nodeName", sink);
    let account = k8s::account_of_pod(object, spec, sink);
    let name = match workload_endpoint_name(node, &object.id.name) {
        Ok(name) => name,
        Err(error) => {
            object.root.error(sink, error.to_string());
            return UNUSABLE;
        }
    };
    let mut fields = JsonMap::new();
    for (field, text) in [
        ("orchestrator", "k8s"),
        ("node", node),
        ("pod", &*object.id.name),
        ("endpoint", INTERFACE),
        ("containerID", object.meta.annotation(CONTAINER_ID).unwrap_or_default()),
        ("serviceAccountName", account),
    ] {
        if !text.is_empty() {
            fields.insert(field.into(), text.into());
        }
    }
    write_endpoint(&endpoint, &mut fields);
    let mut resource = resource(Kind::WorkloadEndpoint, metadata(&object.id.namespace, &name), fields);
    let labels: BTreeMap<_, _> = labels(object, account).collect();
    resource["metadata"]["labels"] = json!(labels);
    if let Some(extras) = endpoint.extras.as_deref().filter(|extras| !extras.annotations.is_empty()) {
        let annotations: BTreeMap<_, _> = extras.annotations.iter().map(|(name, value)| (&**name, &**value)).collect();
        resource["metadata"]["annotations"] = json!(annotations);
    }
    Conversion::Resource(resource)
}

fn write_endpoint(endpoint: &WorkloadEndpoint, fields: &mut JsonMap<String, Json>) {
    let texts = |items: Vec<String>| Json::from(items);
    if let Some(iface) = &endpoint.iface {
        fields.insert("interfaceName".into(), iface.as_str().into());
    }
    fields.insert("profiles".into(), texts(endpoint.profiles.iter().map(ToString::to_string).collect()));
    let nets = endpoint.ipv4_nets.iter().chain(&endpoint.ipv6_nets);
    fields.insert("ipNetworks".into(), texts(nets.map(ToString::to_string).collect()));
    let ports: Vec<Json> = endpoint
        .ports
        .iter()
        .filter_map(|port| match port.protocol {
            Protocol::Named(protocol) => {
                Some(json!({"name": &*port.name, "protocol": resource_protocol_name(protocol), "port": port.port}))
            }
            Protocol::Number(_) => None,
        })
        .collect();
    if !ports.is_empty() {
        fields.insert("ports".into(), ports.into());
    }
    let Some(extras) = endpoint.extras.as_deref() else { return };
    let nats = extras.ipv4_nat.iter().chain(&extras.ipv6_nat);
    let nats: Vec<Json> =
        nats.map(|NatMapping { internal, external }| json!({"internalIP": internal, "externalIP": external})).collect();
    if !nats.is_empty() {
        fields.insert("ipNATs".into(), nats.into());
    }
    if !extras.allowed_source_prefixes.is_empty() {
        let prefixes = extras.allowed_source_prefixes.iter().map(ToString::to_string).collect();
        fields.insert("allowSpoofedSourcePrefixes".into(), texts(prefixes));
    }
    if let Some(qos) = &extras.qos {
        fields.insert("qosControls".into(), write_qos(qos));
    }
}

fn write_qos(qos: &QosControls) -> Json {
    let mut fields = JsonMap::new();
    for (name, value) in [
        ("ingressBandwidth", qos.ingress_bandwidth),
        ("ingressBurst", qos.ingress_burst),
        ("ingressPeakrate", qos.ingress_peakrate),
        ("ingressMinburst", qos.ingress_minburst),
        ("egressBandwidth", qos.egress_bandwidth),
        ("egressBurst", qos.egress_burst),
        ("egressPeakrate", qos.egress_peakrate),
        ("egressMinburst", qos.egress_minburst),
        ("ingressPacketRate", qos.ingress_packet_rate),
        ("ingressPacketBurst", qos.ingress_packet_burst),
        ("egressPacketRate", qos.egress_packet_rate),
        ("egressPacketBurst", qos.egress_packet_burst),
        ("ingressMaxConnections", qos.ingress_max_connections),
        ("egressMaxConnections", qos.egress_max_connections),
    ] {
        if value != 0 {
            fields.insert(name.into(), value.into());
        }
    }
    if let Some(dscp) = qos.dscp {
        fields.insert("dscp".into(), dscp.into());
    }
    fields.into()
}
