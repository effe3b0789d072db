//! Tables and IP sets of all families, as edited by the managers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use tortie_ipsets::{IpSets, Member, MemberError, Report, SetSpec, SetType, UpdateError};
use tortie_iptables::{
    Backend, Chain, ChainName, HookPosition, InterfaceName, MapKey, MapKind, MapVerdict, Match, Programs, Purpose,
    Reconciler, ReconcilerConfig, Rule, StandIn, Table,
};
use tortie_model::desired::Members;
use tortie_model::{Budget, Family, IpSetId};
use tortie_nftables::{Table as NftablesTable, TableConfig, TableId};
use tortie_rules::names::{EndpointChain, chain, endpoint_chain, ip_set_name};
use tortie_rules::{Hook, PolicyBackend, Renderer, arp_dispatch, arp_hook, arp_workload};

use crate::config::{DataplaneConfig, IptablesConfig};
use crate::set_defects::{SetDefect, SetDefects};
use crate::stand_ins::HostStandIns;

/// Desired state of the kernel, except routes and sysctls.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) families: Vec<FamilyOutput>,
    /// Tables of implementations that are no longer in use.
    pub(crate) sweeps: Vec<(Family, Reconciler)>,
    /// Table of the ARP replies that the node suppresses.
    pub(crate) arp: Option<NftablesTable>,
    /// The sets of domains, by the sets whose members a learner keeps for them.
    domain_sets: BTreeMap<IpSetId, IpSetId>,
    max_set_size: u32,
}

/// The desired state of one family.
#[derive(Debug)]
pub(crate) struct FamilyOutput {
    pub(crate) family: Family,
    pub(crate) tables: Vec<Reconciler>,
    pub(crate) ip_sets: IpSets,
    /// Replaces `tables` and `ip_sets`, which are then empty. Sparse where eBPF programs enforce
    /// policy.
    pub(crate) nftables: Option<NftablesTable>,
    host_stand_ins: HostStandIns,
    needs: Option<Needs>,
}

/// Uses of the tables where eBPF programs enforce policy. Kernel chains lead to our chains only in
/// tables that are needed.
#[derive(Debug, Default)]
struct Needs {
    /// Chains of each table that do more than lead to other chains.
    active: BTreeSet<(Table, ChainName)>,
    /// Chains of each table that refer to sets.
    with_sets: BTreeSet<(Table, ChainName)>,
    hooks: Vec<Hook>,
    hooked: BTreeSet<Table>,
}

impl Output {
    pub(crate) fn new(config: &DataplaneConfig) -> Self {
        let is_by_programs = config.rules.policy_backend == PolicyBackend::Programs;
        let family_output = |family: &Family| FamilyOutput {
            family: *family,
            tables: match config.nftables {
                Some(_) => Vec::new(),
                None => Table::ALL.map(|table| reconciler(&config.iptables, table, *family)).into(),
            },
            nftables: config.nftables.as_ref().map(|nftables| {
                let refresh_interval = nftables.refresh_interval;
                let layout = config.rules.packet_filter.layout();
                let node = nftables.budget.node / config.families.len().max(1);
                let budget = Budget { node, ..nftables.budget };
                let id = TableId::calico(*family);
                let table = TableConfig { id, refresh_interval, layout, budget, is_sparse: is_by_programs };
                NftablesTable::new(table, nftables.features)
            }),
            ip_sets: IpSets::new(*family, tortie_ipsets::Config::default()),
            host_stand_ins: HostStandIns::default(),
            needs: is_by_programs.then(Needs::default),
        };
        let mut families = config.families.clone();
        families.sort_unstable();
        families.dedup();
        let sweeps = config.iptables.sweep.iter().flat_map(|(family, backend)| {
            Table::ALL.map(|table| {
                let programs = Programs::specific(*backend, *family);
                (*family, sweeper(table, *family, *backend, programs, config.iptables.refresh_interval))
            })
        });
        Self {
            families: families.iter().map(family_output).collect(),
            sweeps: sweeps.collect(),
            arp: config.arp.map(arp_table),
            domain_sets: BTreeMap::new(),
            max_set_size: config.ip_sets.max_size,
        }
    }

