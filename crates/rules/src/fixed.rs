//! Chains that depend on the configuration only, and the rules that lead into them
//! (`felix/rules/static.go`, `felix/dataplane/linux/int_dataplane.go`).

mod beside_programs;
mod dns;
mod failsafe;
mod filter;
mod ipvs;
mod mangle;
mod nat;
mod raw;
mod reject;

use tortie_model::Family;
use tortie_netfilter::{Action, Chain, ChainName, HookPosition, Matches, Rule, Table, kernel_chain};

use crate::config::PolicyBackend;
use crate::names::chain;
use crate::renderer::Renderer;

/// Tortie's rules in one of the kernel's chains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// The table.
    pub table: Table,
    /// The kernel's chain.
    pub kernel_chain: ChainName,
    /// Before or after the rules of other programs. The configuration may append rules with the
    /// position `Insert` (`ChainInsertMode`); rules with the position `Append` must stay at the
    /// end.
    pub position: HookPosition,
    /// The rules.
    pub rules: Vec<Rule>,
}

impl Renderer {
    /// Returns all rules in the kernel's own chains, the same for both families.
    #[must_use]
    pub fn hooks(&self) -> Vec<Hook> {
        use kernel_chain::{FORWARD, INPUT, OUTPUT, POSTROUTING, PREROUTING};
        let jump = |table, kernel_chain, position, target| Hook {
            table,
            kernel_chain,
            position,
            rules: vec![Rule::new(Action::Jump(target))],
        };
        let (insert, append) = (HookPosition::Insert, HookPosition::Append);
        if self.config().policy_backend == PolicyBackend::Programs {
            return self.hooks_beside_programs();
        }
        let mut hooks = vec![
            jump(Table::Raw, PREROUTING, insert, chain::PREROUTING),
            jump(Table::Raw, OUTPUT, insert, chain::OUTPUT),
            jump(Table::Mangle, PREROUTING, insert, chain::PREROUTING),
            jump(Table::Mangle, POSTROUTING, insert, chain::POSTROUTING),
            jump(Table::Nat, PREROUTING, insert, chain::PREROUTING),
            jump(Table::Nat, OUTPUT, insert, chain::OUTPUT),
            // Behind kube-proxy's rule that clears its masquerade mark: otherwise the encapsulated
            // packet inherits the mark.
            jump(Table::Nat, POSTROUTING, append, chain::POSTROUTING),
            jump(Table::Filter, INPUT, insert, chain::INPUT),
            jump(Table::Filter, FORWARD, insert, chain::FORWARD),
            jump(Table::Filter, OUTPUT, insert, chain::OUTPUT),
            Hook { table: Table::Filter, kernel_chain: FORWARD, position: append, rules: self.forward_append_rules() },
        ];
        // Felix has nothing in this chain of the kernel.
        let host_learns = self.config().domains.is_some_and(|domains| domains.host);
        hooks.extend(host_learns.then(|| jump(Table::Mangle, INPUT, insert, chain::DNS_LIMIT)));
        hooks
    }

    /// Returns the rules for forwarded packets behind other programs' rules. The allow action
    /// applies to packets that policy accepted. All others get the accept mark, by which `mangle`
    /// POSTROUTING distinguishes them from the host's packets.
    fn forward_append_rules(&self) -> Vec<Rule> {
        vec![
            self.if_accepted(self.config().filter_allow.action()).comment("Policy explicitly accepted packet."),
            Rule::new(Action::SetMark(self.marks().accept)),
        ]
    }

    /// Returns the fixed chains of a table.
    #[must_use]
    pub fn fixed_chains(&self, table: Table, family: Family) -> Vec<Chain> {
        match table {
            _ if self.config().policy_backend == PolicyBackend::Programs => self.chains_beside_programs(table, family),
            Table::Raw => self.raw_chains(family),
            Table::Mangle => self.mangle_chains(family),
            Table::Nat => self.nat_chains(family),
            Table::Filter => self.filter_chains(family),
        }
    }

    /// Clears Tortie's policy marks, jumps to the host endpoints if the packet passes `matches`,
    /// and applies `allow` to packets that they accepted.
    fn host_endpoint_policy(&self, matches: Matches, dispatch: ChainName, allow: Action) -> [Rule; 3] {
        [
            Rule::new(Action::ClearMark(self.marks().policy())),
            Rule::when(matches, Action::Jump(dispatch)),
            self.if_accepted(allow).comment("Host endpoint policy accepted packet."),
        ]
    }
}

/// Protocol numbers, for protocols whose names a node may not know.
pub(crate) mod protocol {
    use tortie_netfilter::Protocol;

    pub(crate) const IPIP: Protocol = Protocol::Number(4);
    pub(crate) const UDP: Protocol = Protocol::Number(17);
    pub(crate) const ICMPV6: Protocol = Protocol::Number(58);
}

#[cfg(test)]
mod tests;
