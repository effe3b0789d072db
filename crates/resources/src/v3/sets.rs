//! Network sets.

use tortie_model::{Interner, List, NetworkSet, NetworkSetName, ProfileName, Update};

use crate::object::reserved::NAMESPACE_LABEL;
use crate::object::{Contributions, Kind, Object};
use crate::scalar;
use crate::tree::Sink;

/// Converts a `NetworkSet`, which inherits the labels of its namespace, or a `GlobalNetworkSet`.
pub(crate) fn network_set(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let (mut nets, mut domains) = (Vec::new(), List::new());
    if let Some(spec) = object.spec(sink) {
        spec.known(&["nets", "allowedEgressDomains"], sink);
        nets = spec.list("nets", sink, scalar::net);
        domains = scalar::domains(spec, "allowedEgressDomains", sink);
    }
    let mut pairs = object.meta.labels.clone();
    let (name, profiles) = if object.id.kind == Kind::NetworkSet {
        let namespace = &*object.id.namespace;
        pairs.push((NAMESPACE_LABEL, namespace));
        (format!("{namespace}/{}", object.id.name), [ProfileName::new(format!("kns.{namespace}"))].into())
    } else {
        (object.id.name.to_string(), [].into())
    };
    let labels = scalar::interned(&object.root, pairs, labels, sink);
    let set = NetworkSet { nets: nets.into(), labels, profiles, domains };
    Some(vec![Update::NetworkSet(NetworkSetName::new(name), Some(object.root.valid(set, sink)?))])
}
