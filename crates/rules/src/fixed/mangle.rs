//! `mangle`: pre-DNAT policy on the way in; on the way out DSCP values, and policy for the host's
//! translated traffic.

use tortie_model::Family;
use tortie_netfilter::{Action, Chain, ConntrackStates, Matches, Protocol, Rule, Side, Table};

use crate::names::{chain, static_set as set};
use crate::renderer::{Renderer, static_set};

impl Renderer {
    pub(super) fn mangle_chains(&self, family: Family) -> Vec<Chain> {
        let mut chains = vec![
            self.failsafe_in(Table::Mangle, family),
            self.failsafe_out(Table::Mangle, family),
            self.mangle_prerouting(),
            self.mangle_postrouting(family),
            self.reject(Table::Mangle, family),
        ];
        chains.extend(self.dns_chains(family));
        chains
    }

    fn mangle_prerouting(&self) -> Chain {
        let allow = self.config().mangle_allow.action();
        let known = Matches::new().conntrack(ConntrackStates::RELATED_OR_ESTABLISHED);
        Chain::new(
            chain::PREROUTING,
            vec![
                Rule::when(known, allow.clone()),
                self.if_accepted(allow.clone()),
                Rule::new(Action::Jump(chain::FROM_HOST_ENDPOINT)),
                self.if_accepted(allow).comment("Host endpoint policy accepted packet."),
            ],
        )
    }

    /// Returns the rules that set DSCP values.
    pub(super) fn dscp_rules(&self, family: Family) -> Vec<Rule> {
        let set = |id| static_set(family, id);
        let mut rules = Vec::new();
        if let Some(value) = self.config().istio_dscp {
            rules.extend(self.workload_interfaces().map(|cali| {
                let within_mesh = Matches::new()
                    .protocol(Protocol::TCP)
                    .conntrack(ConntrackStates::NEW)
                    .out_interface(cali)
                    .ip_set(Side::Destination, set(set::ISTIO_WORKLOADS))
                    .ip_set(Side::Source, set(set::ISTIO_WORKLOADS));
                Rule::when(within_mesh, Action::SetDscp(value))
            }));
        }
        let leaving_cluster = Matches::new()
            .ip_set(Side::Source, set(set::DSCP_SOURCES))
            .not_ip_set(Side::Destination, set(set::NETWORK_POOLS))
            .not_ip_set(Side::Destination, set(set::THIS_HOST));
        rules.push(
            Rule::when(leaving_cluster, Action::Jump(chain::EGRESS_DSCP))
                .comment("set dscp for traffic leaving cluster."),
        );
        rules
    }

    fn mangle_postrouting(&self, family: Family) -> Chain {
        let mut rules: Vec<Rule> = self.dns_rules(family).collect();
        rules.extend(self.dscp_rules(family));
        // Forwarded: the rule at the end of FORWARD set the mark.
        rules.push(self.if_accepted(Action::Return));
        if self.config().ipvs.is_some() {
            rules.push(Rule::when(Matches::new().mark_not_clear(self.marks().endpoint), Action::Return));
        }
        // All other packets come from the host. The outgoing interface of translated packets is
        // known only here.
        let translated = Matches::new().conntrack(ConntrackStates::DNAT);
        rules.extend(self.host_endpoint_policy(translated, chain::TO_HOST_ENDPOINT, Action::Return));
        Chain::new(chain::POSTROUTING, rules)
    }
}
