//! `filter`: where most policy is applied.

use std::net::IpAddr;

use tortie_model::Family;
use tortie_netfilter::{
    Action, Chain, ConntrackStates, DispatchBy, IcmpType, Matches, PortList, Protocol, Rule, Side, Table,
};

use super::protocol::{ICMPV6, IPIP, UDP};
use crate::config::WorkloadDispatch;
use crate::names::{chain, static_set as set};
use crate::renderer::{Renderer, static_set};

/// `ICMPv6` that the host must receive to act as a router: multicast listener query, report and
/// done, router solicitation, neighbour solicitation and advertisement (RFC 2710, RFC 4861).
const ROUTER_ICMPV6: [u8; 6] = [130, 131, 132, 133, 135, 136];

impl Renderer {
    pub(super) fn filter_chains(&self, family: Family) -> Vec<Chain> {
        let mut chains = vec![
            self.filter_forward(family),
            self.filter_input(family),
            self.workload_to_host(family),
            self.failsafe_in(Table::Filter, family),
            self.filter_output(family),
            self.failsafe_out(Table::Filter, family),
            self.reject(Table::Filter, family),
        ];
        chains.extend(self.ipvs_chains(family));
        chains
    }

    fn allow(&self) -> Action {
        self.config().filter_allow.action()
    }

    fn filter_forward(&self, family: Family) -> Chain {
        let marks = self.marks();
        let mut rules = Vec::new();
        if self.config().packet_filter.offloads_flows() {
            rules.push(offload(family));
        }
        if self.passes_known_connections() {
            rules.extend(self.known_connections_first());
        }
        rules.extend([
            // The accept mark is kept: it carries the decision of untracked and pre-DNAT policy.
            Rule::new(Action::ClearMark(marks.policy_but_accept())),
            Rule::when(Matches::new().mark_clear(marks.accept), Action::Jump(chain::FROM_HOST_ENDPOINT_FORWARD)),
        ]);
        // An allowed packet returns from each of these chains, because the next one may have policy
        // for it as well.
        match self.config().workloads {
            WorkloadDispatch::Name => rules.extend(self.workload_interfaces().flat_map(|cali| {
                [
                    Rule::when(Matches::new().in_interface(cali), Action::Jump(chain::FROM_WORKLOAD)),
                    Rule::when(Matches::new().out_interface(cali), Action::Jump(chain::TO_WORKLOAD)),
                ]
            })),
            // These chains match addresses and, at their ends, interfaces.
            WorkloadDispatch::Address => rules
                .extend([Rule::new(Action::Jump(chain::FROM_WORKLOAD)), Rule::new(Action::Jump(chain::TO_WORKLOAD))]),
        }
        rules.extend([
            Rule::new(Action::Jump(chain::TO_HOST_ENDPOINT_FORWARD)),
            Rule::new(Action::Jump(chain::CIDR_BLOCK)),
        ]);
        Chain::new(chain::FORWARD, rules)
    }

    /// Accepts packets of known connections that the endpoints' chains would accept: all packets
    /// from an endpoint, and packets to an endpoint that do not come from a workload. Packets that
    /// untracked or pre-DNAT policy has accepted take the longer path.
    fn known_connections_first(&self) -> [Rule; 2] {
        let marks = self.marks();
        let known = || Matches::new().conntrack(ConntrackStates::RELATED_OR_ESTABLISHED).mark_clear(marks.accept);
        let ask = |by, map| {
            let clear = Action::ClearMark(marks.policy_but_accept());
            Action::Several([clear, Action::Dispatch { by, map }].into())
        };
        let to = self.workload_interfaces().fold(known(), Matches::not_in_interface);
        [
            Rule::when(known(), ask(DispatchBy::InInterface, chain::KNOWN_FROM))
                .comment("Known connections of endpoints"),
            Rule::when(to, ask(DispatchBy::OutInterface, chain::KNOWN_TO)).comment("Known connections to endpoints"),
        ]
    }

