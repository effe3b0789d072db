//! ARP replies that the node must not give (`felix/dataplane/linux/endpoint_mgr.go`).
//!
//! The node answers ARP requests on a workload's interface for every address that it has a route to
//! (proxy ARP). That includes the workload's own address, since it is behind the same interface. A
//! workload that checks for duplicate addresses would then give up its address. Chains of an ARP
//! table drop these replies.

use std::net::Ipv4Addr;

use tortie_netfilter::{Action, Chain, DispatchBy, HookPosition, InterfaceName, Matches, Rule, Table, kernel_chain};

use crate::fixed::Hook;
use crate::names::{EndpointChain, chain, endpoint_chain};

/// Returns the rule that sends ARP replies to the interfaces' chains.
#[must_use]
pub fn arp_hook() -> Hook {
    Hook {
        table: Table::Filter,
        kernel_chain: kernel_chain::OUTPUT,
        position: HookPosition::Insert,
        rules: vec![Rule::new(Action::Jump(chain::ARP_DISPATCH))],
    }
}

/// Returns the chain that leads from interfaces to their chains, by a map of the same name.
#[must_use]
pub fn arp_dispatch() -> Chain {
    let dispatch = Action::Dispatch { by: DispatchBy::OutInterface, map: chain::ARP_DISPATCH };
    Chain::new(chain::ARP_DISPATCH, vec![Rule::new(dispatch)])
}

/// Drops replies to a workload about its own addresses.
#[must_use]
pub fn arp_workload(interface: InterfaceName, addresses: impl IntoIterator<Item = Ipv4Addr>) -> Chain {
    let about = |address| Rule::when(Matches::new().out_interface(interface).arp_reply(address), Action::Drop);
    let name = endpoint_chain(EndpointChain::Arp, interface.as_str());
    Chain::new(name, addresses.into_iter().map(about).collect())
}
