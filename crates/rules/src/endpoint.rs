//! The chains of one endpoint: order of tiers, policies and profiles, and the action at the end
//! (`felix/rules/endpoints.go`).

use tortie_model::{AdminState, Direction, HostInterface, InterfaceName, ProfileName, QosControls, TierDefaultAction};
use tortie_netfilter::{
    Action, Chain, ChainName, ConntrackStates, MaskedMark, Matches, PacketRate, PortList, Protocol, Rule,
};

use crate::groups::{PolicyGroup, TierGroups};
use crate::names::{EndpointChain, chain, endpoint_chain, full_endpoint_chain, host_endpoint, profile_chain};
use crate::nflog::{PrefixVerdict, end_of_tier_prefix, nflog, no_profile_prefix};
use crate::renderer::Renderer;

/// Stage of a packet's path at which a chain's policies apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// To or from the endpoint; profiles come last.
    Normal,
    /// Through the endpoint.
    Forward,
    /// Before connection tracking.
    Untracked,
    /// Before destination NAT.
    PreDnat,
}

impl Stage {
    /// Reports whether the end of a tier decides. In the other stages, later policy may still apply
    /// to undecided packets.
    const fn ends_tiers(self) -> bool {
        matches!(self, Self::Normal | Self::Forward)
    }
}

/// Properties that distinguish endpoint chains.
struct Kind {
    chain: EndpointChain,
    stage: Stage,
    direction: Direction,
    failsafe: Option<ChainName>,
    allow: Action,
    /// Whether tunnel packets that the endpoint sends itself are denied: they could carry other
    /// packets past policy.
    guards_encapsulation: bool,
}

/// Policies, profiles and limits of an endpoint.
#[derive(Clone, Copy)]
struct EndpointPolicies<'a> {
    tiers: &'a [TierGroups],
    profiles: &'a [ProfileName],
    qos: Option<&'a QosControls>,
}

impl Renderer {
    /// Returns the `filter` chains of a workload: to it, and from it.
    #[must_use]
    pub fn workload_endpoint(
        &self,
        interface: InterfaceName,
        state: AdminState,
        tiers: &[TierGroups],
        profiles: &[ProfileName],
        qos: Option<&QosControls>,
    ) -> [Chain; 2] {
        let kinds = [
            Kind {
                chain: EndpointChain::ToWorkload,
                stage: Stage::Normal,
                direction: Direction::Ingress,
                failsafe: None,
                allow: self.config().filter_allow.action(),
                guards_encapsulation: false,
            },
            Kind {
                chain: EndpointChain::FromWorkload,
                stage: Stage::Normal,
                direction: Direction::Egress,
                failsafe: None,
                allow: self.config().filter_allow.action(),
                guards_encapsulation: true,
            },
        ];
        match state {
            AdminState::Active => {
                kinds.map(|kind| self.endpoint(&kind, interface.as_str(), EndpointPolicies { tiers, profiles, qos }))
            }
            AdminState::Inactive => kinds.map(|kind| {
                let rules = vec![Rule::new(self.deny()).comment("Endpoint admin disabled")];
                chain_of(kind.chain, interface.as_str(), rules)
            }),
        }
    }

    /// Returns the `filter` chains of a host endpoint: to it and from it, then forwarded to it and
    /// from it.
    #[must_use]
    pub fn host_endpoint_filter(
        &self,
        interface: HostInterface,
        tiers: &[TierGroups],
        forward_tiers: &[TierGroups],
        profiles: &[ProfileName],
    ) -> [Chain; 4] {
        let allow = || self.config().filter_allow.action();
        let normal = EndpointPolicies { tiers, profiles, qos: None };
        let forward = EndpointPolicies { tiers: forward_tiers, profiles: &[], qos: None };
        let host = |chain, stage, direction, failsafe, policies| {
            let kind = Kind { chain, stage, direction, failsafe, allow: allow(), guards_encapsulation: false };
            self.endpoint(&kind, host_endpoint(&interface), policies)
        };
        let (ingress, egress) = (Direction::Ingress, Direction::Egress);
        [
            host(EndpointChain::ToHost, Stage::Normal, egress, Some(chain::FAILSAFE_OUT), normal),
            host(EndpointChain::FromHost, Stage::Normal, ingress, Some(chain::FAILSAFE_IN), normal),
            host(EndpointChain::ToHostForward, Stage::Forward, egress, None, forward),
            host(EndpointChain::FromHostForward, Stage::Forward, ingress, None, forward),
        ]
    }