    /// Accepts packets of known connections to the host that all rules behind would accept as well:
    /// packets of other interfaces than workloads', with or without host endpoints, and packets of
    /// workloads whose chains would accept them. Guards of tunnels and IPVS come before.
    fn known_input(&self) -> [Rule; 2] {
        let marks = self.marks();
        let known = || Matches::new().conntrack(ConntrackStates::RELATED_OR_ESTABLISHED).mark_clear(marks.accept);
        let of_others = self.workload_interfaces().fold(known(), Matches::not_in_interface);
        let ask = Action::Dispatch { by: DispatchBy::InInterface, map: chain::KNOWN_FROM };
        [
            Rule::when(of_others, self.clear_and_allow()).comment("Known connections of the host"),
            Rule::when(known(), ask).comment("Known connections of endpoints"),
        ]
    }

    fn clear_and_allow(&self) -> Action {
        Action::Several([Action::ClearMark(self.marks().policy()), self.allow()].into())
    }

    fn filter_input(&self, family: Family) -> Chain {
        let marks = self.marks();
        let mut rules = self.tunnel_input(family);
        if self.config().ipvs.is_some() {
            rules.extend([
                Rule::new(Action::ClearMark(marks.endpoint)),
                Rule::new(Action::Jump(chain::FORWARD_CHECK)),
                Rule::when(Matches::new().mark_not_clear(marks.endpoint), Action::Return),
            ]);
        }
        if self.passes_known_connections() {
            rules.extend(self.known_input());
        }
        let of_workloads = self.workload_packets(family, Side::Source).into_iter();
        rules.extend(of_workloads.map(|packets| Rule::when(packets, Action::Goto(chain::WORKLOAD_TO_HOST))));
        rules.push(self.if_accepted(self.allow()));
        rules.extend(self.host_endpoint_policy(Matches::new(), chain::FROM_HOST_ENDPOINT, self.allow()));
        Chain::new(chain::INPUT, rules)
    }

    /// Accepts tunnel packets from other nodes only. Host policy cannot deny them.
    pub(super) fn tunnel_input(&self, family: Family) -> Vec<Rule> {
        let config = self.config();
        let set = |id| static_set(family, id);
        let mut rules = Vec::new();
        if family == Family::V4 && config.ipip.enabled {
            let ipip = || Matches::new().protocol(IPIP);
            rules.extend([
                Rule::when(ipip().ip_set(Side::Source, set(set::ALL_HOSTS)).destination_is_local(), self.allow())
                    .comment("Allow IPIP packets from Calico hosts"),
                Rule::when(ipip(), self.deny()).comment(self.guard_comment("IPIP packets from non-Calico hosts")),
            ]);
        }
        if config.vxlan(family).enabled {
            let vxlan = || udp_to(config.vxlan_port);
            // The IPv4 guard drops, regardless of the configured action.
            let name = ip_name(family);
            let rest = format!("{name} VXLAN packets from non-allowed hosts");
            let (deny, comment) = match family {
                Family::V4 => (Action::Drop, format!("Drop {rest}")),
                Family::V6 => (self.deny(), self.guard_comment(&rest)),
            };
            rules.extend([
                Rule::when(vxlan().ip_set(Side::Source, set(set::VXLAN_SOURCES)).destination_is_local(), self.allow())
                    .comment(format!("Allow {name} VXLAN packets from allowed hosts")),
                Rule::when(vxlan().destination_is_local(), deny).comment(comment),
            ]);
        }
        let wireguard = config.wireguard.tunnel(family);
        if wireguard.enabled {
            // No guard needed: WireGuard itself knows its peers.
            rules.push(
                Rule::when(udp_to(wireguard.port).destination_is_local(), self.allow())
                    .comment(format!("Allow incoming {} Wireguard packets", ip_name(family))),
            );
        }
        rules
    }

    fn workload_to_host(&self, family: Family) -> Chain {
        let mut rules = Vec::new();
        if family == Family::V6 {
            // Before policy, so that no policy can cut neighbour discovery.
            rules.extend(ROUTER_ICMPV6.map(|number| {
                let icmp = IcmpType { number, code: None };
                Rule::when(Matches::new().protocol(ICMPV6).icmp(Family::V6, icmp), self.allow())
            }));
        }
        rules.extend(self.openstack_input(family));
        rules.extend([
            Rule::new(Action::Jump(chain::FROM_WORKLOAD)),
            Rule::new(self.config().endpoint_to_host.action()).comment("Configured DefaultEndpointToHostAction"),
        ]);
        Chain::new(chain::WORKLOAD_TO_HOST, rules)
    }

