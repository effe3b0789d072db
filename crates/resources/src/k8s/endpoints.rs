//! `Endpoints`, the predecessor of `EndpointSlice`.

use std::collections::HashSet;
use std::net::IpAddr;

use tortie_model::{EndpointSlice, Update, parse_address};

use super::service::{is_within_bound, name_of, slice_port};
use crate::object::{Contributions, Object};
use crate::tree::{Map, Sink};

/// The control plane writes no slices for `Endpoints` with this label (`k8s.io/api/discovery/v1`).
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";

/// Converts `Endpoints` to one slice for each subset, as the control plane does
/// (`EndpointSliceMirroring`). The Service has the same name.
pub(crate) fn endpoints(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    if object.meta.labels.contains(&(SKIP_MIRROR, "true")) {
        return Some(Vec::new());
    }
    let service = name_of(object);
    let slices = object.map.list("subsets", sink, |subset, sink| {
        let subset = subset.map(sink)?;
        let mut all = addresses(subset, "addresses", sink);
        let ready: HashSet<IpAddr> = all.iter().copied().collect();
        let mut not_ready = addresses(subset, "notReadyAddresses", sink);
        not_ready.retain(|address| !ready.contains(address));
        all.extend(&not_ready);
        Some(EndpointSlice {
            service: Some(service.clone()),
            addresses: all.into(),
            ports: subset.list("ports", sink, slice_port).into(),
            not_ready: not_ready.into(),
            draining: Box::default(),
        })
    });
    if !is_within_bound(object, &slices, sink) {
        return None;
    }
    let updates = slices
        .into_iter()
        .enumerate()
        .map(|(index, slice)| Update::EndpointSlice(service.slice_of_endpoints(index), Some(slice.into())));
    Some(updates.collect())
}

fn addresses(subset: Map<'_, '_>, name: &str, sink: &mut Sink) -> Vec<IpAddr> {
    subset.list(name, sink, |address, sink| parse_address(address.map(sink)?.text("ip", sink)?))
}
