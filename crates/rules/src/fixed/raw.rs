//! `raw`: before connection tracking. Spoofed sources end here, and untracked policy is applied.

use std::net::{IpAddr, Ipv4Addr};

use tortie_model::Family;
use tortie_netfilter::{
    Action, Chain, InterfaceName, InterfacePattern, Matches, PortList, Protocol, Rule, Side, Table,
};

use crate::names::chain;
use crate::renderer::Renderer;

impl Renderer {
    pub(super) fn raw_chains(&self, family: Family) -> Vec<Chain> {
        let mut chains = vec![
            self.failsafe_in(Table::Raw, family),
            self.failsafe_out(Table::Raw, family),
            self.raw_prerouting(family),
            self.raw_output(family),
            self.reject(Table::Raw, family),
        ];
        chains.extend(self.wireguard_incoming_mark());
        chains
    }

    fn raw_prerouting(&self, family: Family) -> Chain {
        let config = self.config();
        let marks = self.marks();
        let from_workload = marks.scratch0;

        // In append mode another program's rules come first and could have set Tortie's bits.
        let mut rules = vec![Rule::new(Action::ClearMark(marks.policy()))];
        if self.marks_encrypted_host_traffic() {
            rules.push(Rule::new(Action::Jump(chain::WIREGUARD_INCOMING_MARK)));
        }
        rules.extend(self.vxlan_notrack(family));
        let of_workloads = self.workload_packets(family, Side::Source).into_iter();
        rules.extend(of_workloads.map(|packets| Rule::when(packets, Action::SetMark(from_workload))));
        rules.push(Rule::when(Matches::new().mark_set(from_workload), Action::Jump(chain::RPF_SKIP)));
        if config.openstack.is_some() && family == Family::V4 {
            // A DHCP client has no address yet, which the kernel's reverse path filter would not
            // forgive.
            let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            let dhcp = Matches::new()
                .protocol(Protocol::UDP)
                .source(unspecified)
                .source_ports(PortList::single(68))
                .destination_ports(PortList::single(67));
            rules.push(Rule::when(dhcp, Action::Accept));
        }
        rules.extend([
            Rule::when(Matches::new().mark_set(from_workload).reverse_path_fails(), self.deny()),
            Rule::when(Matches::new().mark_clear(from_workload), Action::Jump(chain::FROM_HOST_ENDPOINT)),
            self.if_accepted(Action::Accept),
        ]);
        Chain::new(chain::PREROUTING, rules)
    }

    /// Reports whether packets that arrived encrypted must be marked.
    pub(super) fn marks_encrypted_host_traffic(&self) -> bool {
        let wireguard = &self.config().wireguard;
        wireguard.encrypt_host_traffic && (wireguard.v4.enabled || wireguard.v6.enabled)
    }

    fn raw_output(&self, family: Family) -> Chain {
        let mut rules =
            vec![Rule::new(Action::ClearMark(self.marks().policy())), Rule::new(Action::Jump(chain::TO_HOST_ENDPOINT))];
        rules.extend(self.vxlan_notrack(family));
        rules.push(self.if_accepted(Action::Accept));
        Chain::new(chain::OUTPUT, rules)
    }

    /// Returns the rule that exempts VXLAN from connection tracking. The two directions of a tunnel
    /// use different source ports, so tracking sees only unanswered flows.
    fn vxlan_notrack(&self, family: Family) -> Option<Rule> {
        let vxlan = Matches::new().protocol(Protocol::UDP).destination_port(self.config().vxlan_port);
        self.config().vxlan(family).enabled.then(|| Rule::when(vxlan, Action::NoTrack))
    }

    /// Marks packets that neither the host, nor a workload, nor a tunnel device sent: they arrived
    /// encrypted, which the reverse path filter needs to know. `None` without `WireGuard`, since
    /// there is no bit for it.
    pub(super) fn wireguard_incoming_mark(&self) -> Option<Chain> {
        const LOOPBACK: InterfaceName = InterfaceName::from_static("lo");
        let mark = self.marks().wireguard?;
        let wireguard = &self.config().wireguard;
        let rules = [LOOPBACK, wireguard.v4.interface, wireguard.v6.interface]
            .into_iter()
            .map(InterfacePattern::exact)
            .chain(self.workload_interfaces())
            .map(|interface| Rule::when(Matches::new().in_interface(interface), Action::Return))
            .chain([Rule::new(Action::SetMark(mark))])
            .collect();
        Some(Chain::new(chain::WIREGUARD_INCOMING_MARK, rules))
    }
}