    fn openstack_input(&self, family: Family) -> Vec<Rule> {
        let Some(openstack) = self.config().openstack else { return Vec::new() };
        let mut rules = Vec::new();
        if let (Family::V4, Some((addr, port))) = (family, openstack.metadata) {
            let metadata = Matches::new()
                .protocol(Protocol::TCP)
                .destination(IpAddr::from(addr))
                .destination_ports(PortList::single(port));
            rules.push(Rule::when(metadata, self.allow()));
        }
        let (dhcp_client, dhcp_server) = match family {
            Family::V4 => (68, 67),
            Family::V6 => (546, 547),
        };
        let udp = || Matches::new().protocol(Protocol::UDP);
        let dhcp = udp().source_ports(PortList::single(dhcp_client)).destination_ports(PortList::single(dhcp_server));
        let dns = udp().destination_ports(PortList::single(53));
        rules.extend([Rule::when(dhcp, self.allow()), Rule::when(dns, self.allow())]);
        rules
    }

    fn filter_output(&self, family: Family) -> Chain {
        let mut rules = vec![self.if_accepted(self.allow())];
        if self.config().ipvs.is_some() {
            // Forwarded by IPVS: policed as in FORWARD. A goto, so that its return skips the rest
            // of this chain.
            let forwarded = Matches::new().mark_not_clear(self.marks().endpoint);
            rules.push(Rule::when(forwarded, Action::Goto(chain::FORWARD_ENDPOINT_MARK)));
        }
        if self.passes_known_connections() {
            // Every host endpoint would accept them. Translated packets are handled in `mangle`
            // POSTROUTING.
            let known = Matches::new().conntrack(ConntrackStates::RELATED_OR_ESTABLISHED);
            rules.push(Rule::when(known, self.clear_and_allow()).comment("Known connections of the host"));
        }
        // The host can always reach its workloads: root on the host could change these rules
        // anyway.
        let to_workloads = self.workload_packets(family, Side::Destination).into_iter();
        rules.extend(to_workloads.map(|packets| Rule::when(packets, Action::Return)));
        rules.extend(self.tunnel_output(family));
        // The kernel does not know the outgoing interface of translated packets yet; they are
        // handled in `mangle` POSTROUTING.
        let untranslated = Matches::new().not_conntrack(ConntrackStates::DNAT);
        rules.extend(self.host_endpoint_policy(untranslated, chain::TO_HOST_ENDPOINT, self.allow()));
        Chain::new(chain::OUTPUT, rules)
    }

    fn tunnel_output(&self, family: Family) -> Vec<Rule> {
        let config = self.config();
        let set = |id| static_set(family, id);
        let name = ip_name(family);
        let mut rules = Vec::new();
        if family == Family::V4 && config.ipip.enabled {
            let ipip = Matches::new().protocol(IPIP).ip_set(Side::Destination, set(set::ALL_HOSTS)).source_is_local();
            rules.push(Rule::when(ipip, self.allow()).comment("Allow IPIP packets to other Calico hosts"));
        }
        if config.vxlan(family).enabled {
            let vxlan = udp_to(config.vxlan_port).source_is_local().ip_set(Side::Destination, set(set::VXLAN_SOURCES));
            rules.push(
                Rule::when(vxlan, self.allow()).comment(format!("Allow {name} VXLAN packets to other allowed hosts")),
            );
        }
        let wireguard = config.wireguard.tunnel(family);
        if wireguard.enabled {
            rules.push(
                Rule::when(udp_to(wireguard.port).source_is_local(), self.allow())
                    .comment(format!("Allow outgoing {name} Wireguard packets")),
            );
        }
        rules
    }
}

fn udp_to(port: u16) -> Matches {
    Matches::new().protocol(UDP).destination_ports(PortList::single(port))
}

const fn ip_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// Leaves established connections to the flow table, but those whose packets must meet more than
/// routing.
fn offload(family: Family) -> Rule {
    let kept = static_set(family, set::NO_FLOW_OFFLOAD);
    let established = Matches::new().conntrack(ConntrackStates::RELATED_OR_ESTABLISHED);
    let matches = established.not_ip_set(Side::Source, kept).not_ip_set(Side::Destination, kept);
    // If the kernel refuses this rule, all others stay in force.
    Rule { opens: Some(0), ..Rule::when(matches, Action::OffloadFlow) }.comment("Offload established Calico flows.")
}
