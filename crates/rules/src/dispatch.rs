//! From an interface to its endpoint's chain (`felix/rules/dispatch.go`).
//!
//! With hundreds of endpoints a flat list would cost every packet hundreds of comparisons, so the names are binned by
//! the first character after their common prefix: one rule for each bin in the root chain, one for each name in the
//! bin's own chain.

use tortie_iptables::{Action, Chain, ChainName, InterfaceName, InterfacePattern, Matches, Rule, Side};

use crate::names::{EndpointChain, any_interface, chain, endpoint_chain};
use crate::renderer::Renderer;

/// Which of the dispatch chains of host endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostDispatch {
    /// `filter`: normal and forward policy, both directions.
    Filter,
    /// `mangle` PREROUTING: pre-DNAT policy, from host endpoints only.
    MangleIngress,
    /// `mangle` POSTROUTING: normal policy for the host's translated packets, to host endpoints only.
    MangleEgress,
    /// `raw`: untracked policy, both directions. The endpoint of all interfaces has no part in it.
    Raw,
}

impl Renderer {
    /// The dispatch chains of workloads. A packet of an interface that looks like a workload's but is not listed is
    /// denied: that is what protects workloads that are not programmed yet.
    ///
    /// With nftables the interfaces are members of two maps ([`Renderer::workload_maps`]), and the chains are always the same.
    #[must_use]
    pub fn workload_dispatch(&self, interfaces: impl IntoIterator<Item = InterfaceName>) -> Vec<Chain> {
        if self.config().packet_filter.has_maps() {
            return [(chain::FROM_WORKLOAD, Side::Source), (chain::TO_WORKLOAD, Side::Destination)]
                .map(|(name, side)| {
                    let unknown = Rule::new(self.deny()).comment("Unknown interface");
                    Chain::new(name, vec![Rule::new(Action::Dispatch { side, map: name }), unknown])
                })
                .into();
        }
        let bins = Bins::new(interfaces);
        let unknown = [Rule::new(self.deny()).comment("Unknown interface")];
        let mut chains = bins.tree(chain::FROM_WORKLOAD, Side::Source, EndpointChain::FromWorkload, &unknown);
        chains.extend(bins.tree(chain::TO_WORKLOAD, Side::Destination, EndpointChain::ToWorkload, &unknown));
        chains
    }

    /// The verdict maps of a workload's interface, with the chain that each leads to.
    #[must_use]
    pub fn workload_maps(interface: InterfaceName) -> [(ChainName, ChainName); 2] {
        let target = |chain| endpoint_chain(chain, interface.as_str());
        [
            (chain::FROM_WORKLOAD, target(EndpointChain::FromWorkload)),
            (chain::TO_WORKLOAD, target(EndpointChain::ToWorkload)),
        ]
    }

    /// The dispatch chains of host endpoints for one purpose. `any` tells whether there is an endpoint for all
    /// interfaces without one of their own; without it, packets of other interfaces are left alone.
    #[must_use]
    pub fn host_dispatch(
        &self,
        purpose: HostDispatch,
        interfaces: impl IntoIterator<Item = InterfaceName>,
        any: bool,
    ) -> Vec<Chain> {
        use EndpointChain::{FromHost, FromHostForward, ToHost, ToHostForward};
        use Side::{Destination, Source};

        let bins = Bins::new(interfaces);
        let otherwise = |target| {
            let any = any.then(|| Action::Goto(endpoint_chain(target, any_interface().as_str())));
            any.map(Rule::new).into_iter().collect::<Vec<Rule>>()
        };
        let mut chains = Vec::new();
        match purpose {
            HostDispatch::Filter => {
                for (root, side, target) in [
                    (chain::FROM_HOST_ENDPOINT, Source, FromHost),
                    (chain::TO_HOST_ENDPOINT, Destination, ToHost),
                    (chain::FROM_HOST_ENDPOINT_FORWARD, Source, FromHostForward),
                    (chain::TO_HOST_ENDPOINT_FORWARD, Destination, ToHostForward),
                ] {
                    chains.extend(bins.tree(root, side, target, &otherwise(target)));
                }
            }
            HostDispatch::MangleIngress => {
                chains.extend(bins.tree(chain::FROM_HOST_ENDPOINT, Source, FromHost, &otherwise(FromHost)));
            }
            HostDispatch::MangleEgress => {
                let mut end = otherwise(ToHost);
                if any {
                    // The endpoint of all interfaces never polices traffic to local workloads.
                    let to_workload = self.workload_interfaces().map(|cali| {
                        Rule::when(Matches::new().out_interface(cali), Action::Return)
                            .comment("Skip egress WHEP policy for traffic to local workload")
                    });
                    end.splice(0..0, to_workload);
                }
                chains.extend(bins.tree(chain::TO_HOST_ENDPOINT, Destination, ToHost, &end));
            }
            HostDispatch::Raw => {
                chains.extend(bins.tree(chain::FROM_HOST_ENDPOINT, Source, FromHost, &[]));
                chains.extend(bins.tree(chain::TO_HOST_ENDPOINT, Destination, ToHost, &[]));
            }
        }
        chains
    }
}

