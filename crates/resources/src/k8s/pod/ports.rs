//! Named ports of a pod.

use tortie_model::{EndpointPort, NamedProtocol, Protocol};

use crate::tree::{Cursor, Map, Sink};

/// Returns the named ports of containers, and then those of init containers that run.
///
/// An ordinary init container ends before the containers start, so that another process can listen
/// on its ports afterwards. One with `restartPolicy: Always`, a sidecar, runs as long as the pod.
/// Calico counts the ports of all init containers
/// (`libcalico-go/lib/backend/k8s/conversion/workload_endpoint_default.go`).
pub(super) fn named(spec: Map<'_, '_>, status: Option<Map<'_, '_>>, sink: &mut Sink) -> Vec<EndpointPort> {
    let mut ports = Vec::new();
    spec.list("containers", sink, |container, sink| {
        ports.extend(container.map(sink)?.list("ports", sink, port));
        Some(())
    });
    let init = InitStatus::read(status);
    spec.list("initContainers", sink, |container, sink| {
        let container = container.map(sink)?;
        let is_sidecar = container.text_or_empty("restartPolicy", sink) == "Always";
        let found = container.list("ports", sink, port);
        if is_sidecar || init.is_running(container.text_or_empty("name", sink)) {
            ports.extend(found);
        }
        Some(())
    });
    ports
}

fn port(port: Cursor<'_, '_>, sink: &mut Sink) -> Option<EndpointPort> {
    let map = port.map(sink)?;
    let number = map.field("containerPort").and_then(|port| port.int(0, 65535, sink)).unwrap_or_default();
    let name = map.text_or_empty("name", sink);
    let protocol = match map.text_or_empty("protocol", sink) {
        "TCP" | "" => NamedProtocol::Tcp,
        "UDP" => NamedProtocol::Udp,
        "SCTP" => NamedProtocol::Sctp,
        _ => return None,
    };
    // A host port without a name concerns only the CNI plugin.
    if number == 0 || name.is_empty() {
        return None;
    }
    Some(EndpointPort { name: name.into(), protocol: Protocol::Named(protocol), port: number })
}

/// Status of the init containers of a pod.
struct InitStatus<'n> {
    /// Name of each init container with a status, and whether it is running.
    listed: Vec<(&'n str, bool)>,
    /// Whether the containers have not started yet, as far as is known.
    is_pending: bool,
}

impl<'n> InitStatus<'n> {
    /// Reads the status; a malformed entry counts as absent.
    fn read(status: Option<Map<'n, '_>>) -> Self {
        let quiet = &mut Sink::default();
        let Some(status) = status else { return Self { listed: Vec::new(), is_pending: false } };
        let listed = status.list("initContainerStatuses", quiet, |container, quiet| {
            let container = container.map(quiet)?;
            let state = container.field("state").and_then(|state| state.map(quiet));
            let is_running = state.is_some_and(|state| state.field("running").is_some());
            Some((container.text("name", quiet)?, is_running))
        });
        Self { listed, is_pending: status.text_or_empty("phase", quiet) == "Pending" }
    }

    /// Reports whether an ordinary init container is running. The kubelet adds the status of each
    /// one some time after the address, so that one without a status counts until then.
    fn is_running(&self, name: &str) -> bool {
        let listed = self.listed.iter().find(|(listed, _)| *listed == name);
        listed.map_or(self.is_pending, |(_, is_running)| *is_running)
    }
}