    /// Returns the `mangle` chain of a host endpoint for the host's translated packets. Allowed
    /// packets return, since other programs' changes to the packet may follow.
    #[must_use]
    pub fn host_endpoint_mangle_egress(
        &self,
        interface: HostInterface,
        tiers: &[TierGroups],
        profiles: &[ProfileName],
    ) -> Chain {
        let kind = Kind {
            chain: EndpointChain::ToHost,
            stage: Stage::Normal,
            direction: Direction::Egress,
            failsafe: Some(chain::FAILSAFE_OUT),
            allow: Action::Return,
            guards_encapsulation: false,
        };
        self.endpoint(&kind, host_endpoint(&interface), EndpointPolicies { tiers, profiles, qos: None })
    }

    /// Returns the `mangle` chain of a host endpoint for pre-DNAT policy.
    #[must_use]
    pub fn host_endpoint_mangle_ingress(&self, interface: HostInterface, pre_dnat_tiers: &[TierGroups]) -> Chain {
        let kind = Kind {
            chain: EndpointChain::FromHost,
            stage: Stage::PreDnat,
            direction: Direction::Ingress,
            failsafe: Some(chain::FAILSAFE_IN),
            allow: self.config().mangle_allow.action(),
            guards_encapsulation: false,
        };
        self.endpoint(
            &kind,
            host_endpoint(&interface),
            EndpointPolicies { tiers: pre_dnat_tiers, profiles: &[], qos: None },
        )
    }

    /// Returns the `raw` chains of a host endpoint for untracked policy: to it, and from it.
    #[must_use]
    pub fn host_endpoint_raw(&self, interface: HostInterface, untracked_tiers: &[TierGroups]) -> [Chain; 2] {
        [
            (EndpointChain::ToHost, Direction::Egress, chain::FAILSAFE_OUT),
            (EndpointChain::FromHost, Direction::Ingress, chain::FAILSAFE_IN),
        ]
        .map(|(chain, direction, failsafe)| {
            let kind = Kind {
                chain,
                stage: Stage::Untracked,
                direction,
                failsafe: Some(failsafe),
                allow: Action::Accept,
                guards_encapsulation: false,
            };
            self.endpoint(
                &kind,
                host_endpoint(&interface),
                EndpointPolicies { tiers: untracked_tiers, profiles: &[], qos: None },
            )
        })
    }

    /// Returns the chain that marks a packet with its endpoint's number (IPVS); it is empty for an
    /// endpoint without a number.
    #[must_use]
    pub fn set_endpoint_mark(&self, interface: InterfaceName, mark: Option<MaskedMark>) -> Chain {
        let rules = mark.map(|mark| Rule::new(Action::SetMaskedMark(mark))).into_iter().collect();
        chain_of(EndpointChain::SetMark, interface.as_str(), rules)
    }

    fn endpoint(&self, kind: &Kind, interface: &str, policies: EndpointPolicies<'_>) -> Chain {
        let qos = policies.qos.map(|qos| QosLimits::new(qos, kind.direction));
        let mut rules = Vec::new();
        if let Some(rate) = qos.as_ref().and_then(|qos| qos.packet_rate) {
            self.limit_packet_rate(kind.direction, rate, &mut rules);
        }
        if kind.stage != Stage::Untracked {
            self.known_connections(&kind.allow, &mut rules);
        }
        if let Some(count) = qos.as_ref().and_then(|qos| qos.connections) {
            rules.push(limit_connections(kind.direction, count));
        }
        rules.extend(kind.failsafe.map(|failsafe| Rule::new(Action::Jump(failsafe))));
        rules.push(Rule::new(Action::ClearMark(self.marks().verdict())));
        if kind.guards_encapsulation {
            self.encapsulation_guards(&mut rules);
        }
        for tier in policies.tiers {
            self.tier(kind, tier, &mut rules);
        }
        if kind.stage == Stage::Forward && policies.tiers.is_empty() {
            rules.extend([
                Rule::new(Action::SetMark(self.marks().accept)).comment("Allow forwarded traffic by default"),
                Rule::new(Action::Return).comment("Return for accepted forward traffic"),
            ]);
        }
        if kind.stage == Stage::Normal {
            self.profiles(kind.direction, policies.profiles, &mut rules);
        }
        chain_of(kind.chain, interface, rules)
    }

