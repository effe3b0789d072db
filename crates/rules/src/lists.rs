//! Chains that list addresses: masquerading, floating addresses, service loops, foreign sources,
//! DSCP values (`felix/rules/nat.go`, `felix/rules/dscp.go`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_model::{Cidr, Family};
use tortie_netfilter::{Action, Chain, InterfaceName, Matches, Net, Protocol, Rule, Side};

use crate::config::deny_at_once;
use crate::names::{chain, static_set as set};
use crate::renderer::{Renderer, static_set};

/// A DSCP value for packets of one endpoint that leave the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DscpRule {
    /// Source of the packets, one of the endpoint's addresses.
    pub source: Net,
    /// The six bits.
    pub value: u8,
}

impl Renderer {
    /// Returns the chain that applies SNAT to packets that leave the pools, if some pool of the
    /// family has `natOutgoing`.
    #[must_use]
    pub fn nat_outgoing(&self, active: bool, family: Family) -> Chain {
        let rules = if active { self.masquerade(family) } else { Vec::new() };
        Chain::new(chain::NAT_OUTGOING, rules)
    }

    fn masquerade(&self, family: Family) -> Vec<Rule> {
        let nat = &self.config().nat;
        let set = |id| static_set(family, id);
        let leaving = |protocol: Option<Protocol>| {
            let hosts = nat.exclude_hosts.then(|| set(set::ALL_HOSTS));
            Matches::new()
                .ip_set(Side::Source, set(set::MASQUERADE_POOLS))
                .not_ip_set(Side::Destination, set(set::NETWORK_POOLS))
                .and_maybe(hosts, |all, hosts| all.not_ip_set(Side::Destination, hosts))
                .and_maybe(protocol, Matches::protocol)
                .and_maybe(nat.out_interface, Matches::out_interface)
        };
        // A table takes addresses of one family only.
        let addr = nat.address.filter(|addr| Family::of(*addr) == family);
        let translate = |ports| match addr {
            Some(addr) => Action::Snat { addr, ports },
            None => Action::Masquerade { ports },
        };
        let mut rules = Vec::new();
        if nat.ports.is_some() {
            for protocol in [Protocol::TCP, Protocol::UDP] {
                rules.push(Rule::when(leaving(Some(protocol)), translate(nat.ports)));
                rules.push(Rule::when(leaving(Some(protocol)), Action::Return));
            }
        }
        rules.push(Rule::when(leaving(None), translate(None)));
        rules
    }

    /// Returns the chain that translates external destination addresses to internal ones;
    /// `to_internal` is by external address.
    #[must_use]
    pub fn fip_dnat(&self, to_internal: &BTreeMap<IpAddr, IpAddr>) -> Chain {
        let rule = |(external, internal): (&IpAddr, &IpAddr)| {
            let matches = Matches::new().destination(*external);
            Rule::when(matches, Action::Dnat { addr: *internal, port: None })
        };
        Chain::new(chain::FIP_DNAT, by_text(to_internal).into_iter().map(rule).collect())
    }

    /// Returns the chain that replaces the source of packets that an internal address sends to
    /// itself through its external one; `to_external` is by internal address.
    #[must_use]
    pub fn fip_snat(&self, to_external: &BTreeMap<IpAddr, IpAddr>) -> Chain {
        let rule = |(internal, external): (&IpAddr, &IpAddr)| {
            let matches = Matches::new().destination(*internal).source(*internal);
            Rule::when(matches, Action::Snat { addr: *external, ports: None })
        };
        Chain::new(chain::FIP_SNAT, by_text(to_external).into_iter().map(rule).collect())
    }

    /// Returns the chain that stops packets to service addresses without DNAT. Services of the
    /// other family are skipped.
    #[must_use]
    pub fn cidr_block(&self, services: impl IntoIterator<Item = Cidr>, family: Family) -> Chain {
        let mut rules = Vec::new();
        if let Some(deny) = self.config().service_loop {
            rules.extend(
                of_family(services, family)
                    .into_iter()
                    .map(|net| Rule::when(Matches::new().destination(net), deny_at_once(deny))),
            );
        }
        Chain::new(chain::CIDR_BLOCK, rules)
    }

    /// Returns the chain that allows workloads to use foreign source addresses: per interface the
    /// networks that it may send from.
    #[must_use]
    pub fn rpf_skip(&self, allowed: &BTreeMap<InterfaceName, Vec<Cidr>>, family: Family) -> Chain {
        let rules = allowed
            .iter()
            .flat_map(|(interface, nets)| {
                of_family(nets.iter().copied(), family)
                    .into_iter()
                    .map(|net| Rule::when(Matches::new().in_interface(*interface).source(net), Action::Accept))
            })
            .collect();
        Chain::new(chain::RPF_SKIP, rules)
    }

    /// Returns the chain that sets the DSCP value of their endpoint on packets that leave the
    /// cluster. There is one rule for each address: a rule with several would be several rules in
    /// the kernel, all with one hash.
    #[must_use]
    pub fn egress_dscp(&self, values: &[DscpRule]) -> Chain {
        let mut values: Vec<(String, &DscpRule)> =
            values.iter().map(|value| (value.source.to_string(), value)).collect();
        values.sort();
        values.dedup();
        let rules = values
            .into_iter()
            .map(|(_, &DscpRule { source, value })| Rule::when(Matches::new().source(source), Action::SetDscp(value)))
            .collect();
        Chain::new(chain::EGRESS_DSCP, rules)
    }
}

/// Returns the networks of one family, without duplicates, in the order of their text.
fn of_family(nets: impl IntoIterator<Item = Cidr>, family: Family) -> Vec<Cidr> {
    let mut nets: Vec<Cidr> = nets.into_iter().filter(|net| net.family() == family).collect();
    nets.sort_by_cached_key(Cidr::to_string);
    nets.dedup();
    nets
}

/// Entries in the order of their keys' text.
fn by_text(map: &BTreeMap<IpAddr, IpAddr>) -> Vec<(&IpAddr, &IpAddr)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_cached_key(|(key, _)| key.to_string());
    entries
}

#[cfg(test)]
mod tests;