    /// Defines a chain in these tables of each family.
    pub(crate) fn update_chain(&mut self, tables: &[Table], chain: &Arc<Chain>) {
        for output in &mut self.families {
            output.update_chain(tables, chain);
        }
    }

    pub(crate) fn remove_chain(&mut self, tables: &[Table], chain: ChainName) {
        for output in &mut self.families {
            output.remove_chain(tables, chain);
        }
    }

    /// Sets the verdicts of a workload's interface in these nftables verdict maps; `None` removes
    /// one.
    pub(crate) fn set_workload_verdicts(&mut self, interface: InterfaceName, maps: &[(ChainName, Option<MapVerdict>)]) {
        for (map, verdict) in maps {
            self.set_verdict(Table::Filter, *map, MapKey::Interface(interface), *verdict);
        }
    }

    /// Sets the verdict of a key in an nftables verdict map; `None` removes it.
    pub(crate) fn set_verdict(&mut self, table: Table, map: ChainName, key: MapKey, verdict: Option<MapVerdict>) {
        for nftables in self.families.iter_mut().filter_map(|output| output.nftables.as_mut()) {
            nftables.set_verdict(table, map, key, verdict);
        }
    }

    /// Suppresses the node's ARP replies to a workload for these addresses, which are the
    /// workload's own; none if empty.
    pub(crate) fn set_own_addresses(&mut self, interface: InterfaceName, addresses: &[Ipv4Addr]) {
        let Some(table) = &mut self.arp else { return };
        let chain = endpoint_chain(EndpointChain::Arp, interface.as_str());
        let target = (!addresses.is_empty()).then_some(chain);
        table.set_verdict(
            Table::Filter,
            chain::ARP_DISPATCH,
            MapKey::Interface(interface),
            target.map(MapVerdict::Goto),
        );
        if target.is_some() {
            table.set_stand_in(Table::Filter, chain, StandIn::Rules(Vec::new()));
            table.update_chain(Table::Filter, arp_workload(interface, addresses.iter().copied()));
        } else {
            table.remove_chain(Table::Filter, chain);
        }
    }

    /// Sets the stand-in that replaces the chain if the kernel refuses it.
    pub(crate) fn set_stand_in(&mut self, tables: &[Table], chain: ChainName, stand_in: &StandIn) {
        for output in &mut self.families {
            output.set_stand_in(tables, chain, stand_in);
        }
    }

    /// Sets the stand-in of a chain in the path of the host's own packets, in the direction of a
    /// failsafe chain.
    pub(crate) fn set_host_stand_in(&mut self, table: Table, chain: ChainName, failsafe: ChainName) {
        for output in &mut self.families {
            let stand_in = output.host_stand_ins.get(table, failsafe);
            output.set_stand_in(&[table], chain, &stand_in);
        }
    }

    /// Returns the sets that are truncated to the maximum size, and those that a report names as
    /// defective.
    pub(crate) fn set_defects(&self, reports: &[Report]) -> SetDefects {
        let mut defects = SetDefects::new();
        for output in &self.families {
            let lacks = SetDefect { lacks: true, ..SetDefect::default() };
            defects.extend(output.ip_sets.overfull().map(|id| ((output.family, id.clone()), lacks)));
        }
        for output in &self.families {
            let refused = output.nftables.iter().flat_map(NftablesTable::set_problems);
            let defect = SetDefect { lacks: true, exceeds: true, ..SetDefect::default() };
            defects.extend(refused.map(|problem| ((output.family, problem.id), defect)));
        }
        for (output, report) in self.families.iter().zip(reports) {
            let of_report = report.failures.iter();
            defects.extend(of_report.map(|failure| ((output.family, failure.id.clone()), SetDefect::from(failure))));
        }
        // Rules refer to sets of domains by the ids of these.
        let of_domains = defects
            .iter()
            .filter_map(|((family, id), defect)| Some(((*family, self.domain_sets.get(id)?.clone()), *defect)));
        let of_domains: Vec<_> = of_domains.collect();
        for (set, defect) in of_domains {
            let all: &mut SetDefect = defects.entry(set).or_default();
            *all = all.or(defect);
        }
        defects
    }

