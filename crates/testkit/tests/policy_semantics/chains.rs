//! All chains that the renderer creates for a state, as input of the walker.

use tortie_iptables::{Chain, ChainName, IpSetName, Layout, Table};
use tortie_model::{
    AdminState, Cidr, Direction, Family,
    desired::{Members, TierPolicies},
};
use tortie_nftables::{Sets, expand, in_order, jumps, lay_out};
use tortie_rules::{
    Marks, Renderer, RuleProblem, RulesConfig, TierGroups,
    names::{EndpointChain, chain, endpoint_chain, ip_set_name},
};
use tortie_testkit::{
    evaluator::{DesiredState, Layer, Missing, OracleVerdict},
    packet::Packet,
    walker::Tables,
};

use crate::scenario::{HOST_INTERFACE, WORKLOAD_INTERFACE, host_name, workload_id};

/// A question about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// The workload's policies.
    Workload(Direction),
    /// The same workload while it is administratively down.
    InactiveWorkload,
    /// One layer of the host endpoint.
    Host(Layer, Direction),
    /// The host endpoint's egress policy for packets after DNAT.
    TranslatedFromHost,
    /// Verdict for the workload's packets to the host.
    WorkloadToHost,
}

impl Question {
    pub(crate) fn is_untracked(self) -> bool {
        matches!(self, Self::Host(Layer::Untracked, _))
    }

    /// Returns the verdict of the policies.
    pub(crate) fn evaluate(self, state: &DesiredState, packet: &Packet) -> Result<OracleVerdict, Missing> {
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

/// Returns Felix's defaults without failsafe ports, which the evaluator does not implement.
pub(crate) fn config() -> RulesConfig {
    let mut config = RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).unwrap();
    config.failsafe_inbound.clear();
    config.failsafe_outbound.clear();
    config
}

/// Returns the rules of a state that cannot be rendered unchanged, in either family.
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
        Self::render_within(usize::MAX, config, state, spoil)
    }

    /// Renders with a limit on the bytes of a chain's layout.
    pub(crate) fn render_within(
        room: usize,
        config: &RulesConfig,
        state: &DesiredState,
        spoil: impl Fn(Chain) -> Chain,
    ) -> Self {
        let renderer = Renderer::new(config.clone());
        Self { families: Family::ALL.map(|family| FamilyTables::render(&renderer, state, family, room, &spoil)) }
    }

    /// Returns every table of every family.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (Family, Table, &Tables)> {
        Family::ALL.into_iter().zip(&self.families).flat_map(|(family, tables)| {
            [(Table::Filter, &tables.filter), (Table::Mangle, &tables.mangle), (Table::Raw, &tables.raw)]
                .map(|(table, tables)| (family, table, tables))
        })
    }

    /// Returns the tables and the chain for a question.
    pub(crate) fn enter(&self, question: Question, ipv4: bool) -> (&Tables, ChainName) {
        let family = &self.families[usize::from(!ipv4)];
        let (layer, chain) = question.place();
        let tables = match layer {
            Table::Raw => &family.raw,
            Table::Mangle => &family.mangle,
            _ if question == Question::InactiveWorkload => &family.inactive,
            _ => &family.filter,
        };
        (tables, chain)
    }
}

impl Question {
    /// Returns the layer and the chain for a question.
    pub(crate) fn place(self) -> (Table, ChainName) {
        use Direction::{Egress, Ingress};
        let workload = |chain| endpoint_chain(chain, WORKLOAD_INTERFACE);
        let host = |chain| endpoint_chain(chain, HOST_INTERFACE);
        match self {
            Self::Workload(Ingress) | Self::InactiveWorkload => (Table::Filter, workload(EndpointChain::ToWorkload)),
            Self::Workload(Egress) => (Table::Filter, workload(EndpointChain::FromWorkload)),
            Self::Host(Layer::Normal, Ingress) => (Table::Filter, host(EndpointChain::FromHost)),
            Self::Host(Layer::Normal, Egress) => (Table::Filter, host(EndpointChain::ToHost)),
            Self::Host(Layer::Forward, Ingress) => (Table::Filter, host(EndpointChain::FromHostForward)),
            Self::Host(Layer::Forward, Egress) => (Table::Filter, host(EndpointChain::ToHostForward)),
            Self::Host(Layer::Untracked, Ingress) => (Table::Raw, host(EndpointChain::FromHost)),
            Self::Host(Layer::Untracked, Egress) => (Table::Raw, host(EndpointChain::ToHost)),
            Self::Host(Layer::PreDnat, _) => (Table::Mangle, host(EndpointChain::FromHost)),
            Self::WorkloadToHost => (Table::Filter, chain::WORKLOAD_TO_HOST),
            Self::TranslatedFromHost => (Table::Mangle, host(EndpointChain::ToHost)),
        }
    }
}

