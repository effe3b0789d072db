//! Connections that no policy can cut: without them, one wrong host policy locks everybody out.

use tortie_model::Family;
use tortie_netfilter::{Action, Chain, Matches, PortList, Rule, Side, Table};

use crate::config::FailsafePort;
use crate::names::chain;
use crate::renderer::Renderer;

impl Renderer {
    pub(super) fn failsafe_in(&self, table: Table, family: Family) -> Chain {
        let config = self.config();
        let ours = (config.failsafe_inbound.as_slice(), Side::Destination);
        let replies = (config.failsafe_outbound.as_slice(), Side::Source);
        Chain::new(chain::FAILSAFE_IN, rules(table, family, Side::Source, ours, replies))
    }

    pub(super) fn failsafe_out(&self, table: Table, family: Family) -> Chain {
        let config = self.config();
        let ours = (config.failsafe_outbound.as_slice(), Side::Destination);
        let replies = (config.failsafe_inbound.as_slice(), Side::Source);
        Chain::new(chain::FAILSAFE_OUT, rules(table, family, Side::Destination, ours, replies))
    }
}

/// Accepts connections, and in `raw` also the replies to those of the other direction: connection
/// tracking has not seen the packet yet, and untracked policy must not drop it.
fn rules(
    table: Table,
    family: Family,
    peer: Side,
    ours: (&[FailsafePort], Side),
    replies: (&[FailsafePort], Side),
) -> Vec<Rule> {
    let replies = if table == Table::Raw { Some(replies) } else { None };
    [Some(ours), replies]
        .into_iter()
        .flatten()
        .flat_map(|(ports, side)| ports.iter().map(move |port| (port, side)))
        .filter(|(port, _)| port.net.is_none_or(|net| net.family() == family))
        .map(|(port, side)| {
            let matches = Matches::new()
                .protocol(port.protocol)
                .ports(side, PortList::single(port.port))
                .and_maybe(port.net, |matches, net| matches.net(peer, net));
            Rule::when(matches, Action::Accept)
        })
        .collect()
}