    /// Returns the chain that only limits a workload's packets and connections, in the direction of
    /// an endpoint chain; `None` without a limit.
    pub(crate) fn workload_limit(
        &self,
        chain: EndpointChain,
        direction: Direction,
        interface: InterfaceName,
        qos: &QosControls,
    ) -> Option<Chain> {
        let limits = QosLimits::new(qos, direction);
        let mut rules = Vec::new();
        if let Some(rate) = limits.packet_rate {
            self.limit_packet_rate(direction, rate, &mut rules);
        }
        if let Some(count) = limits.connections {
            let known = Matches::new().conntrack(ConntrackStates::RELATED_OR_ESTABLISHED);
            rules.extend([Rule::when(known, Action::Return), limit_connections(direction, count)]);
        }
        (!rules.is_empty()).then(|| chain_of(chain, interface.as_str(), rules))
    }

    fn limit_packet_rate(&self, direction: Direction, limit: PacketRate, rules: &mut Vec<Rule>) {
        let within = self.marks().scratch0;
        let word = word(direction);
        if self.config().packet_filter.has_maps() {
            let comment = format!("Drop packets over {word} packet rate limit");
            rules.push(Rule::new(Action::DropAboveRate(limit)).comment(comment));
            return;
        }
        let clear = || Rule::new(Action::ClearMark(within)).comment(format!("Clear {word} packet rate limit mark"));
        rules.extend([
            clear(),
            Rule::new(Action::MarkWithinRate { limit, mark: within })
                .comment(format!("Mark packets within {word} packet rate limit")),
            Rule::when(Matches::new().mark_not_set(within), Action::Drop)
                .comment(format!("Drop packets over {word} packet rate limit")),
            clear(),
        ]);
    }

    /// Replies need no policy; packets that belong nowhere get none.
    fn known_connections(&self, allow: &Action, rules: &mut Vec<Rule>) {
        let known = || Matches::new().conntrack(ConntrackStates::RELATED_OR_ESTABLISHED);
        if *allow != Action::Accept {
            rules.push(Rule::when(known(), Action::SetMark(self.marks().accept)));
        }
        rules.push(Rule::when(known(), allow.clone()));
        if self.config().deny_invalid_conntrack {
            rules.push(Rule::when(Matches::new().conntrack(ConntrackStates::INVALID), self.deny()));
        }
    }

    fn encapsulation_guards(&self, rules: &mut Vec<Rule>) {
        const UDP: Protocol = Protocol::Number(17);
        const IPIP: Protocol = Protocol::Number(4);
        let config = self.config();
        if !config.vxlan_from_workloads {
            let vxlan = Matches::new().protocol(UDP).destination_ports(PortList::single(config.vxlan_port));
            let comment = self.guard_comment("VXLAN encapped packets originating in workloads");
            rules.push(Rule::when(vxlan, self.deny()).comment(comment));
        }
        if !config.ipip_from_workloads {
            let comment = self.guard_comment("IPinIP encapped packets originating in workloads");
            rules.push(Rule::when(Matches::new().protocol(IPIP), self.deny()).comment(comment));
        }
    }