    /// Defines a set whose members a learner keeps, for a set of domains.
    pub(crate) fn define_foreign_set(
        &mut self,
        id: &IpSetId,
        domains: &IpSetId,
        set_type: SetType,
    ) -> Result<(), UpdateError> {
        self.domain_sets.insert(id.clone(), domains.clone());
        let spec = self.set_spec(set_type).with_foreign_members();
        first_error(self.families.iter_mut().map(|family| family.replace_set(id, spec, &[])))
    }

    /// Defines a set of token buckets in nftables tables; iptables makes its own.
    pub(crate) fn define_buckets(&mut self, id: &IpSetId) -> Result<(), UpdateError> {
        first_error(self.families.iter_mut().map(|family| {
            let Some(table) = &mut family.nftables else { return Ok(()) };
            let defined = table.define_buckets(id, ip_set_name(family.family, id)?);
            defined.map_err(|error| update_error(error, SetType::HashIp))
        }))
    }

    pub(crate) fn remove_buckets(&mut self, id: &IpSetId) {
        let families = self.families.iter_mut().filter(|family| family.nftables.is_some());
        families.for_each(|family| family.remove_set(id));
    }

    /// Returns the sets of domains of which a set is missing in the kernel.
    pub(crate) fn lacking_domains(&self, reports: &[Report]) -> BTreeSet<IpSetId> {
        let failures = reports.iter().flat_map(|report| &report.failures).filter(|failure| !failure.exists);
        failures.filter_map(|failure| self.domain_sets.get(&failure.id).cloned()).collect()
    }

    pub(crate) fn remove_foreign_set(&mut self, id: &IpSetId) {
        self.domain_sets.remove(id);
        self.families.iter_mut().for_each(|family| family.remove_set(id));
    }

    /// Retries chains that the kernel refused because of a missing set.
    pub(crate) fn on_set_available(&mut self, family: Family, id: &IpSetId) {
        let Ok(name) = ip_set_name(family, id) else { return };
        for output in self.families.iter_mut().filter(|output| output.family == family) {
            output.tables.iter_mut().for_each(|table| table.on_ip_set_available(name));
        }
    }

    pub(crate) fn set_spec(&self, set_type: SetType) -> SetSpec {
        SetSpec::new(set_type).with_max_elements(self.max_set_size)
    }

    /// Defines a set with these members; each family takes those of its IP version.
    pub(crate) fn replace_set(
        &mut self,
        id: &IpSetId,
        set_type: SetType,
        members: &[Member],
    ) -> Result<(), UpdateError> {
        self.replace_set_in(&Family::ALL, id, set_type, members)
    }

    /// Defines a set in these families, and removes it from others.
    pub(crate) fn replace_set_in(
        &mut self,
        families: &[Family],
        id: &IpSetId,
        set_type: SetType,
        members: &[Member],
    ) -> Result<(), UpdateError> {
        let spec = self.set_spec(set_type);
        // An error in one family must not keep the set from the other.
        let results = self.families.iter_mut().map(|family| {
            if families.contains(&family.family) {
                return family.replace_set(id, spec, members);
            }
            family.remove_set(id);
            Ok(())
        });
        first_error(results)
    }

    /// Adds members to a set and removes others.
    pub(crate) fn edit_set(&mut self, id: &IpSetId, added: &[Member], removed: &[Member]) -> Result<(), UpdateError> {
        let results = self.families.iter_mut().map(|family| {
            if let Some(table) = &mut family.nftables {
                let name = ip_set_name(family.family, id)?;
                let edited = table.edit_set(id, name, added.iter().copied(), removed.iter().copied());
                return edited.map_err(|error| update_error(error, SetType::HashNet));
            }
            let added = family.ip_sets.add_members(id, added.iter().copied());
            let removed = family.ip_sets.remove_members(id, removed.iter().copied());
            added.and(removed)
        });
        first_error(results)
    }
}

impl FamilyOutput {
    fn tables(&mut self, tables: &[Table]) -> impl Iterator<Item = &mut Reconciler> {
        self.tables.iter_mut().filter(|reconciler| tables.contains(&reconciler.config().table))
    }

