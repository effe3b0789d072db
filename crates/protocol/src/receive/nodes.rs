//! Nodes, pools, services, namespaces, service accounts, `WireGuard` peers, BGP configuration and
//! encapsulation.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_model::desired::{DesiredUpdate, Encapsulation, HostMetadata, WireguardPeer};
use tortie_model::{BgpConfiguration, Cidr, EncapMode, Hostname, IpPool, Labels, NamespacedName, Service, ServicePort};

use super::flaw::{self, Flaw, Unusable, bad, parsed, required};
use super::{felix, in_object, texts};

fn labels(labels: BTreeMap<String, String>) -> Result<Labels, Flaw> {
    Labels::from_pairs(labels).map_err(|error| bad("labels", error))
}

pub(super) fn host(message: felix::HostMetadataUpdate) -> Result<DesiredUpdate, Unusable> {
    let name = Hostname::new(message.hostname);
    let metadata = HostMetadata {
        ipv4_addr: message.ipv4_addr.into(),
        ipv6_addr: message.ipv6_addr.into(),
        as_number: message.asnumber.into(),
        labels: labels(message.labels).map_err(in_object(format_args!("node {name}")))?,
    };
    Ok(DesiredUpdate::Host(name, metadata))
}

pub(super) fn host_remove(message: felix::HostMetadataRemove) -> DesiredUpdate {
    DesiredUpdate::HostRemove(Hostname::new(message.hostname))
}

pub(super) fn pool(message: felix::IpamPoolUpdate) -> Result<DesiredUpdate, Unusable> {
    let read = || {
        let pool = required("pool", message.pool)?;
        let mode = |text: &str| match text {
            text if text.eq_ignore_ascii_case("always") => EncapMode::Always,
            text if text.eq_ignore_ascii_case("cross-subnet") => EncapMode::CrossSubnet,
            _ => EncapMode::Never,
        };
        Ok(IpPool {
            cidr: parsed("cidr", &pool.cidr)?,
            ipip_mode: mode(&pool.ipip_mode),
            vxlan_mode: mode(&pool.vxlan_mode),
            masquerade: pool.masquerade,
            disabled: false,
            allowed_uses: texts(pool.allowed_uses),
        })
    };
    read().map(|pool| DesiredUpdate::IpPool(Arc::new(pool))).map_err(in_object(format_args!("IP pool {}", message.id)))
}

pub(super) fn pool_remove(message: &felix::IpamPoolRemove) -> Result<DesiredUpdate, Unusable> {
    let cidr: Result<Cidr, Flaw> = parsed("id", &message.id.replacen('-', "/", 1));
    cidr.map(DesiredUpdate::IpPoolRemove).map_err(in_object(format_args!("IP pool {}", message.id)))
}

fn service_account_id(id: Option<felix::ServiceAccountId>) -> Result<NamespacedName, Unusable> {
    let id = required("id", id).map_err(in_object("a service account"))?;
    Ok(NamespacedName::new(id.namespace, id.name))
}

pub(super) fn service_account(message: felix::ServiceAccountUpdate) -> Result<DesiredUpdate, Unusable> {
    let id = service_account_id(message.id)?;
    let labels = labels(message.labels).map_err(in_object(format_args!("service account {id}")))?;
    Ok(DesiredUpdate::ServiceAccount(id, labels))
}

pub(super) fn service_account_remove(message: felix::ServiceAccountRemove) -> Result<DesiredUpdate, Unusable> {
    service_account_id(message.id).map(DesiredUpdate::ServiceAccountRemove)
}

fn namespace_name(id: Option<felix::NamespaceId>) -> Result<Arc<str>, Unusable> {
    required("id", id).map(|id| id.name.into()).map_err(in_object("a namespace"))
}

pub(super) fn namespace(message: felix::NamespaceUpdate) -> Result<DesiredUpdate, Unusable> {
    let name = namespace_name(message.id)?;
    let labels = labels(message.labels).map_err(in_object(format_args!("namespace {name}")))?;
    Ok(DesiredUpdate::Namespace(name, labels))
}

pub(super) fn namespace_remove(message: felix::NamespaceRemove) -> Result<DesiredUpdate, Unusable> {
    namespace_name(message.id).map(DesiredUpdate::NamespaceRemove)
}

fn peer(host: &str, public_key: String, address: &str) -> Result<WireguardPeer, Unusable> {
    let address: Option<IpAddr> = if address.is_empty() {
        None
    } else {
        let address = flaw::address("interface address", address);
        Some(address.map_err(in_object(format_args!("WireGuard peer {host}")))?)
    };
    Ok(WireguardPeer { public_key: public_key.into(), address })
}

pub(super) fn wireguard(message: felix::WireguardEndpointUpdate) -> Result<DesiredUpdate, Unusable> {
    let peer = peer(&message.hostname, message.public_key, &message.interface_ipv4_addr)?;
    Ok(DesiredUpdate::Wireguard(Hostname::new(message.hostname), peer))
}

pub(super) fn wireguard_remove(message: felix::WireguardEndpointRemove) -> DesiredUpdate {
    DesiredUpdate::WireguardRemove(Hostname::new(message.hostname))
}

pub(super) fn wireguard_v6(message: felix::WireguardEndpointV6Update) -> Result<DesiredUpdate, Unusable> {
    let peer = peer(&message.hostname, message.public_key_v6, &message.interface_ipv6_addr)?;
    Ok(DesiredUpdate::WireguardV6(Hostname::new(message.hostname), peer))
}

pub(super) fn wireguard_v6_remove(message: felix::WireguardEndpointV6Remove) -> DesiredUpdate {
    DesiredUpdate::WireguardV6Remove(Hostname::new(message.hostname))
}

pub(super) fn bgp(message: felix::GlobalBgpConfigUpdate) -> DesiredUpdate {
    DesiredUpdate::BgpConfiguration(Arc::new(BgpConfiguration {
        service_cluster_cidrs: texts(message.service_cluster_cidrs),
        service_external_cidrs: texts(message.service_external_cidrs),
        service_load_balancer_cidrs: texts(message.service_loadbalancer_cidrs),
        local_workload_peering_ip_v4: message.local_workload_peering_ip_v4.into(),
        local_workload_peering_ip_v6: message.local_workload_peering_ip_v6.into(),
    }))
}

pub(super) fn encapsulation(message: felix::Encapsulation) -> DesiredUpdate {
    DesiredUpdate::Encapsulation(Encapsulation {
        ipip: message.ipip_enabled,
        vxlan: message.vxlan_enabled,
        vxlan_v6: message.vxlan_enabled_v6,
        no_encap: message.no_encap_enabled,
    })
}

pub(super) fn service(message: felix::ServiceUpdate) -> DesiredUpdate {
    let port = |port: felix::ServicePort| ServicePort {
        name: "".into(),
        protocol: port.protocol.into(),
        port: port.port,
        node_port: port.node_port,
    };
    let service = Service {
        service_type: message.r#type.into(),
        cluster_ips: texts(message.cluster_ips),
        load_balancer_ip: message.loadbalancer_ip.into(),
        external_ips: texts(message.external_ips),
        load_balancer_ingress_ips: texts(message.loadbalancer_ingress_ips),
        ports: message.ports.into_iter().map(port).collect(),
        ..Service::default()
    };
    DesiredUpdate::Service(NamespacedName::new(message.namespace, message.name), Arc::new(service))
}

pub(super) fn service_remove(message: felix::ServiceRemove) -> DesiredUpdate {
    DesiredUpdate::ServiceRemove(NamespacedName::new(message.namespace, message.name))
}
