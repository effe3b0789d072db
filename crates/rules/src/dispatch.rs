//! From an interface to its endpoint's chain (`felix/rules/dispatch.go`).
//!
//! With hundreds of endpoints a flat list would cost every packet hundreds of comparisons, so the
//! names are binned by the first character after their common prefix: one rule for each bin in the
//! root chain, one for each name in the bin's own chain.

use tortie_model::{AdminState, Direction, HostInterface, QosControls};
use tortie_netfilter::{
    Action, Chain, ChainName, DispatchBy, InterfaceName, InterfacePattern, MapKey, MapKind, MapVerdict, Matches, Rule,
    Side, Table,
};

use crate::config::{AllowAction, WorkloadDispatch};
use crate::endpoint::has_packet_rate;
use crate::names::{EndpointChain, chain, endpoint_chain, host_endpoint};
use crate::renderer::Renderer;

/// Purpose of dispatch chains of host endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostDispatch {
    /// `filter`: normal and forward policy, both directions.
    Filter,
    /// `mangle` PREROUTING: pre-DNAT policy, from host endpoints only.
    MangleIngress,
    /// `mangle` POSTROUTING: normal policy for the host's translated packets, to host endpoints
    /// only.
    MangleEgress,
    /// `raw`: untracked policy, both directions. An endpoint of all interfaces does not apply.
    Raw,
}

impl HostDispatch {
    /// Returns the root chains, the side of a packet that each matches, and the endpoints' chains
    /// to which it leads.
    const fn roots(self) -> &'static [(ChainName, Side, EndpointChain)] {
        use EndpointChain::{FromHost, FromHostForward, ToHost, ToHostForward};
        use Side::{Destination, Source};
        match self {
            Self::Filter => &[
                (chain::FROM_HOST_ENDPOINT, Source, FromHost),
                (chain::TO_HOST_ENDPOINT, Destination, ToHost),
                (chain::FROM_HOST_ENDPOINT_FORWARD, Source, FromHostForward),
                (chain::TO_HOST_ENDPOINT_FORWARD, Destination, ToHostForward),
            ],
            Self::MangleIngress => &[(chain::FROM_HOST_ENDPOINT, Source, FromHost)],
            Self::MangleEgress => &[(chain::TO_HOST_ENDPOINT, Destination, ToHost)],
            Self::Raw => {
                &[(chain::FROM_HOST_ENDPOINT, Source, FromHost), (chain::TO_HOST_ENDPOINT, Destination, ToHost)]
            }
        }
    }
}

impl Renderer {
    /// Returns the dispatch chains of workloads. A packet of an unlisted interface with a workload
    /// prefix is denied. That protects workloads that are not programmed yet.
    ///
    /// With nftables the interfaces are members of two maps ([`Renderer::workload_maps`]), and the
    /// chains are always the same.
    #[must_use]
    pub fn workload_dispatch(&self, interfaces: impl IntoIterator<Item = InterfaceName>) -> Vec<Chain> {
        if self.config().packet_filter.has_maps() {
            return [(chain::FROM_WORKLOAD, Side::Source), (chain::TO_WORKLOAD, Side::Destination)]
                .map(|(name, side)| {
                    let unknown = Rule::new(self.deny()).comment("Unknown interface");
                    Chain::new(name, vec![by_map(name, side), unknown])
                })
                .into();
        }
        let bins = Bins::new(interfaces);
        let unknown = [Rule::new(self.deny()).comment("Unknown interface")];
        let mut chains = bins.tree(chain::FROM_WORKLOAD, Side::Source, EndpointChain::FromWorkload, &unknown);
        chains.extend(bins.tree(chain::TO_WORKLOAD, Side::Destination, EndpointChain::ToWorkload, &unknown));
        chains
    }