    fn set_stand_in(&mut self, tables: &[Table], chain: ChainName, stand_in: &StandIn) {
        if let Some(nftables) = &mut self.nftables {
            tables.iter().for_each(|layer| nftables.set_stand_in(*layer, chain, stand_in.clone()));
        }
        for table in self.tables(tables) {
            table.set_stand_in(chain, stand_in.clone());
        }
    }

    /// Defines a set with these members; those of the other family are ignored.
    pub(crate) fn replace_set(&mut self, id: &IpSetId, spec: SetSpec, members: &[Member]) -> Result<(), UpdateError> {
        match &mut self.nftables {
            Some(table) => {
                let name = ip_set_name(self.family, id)?;
                if spec.has_foreign_members() {
                    let defined = table.define_foreign_set(id, name, spec.set_type());
                    return defined.map_err(|error| update_error(error, spec.set_type()));
                }
                let replaced = table.replace_set(id, name, spec.set_type(), members.iter().copied());
                replaced.map_err(|error| update_error(error, spec.set_type()))
            }
            None => self.ip_sets.add_or_replace(id, spec, members.iter().copied()),
        }
    }

    /// Removes a set. A set that was never accepted does not exist, so errors are ignored.
    pub(crate) fn remove_set(&mut self, id: &IpSetId) {
        match (&mut self.nftables, ip_set_name(self.family, id)) {
            (Some(table), Ok(name)) => table.remove_set(name),
            (Some(_), Err(_)) => {}
            (None, _) => {
                let _ = self.ip_sets.remove(id);
            }
        }
    }

    /// Returns the desired members of a set.
    pub(crate) fn set_members(&self, id: &IpSetId) -> Option<Vec<Member>> {
        match &self.nftables {
            Some(table) => table.set_members(ip_set_name(self.family, id).ok()?),
            None => self.ip_sets.desired_members(id),
        }
    }

    pub(crate) fn update_chain(&mut self, tables: &[Table], chain: &Arc<Chain>) {
        self.note_need(tables, chain);
        if let Some(nftables) = &mut self.nftables {
            tables.iter().for_each(|layer| nftables.update_chain(*layer, Arc::clone(chain)));
        }
        for table in self.tables(tables) {
            table.update_chain(Arc::clone(chain));
        }
    }

    fn note_need(&mut self, tables: &[Table], chain: &Chain) {
        let Some(needs) = &mut self.needs else { return };
        let is_active = chain.rules.iter().any(|rule| rule.target().is_none());
        let has_sets = chain.rules.iter().any(|rule| rule.matches.iter().any(|m| matches!(m, Match::IpSet { .. })));
        for key in tables.iter().map(|table| (*table, chain.name)) {
            for (is_one, those) in [(is_active, &mut needs.active), (has_sets, &mut needs.with_sets)] {
                if is_one {
                    those.insert(key);
                } else {
                    those.remove(&key);
                }
            }
        }
    }

    /// Reports whether chains of a needed table refer to sets. Always true where chains enforce
    /// policy.
    pub(crate) fn needs_sets(&self) -> bool {
        let of_needed = |needs: &Needs| needs.with_sets.iter().any(|(table, _)| self.needs_table(*table));
        self.needs.as_ref().is_none_or(of_needed)
    }

    /// Reports whether a table is needed. Always true where chains enforce policy.
    pub(crate) fn needs_table(&self, table: Table) -> bool {
        self.needs.as_ref().is_none_or(|needs| needs.active.iter().any(|(of, _)| *of == table))
    }

    /// Hooks our chains into the kernel's in tables that are needed now, and unhooks them in all
    /// others.
    pub(crate) fn complete_needs(&mut self) {
        let Self { tables, nftables, needs: Some(needs), .. } = self else { return };
        for table in Table::ALL {
            let is_needed = needs.active.iter().any(|(of, _)| *of == table);
            if is_needed == needs.hooked.contains(&table) {
                continue;
            }
            for hook in needs.hooks.iter().filter(|hook| hook.table == table) {
                let rules = || if is_needed { hook.rules.clone() } else { Vec::new() };
                if let Some(nftables) = nftables {
                    nftables.set_hook(table, hook.kernel_chain, hook.position, rules());
                }
                for reconciler in tables.iter_mut().filter(|reconciler| reconciler.config().table == table) {
                    reconciler.set_hook(hook.kernel_chain, hook.position, rules());
                }
            }
            if is_needed {
                needs.hooked.insert(table);
            } else {
                needs.hooked.remove(&table);
            }
        }
    }

