//! Remaining chains where eBPF programs enforce policy.

use tortie_model::Family;
use tortie_netfilter::{Action, Chain, ChainName, HookPosition, Matches, Rule, Side, Table, kernel_chain};

use super::Hook;
use super::protocol::ICMPV6;
use crate::config::{AllowAction, EndpointToHostAction};
use crate::names::chain;
use crate::renderer::Renderer;

impl Renderer {
    /// Returns the chains of a table beside eBPF programs. Chains that only jump to other chains
    /// are needed only if one of these has rules.
    pub(super) fn chains_beside_programs(&self, table: Table, family: Family) -> Vec<Chain> {
        match table {
            Table::Raw => {
                let mark = self.wireguard_incoming_mark().filter(|_| self.marks_encrypted_host_traffic());
                let to_mark = || Rule::new(Action::Jump(chain::WIREGUARD_INCOMING_MARK));
                mark.into_iter().flat_map(|mark| [Chain::new(chain::PREROUTING, vec![to_mark()]), mark]).collect()
            }
            Table::Mangle => {
                let mut rules: Vec<Rule> = self.dns_rules(family).collect();
                rules.extend(self.dscp_rules(family));
                let mut chains = vec![Chain::new(chain::POSTROUTING, rules)];
                chains.extend(self.dns_chains(family));
                chains
            }
            Table::Nat => self.nat_chains(family),
            Table::Filter => {
                let mut forward: Vec<Rule> = self.limits_of_workloads(Side::Source).collect();
                forward.extend(self.limits_of_workloads(Side::Destination));
                forward.push(Rule::new(Action::Jump(chain::CIDR_BLOCK)));
                let mut input = self.tunnel_input(family);
                // Neighbour discovery must not end at the limit of other packets.
                let without_discovery = |packets: Matches| match family {
                    Family::V4 => packets,
                    Family::V6 => packets.not_protocol(ICMPV6),
                };
                let to_host = self.packets_of_workloads(Side::Source).map(without_discovery);
                input.extend(to_host.map(|packets| Rule::when(packets, Action::Jump(chain::FROM_WORKLOAD))));
                if self.config().accepts_beside_programs {
                    if self.config().filter_allow == AllowAction::Accept {
                        forward.extend(self.accept_of_workloads(Side::Source));
                        forward.extend(self.accept_of_workloads(Side::Destination));
                    }
                    if self.config().endpoint_to_host == EndpointToHostAction::Accept {
                        input.extend(self.accept_of_workloads(Side::Source));
                    }
                }
                vec![Chain::new(chain::FORWARD, forward), Chain::new(chain::INPUT, input)]
            }
        }
    }

    /// Accepts packets that eBPF programs allowed: programs run before this table.
    fn accept_of_workloads(&self, side: Side) -> impl Iterator<Item = Rule> + '_ {
        self.packets_of_workloads(side)
            .map(|packets| Rule::when(packets, Action::Accept).comment("eBPF programs let this packet through."))
    }

    fn limits_of_workloads(&self, side: Side) -> impl Iterator<Item = Rule> + '_ {
        let dispatch = match side {
            Side::Source => chain::FROM_WORKLOAD,
            Side::Destination => chain::TO_WORKLOAD,
        };
        self.packets_of_workloads(side).map(move |packets| Rule::when(packets, Action::Jump(dispatch)))
    }

    fn packets_of_workloads(&self, side: Side) -> impl Iterator<Item = Matches> + '_ {
        self.workload_interfaces().map(move |cali| match side {
            Side::Source => Matches::new().in_interface(cali),
            Side::Destination => Matches::new().out_interface(cali),
        })
    }

    pub(super) fn hooks_beside_programs(&self) -> Vec<Hook> {
        use kernel_chain::{FORWARD, INPUT, OUTPUT, POSTROUTING, PREROUTING};
        let jump = |table, kernel_chain, position, target: ChainName| Hook {
            table,
            kernel_chain,
            position,
            rules: vec![Rule::new(Action::Jump(target))],
        };
        let (insert, append) = (HookPosition::Insert, HookPosition::Append);
        let mut hooks = vec![
            jump(Table::Mangle, POSTROUTING, insert, chain::POSTROUTING),
            jump(Table::Nat, PREROUTING, insert, chain::PREROUTING),
            jump(Table::Nat, OUTPUT, insert, chain::OUTPUT),
            jump(Table::Nat, POSTROUTING, append, chain::POSTROUTING),
            jump(Table::Filter, INPUT, insert, chain::INPUT),
            jump(Table::Filter, FORWARD, insert, chain::FORWARD),
        ];
        if self.config().domains.is_some_and(|domains| domains.host) {
            hooks.push(jump(Table::Mangle, INPUT, insert, chain::DNS_LIMIT));
        }
        if self.marks_encrypted_host_traffic() {
            hooks.push(jump(Table::Raw, PREROUTING, insert, chain::PREROUTING));
        }
        hooks
    }
}
