//! Order of messages within a flush.

use std::collections::BTreeSet;

use tortie_model::desired::DesiredUpdate;

/// Returns the position of a message in a flush: the step, and the object.
///
/// The steps are those of `felix/calc/event_sequencer.go`.
fn place(update: &DesiredUpdate) -> (u32, String) {
    let (step, object) = match update {
        DesiredUpdate::DatastoreNotReady => (1, String::new()),
        DesiredUpdate::Config(_) => (2, String::new()),
        DesiredUpdate::IpSet(set) => (3, set.id.to_string()),
        DesiredUpdate::IpSetDelta(delta) => (4, delta.id.to_string()),
        DesiredUpdate::Policy(id, _) => (5, format!("{id:?}")),
        DesiredUpdate::Profile(name, _) => (6, name.to_string()),
        DesiredUpdate::WorkloadEndpoint(id, _) => (7, format!("workload {id:?}")),
        DesiredUpdate::HostEndpoint(name, _) => (7, format!("host {name}")),
        DesiredUpdate::WorkloadEndpointRemove(id) => (8, format!("workload {id:?}")),
        DesiredUpdate::HostEndpointRemove(name) => (8, format!("host {name}")),
        DesiredUpdate::ProfileRemove(name) => (9, name.to_string()),
        DesiredUpdate::PolicyRemove(id) => (10, format!("{id:?}")),
        DesiredUpdate::IpSetRemove(id) => (11, id.to_string()),
        DesiredUpdate::ServiceAccountRemove(id) => (12, format!("{id:?}")),
        DesiredUpdate::ServiceAccount(id, _) => (13, format!("{id:?}")),
        DesiredUpdate::NamespaceRemove(name) => (14, name.to_string()),
        DesiredUpdate::Namespace(name, _) => (15, name.to_string()),
        DesiredUpdate::RouteRemove(dst) => (16, dst.to_string()),
        DesiredUpdate::VtepRemove(node) => (17, node.to_string()),
        DesiredUpdate::Vtep(node, _) => (18, node.to_string()),
        DesiredUpdate::Route(dst, _) => (19, dst.to_string()),
        DesiredUpdate::WireguardRemove(host) => (20, format!("4 {host}")),
        DesiredUpdate::WireguardV6Remove(host) => (20, format!("6 {host}")),
        DesiredUpdate::Wireguard(host, _) => (21, format!("4 {host}")),
        DesiredUpdate::WireguardV6(host, _) => (21, format!("6 {host}")),
        DesiredUpdate::HostRemove(host) => (22, host.to_string()),
        DesiredUpdate::Host(host, _) => (23, host.to_string()),
        DesiredUpdate::IpPoolRemove(cidr) => (24, cidr.to_string()),
        DesiredUpdate::IpPool(pool) => (25, pool.cidr.to_string()),
        DesiredUpdate::Encapsulation(_) => (26, "encapsulation".into()),
        DesiredUpdate::BgpConfiguration(_) => (27, "bgp".into()),
        DesiredUpdate::ServiceRemove(id) => (28, format!("{id:?}")),
        DesiredUpdate::Service(id, _) => (29, format!("{id:?}")),
        DesiredUpdate::InSync => (30, String::new()),
    };
    (step, object)
}

/// Returns the group of a step. Updates and removals of a kind of object share a group: an object
/// may be in only one of them.
fn kind(step: u32) -> u32 {
    match step {
        4 | 11 => 3,
        10 => 5,
        9 => 6,
        8 => 7,
        18 => 17,
        19 => 16,
        16 | 17 => step,
        step => step / 2 * 2 + 100,
    }
}

/// Reports whether two consecutive messages of the same kind are in ascending order.
fn is_ascending(a: &DesiredUpdate, b: &DesiredUpdate) -> bool {
    use DesiredUpdate as U;
    match (a, b) {
        (U::IpSet(a), U::IpSet(b)) => a.id < b.id,
        (U::IpSetDelta(a), U::IpSetDelta(b)) => a.id < b.id,
        (U::IpSetRemove(a), U::IpSetRemove(b)) => a < b,
        (U::Policy(a, _), U::Policy(b, _)) | (U::PolicyRemove(a), U::PolicyRemove(b)) => a < b,
        (U::Profile(a, _), U::Profile(b, _)) | (U::ProfileRemove(a), U::ProfileRemove(b)) => a < b,
        (U::WorkloadEndpoint(a, _), U::WorkloadEndpoint(b, _))
        | (U::WorkloadEndpointRemove(a), U::WorkloadEndpointRemove(b)) => a < b,
        (U::HostEndpoint(a, _), U::HostEndpoint(b, _)) | (U::HostEndpointRemove(a), U::HostEndpointRemove(b)) => a < b,
        (U::ServiceAccount(a, _), U::ServiceAccount(b, _))
        | (U::ServiceAccountRemove(a), U::ServiceAccountRemove(b))
        | (U::Service(a, _), U::Service(b, _))
        | (U::ServiceRemove(a), U::ServiceRemove(b)) => a < b,
        (U::Namespace(a, _), U::Namespace(b, _)) | (U::NamespaceRemove(a), U::NamespaceRemove(b)) => a < b,
        (U::Wireguard(a, _), U::Wireguard(b, _))
        | (U::WireguardRemove(a), U::WireguardRemove(b))
        | (U::WireguardV6(a, _), U::WireguardV6(b, _))
        | (U::WireguardV6Remove(a), U::WireguardV6Remove(b))
        | (U::Host(a, _), U::Host(b, _))
        | (U::HostRemove(a), U::HostRemove(b))
        | (U::Vtep(a, _), U::Vtep(b, _))
        | (U::VtepRemove(a), U::VtepRemove(b)) => a < b,
        (U::Route(a, _), U::Route(b, _))
        | (U::RouteRemove(a), U::RouteRemove(b))
        | (U::IpPoolRemove(a), U::IpPoolRemove(b)) => a < b,
        (U::IpPool(a), U::IpPool(b)) => a.cidr < b.cidr,
        _ => true,
    }
}

/// Panics if the messages are not a valid flush.
pub(super) fn check(updates: &[DesiredUpdate]) {
    let mut last_step = 0;
    let mut mentioned = BTreeSet::new();
    for pair in updates.windows(2) {
        assert!(is_ascending(&pair[0], &pair[1]), "out of order: {:?} before {:?}", pair[0], pair[1]);
    }
    for update in updates {
        let (step, object) = place(update);
        assert!(last_step <= step, "{update:?} comes after a message of a later step");
        last_step = step;
        if step > 2 {
            assert!(mentioned.insert((kind(step), object)), "second message for one object: {update:?}");
        }
    }
}