impl FamilyTables {
    fn render(
        renderer: &Renderer,
        state: &DesiredState,
        family: Family,
        room: usize,
        spoil: &impl Fn(Chain) -> Chain,
    ) -> Self {
        let build = |table, admin_state| {
            let all: Vec<Chain> = layer(renderer, state, family, table, admin_state).into_iter().map(spoil).collect();
            match renderer.config().packet_filter.layout() {
                Layout::Felix => tables(all, state, family),
                Layout::Fast => laid_out(&all, table, state, family, room),
            }
        };
        Self {
            filter: build(Table::Filter, AdminState::Active),
            inactive: build(Table::Filter, AdminState::Inactive),
            mangle: build(Table::Mangle, AdminState::Active),
            raw: build(Table::Raw, AdminState::Active),
        }
    }
}

/// Returns all chains of a layer, with the workload in this administrative state.
pub(crate) fn layer(
    renderer: &Renderer,
    state: &DesiredState,
    family: Family,
    table: Table,
    admin_state: AdminState,
) -> Vec<Chain> {
    let workload = &state.workloads[&workload_id(AdminState::Active)];
    let host = &state.hosts[&host_name()];
    let groups = |tiers: &[TierPolicies]| group(state, tiers);
    let interface = HOST_INTERFACE.parse().unwrap();
    let tiers = groups(&host.tiers);
    let profiles = &host.endpoint.profiles;
    let mut all = shared_chains(renderer, state, family);
    all.extend(renderer.fixed_chains(table, family));
    match table {
        Table::Filter => {
            let cali = WORKLOAD_INTERFACE.parse().unwrap();
            let (tiers_of_pod, profiles_of_pod) = (groups(&workload.tiers), &workload.endpoint.profiles);
            all.extend(renderer.workload_endpoint(cali, admin_state, &tiers_of_pod, profiles_of_pod, None));
            all.extend(renderer.host_endpoint_filter(interface, &tiers, &groups(&host.forward_tiers), profiles));
            all.extend(renderer.workload_dispatch([cali]));
        }
        Table::Mangle => all.extend([
            renderer.host_endpoint_mangle_egress(interface, &tiers, profiles),
            renderer.host_endpoint_mangle_ingress(interface, &groups(&host.pre_dnat_tiers)),
        ]),
        Table::Raw => all.extend(renderer.host_endpoint_raw(interface, &groups(&host.untracked_tiers))),
        Table::Nat => {}
    }
    all
}

/// Returns the chains of policies, profiles and groups.
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
    tiers.iter().map(|tier| TierGroups::of(tier, selector_of)).collect()
}

/// Returns the chains in the layout of an nftables table.
fn laid_out(chains: &[Chain], table: Table, state: &DesiredState, family: Family, room: usize) -> Tables {
    let rules_of =
        |name| chains.iter().filter(|chain| chain.name == name).flat_map(|chain| chain.rules.clone()).collect();
    let sets = SetsOf { state, family };
    let (mut all, mut maps, mut unions) = (Vec::new(), Vec::new(), Vec::new());
    for chain in chains {
        let expanded = (room > 0).then(|| expand(chain, rules_of));
        let laid_out = expanded.and_then(|chain| lay_out(&chain, table, family, &sets, room).ok());
        let laid_out = laid_out.unwrap_or_else(|| in_order(&jumps(chain, rules_of), table, family, &sets));
        all.push(Chain::new(chain.name, laid_out.rules));
        all.extend(laid_out.parts);
        maps.extend(laid_out.maps);
        unions.extend(laid_out.unions);
    }
    let mut tables = tables(all, state, family);
    for (map, members) in maps {
        members.into_iter().for_each(|(key, verdict)| tables.add_to_map(map, key, verdict));
    }
    for (name, of) in unions {
        let mut members: Vec<Cidr> = of.nets.iter().copied().collect();
        of.sets.iter().for_each(|set| sets.members(*set, &mut |member| members.push(member)));
        tables.add_set(name, Members::Nets(members.into_iter().collect()));
    }
    tables
}

/// Sets of a state, for the layout.
struct SetsOf<'a> {
    state: &'a DesiredState,
    family: Family,
}

impl Sets for SetsOf<'_> {
    fn has(&self, set: IpSetName) -> bool {
        self.state.ip_sets.keys().any(|id| ip_set_name(self.family, id) == Ok(set))
    }

    fn members(&self, set: IpSetName, take: &mut dyn FnMut(Cidr)) {
        let id = self.state.ip_sets.keys().find(|id| ip_set_name(self.family, id) == Ok(set)).unwrap();
        match &self.state.ip_sets[id] {
            Members::Nets(nets) => nets.iter().filter(|net| net.family() == self.family).copied().for_each(take),
            Members::IpPorts(_) | Members::Domains(_) => panic!("another set among those of addresses"),
        }
    }
}

fn tables(chains: Vec<Chain>, state: &DesiredState, family: Family) -> Tables {
    let mut tables = Tables::new();
    chains.into_iter().for_each(|chain| tables.add_chain(chain));
    for (id, members) in &state.ip_sets {
        let of_family = match members {
            Members::Nets(nets) => Members::Nets(nets.iter().filter(|net| net.family() == family).copied().collect()),
            Members::IpPorts(members) => {
                let ipv4 = family == Family::V4;
                Members::IpPorts(members.iter().filter(|member| member.address().is_ipv4() == ipv4).copied().collect())
            }
            Members::Domains(_) => continue,
        };
        tables.add_set(ip_set_name(family, id).unwrap(), of_family);
    }
    tables
}