    pub(crate) fn remove_chain(&mut self, tables: &[Table], chain: ChainName) {
        if let Some(needs) = &mut self.needs {
            let is_other = |(table, name): &(Table, ChainName)| *name != chain || !tables.contains(table);
            needs.active.retain(is_other);
            needs.with_sets.retain(is_other);
        }
        if let Some(nftables) = &mut self.nftables {
            tables.iter().for_each(|layer| nftables.remove_chain(*layer, chain));
        }
        for table in self.tables(tables) {
            table.remove_chain(chain);
        }
    }

    pub(crate) fn pin_chain(&mut self, table: Table, chain: ChainName, pinned: bool) {
        if let Some(nftables) = &mut self.nftables {
            nftables.pin_chain(table, chain, pinned);
        }
        for table in self.tables(&[table]) {
            if pinned {
                table.pin_chain(chain);
            } else {
                table.unpin_chain(chain);
            }
        }
    }

    /// Defines the chains that depend on the configuration only, and the hooks and verdict maps
    /// that lead to them.
    pub(crate) fn define_fixed(&mut self, renderer: &Renderer) {
        let hooks = renderer.hooks();
        let family = self.family;
        self.host_stand_ins = HostStandIns::new(renderer, family);
        for table in Table::ALL {
            for chain in renderer.fixed_chains(table, family) {
                self.define_fixed_chain(table, chain);
            }
        }
        if let Some(needs) = &mut self.needs {
            needs.hooks = hooks;
            return;
        }
        if let Some(nftables) = &mut self.nftables {
            for (table, map, kind) in renderer.verdict_maps() {
                nftables.define_map(table, map, kind);
            }
            for ((table, kernel_chain, appended), rules) in by_place(&hooks) {
                nftables.set_hook(table, kernel_chain, position(appended), rules);
            }
        }
        for reconciler in &mut self.tables {
            let table = reconciler.config().table;
            for ((_, kernel_chain, appended), rules) in
                by_place(&hooks).into_iter().filter(|((of, ..), _)| *of == table)
            {
                reconciler.set_hook(kernel_chain, position(appended), rules);
            }
        }
    }

    fn define_fixed_chain(&mut self, table: Table, chain: Chain) {
        let stand_in = self.host_stand_ins.of_fixed(table, &chain);
        self.set_stand_in(&[table], chain.name, &stand_in);
        self.update_chain(&[table], &Arc::new(chain));
    }

    /// Redefines those of these chains that differ between two configurations.
    pub(crate) fn redefine_fixed(&mut self, old: &Renderer, new: &Renderer) {
        let family = self.family;
        for table in Table::ALL {
            let old = old.fixed_chains(table, family);
            let new = new.fixed_chains(table, family);
            let gone = old.iter().filter(|old| !new.iter().any(|new| new.name == old.name));
            gone.for_each(|chain| self.remove_chain(&[table], chain.name));
            for chain in new.iter().filter(|chain| !old.contains(chain)) {
                self.define_fixed_chain(table, chain.clone());
            }
        }
        let (mut before, mut after) = (by_place(&old.hooks()), by_place(&new.hooks()));
        if let Some(needs) = &mut self.needs {
            needs.hooks = new.hooks();
            // The others are hooked once they are needed.
            before.retain(|(table, ..), _| needs.hooked.contains(table));
            after.retain(|(table, ..), _| needs.hooked.contains(table));
        }
        self.redefine_hooks(&before, &after);
    }