    /// Returns the `filter` chains that limit packet rates and connections of workloads beside eBPF
    /// programs, and those that lead there. Packets of other workloads pass.
    #[must_use]
    pub fn workload_limits(&self, workloads: &[(InterfaceName, &QosControls)]) -> Vec<Chain> {
        let mut chains = Vec::new();
        for (root, side, kind, direction) in [
            (chain::FROM_WORKLOAD, Side::Source, EndpointChain::FromWorkload, Direction::Egress),
            (chain::TO_WORKLOAD, Side::Destination, EndpointChain::ToWorkload, Direction::Ingress),
        ] {
            let limited = workloads.iter().filter_map(|(interface, qos)| {
                Some((*interface, self.workload_limit(kind, direction, *interface, qos)?))
            });
            let (interfaces, limits): (Vec<InterfaceName>, Vec<Chain>) = limited.unzip();
            chains.extend(Bins::new(interfaces).tree(root, side, kind, &[]));
            chains.extend(limits);
        }
        chains
    }

    /// Returns a workload interface's member in each verdict map of `filter`; `None` for maps
    /// without one. If there is no such workload, all are `None`.
    #[must_use]
    pub fn workload_maps(
        &self,
        interface: InterfaceName,
        endpoint: Option<(AdminState, Option<&QosControls>)>,
    ) -> Vec<(ChainName, Option<MapVerdict>)> {
        let goto = |kind| endpoint.map(|_| MapVerdict::Goto(endpoint_chain(kind, interface.as_str())));
        let mut maps = vec![
            (chain::FROM_WORKLOAD, goto(EndpointChain::FromWorkload)),
            (chain::TO_WORKLOAD, goto(EndpointChain::ToWorkload)),
        ];
        if self.passes_known_connections() {
            // Every packet counts towards a limit, and none passes an endpoint that is down.
            let known = |direction| {
                let (state, qos) = endpoint?;
                let passes = state == AdminState::Active && !has_packet_rate(qos, direction);
                passes.then_some(MapVerdict::Accept)
            };
            maps.push((chain::KNOWN_FROM, known(Direction::Egress)));
            maps.push((chain::KNOWN_TO, known(Direction::Ingress)));
        }
        maps
    }

    /// Reports whether packets of known connections are accepted before the dispatch to endpoints.
    pub(crate) fn passes_known_connections(&self) -> bool {
        let config = self.config();
        config.packet_filter.is_fast()
            && config.workloads == WorkloadDispatch::Name
            && config.filter_allow == AllowAction::Accept
    }

    /// Returns the verdict maps that chains use, for any endpoints.
    #[must_use]
    pub fn verdict_maps(&self) -> Vec<(Table, ChainName, MapKind)> {
        let filter = |map| (Table::Filter, map, MapKind::Interface);
        let mut maps = vec![filter(chain::FROM_WORKLOAD), filter(chain::TO_WORKLOAD)];
        if self.passes_known_connections() {
            maps.extend([filter(chain::KNOWN_FROM), filter(chain::KNOWN_TO)]);
        }
        if self.config().packet_filter.is_fast() {
            let purposes = [
                (Table::Filter, HostDispatch::Filter),
                (Table::Mangle, HostDispatch::MangleIngress),
                (Table::Mangle, HostDispatch::MangleEgress),
                (Table::Raw, HostDispatch::Raw),
            ];
            for (table, purpose) in purposes {
                maps.extend(purpose.roots().iter().map(|(root, ..)| (table, *root, MapKind::Interface)));
            }
            if self.config().ipvs.is_some() {
                maps.push(filter(chain::SET_ENDPOINT_MARK));
                maps.push((Table::Filter, chain::FROM_ENDPOINT_MARK, MapKind::Mark));
            }
        }
        maps
    }

    /// Returns the members of a table's verdict maps for interfaces with host endpoints; none if
    /// the layout has no such maps.
    #[must_use]
    pub fn host_maps(
        &self,
        purpose: HostDispatch,
        interfaces: impl IntoIterator<Item = InterfaceName>,
    ) -> Vec<(ChainName, MapKey, MapVerdict)> {
        if !self.config().packet_filter.is_fast() {
            return Vec::new();
        }
        let mut members = Vec::new();
        for interface in interfaces {
            let key = MapKey::Interface(interface);
            members.extend(
                purpose.roots().iter().map(|(root, _, target)| {
                    (*root, key, MapVerdict::Goto(endpoint_chain(*target, interface.as_str())))
                }),
            );
            if purpose == HostDispatch::Filter && self.passes_known_connections() {
                members.extend([chain::KNOWN_FROM, chain::KNOWN_TO].map(|map| (map, key, MapVerdict::Accept)));
            }
        }
        members
    }

