//! Resources of `projectcalico.org/v3` and Kubernetes, with the fields that the model keeps.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_model::{
    BgpConfiguration, ConfigName, EndpointSlice, EndpointSlicePort, Hostname, NamedProtocol, NamespacedName, Node,
    NodeAddress, NodeAddressKind, NodeBgp, Profile, ProfileName, ScopedConfig, Service, ServicePort, TrafficPolicy,
};
use tortie_selector::Selector;

use super::json::{Object, object, shown, text};
use crate::v3;

/// Writes the fields that every resource has; an empty namespace is left out.
fn resource(
    out: &mut Object<'_>,
    [version, kind]: [&str; 2],
    [namespace, name]: [&str; 2],
    more: impl FnOnce(&mut Object<'_>),
) {
    out.text("kind", kind);
    out.text("apiVersion", version);
    out.object("metadata", |out| {
        out.text_if("name", name);
        out.text_if("namespace", namespace);
        more(out);
    });
}

const CALICO: &str = "projectcalico.org/v3";

pub(super) fn profile(out: &mut Object<'_>, name: &ProfileName, profile: &Profile) {
    resource(out, [CALICO, "Profile"], ["", name.as_str()], |_| {});
    out.object("spec", |out| {
        if !profile.labels.is_empty() {
            out.texts("labelsToApply", profile.labels.iter());
        }
    });
}

pub(super) fn scoped_config(out: &mut Object<'_>, name: &ConfigName, config: &ScopedConfig) {
    resource(out, [CALICO, "FelixConfiguration"], ["", name.as_str()], |out| {
        out.text("creationTimestamp", &v3::time_text(config.created));
        if !config.parameters.is_empty() {
            out.object("annotations", |out| {
                for (name, value) in &config.parameters {
                    out.text(&format!("{}{name}", v3::OVERRIDE), value);
                }
            });
        }
    });
    out.object("spec", |out| {
        if config.selector != Selector::none() {
            out.text("nodeSelector", config.selector.canonical());
        }
    });
}

pub(super) fn node(out: &mut Object<'_>, name: &Hostname, node: &Node) {
    resource(out, [CALICO, "Node"], ["", name.as_str()], |out| {
        if !node.labels.is_empty() {
            out.texts("labels", node.labels.iter());
        }
    });
    out.object("spec", |out| {
        let tunnels = node.tunnels.as_deref();
        if let Some(section) = &node.bgp {
            out.object("bgp", |out| bgp(out, section, tunnels.and_then(|tunnels| tunnels.ipip)));
        }
        if let Some(tunnels) = tunnels {
            out.shown_if("ipv4VXLANTunnelAddr", tunnels.vxlan);
            out.shown_if("ipv6VXLANTunnelAddr", tunnels.vxlan_v6);
            if tunnels.wireguard.is_some() || tunnels.wireguard_v6.is_some() {
                out.object("wireguard", |out| {
                    out.shown_if("interfaceIPv4Address", tunnels.wireguard);
                    out.shown_if("interfaceIPv6Address", tunnels.wireguard_v6);
                });
            }
        }
        out.list_if("addresses", &node.addresses, address);
    });
    if !node.pod_networks.is_empty() {
        out.object("status", |out| out.list("podCIDRs", &node.pod_networks, shown));
    }
}

fn bgp(out: &mut Object<'_>, bgp: &NodeBgp, ipip: Option<IpAddr>) {
    match &bgp.as_number {
        Some(number) if number.parse::<u32>().is_ok() => out.bare("asNumber", number),
        Some(number) => out.text("asNumber", number),
        None => {}
    }
    out.text_if("ipv4Address", &bgp.ipv4_address);
    out.text_if("ipv6Address", &bgp.ipv6_address);
    out.shown_if("ipv4IPIPTunnelAddr", ipip);
    if bgp.has_other_fields && ipip.is_none() {
        // Only the presence of a field matters. Of the possible fields, this one is not used by any
        // reader of this form.
        out.text("routeReflectorClusterID", "0.0.0.0");
    }
}

fn address(out: &mut String, address: &NodeAddress) {
    object(out, |object| {
        object.text("address", &address.address);
        object.text_if(
            "type",
            match address.kind {
                NodeAddressKind::CalicoNodeIp => "CalicoNodeIP",
                NodeAddressKind::InternalIp => "InternalIP",
                NodeAddressKind::ExternalIp => "ExternalIP",
                NodeAddressKind::Other => "",
            },
        );
    });
}

pub(super) fn bgp_configuration(out: &mut Object<'_>, name: &ConfigName, configuration: &BgpConfiguration) {
    resource(out, [CALICO, "BGPConfiguration"], ["", name.as_str()], |_| {});
    out.object("spec", |out| {
        for (name, blocks) in [
            ("serviceClusterIPs", &configuration.service_cluster_cidrs),
            ("serviceExternalIPs", &configuration.service_external_cidrs),
            ("serviceLoadBalancerIPs", &configuration.service_load_balancer_cidrs),
        ] {
            out.list_if(name, blocks, |out, block| object(out, |object| object.text("cidr", block)));
        }
        out.text_if("localWorkloadPeeringIPV4", &configuration.local_workload_peering_ip_v4);
        out.text_if("localWorkloadPeeringIPV6", &configuration.local_workload_peering_ip_v6);
    });
}

pub(super) fn service(out: &mut Object<'_>, name: &NamespacedName, service: &Service) {
    resource(out, ["v1", "Service"], [&name.namespace, &name.name], |_| {});
    out.object("spec", |out| {
        out.list_if("ports", &service.ports, service_port);
        texts(out, "clusterIPs", &service.cluster_ips);
        out.text_if("type", &service.service_type);
        texts(out, "externalIPs", &service.external_ips);
        out.text_if("loadBalancerIP", &service.load_balancer_ip);
        for (name, policy) in [
            ("internalTrafficPolicy", service.internal_traffic_policy),
            ("externalTrafficPolicy", service.external_traffic_policy),
        ] {
            // Readers take an absent policy for the default.
            if policy != TrafficPolicy::default() {
                out.text(name, policy.as_str());
            }
        }
    });
    out.object("status", |out| {
        out.object("loadBalancer", |out| {
            out.list_if("ingress", &service.load_balancer_ingress_ips, |out, ip| {
                object(out, |object| object.text("ip", ip));
            });
        });
    });
}

fn texts(out: &mut Object<'_>, name: &str, items: &[Arc<str>]) {
    out.list_if(name, items, |out, item| text(out, item));
}

fn service_port(out: &mut String, port: &ServicePort) {
    object(out, |object| {
        object.text_if("name", &port.name);
        object.text("protocol", &port.protocol);
        object.bare("port", port.port);
        object.bare("targetPort", 0);
        object.count_if("nodePort", port.node_port.into());
    });
}

pub(super) fn endpoint_slice(out: &mut Object<'_>, name: &NamespacedName, slice: &EndpointSlice) {
    resource(out, ["discovery.k8s.io/v1", "EndpointSlice"], [&name.namespace, &name.name], |out| {
        if let Some(service) = &slice.service {
            out.texts("labels", [("kubernetes.io/service-name", &*service.name)]);
        }
    });
    let v6 = slice.addresses.iter().any(IpAddr::is_ipv6);
    out.text("addressType", if v6 { "IPv6" } else { "IPv4" });
    let [not_ready, draining] =
        [&slice.not_ready, &slice.draining].map(|addresses| addresses.iter().collect::<HashSet<_>>());
    out.list("endpoints", &slice.addresses, |out, address| {
        object(out, |object| {
            object.list("addresses", [address], shown);
            object.object("conditions", |conditions| {
                let is_draining = draining.contains(address);
                conditions.bare_if("ready", not_ready.contains(address).then_some(false));
                conditions.bare_if("serving", is_draining.then_some(true));
                conditions.bare_if("terminating", is_draining.then_some(true));
            });
        });
    });
    out.list("ports", &slice.ports, slice_port);
}

fn slice_port(out: &mut String, port: &EndpointSlicePort) {
    object(out, |object| {
        if !port.name.is_empty() {
            object.text("name", &port.name);
        }
        object.text(
            "protocol",
            match port.protocol {
                NamedProtocol::Udp => "UDP",
                NamedProtocol::Sctp => "SCTP",
                _ => "TCP",
            },
        );
        object.bare_if("port", port.port);
    });
}
