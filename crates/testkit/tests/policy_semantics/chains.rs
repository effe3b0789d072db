//! Everything that the renderer makes of a state, ready to be walked.

use tortie_iptables::{Chain, ChainName, Table};
use tortie_model::{
    AdminState, Direction, Family, IfaceName,
    desired::{Members, TierPolicies},
};
use tortie_rules::{
    Marks, PolicyGroup, Renderer, RuleProblem, RulesConfig, TierGroups,
    names::{EndpointChain, chain, endpoint_chain, ip_set_name},
};
use tortie_testkit::{
    evaluator::{DesiredState, Layer, Missing, Verdict},
    packet::Packet,
    walker::Tables,
};

use crate::scenario::{HOST_INTERFACE, WORKLOAD_INTERFACE, host_name, workload_id};

/// Something to ask about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// The workload's policies.
    Workload(Direction),
    /// The same workload while it is administratively down.
    InactiveWorkload,
    /// One layer of the host endpoint.
    Host(Layer, Direction),
    /// The host endpoint's egress policy for packets whose destination was translated.
    TranslatedFromHost,
    /// What becomes of the workload's packets to the host.
    WorkloadToHost,
}

impl Question {
    pub(crate) fn is_untracked(self) -> bool {
        matches!(self, Self::Host(Layer::Untracked, _))
    }

    /// What the policies mean.
    pub(crate) fn evaluate(self, state: &DesiredState, packet: &Packet) -> Result<Verdict, Missing> {
        match self {
            Self::Workload(direction) => state.workload_verdict(&workload_id(AdminState::Active), direction, packet),
            Self::InactiveWorkload => {
                state.workload_verdict(&workload_id(AdminState::Inactive), Direction::Ingress, packet)
            }
            Self::Host(layer, direction) => state.host_verdict(&host_name(), layer, direction, packet),
            Self::WorkloadToHost => state.workload_verdict(&workload_id(AdminState::Active), Direction::Egress, packet),
            Self::TranslatedFromHost => state.host_verdict(&host_name(), Layer::Normal, Direction::Egress, packet),
        }
    }
}

/// Felix's defaults without failsafe ports, of which the evaluator knows nothing.
pub(crate) fn config() -> RulesConfig {
    let mut config = RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).unwrap();
    config.failsafe_inbound.clear();
    config.failsafe_outbound.clear();
    config
}

/// Rules of a state that cannot be rendered as they are, in either family.
pub(crate) fn problems(config: &RulesConfig, state: &DesiredState) -> Vec<RuleProblem> {
    let renderer = Renderer::new(config.clone());
    let of_family = |family| {
        let policies = state.policies.iter().filter_map(|(id, policy)| renderer.policy(id, policy, family));
        let profiles = state.profiles.iter().map(|(name, profile)| renderer.profile(name, profile, family));
        policies.chain(profiles).flat_map(|chains| chains.problems).collect::<Vec<_>>()
    };
    Family::ALL.into_iter().flat_map(of_family).collect()
}

/// The tables of both families.
pub(crate) struct Chains {
    families: [FamilyTables; 2],
}

struct FamilyTables {
    filter: Tables,
    mangle: Tables,
    raw: Tables,
    /// The filter table while the workload is down.
    inactive: Tables,
}

impl Chains {
    pub(crate) fn render(config: &RulesConfig, state: &DesiredState, spoil: impl Fn(Chain) -> Chain) -> Self {
        let renderer = Renderer::new(config.clone());
        Self { families: Family::ALL.map(|family| FamilyTables::render(&renderer, state, family, &spoil)) }
    }

    /// Every table of every family.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (Family, Table, &Tables)> {
        Family::ALL.into_iter().zip(&self.families).flat_map(|(family, tables)| {
            [(Table::Filter, &tables.filter), (Table::Mangle, &tables.mangle), (Table::Raw, &tables.raw)]
                .map(|(table, tables)| (family, table, tables))
        })
    }

    /// The table and the chain that answer a question.
    pub(crate) fn enter(&self, question: Question, ipv4: bool) -> (&Tables, ChainName) {
        use Direction::{Egress, Ingress};
        let family = &self.families[usize::from(!ipv4)];
        let workload = |chain| endpoint_chain(chain, WORKLOAD_INTERFACE);
        let host = |chain| endpoint_chain(chain, HOST_INTERFACE);
        match question {
            Question::Workload(Ingress) => (&family.filter, workload(EndpointChain::ToWorkload)),
            Question::Workload(Egress) => (&family.filter, workload(EndpointChain::FromWorkload)),
            Question::InactiveWorkload => (&family.inactive, workload(EndpointChain::ToWorkload)),
            Question::Host(Layer::Normal, Ingress) => (&family.filter, host(EndpointChain::FromHost)),
            Question::Host(Layer::Normal, Egress) => (&family.filter, host(EndpointChain::ToHost)),
            Question::Host(Layer::Forward, Ingress) => (&family.filter, host(EndpointChain::FromHostForward)),
            Question::Host(Layer::Forward, Egress) => (&family.filter, host(EndpointChain::ToHostForward)),
            Question::Host(Layer::Untracked, Ingress) => (&family.raw, host(EndpointChain::FromHost)),
            Question::Host(Layer::Untracked, Egress) => (&family.raw, host(EndpointChain::ToHost)),
            Question::Host(Layer::PreDnat, _) => (&family.mangle, host(EndpointChain::FromHost)),
            Question::WorkloadToHost => (&family.filter, chain::WORKLOAD_TO_HOST),
            Question::TranslatedFromHost => (&family.mangle, host(EndpointChain::ToHost)),
        }
    }
}