    /// Returns the dispatch chains of host endpoints for one purpose. `any` is whether an endpoint
    /// for all interfaces applies to interfaces without a separate one. Without it, packets of
    /// other interfaces are left alone.
    #[must_use]
    pub fn host_dispatch(
        &self,
        purpose: HostDispatch,
        interfaces: impl IntoIterator<Item = InterfaceName>,
        any: bool,
    ) -> Vec<Chain> {
        use EndpointChain::{FromHost, ToHost};
        use Side::{Destination, Source};

        let is_fast = self.config().packet_filter.is_fast();
        // Maps list them all instead.
        let bins = Bins::new(interfaces.into_iter().filter(|_| !is_fast));
        let otherwise = |target| {
            let any = any.then(|| Action::Goto(endpoint_chain(target, host_endpoint(&HostInterface::All))));
            any.map(Rule::new).into_iter().collect::<Vec<Rule>>()
        };
        let mut chains = Vec::new();
        match purpose {
            HostDispatch::Filter => {
                for (root, side, target) in purpose.roots() {
                    chains.extend(bins.tree(*root, *side, *target, &otherwise(*target)));
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
        if is_fast {
            for (root, side, _) in purpose.roots() {
                let asking = chains.iter_mut().filter(|chain| chain.name == *root);
                asking.for_each(|chain| chain.rules.insert(0, by_map(*root, *side)));
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
        // In sorted order, the common prefix of the first and the last is common to all.
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

    /// Returns child chains and, last, the root. `end` has the rules for packets of other
    /// interfaces.
    fn tree(&self, root: ChainName, side: Side, target: EndpointChain, end: &[Rule]) -> Vec<Chain> {
        let (mut chains, mut rules) = self.branches(root, "", side, target, end);
        rules.extend_from_slice(end);
        chains.push(Chain::new(root, rules));
        chains
    }

    /// Returns child chains, and the rules of the root that lead to them or directly to an
    /// endpoint.
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
                    // A goto: nothing else in the root can match, so `end` is repeated in the
                    // child.
                    let below = bin.iter().map(exact).chain(end.iter().cloned()).collect();
                    chains.push(Chain::new(child, below));
                    rules.push(Rule::when(by_interface(side, prefix), Action::Goto(child)));
                }
                None => rules.extend(bin.iter().map(exact)),
            }
        }
        (chains, rules)
    }

    /// Returns the beginning of a name that determines its bin.
    fn bin<'a>(&self, name: &'a InterfaceName) -> &'a str {
        let name = name.as_str();
        &name[..name.len().min(self.common + 1)]
    }

    /// Returns the child chain of a bin and the pattern that leads there; `None` for a single name,
    /// or if the chain or the pattern has no legal name.
    fn child(&self, root: ChainName, infix: &str, bin: &[InterfaceName]) -> Option<(ChainName, InterfacePattern)> {
        let [first, _, ..] = bin else { return None };
        let prefix = self.bin(first);
        let next = &prefix[self.common..];
        let child = ChainName::new(&format!("{root}{infix}-{next}")).ok()?;
        Some((child, InterfacePattern::prefix(InterfaceName::new(prefix).ok()?)))
    }
}

/// Returns the rule that looks up the map with the chain's name.
pub(crate) fn by_map(map: ChainName, side: Side) -> Rule {
    let by = match side {
        Side::Source => DispatchBy::InInterface,
        Side::Destination => DispatchBy::OutInterface,
    };
    Rule::new(Action::Dispatch { by, map })
}

fn by_interface(side: Side, pattern: InterfacePattern) -> Matches {
    match side {
        Side::Source => Matches::new().in_interface(pattern),
        Side::Destination => Matches::new().out_interface(pattern),
    }
}

#[cfg(test)]
mod tests;