    fn redefine_hooks(&mut self, old: &Places, new: &Places) {
        let gone = old.keys().filter(|place| !new.contains_key(place)).map(|place| (place, Vec::new()));
        let changed = new.iter().filter(|(place, rules)| old.get(place) != Some(rules));
        for ((table, kernel_chain, appended), rules) in gone.chain(changed.map(|(place, rules)| (place, rules.clone())))
        {
            self.set_hook(*table, *kernel_chain, position(*appended), rules);
        }
    }

    fn set_hook(&mut self, table: Table, kernel_chain: ChainName, position: HookPosition, rules: Vec<Rule>) {
        for reconciler in self.tables(&[table]) {
            reconciler.set_hook(kernel_chain, position, rules.clone());
        }
        if let Some(nftables) = &mut self.nftables {
            nftables.set_hook(table, kernel_chain, position, rules);
        }
    }
}

/// Rules by table and kernel chain; true for appended rules.
type Places = BTreeMap<(Table, ChainName, bool), Vec<Rule>>;

/// Returns the rules at each end of each kernel chain. The flag is true for appended rules.
fn by_place(hooks: &[Hook]) -> Places {
    let mut by_place = Places::new();
    for hook in hooks {
        let place = (hook.table, hook.kernel_chain, hook.position == HookPosition::Append);
        by_place.entry(place).or_default().extend(hook.rules.iter().cloned());
    }
    by_place
}

const fn position(appended: bool) -> HookPosition {
    if appended { HookPosition::Append } else { HookPosition::Insert }
}

fn update_error(error: tortie_nftables::UpdateError, set_type: SetType) -> UpdateError {
    use tortie_nftables::UpdateError as E;
    match error {
        E::NameTaken { id, other } => UpdateError::NameTaken { id, other },
        E::BadMembers { id, count, first } => {
            UpdateError::BadMembers { id, count, first: MemberError::WrongKind { set_type, member: first } }
        }
        E::UnknownSet(id) => UpdateError::UnknownSet(id),
    }
}

/// Returns the first error, after all items were evaluated.
fn first_error<E>(results: impl Iterator<Item = Result<(), E>>) -> Result<(), E> {
    let results: Vec<Result<(), E>> = results.collect();
    results.into_iter().collect()
}

fn arp_table(refresh_interval: Option<std::time::Duration>) -> NftablesTable {
    let config = TableConfig { refresh_interval, ..TableConfig::new(TableId::CALICO_ARP) };
    let mut table = NftablesTable::new(config, tortie_nftables::Features::ALL);
    let hook = arp_hook();
    table.set_hook(hook.table, hook.kernel_chain, hook.position, hook.rules);
    table.define_map(Table::Filter, chain::ARP_DISPATCH, MapKind::Interface);
    table.set_stand_in(Table::Filter, chain::ARP_DISPATCH, StandIn::Rules(Vec::new()));
    table.update_chain(Table::Filter, arp_dispatch());
    table
}

fn reconciler(config: &IptablesConfig, table: Table, family: Family) -> Reconciler {
    let config_of_table = ReconcilerConfig {
        programs: config.programs(family).clone(),
        purpose: Purpose::Enforce,
        insert_mode: config.insert_mode,
        refresh_interval: config.refresh_interval,
        post_write_interval: config.post_write_interval,
        lock_probe_interval: config.lock_probe_interval,
        ..ReconcilerConfig::new(table, family, config.backend)
    };
    Reconciler::new(config_of_table, config.features)
}

/// Returns a reconciler that removes everything of ours from a table.
pub(crate) fn sweeper(
    table: Table,
    family: Family,
    backend: Backend,
    programs: Programs,
    refresh_interval: Option<std::time::Duration>,
) -> Reconciler {
    let config = ReconcilerConfig {
        programs,
        purpose: Purpose::Sweep,
        refresh_interval,
        ..ReconcilerConfig::new(table, family, backend)
    };
    Reconciler::new(config, tortie_iptables::Features::ALL)
}

pub(crate) fn members(members: &Members) -> Vec<Member> {
    match members {
        Members::Nets(nets) => nets.iter().copied().map(Member::from).collect(),
        Members::IpPorts(members) => members.iter().copied().map(Member::from).collect(),
        // The manager of domains handles these.
        Members::Domains(_) => Vec::new(),
    }
}