impl FamilyTables {
    fn render(renderer: &Renderer, state: &DesiredState, family: Family, spoil: &impl Fn(Chain) -> Chain) -> Self {
        let workload = &state.workloads[&workload_id(AdminState::Active)];
        let host = &state.hosts[&host_name()];
        let groups = |tiers: &[TierPolicies]| group(state, tiers);
        let workload_chains = |admin_state| {
            let interface = IfaceName::from(WORKLOAD_INTERFACE);
            let tiers = groups(&workload.tiers);
            renderer.workload_endpoint(&interface, admin_state, &tiers, &workload.endpoint.profiles, None)
        };
        let interface = IfaceName::from(HOST_INTERFACE);
        let tiers = groups(&host.tiers);
        let profiles = &host.endpoint.profiles;
        let host_filter = renderer.host_endpoint_filter(&interface, &tiers, &groups(&host.forward_tiers), profiles);
        let build = |table, endpoint_chains: Vec<Chain>| {
            let mut all = shared_chains(renderer, state, family);
            all.extend(renderer.fixed_chains(table, family));
            all.extend(endpoint_chains);
            tables(all.into_iter().map(spoil), state, family)
        };
        let filter = |admin_state| {
            let dispatch = renderer.workload_dispatch([WORKLOAD_INTERFACE.parse().unwrap()]);
            let of_endpoints = workload_chains(admin_state).into_iter().chain(host_filter.iter().cloned());
            build(Table::Filter, of_endpoints.chain(dispatch).collect())
        };
        Self {
            filter: filter(AdminState::Active),
            inactive: filter(AdminState::Inactive),
            mangle: build(
                Table::Mangle,
                vec![
                    renderer.host_endpoint_mangle_egress(&interface, &tiers, profiles),
                    renderer.host_endpoint_mangle_ingress(&interface, &groups(&host.pre_dnat_tiers)),
                ],
            ),
            raw: build(Table::Raw, renderer.host_endpoint_raw(&interface, &groups(&host.untracked_tiers)).to_vec()),
        }
    }
}

/// Policies, profiles and groups.
fn shared_chains(renderer: &Renderer, state: &DesiredState, family: Family) -> Vec<Chain> {
    let mut all = Vec::new();
    for (id, policy) in &state.policies {
        if let Some(chains) = renderer.policy(id, policy, family) {
            all.extend([chains.inbound, chains.outbound]);
        }
    }
    for (name, profile) in &state.profiles {
        let chains = renderer.profile(name, profile, family);
        all.extend([chains.inbound, chains.outbound]);
    }
    let workloads = state.workloads.values().map(|endpoint| &endpoint.tiers);
    let hosts = state.hosts.values().flat_map(|endpoint| {
        [&endpoint.tiers, &endpoint.forward_tiers, &endpoint.untracked_tiers, &endpoint.pre_dnat_tiers]
    });
    for tier in workloads.chain(hosts).flat_map(|tiers| group(state, tiers)) {
        all.extend(tier.ingress.iter().chain(&tier.egress).map(|group| renderer.policy_group(group)));
    }
    all
}

fn group(state: &DesiredState, tiers: &[TierPolicies]) -> Vec<TierGroups> {
    let selector_of = |id| state.policies.get(id).map(|policy| &*policy.selector);
    tiers
        .iter()
        .map(|tier| TierGroups {
            name: tier.name.clone(),
            default_action: tier.default_action,
            ingress: PolicyGroup::of_tier(Direction::Ingress, &tier.ingress, selector_of),
            egress: PolicyGroup::of_tier(Direction::Egress, &tier.egress, selector_of),
        })
        .collect()
}

fn tables(chains: impl Iterator<Item = Chain>, state: &DesiredState, family: Family) -> Tables {
    let mut tables = Tables::new();
    chains.for_each(|chain| tables.add_chain(chain));
    for (id, members) in &state.ip_sets {
        let of_family = match members {
            Members::Nets(nets) => Members::Nets(nets.iter().filter(|net| net.family() == family).copied().collect()),
            Members::IpPorts(members) => {
                let ipv4 = family == Family::V4;
                Members::IpPorts(members.iter().filter(|member| member.address().is_ipv4() == ipv4).copied().collect())
            }
        };
        tables.add_set(ip_set_name(family, id).unwrap(), of_family);
    }
    tables
}
