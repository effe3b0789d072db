//! DNS answers for the reader of answers, while something on the node learns.

use tortie_model::Family;
use tortie_netfilter::{Action, Chain, ConntrackStates, IpSetName, Match, Matches, PacketRate, Rule, Side};

use crate::config::{DomainRules, PacketFilter};
use crate::names::{chain, static_set as set};
use crate::renderer::{Renderer, set_name, static_set};

/// Returns the name of the table of buckets in the kernel, one for each client. The kernel keeps
/// the limit of a table whose name it knows, so that another limit needs another name, of at most
/// 15 bytes.
#[expect(clippy::expect_used, reason = "the name consists of letters, digits and a dash")]
fn buckets(limit: PacketRate) -> IpSetName {
    IpSetName::new(&format!("cdns{}-{}", limit.rate(), limit.burst())).expect("the name is short and plain")
}

impl Renderer {
    /// Returns the rule that leads answers to learning workloads to [`chain::DNS_LIMIT`]. It comes
    /// first: a queued packet skips the rest of the table, and rules behind return early.
    pub(super) fn dns_rules(&self, family: Family) -> impl Iterator<Item = Rule> {
        let learns = self.config().domains.is_some_and(|domains| domains.shards > 0);
        let to_client = Matches::new().ip_set(Side::Destination, static_set(family, set::DNS_CLIENTS));
        learns.then(|| Rule::when(to_client, Action::Jump(chain::DNS_LIMIT))).into_iter()
    }

    /// Returns the chains that queue answers; none while nothing learns.
    ///
    /// The limit has a chain of its own, so that a kernel without it still queues: the stand-in of
    /// the chain lacks the limit.
    pub(super) fn dns_chains(&self, family: Family) -> Vec<Chain> {
        let learning = self.config().domains.filter(|domains| domains.shards > 0 || domains.host);
        let Some(domains) = learning else { return Vec::new() };
        let buckets = match self.config().packet_filter {
            PacketFilter::Iptables => buckets(domains.reply_limit),
            PacketFilter::Nftables(_) => set_name(family, &set::dns_buckets(domains.reply_limit)),
        };
        let above =
            from_server(family).and(Match::AboveRateOfDestination { limit: domains.reply_limit, name: buckets });
        let limit = vec![Rule::when(above, Action::Return), Rule::new(Action::Jump(chain::DNS_QUEUE))];
        vec![Chain::new(chain::DNS_LIMIT, limit), Chain::new(chain::DNS_QUEUE, queue(domains, family))]
    }

    /// Returns the rules of [`chain::DNS_LIMIT`] without the limit.
    #[must_use]
    pub fn dns_without_limit() -> Vec<Rule> {
        vec![Rule::new(Action::Jump(chain::DNS_QUEUE))]
    }
}

fn from_server(family: Family) -> Matches {
    Matches::new().ip_port_set(Side::Source, static_set(family, set::DNS_SERVERS))
}

/// An answer belongs to a known connection, in the direction of replies, or comes from a server on
/// this host whose packets conntrack does not see (node-local caches).
fn queue(domains: DomainRules, family: Family) -> Vec<Rule> {
    let reply = from_server(family).conntrack(ConntrackStates::ESTABLISHED).reply();
    let local = from_server(family).conntrack(ConntrackStates::UNTRACKED).source_is_local();
    [reply, local].map(|matches| Rule::when(matches, Action::Queue(domains.queue))).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "the limits of the test are valid")]

    use super::*;

    /// The kernel's names of hashlimit tables have at most 15 bytes (`xt_hashlimit`).
    #[test]
    fn each_limit_has_buckets_of_its_own() {
        let name = |rate, burst| buckets(PacketRate::new(rate, burst).unwrap());
        let most = name(PacketRate::MAX, PacketRate::MAX);
        assert_eq!(most.as_str(), "cdns10000-10000");
        assert_eq!(most.as_str().len(), 15);
        assert_eq!(
            set_name(Family::V4, &set::dns_buckets(PacketRate::new(PacketRate::MAX, PacketRate::MAX).unwrap()))
                .as_str(),
            "cali40dns-buckets10000-10000"
        );
        let all = [name(1000, 1000), name(1000, 2000), name(2000, 1000), name(1, 10), name(11, 1), most];
        assert_eq!(
            all.map(|name| name.as_str().to_owned()).into_iter().collect::<std::collections::BTreeSet<_>>().len(),
            6
        );
    }
}
