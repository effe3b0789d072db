//! Dispatch from addresses to endpoints' chains, for nodes on which other CNI plugins name the
//! interfaces.
//!
//! An address belongs to its workload on one interface only, and behind one port of it if that is a
//! bridge. Its packets from any other place, to any other place, and before the address was found,
//! are denied. Packets of unknown addresses on interfaces with a workload prefix are denied as
//! well. As with names, a packet passes a rule for each bin and one for each address of its bin,
//! not one for each workload.

use tortie_model::{Cidr, Family};
use tortie_netfilter::{Action, Chain, ChainName, ChainPrefix, IcmpType, InterfaceName, Matches, Rule, Side};

use crate::fixed::protocol::ICMPV6;
use crate::names::{EndpointChain, chain, endpoint_chain};
use crate::renderer::Renderer;

/// Addresses that differ in so many of their last bits only share a chain.
const BIN_BITS: u8 = 4;
/// Neighbour solicitation and advertisement (RFC 4861).
const NEIGHBOUR_DISCOVERY: [u8; 2] = [135, 136];

/// Interface or bridge port at which a workload's address was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "callers that discover workloads construct it")]
pub struct WorkloadAttachment {
    /// The interface that leads there.
    pub interface: InterfaceName,
    /// The port, if the interface is a bridge and the kernel makes the port of a packet available
    /// to rules.
    pub port: Option<InterfaceName>,
}

/// An address of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "callers that discover workloads construct it")]
pub struct WorkloadAddress {
    /// The address, or network.
    pub net: Cidr,
    /// The name that the endpoint's chains have.
    pub endpoint: InterfaceName,
    /// Its place; `None` if unknown.
    pub place: Option<WorkloadAttachment>,
}

impl Renderer {
    /// Returns the dispatch chains of workloads by these addresses; addresses of the other family
    /// are ignored.
    #[must_use]
    pub fn workload_dispatch_by_address(
        &self,
        family: Family,
        addresses: impl IntoIterator<Item = WorkloadAddress>,
    ) -> Vec<Chain> {
        let mut addresses: Vec<_> = addresses.into_iter().filter(|address| address.net.family() == family).collect();
        addresses.sort_unstable();
        let mut chains = self.address_tree(family, Side::Source, &addresses);
        chains.extend(self.address_tree(family, Side::Destination, &addresses));
        chains
    }

    /// Returns child chains and, last, the root.
    fn address_tree(&self, family: Family, side: Side, addresses: &[WorkloadAddress]) -> Vec<Chain> {
        let root = match side {
            Side::Source => chain::FROM_WORKLOAD,
            Side::Destination => chain::TO_WORKLOAD,
        };
        let mut rules = self.bridged_discovery(family);
        let mut chains = Vec::new();
        let end = self.unknown_address(side);
        for bin in addresses.chunk_by(|a, b| bin_of(a.net) == bin_of(b.net)) {
            // A network that is larger than a bin.
            let Some(net) = bin.first().and_then(|first| bin_of(first.net)) else {
                rules.extend(bin.iter().flat_map(|address| self.of_address(side, address)));
                continue;
            };
            let child = bin_chain(side, net);
            let below = bin.iter().flat_map(|address| self.of_address(side, address)).chain(end.iter().cloned());
            chains.push(Chain::new(child, below.collect()));
            rules.push(Rule::when(Matches::new().net(side, net), Action::Goto(child)));
        }
        rules.extend(end);
        chains.push(Chain::new(root, rules));
        chains
    }

    /// Returns the rules that allow IPv6 neighbour discovery between workloads behind one bridge.
    /// Policy decides about all other packets.
    fn bridged_discovery(&self, family: Family) -> Vec<Rule> {
        let allow = || self.config().filter_allow.action();
        let discovery = |number| {
            let icmp = IcmpType { number, code: None };
            Rule::when(Matches::new().protocol(ICMPV6).icmp(Family::V6, icmp).bridged(), allow())
        };
        match family {
            Family::V4 => Vec::new(),
            Family::V6 => NEIGHBOUR_DISCOVERY.map(discovery).into(),
        }
    }

    fn of_address(&self, side: Side, address: &WorkloadAddress) -> Vec<Rule> {
        let of = || Matches::new().net(side, address.net);
        let mut rules = Vec::new();
        if let Some(WorkloadAttachment { interface, port }) = address.place {
            let (found, target) = match side {
                Side::Source => {
                    let found = of().in_interface(interface);
                    (found.and_maybe(port, Matches::in_bridge_port), EndpointChain::FromWorkload)
                }
                Side::Destination => (of().out_interface(interface), EndpointChain::ToWorkload),
            };
            let target = endpoint_chain(target, address.endpoint.as_str());
            rules.push(Rule::when(found, Action::Goto(target)));
        }
        rules.push(Rule::when(of(), self.deny()).comment("Not where this workload is"));
        rules
    }

    fn unknown_address(&self, side: Side) -> Vec<Rule> {
        let deny = |cali| {
            let matches = match side {
                Side::Source => Matches::new().in_interface(cali),
                Side::Destination => Matches::new().out_interface(cali),
            };
            Rule::when(matches, self.deny()).comment("Unknown workload")
        };
        self.workload_interfaces().map(deny).collect()
    }
}

/// Returns the network of addresses that share a chain with these; `None` for networks that are
/// larger.
fn bin_of(net: Cidr) -> Option<Cidr> {
    let bits = match net.family() {
        Family::V4 => 32,
        Family::V6 => 128,
    };
    let length = bits - BIN_BITS;
    if net.prefix_len() < length {
        return None;
    }
    Cidr::new(net.address(), length).map(Cidr::masked)
}

fn bin_chain(side: Side, net: Cidr) -> ChainName {
    const FROM: ChainPrefix = ChainPrefix::new("cali-fa-");
    const TO: ChainPrefix = ChainPrefix::new("cali-ta-");
    let prefix = match side {
        Side::Source => FROM,
        Side::Destination => TO,
    };
    ChainName::limited(prefix, &net.address().to_string())
}

#[cfg(test)]
mod tests;
