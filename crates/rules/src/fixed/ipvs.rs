//! With kube-proxy in IPVS mode, forwarded service traffic passes INPUT and OUTPUT instead of
//! FORWARD. INPUT marks its source endpoint, and OUTPUT applies policy.

use tortie_model::Family;
use tortie_netfilter::{Action, Chain, ConntrackStates, MaskedMark, Matches, PortList, Protocol, Rule, Side};

use crate::names::{chain, static_set as set};
use crate::renderer::{Renderer, static_set};

impl Renderer {
    /// Returns the chains for IPVS; none unless kube-proxy runs in IPVS mode.
    pub(super) fn ipvs_chains(&self, family: Family) -> Vec<Chain> {
        let Some(ipvs) = &self.config().ipvs else { return Vec::new() };
        vec![forward_check(family, &PortList::split(&ipvs.node_ports)), self.forward_endpoint_mark()]
    }

    fn forward_endpoint_mark(&self) -> Chain {
        let marks = self.marks();
        let from_no_endpoint =
            MaskedMark::new(marks.non_endpoint.map_or(0, tortie_netfilter::MarkBits::get), marks.endpoint);
        let mut rules =
            vec![Rule::when(Matches::new().mark_is_not(from_no_endpoint), Action::Jump(chain::FROM_ENDPOINT_MARK))];
        rules.extend(
            self.workload_interfaces()
                .map(|cali| Rule::when(Matches::new().out_interface(cali), Action::Jump(chain::TO_WORKLOAD))),
        );
        rules.extend([
            Rule::new(Action::Jump(chain::TO_HOST_ENDPOINT_FORWARD)),
            // The packet may be encapsulated and pass again; it must not look forwarded then.
            Rule::new(Action::ClearMark(marks.endpoint)),
            self.if_accepted(self.config().filter_allow.action()).comment("Policy explicitly accepted packet."),
        ]);
        Chain::new(chain::FORWARD_ENDPOINT_MARK, rules)
    }
}

/// Decides whether a packet in INPUT is for the host or will be forwarded.
fn forward_check(family: Family, node_ports: &[PortList]) -> Chain {
    let this_host = static_set(family, set::THIS_HOST);
    let known = Matches::new().conntrack(ConntrackStates::RELATED_OR_ESTABLISHED);
    let mut rules = vec![Rule::when(known, Action::Return)];
    for ports in node_ports {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            let node_port =
                Matches::new().protocol(protocol).destination_ports(ports.clone()).ip_set(Side::Destination, this_host);
            rules.push(
                Rule::when(node_port, Action::Goto(chain::SET_ENDPOINT_MARK)).comment("To kubernetes NodePort service"),
            );
        }
    }
    let elsewhere = Matches::new().not_ip_set(Side::Destination, this_host);
    rules.push(Rule::when(elsewhere, Action::Jump(chain::SET_ENDPOINT_MARK)).comment("To kubernetes service"));
    Chain::new(chain::FORWARD_CHECK, rules)
}