    fn tier(&self, kind: &Kind, tier: &TierGroups, rules: &mut Vec<Rule>) {
        let groups = tier.groups(kind.direction);
        if groups.is_empty() {
            return;
        }
        let marks = self.marks();
        let not_passed = || Matches::new().mark_clear(marks.pass);
        rules.push(Rule::new(Action::ClearMark(marks.pass)).comment(format!("Start of tier {}", tier.name)));

        let mut anything_enforced = false;
        for target in groups.iter().flat_map(PolicyGroup::targets) {
            anything_enforced = true;
            rules.push(Rule::when(not_passed(), Action::Jump(target)));
            if kind.stage == Stage::Untracked {
                rules.push(self.if_accepted(Action::NoTrack));
            }
            rules.push(self.if_accepted(Action::Return).comment("Return if policy accepted"));
        }

        if !kind.stage.ends_tiers() {
            return;
        }
        // A tier whose policies are all staged only previews, and so does its end.
        let denies = anything_enforced && tier.default_action != Some(TierDefaultAction::Pass);
        if self.config().flow_logs {
            let verdict = if denies { PrefixVerdict::Deny } else { PrefixVerdict::Pass };
            let prefix = end_of_tier_prefix(verdict, kind.direction, &tier.name);
            rules.push(Rule::when(not_passed(), nflog(kind.direction, &prefix)));
        }
        if denies {
            let own = tier.default_action.and_then(TierDefaultAction::deny_action);
            let comment = format!("End of tier {}. {} if no policies passed packet", tier.name, self.deny_word(own));
            rules.push(Rule::when(not_passed(), self.deny_by_policy(own)).comment(comment));
        }
    }

    fn profiles(&self, direction: Direction, profiles: &[ProfileName], rules: &mut Vec<Rule>) {
        for profile in profiles {
            rules.extend([
                Rule::new(Action::Jump(profile_chain(direction, profile))),
                self.if_accepted(Action::Return).comment("Return if profile accepted"),
            ]);
        }
        if self.config().flow_logs {
            rules.push(Rule::new(nflog(direction, &no_profile_prefix(direction))));
        }
        let comment = format!("{} if no profiles matched", self.deny_word(None));
        rules.push(Rule::new(self.deny_by_policy(None)).comment(comment));
    }
}

/// The limits of one direction, brought into the kernel's range: a limit that is not positive is
/// none.
struct QosLimits {
    packet_rate: Option<PacketRate>,
    connections: Option<u32>,
}

impl QosLimits {
    fn new(qos: &QosControls, direction: Direction) -> Self {
        /// The kernel's burst if none is given.
        const DEFAULT_BURST: u16 = 5;

        let (rate, burst, connections) = match direction {
            Direction::Ingress => (qos.ingress_packet_rate, qos.ingress_packet_burst, qos.ingress_max_connections),
            Direction::Egress => (qos.egress_packet_rate, qos.egress_packet_burst, qos.egress_max_connections),
        };
        // Larger values are capped at the kernel's maximum.
        let packets = |n: i64| (n > 0).then(|| u16::try_from(n).unwrap_or(u16::MAX).min(PacketRate::MAX));
        Self {
            packet_rate: packets(rate).and_then(|rate| PacketRate::new(rate, packets(burst).unwrap_or(DEFAULT_BURST))),
            connections: (connections > 0).then(|| u32::try_from(connections).unwrap_or(u32::MAX)),
        }
    }
}

/// Reports whether every packet in a direction counts towards a limit.
pub(crate) fn has_packet_rate(qos: Option<&QosControls>, direction: Direction) -> bool {
    qos.is_some_and(|qos| QosLimits::new(qos, direction).packet_rate.is_some())
}

fn limit_connections(direction: Direction, count: u32) -> Rule {
    let comment = format!("Reject connections over {} connection limit", word(direction));
    Rule::new(Action::RejectConnectionsAbove(count)).comment(comment)
}

fn chain_of(kind: EndpointChain, interface: &str, mut rules: Vec<Rule>) -> Chain {
    rules.shrink_to_fit();
    let (name, full_name) = (endpoint_chain(kind, interface), full_endpoint_chain(kind, interface));
    Chain { name, full_name, rules }
}

/// Returns the name of a direction in comments.
pub(crate) const fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

#[cfg(test)]
mod tests;
