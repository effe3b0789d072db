//! Answers to packets that policy rejects.

use std::collections::BTreeMap;

use tortie_model::Family;
use tortie_netfilter::{Action, Chain, Matches, PortList, PortRange, Protocol, RejectWith, Rule, Side, Table};

use crate::names::chain;
use crate::renderer::Renderer;

impl Renderer {
    /// Returns the chain to which rules lead packets that policy rejects. It lets none pass.
    ///
    /// All such packets share the limits of its rules, so that the node sends few answers however
    /// many policies reject; a packet over the limit is dropped. Only `filter` answers: the kernel
    /// refuses it in POSTROUTING, and `raw` precedes conntrack.
    pub(super) fn reject(&self, table: Table, family: Family) -> Chain {
        let mut rules = Vec::new();
        if table == Table::Filter {
            rules.extend(self.unanswered_ports());
            let limit = self.config().reject_rate;
            let limited = |matches: Matches| matches.limit(limit.into(), Some(limit.burst()));
            let tcp = limited(Matches::new().protocol(Protocol::TCP));
            let others = limited(Matches::new().not_protocol(Protocol::TCP));
            rules.extend([
                Rule::when(tcp, Action::Reject(RejectWith::TcpReset)),
                Rule::when(others, Action::Reject(RejectWith::AdminProhibited(family))),
            ]);
        }
        rules.push(Rule::new(Action::Drop).comment("Denied without an answer"));
        Chain::new(chain::REJECT, rules)
    }

    /// Drops packets from failsafe ports. They are answers of connections that no policy may cut.
    /// Conntrack accepts them before policy as long as it knows their connection; if it has lost
    /// the connection, a reset would end it, whereas the next packet of the other side restores it.
    fn unanswered_ports(&self) -> Vec<Rule> {
        let config = self.config();
        let mut by_protocol: BTreeMap<Protocol, Vec<u16>> = BTreeMap::new();
        for failsafe in config.failsafe_inbound.iter().chain(&config.failsafe_outbound) {
            by_protocol.entry(failsafe.protocol).or_default().push(failsafe.port);
        }
        let mut rules = Vec::new();
        for (protocol, mut ports) in by_protocol {
            ports.sort_unstable();
            ports.dedup();
            let ports: Vec<PortRange> = ports.into_iter().map(PortRange::single).collect();
            rules.extend(PortList::split(&ports).into_iter().map(|ports| {
                Rule::when(Matches::new().protocol(protocol).ports(Side::Source, ports), Action::Drop)
                    .comment("No answer to failsafe ports")
            }));
        }
        rules
    }
}
