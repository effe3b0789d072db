//! Chains that depend on the configuration only, and the rules that lead into them
//! (`felix/rules/static.go`, `felix/dataplane/linux/int_dataplane.go`).

mod beside_programs;
mod failsafe;
mod filter;
mod ipvs;
mod mangle;
mod nat;
mod raw;

use tortie_model::Family;
use tortie_netfilter::{Action, Chain, ChainName, HookPosition, Matches, Rule, Table, kernel_chain};

use crate::config::PolicyBy;
use crate::names::chain;
use crate::renderer::Renderer;

/// Rules of ours in one of the kernel's own chains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// The table.
    pub table: Table,
    /// The kernel's chain.
    pub kernel_chain: ChainName,
    /// Before or after the rules of other programs. The configuration may ask to append what is listed as insert
    /// (`ChainInsertMode`); what is listed as append must stay behind.
    pub position: HookPosition,
    /// The rules.
    pub rules: Vec<Rule>,
}

impl Renderer {
    /// All rules in the kernel's own chains, the same for both families.
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
        if self.config().policy_by == PolicyBy::Programs {
            return self.hooks_beside_programs();
        }
        vec![
            jump(Table::Raw, PREROUTING, insert, chain::PREROUTING),
            jump(Table::Raw, OUTPUT, insert, chain::OUTPUT),
            jump(Table::Mangle, PREROUTING, insert, chain::PREROUTING),
            jump(Table::Mangle, POSTROUTING, insert, chain::POSTROUTING),
            jump(Table::Nat, PREROUTING, insert, chain::PREROUTING),
            jump(Table::Nat, OUTPUT, insert, chain::OUTPUT),
            // Behind kube-proxy's rule, which clears its masquerade mark: otherwise the encapsulated packet inherits it.
            jump(Table::Nat, POSTROUTING, append, chain::POSTROUTING),
            jump(Table::Filter, INPUT, insert, chain::INPUT),
            jump(Table::Filter, FORWARD, insert, chain::FORWARD),
            jump(Table::Filter, OUTPUT, insert, chain::OUTPUT),
            Hook { table: Table::Filter, kernel_chain: FORWARD, position: append, rules: self.forward_append_rules() },
        ]
    }

    /// What happens to forwarded packets after other programs' rules: those that policy accepted are through; all
    /// others are marked as accepted, by which `mangle` POSTROUTING knows that they do not come from the host.
    fn forward_append_rules(&self) -> Vec<Rule> {
        vec![
            self.if_accepted(self.config().filter_allow.action()).comment("Policy explicitly accepted packet."),
            Rule::new(Action::SetMark(self.marks().accept)),
        ]
    }

    /// The fixed chains of a table.
    #[must_use]
    pub fn fixed_chains(&self, table: Table, family: Family) -> Vec<Chain> {
        match table {
            _ if self.config().policy_by == PolicyBy::Programs => self.chains_beside_programs(table, family),
            Table::Raw => self.raw_chains(family),
            Table::Mangle => self.mangle_chains(family),
            Table::Nat => self.nat_chains(family),
            Table::Filter => self.filter_chains(family),
        }
    }

    /// Clears our policy marks, jumps to the host endpoints if the packet passes `matches`, and does `allow` to what
    /// they accepted.
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