/// Interfaces, sorted and binned by their common prefix and one more character.
pub(crate) struct Bins {
    names: Vec<InterfaceName>,
    common: usize,
}

impl Bins {
    pub(crate) fn new(interfaces: impl IntoIterator<Item = InterfaceName>) -> Self {
        let mut names: Vec<InterfaceName> = interfaces.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        // In sorted order, what the first and the last share all share.
        let common = match (names.first(), names.last()) {
            (Some(first), Some(last)) => {
                first.as_str().bytes().zip(last.as_str().bytes()).take_while(|(a, b)| a == b).count()
            }
            _ => 0,
        };
        Self { names, common }
    }

    pub(crate) fn names(&self) -> &[InterfaceName] {
        &self.names
    }

    /// Child chains and, last, the root. `end` is what happens to packets of other interfaces.
    fn tree(&self, root: ChainName, side: Side, target: EndpointChain, end: &[Rule]) -> Vec<Chain> {
        let (mut chains, mut rules) = self.branches(root, "", side, target, end);
        rules.extend_from_slice(end);
        chains.push(Chain::new(root, rules));
        chains
    }

    /// Child chains, and the rules of the root that lead to them or straight to an endpoint.
    pub(crate) fn branches(
        &self,
        root: ChainName,
        infix: &str,
        side: Side,
        target: EndpointChain,
        end: &[Rule],
    ) -> (Vec<Chain>, Vec<Rule>) {
        let exact = |name: &InterfaceName| {
            let goto = Action::Goto(endpoint_chain(target, name.as_str()));
            Rule::when(by_interface(side, InterfacePattern::exact(*name)), goto)
        };
        let mut chains = Vec::new();
        let mut rules = Vec::new();
        for bin in self.names.chunk_by(|a, b| self.bin(a) == self.bin(b)) {
            match self.child(root, infix, bin) {
                Some((child, prefix)) => {
                    // A goto: nothing else in the root can match, so `end` is repeated in the child.
                    let below = bin.iter().map(exact).chain(end.iter().cloned()).collect();
                    chains.push(Chain::new(child, below));
                    rules.push(Rule::when(by_interface(side, prefix), Action::Goto(child)));
                }
                None => rules.extend(bin.iter().map(exact)),
            }
        }
        (chains, rules)
    }

    /// The beginning by which a name is binned.
    fn bin<'a>(&self, name: &'a InterfaceName) -> &'a str {
        let name = name.as_str();
        &name[..name.len().min(self.common + 1)]
    }

    /// The child chain of a bin and the pattern that leads there; `None` for a single name, and should there be no
    /// legal name for the chain or the pattern.
    fn child(&self, root: ChainName, infix: &str, bin: &[InterfaceName]) -> Option<(ChainName, InterfacePattern)> {
        let [first, _, ..] = bin else { return None };
        let prefix = self.bin(first);
        let next = &prefix[self.common..];
        let child = ChainName::new(&format!("{root}{infix}-{next}")).ok()?;
        Some((child, InterfacePattern::prefix(InterfaceName::new(prefix).ok()?)))
    }
}

fn by_interface(side: Side, pattern: InterfacePattern) -> Matches {
    match side {
        Side::Source => Matches::new().in_interface(pattern),
        Side::Destination => Matches::new().out_interface(pattern),
    }
}

#[cfg(test)]
mod tests;
