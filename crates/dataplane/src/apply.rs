//! Order of the steps of an apply.

use std::collections::BTreeSet;
use std::time::Duration;

use tortie_ipsets::{Report, Resync};
use tortie_iptables::{ChainName, ChainProblem, Table, TableError};
use tortie_model::{Direction, Family};
use tortie_rules::names::{policy_chain, profile_chain};

use crate::connectivity::Connectivity;
use crate::dataplane::Dataplane;
use crate::domains::{DomainLearner, LearnerCommand};
use crate::drive::{self, NftablesOutcome, TableOutcome};
use crate::gate::{PolicyGate, denies};
use crate::kernel::{Kernel, Netfilter};
use crate::managers::Completion;
use crate::managers::hosts::all_tiers;
use crate::output::FamilyOutput;
use crate::report::{ApplyReport, DataplaneProblem, EndpointProblem, Owner};
use crate::routes::RouteTable;

/// Pause between batches of set deletions, which are slow in the kernel.
const NEXT_DELETION: Duration = Duration::from_millis(100);

impl Dataplane {
    /// Brings the kernel to the desired state: IP sets, then all tables, then deletion of IP sets
    /// that are no longer needed, then routes and sysctls. A failure of one object does not stop
    /// the others. Does nothing while a gate is closed.
    ///
    /// In this order no rule refers to a missing set. Rules whose sets could not be created are
    /// left out, or close their chain, until the sets exist. Nothing leads to a workload before its
    /// policy is in force. Routes, neighbour entries and sysctls of a family are not touched before
    /// its policy has been in force once. Later, none are added for an endpoint that changed while
    /// policy cannot be put in force.
    ///
    /// If the kernel reports that it is stopping, the rest is left undone and the report is empty.
    /// Another dataplane then has to reconcile the kernel with the desired state, as after a kill.
    pub fn apply(&mut self, kernel: &mut dyn Kernel) -> ApplyReport {
        if !self.gates.are_open() {
            return ApplyReport::waiting(self.gates.awaited());
        }
        let span =
            tracing::debug_span!("apply", number = self.results.applies, problems = tracing::field::Empty).entered();
        let started = kernel.now();
        self.timers.dirty = false;
        self.advance_migrations(kernel);
        self.managers.domains.set_has_learner(kernel.domains().is_some());
        if kernel.domains().is_some_and(DomainLearner::has_ended) {
            self.managers.domains.on_learner_ended();
        }
        self.complete();
        self.complete_workload_addresses(Some(kernel));
        let mut problems = self.static_problems();
        problems.extend(self.missing_subsystems(kernel));
        let mut wakeups = Vec::new();

        self.refresh_sets(started);
        self.apply_policy(kernel, &mut wakeups, &mut problems);
        if kernel.is_stopping() {
            return ApplyReport::default();
        }
        self.apply_ways(kernel, &mut wakeups, &mut problems);
        if kernel.is_stopping() {
            return ApplyReport::default();
        }
        span.record("problems", problems.len());
        self.report(kernel, wakeups, problems)
    }

    /// Writes sets and tables, and notes the families in which policy is in force.
    fn apply_policy(
        &mut self,
        kernel: &mut dyn Kernel,
        wakeups: &mut Vec<Duration>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let reports = self.drive_sets(kernel);
        if kernel.is_stopping() {
            return;
        }
        self.complete_sets(&reports);
        // Before new chains: a scope that serves another endpoint is empty then.
        let lacking = self.output.lacking_domains(&reports);
        let commands = self.managers.domains.commands_before(&lacking);
        self.tell_learner(kernel, commands, wakeups, problems);
        self.close_unemptied(problems);
        let mut unenforced = self.note_sets(reports, wakeups, problems);
        problems.extend(self.managers.policies.reduced());

        // One table holds all layers, so all of it waits for eBPF programs.
        let may_replace = self.may_replace_chains();
        let commits = &mut self.transactions.commits;
        let tables = self.output.families.iter_mut().filter(|_| may_replace).filter_map(|it| it.nftables.as_mut());
        let in_nftables = drive::nftables(kernel, commits, tables);
        // Policy does not depend on the ARP table.
        let arp = drive::nftables(kernel, commits, self.output.arp.iter_mut());
        let may_sweep = in_nftables.iter().all(Result::is_ok);
        let outcomes = self.drive_tables(kernel, may_sweep);
        if kernel.is_stopping() {
            return;
        }
        unenforced.extend(self.note_tables(outcomes, wakeups, problems));
        unenforced.extend(self.note_nftables(in_nftables, wakeups, problems));
        self.note_arp(arp, wakeups, problems);
        let commands = self.managers.domains.commands_after(&lacking);
        self.tell_learner(kernel, commands, wakeups, problems);
        let is_by_chains = self.is_by_chains();
        for gate in &mut self.policy.gates {
            let by_chains = !unenforced.contains(&gate.family());
            gate.on_applied(if is_by_chains { by_chains } else { self.policy.programs_in_force });
        }
    }

    /// Passes the learner new sets of domains and learning endpoints before eBPF programs enforce
    /// the policies with them, so that no address is closed meanwhile. Call it before programs get
    /// the updates since the last call. Does nothing before programs have enforced policy once.
    pub fn prepare_programs(&mut self, kernel: &mut dyn Kernel) {
        if !self.gates.are_open() || !self.policy.programs_in_force || !self.managers.domains.is_used() {
            return;
        }
        self.managers.domains.set_has_learner(kernel.domains().is_some());
        self.complete();
        let commands = self.managers.domains.commands_before(&BTreeSet::new());
        // The apply reports failures, and passes these commands again.
        self.tell_learner(kernel, commands, &mut Vec::new(), &mut Vec::new());
    }

    /// Passes commands to the learner. If they fail, the next apply passes them again.
    fn tell_learner(
        &mut self,
        kernel: &mut dyn Kernel,
        commands: Vec<LearnerCommand>,
        wakeups: &mut Vec<Duration>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let Some(learner) = kernel.domains().filter(|_| !commands.is_empty()) else { return };
        match learner.apply(commands.clone()) {
            Ok(()) => {
                let has_more = self.managers.domains.on_applied(commands);
                if has_more {
                    self.managers.domains.refresh();
                    self.timers.dirty = true;
                }
            }
            Err(error) => {
                self.managers.domains.on_failed(commands);
                wakeups.push(self.config.retry_interval);
                let problem = DataplaneProblem::Learner(error);
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
    }

    /// Closes the interfaces whose sets may have addresses of a former endpoint, which the learner
    /// has failed to remove. New chains would open these to the new endpoint.
    fn close_unemptied(&mut self, problems: &mut Vec<DataplaneProblem>) {
        let Self { renderer, output, managers, .. } = self;
        let unemptied = managers.domains.unemptied();
        for interface in &unemptied {
            let Some((id, _)) = managers.workloads.owner(*interface) else { continue };
            let (owner, error) = (Owner::Workload(id.clone()), EndpointProblem::Unemptied(*interface));
            problems.push(DataplaneProblem::Endpoint { owner, error });
        }
        if !managers.workloads.close(unemptied) {
            return;
        }
        let mut completion =
            Completion { renderer, output, policies: &managers.policies, groups: &mut managers.groups };
        let changed = managers.workloads.complete(&mut completion);
        self.policy.gates.iter_mut().for_each(|gate| gate.on_changed(&changed, false));
    }

    /// Destroys sets that are no longer needed, and programs routes, neighbours, sysctls and
    /// bandwidth limits of workloads whose policy is in force.
    fn apply_ways(
        &mut self,
        kernel: &mut dyn Kernel,
        wakeups: &mut Vec<Duration>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let in_force: BTreeSet<Family> =
            self.policy.gates.iter().filter(|gate| gate.in_force()).map(PolicyGate::family).collect();
        if let Some(conntrack) = kernel.conntrack() {
            self.managers.workload_addresses.flush(conntrack, |family| in_force.contains(&family));
        }
        if self.may_replace_chains() && self.drive_deletions(kernel) {
            wakeups.push(NEXT_DELETION);
        }
        self.apply_routes(kernel, problems);
        let open = self.policy.gates.iter().filter(|gate| gate.is_open()).map(PolicyGate::family).collect();
        match kernel.sysctls() {
            Some(sysctls) => self.connectivity.sysctls.apply(sysctls, &self.links, &open, problems),
            None => self.connectivity.sysctls.leave(),
        }
        let (refresh, retry) = (self.config.routes.refresh_interval, self.config.retry_interval);
        let Connectivity { bandwidth, peer_addresses, .. } = &mut self.connectivity;
        match kernel.links() {
            Some(devices) => {
                bandwidth.apply(devices, &self.links, refresh, retry, problems);
                peer_addresses.apply(devices, &self.links, &open, retry, problems);
            }
            None => {
                bandwidth.leave();
                peer_addresses.leave();
            }
        }
    }

    /// Notes and returns the results of an apply.
    fn report(
        &mut self,
        kernel: &mut dyn Kernel,
        mut wakeups: Vec<Duration>,
        problems: Vec<DataplaneProblem>,
    ) -> ApplyReport {
        let refused = if self.is_by_chains() { refused_chains(&problems) } else { BTreeSet::new() };
        let (workloads, hosts) = self.current_statuses(&refused, self.can_reach_workloads(kernel));
        let statuses = self.results.statuses.replace(workloads, hosts);

        let now = kernel.now();
        wakeups.extend(self.timed_wakeups(now));
        if problems.iter().any(|problem| {
            matches!(
                problem,
                DataplaneProblem::Table(_) | DataplaneProblem::Nftables(_) | DataplaneProblem::IpSetNames { .. }
            )
        }) {
            wakeups.push(self.config.retry_interval);
        }
        let next = wakeups.into_iter().min();
        self.timers.next_apply = next.map(|pause| now + pause);
        self.results.applies += 1;
        self.results.failed_applies += u64::from(!problems.is_empty());
        self.results.problems.clone_from(&problems);
        let unenforced = self.policy.gates.iter().filter(|gate| !gate.in_force()).map(PolicyGate::family).collect();
        let wireguard_keys =
            self.connectivity.wireguards.iter_mut().zip(&self.policy.gates).filter(|(_, gate)| gate.is_open());
        let wireguard_keys = wireguard_keys.filter_map(|(wireguard, _)| wireguard.take_key()).collect();
        let waiting_for = Vec::new();
        ApplyReport { applied: true, waiting_for, problems, statuses, unenforced, wireguard_keys, next }
    }

    /// Returns the problems of the desired state itself.
    fn static_problems(&self) -> Vec<DataplaneProblem> {
        let managers = &self.managers;
        let mut problems: Vec<DataplaneProblem> = managers.policies.problems().collect();
        problems.extend(managers.ip_sets.problems());
        problems.extend(managers.workloads.problems(&self.config.rules.workload_prefixes, self.config.rules.workloads));
        problems.extend(managers.workload_addresses.problems(&self.config.rules.workload_prefixes));
        problems.extend(managers.hosts.problems());
        problems.extend(managers.nodes.problems());
        problems.extend(managers.service_loop.problems());
        problems.extend(managers.domains.problems());
        if !self.is_by_chains() {
            if self.renderer.config().has_tunnels() {
                problems.extend(managers.hosts.deciding_about_tunnels());
            }
            problems.extend(self.policy.program_problems.iter().cloned().map(DataplaneProblem::Programs));
        }
        problems
    }

    /// Queues a resync of the sets if their refresh interval has passed.
    fn refresh_sets(&mut self, now: Duration) {
        let Some(last) = self.timers.sets_refreshed else {
            // The first apply reads them in full.
            self.timers.sets_refreshed = Some(now);
            return;
        };
        if self.config.ip_sets.refresh_interval.is_some_and(|interval| now >= last + interval) {
            self.timers.sets_refreshed = Some(now);
            for family in &mut self.output.families {
                family.ip_sets.queue_resync(Resync::Background);
            }
        }
    }

    /// Reports whether chains that enforce policy may be replaced. Where eBPF programs are to
    /// enforce policy, they must have done so once before.
    fn may_replace_chains(&self) -> bool {
        self.is_by_chains() || self.policy.programs_in_force || self.policy.gates.iter().all(PolicyGate::is_open)
    }

    /// Reports whether to manage the IP sets of a family. Where eBPF programs enforce policy and
    /// `ipset` is not installed, only if a set is needed. nftables has sets in its tables; there,
    /// `ipset` only removes leftover IP sets.
    fn handles_sets(&self, family: &FamilyOutput) -> bool {
        match family.nftables {
            Some(_) => self.config.ip_sets.installed,
            None => self.config.ip_sets.installed || family.needs_sets(),
        }
    }

    pub(crate) fn drive_sets(&mut self, kernel: &mut dyn Netfilter) -> Vec<Report> {
        let handled: Vec<bool> = self.output.families.iter().map(|family| self.handles_sets(family)).collect();
        let sets = chosen(&mut self.output.families, &handled).map(|family| &mut family.ip_sets).collect();
        spread(drive::sets(kernel, sets, &mut self.results.set_counters), &handled)
    }

    /// Returns the families whose IP sets could not be listed.
    fn note_sets(
        &self,
        reports: Vec<Report>,
        wakeups: &mut Vec<Duration>,
        problems: &mut Vec<DataplaneProblem>,
    ) -> BTreeSet<Family> {
        let mut unlisted = BTreeSet::new();
        for (output, report) in self.output.families.iter().zip(reports) {
            let family = output.family;
            for failure in report.failures {
                let users = self.managers.policies.users_of_set(&failure.id);
                problems.push(DataplaneProblem::IpSet { family, failure, users });
            }
            if let Some(failure) = report.listing {
                unlisted.insert(family);
                problems.push(DataplaneProblem::IpSetNames { family, failure });
            }
            wakeups.extend(report.retry_after);
            wakeups.extend(report.more.then_some(NEXT_DELETION));
        }
        unlisted
    }

    /// Writes all tables. Once all of them are in the kernel, sweeps those of the other
    /// implementation, which may be the only ones that deny until then. The outcomes of swept
    /// tables come last.
    pub(crate) fn drive_tables(&mut self, kernel: &mut dyn Netfilter, may_sweep: bool) -> Vec<TableOutcome> {
        let may_replace = self.may_replace_chains();
        let handled: Vec<bool> = self.output.families.iter().flat_map(|family| self.handled_tables(family)).collect();
        let tables = self.output.families.iter_mut().flat_map(|family| &mut family.tables);
        let enforced = tables.zip(&handled).filter(|(_, is_handled)| **is_handled).map(|(table, _)| table);
        let mut done = drive::tables(kernel, &mut self.transactions.commits, enforced.collect()).into_iter();
        let left_alone = TableOutcome::Done { recheck_after: None };
        let outcome = |is_handled: &bool| if *is_handled { done.next() } else { None };
        let mut outcomes: Vec<TableOutcome> =
            handled.iter().map(outcome).map(|outcome| outcome.unwrap_or(left_alone.clone())).collect();
        if may_sweep && may_replace && outcomes.iter().all(|outcome| matches!(outcome, TableOutcome::Done { .. })) {
            let swept = self.output.sweeps.iter_mut().map(|(_, table)| table);
            outcomes.extend(drive::tables(kernel, &mut self.transactions.commits, swept.collect()));
        }
        outcomes
    }

    /// Reports for each table of a family whether to manage it. Where eBPF programs enforce policy,
    /// tables that can deny are left alone until the programs have done so once. If iptables is not
    /// installed, only tables that are needed are managed.
    fn handled_tables(&self, family: &FamilyOutput) -> Vec<bool> {
        let is_installed = !self.config.iptables.uninstalled.contains(&family.family);
        let is_handled = |table: Table| {
            let may_write = self.may_replace_chains() || !denies(table);
            may_write && (is_installed || self.is_by_chains() || family.needs_table(table))
        };
        family.tables.iter().map(|table| is_handled(table.config().table)).collect()
    }

    /// Returns the families in which a table that can deny is out of sync as a whole.
    fn note_tables(
        &self,
        outcomes: Vec<TableOutcome>,
        wakeups: &mut Vec<Duration>,
        problems: &mut Vec<DataplaneProblem>,
    ) -> BTreeSet<Family> {
        let mut unenforced = BTreeSet::new();
        let tables = |output: &FamilyOutput| {
            let family = output.family;
            output.tables.iter().map(move |table| Some((family, table.config().table))).collect::<Vec<_>>()
        };
        let enforced = self.output.families.iter().flat_map(tables);
        for (outcome, table) in outcomes.into_iter().zip(enforced.chain(std::iter::repeat(None))) {
            match outcome {
                TableOutcome::Done { recheck_after } => wakeups.extend(recheck_after),
                TableOutcome::Failed(error) => {
                    problems.push(DataplaneProblem::Table(error));
                    unenforced.extend(table.filter(|(_, table)| denies(*table)).map(|(family, _)| family));
                }
            }
        }
        for output in &self.output.families {
            for table in &output.tables {
                let kind = table.config().table;
                let found = table.problems().into_iter();
                problems.extend(found.map(|problem| self.chain_problem(output.family, kind, problem)));
            }
        }
        unenforced
    }

    /// Like `note_tables`, for nftables tables.
    fn note_nftables(
        &self,
        outcomes: Vec<NftablesOutcome>,
        wakeups: &mut Vec<Duration>,
        problems: &mut Vec<DataplaneProblem>,
    ) -> BTreeSet<Family> {
        let mut unenforced = BTreeSet::new();
        let tables = self.output.families.iter().filter_map(|it| it.nftables.as_ref().map(|table| (it.family, table)));
        for ((family, table), outcome) in tables.zip(outcomes) {
            match outcome {
                Ok(recheck_after) => wakeups.extend(recheck_after),
                Err(error) => {
                    problems.push(DataplaneProblem::Nftables(error));
                    unenforced.insert(family);
                }
            }
            for (layer, problem) in table.problems() {
                problems.push(self.chain_problem(family, layer, problem));
            }
            for problem in table.set_problems() {
                let users = self.managers.policies.users_of_set(&problem.id);
                let problem = DataplaneProblem::NftablesSet { family, problem, users };
                if !self.results.problems.contains(&problem) {
                    // The next apply reduces the policies that rely on it.
                    wakeups.push(Duration::ZERO);
                }
                problems.push(problem);
            }
        }
        unenforced
    }

    /// Like `note_tables`, for the table of ARP packets, which denies no policy traffic.
    fn note_arp(
        &self,
        outcomes: Vec<NftablesOutcome>,
        wakeups: &mut Vec<Duration>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        for outcome in outcomes {
            match outcome {
                Ok(recheck_after) => wakeups.extend(recheck_after),
                Err(error) => problems.push(DataplaneProblem::Nftables(error)),
            }
        }
        let found = self.output.arp.iter().flat_map(tortie_nftables::Table::problems);
        problems.extend(found.map(|(_, problem)| DataplaneProblem::Arp(problem)));
    }

    pub(crate) fn chain_problem(&self, family: Family, table: Table, problem: ChainProblem) -> DataplaneProblem {
        let owners = chain_of(&problem).map(|chain| self.chain_owners(chain)).unwrap_or_default();
        DataplaneProblem::Chain { family, table, problem, owners }
    }

    /// Returns the objects that a chain is rendered from; empty for chains that depend on the
    /// configuration only.
    fn chain_owners(&self, chain: ChainName) -> Vec<Owner> {
        let managers = &self.managers;
        let group = managers.groups.chain_owners(chain);
        let single = managers
            .policies
            .chain_owner(chain)
            .or_else(|| managers.workloads.chain_owner(chain))
            .or_else(|| managers.hosts.chain_owner(chain))
            .or_else(|| self.missing_owner(chain));
        group.into_iter().chain(single).collect()
    }

    /// Returns the policy or profile whose chain endpoints refer to, although the dataplane never
    /// received it.
    fn missing_owner(&self, chain: ChainName) -> Option<Owner> {
        let workloads = self.managers.workloads.iter().map(|view| {
            let state = view.state;
            (vec![&state.tiers], &state.endpoint.profiles)
        });
        let hosts = self.managers.hosts.states().map(|state| (all_tiers(state).to_vec(), &state.endpoint.profiles));
        for (tiers, profiles) in workloads.chain(hosts) {
            for tier in tiers.into_iter().flat_map(|tiers| tiers.iter()) {
                let sides = [(Direction::Ingress, &tier.ingress), (Direction::Egress, &tier.egress)];
                for (direction, ids) in sides {
                    if let Some(id) = ids.iter().find(|id| policy_chain(direction, id) == chain) {
                        return Some(Owner::Policy(id.clone()));
                    }
                }
            }
            for direction in [Direction::Ingress, Direction::Egress] {
                if let Some(name) = profiles.iter().find(|name| profile_chain(direction, name) == chain) {
                    return Some(Owner::Profile(name.clone()));
                }
            }
        }
        None
    }

    /// Destroys some sets of each family. Returns whether more are waiting.
    fn drive_deletions(&mut self, kernel: &mut dyn Netfilter) -> bool {
        let handled: Vec<bool> = self.output.families.iter().map(|family| self.handles_sets(family)).collect();
        let sets = chosen(&mut self.output.families, &handled).map(|family| &mut family.ip_sets).collect();
        let reports = drive::set_deletions(kernel, sets, &mut self.results.set_counters);
        reports.iter().any(|report| report.more)
    }

    /// Has neighbour entries checked as often as routes are read.
    fn refresh_neighbours(&mut self, now: Duration) {
        if self.connectivity.routes.iter().any(|table| table.is_refresh_due(now)) {
            self.connectivity.neighbours.refresh();
            for (name, _) in self.links.iter() {
                for proxy in &mut self.connectivity.proxy_neighbours {
                    proxy.on_link(name, &self.links);
                }
            }
        }
    }

    fn apply_routes(&mut self, kernel: &mut dyn Kernel, problems: &mut Vec<DataplaneProblem>) {
        self.refresh_neighbours(kernel.now());
        for (overlay, gate) in
            self.connectivity.overlays.iter_mut().zip(&self.policy.gates).filter(|(_, gate)| gate.is_open())
        {
            debug_assert_eq!(overlay.family(), gate.family());
            if let Some(devices) = kernel.links() {
                overlay.devices().for_each(|device| device.apply(devices, problems));
            }
        }
        let mut routes = std::mem::take(&mut self.connectivity.routes);
        let ownership = self.ownership();
        for (table, gate) in routes.iter_mut().zip(&self.policy.gates).filter(|(_, gate)| gate.is_open()) {
            match kernel.routing() {
                Some(routing) => table.apply(routing, &self.links, &ownership, gate.unconfirmed(), problems),
                None => table.leave(),
            }
        }
        for (address, interface, error) in routes.iter().flat_map(RouteTable::failed_flushes) {
            let waiting = interface.and_then(|interface| self.managers.workloads.owner(interface));
            let waiting = waiting.map(|(id, _)| id.clone());
            problems.push(DataplaneProblem::Conntrack { address, waiting, error: error.clone() });
        }
        self.connectivity.routes = routes;
        let refresh = self.config.routes.refresh_interval;
        for (overlay, _) in
            self.connectivity.overlays.iter_mut().zip(&self.policy.gates).filter(|(_, gate)| gate.is_open())
        {
            let is_wanted = overlay.uses_vxlan();
            if let Some(neighbours) = kernel.neighbours() {
                overlay.entries.apply(is_wanted, neighbours, &self.links, refresh, problems);
            }
        }
        for (wireguard, _) in
            self.connectivity.wireguards.iter_mut().zip(&self.policy.gates).filter(|(_, gate)| gate.is_open())
        {
            wireguard.apply(kernel, &self.links, problems);
        }
        let check = self.config.retry_interval;
        for (proxy, gate) in
            self.connectivity.proxy_neighbours.iter_mut().zip(&self.policy.gates).filter(|(_, gate)| gate.is_open())
        {
            debug_assert_eq!(proxy.family(), gate.family());
            proxy.apply(kernel, &self.links, check, problems);
        }
        let v4 = self.policy.gates.iter().find(|gate| gate.family() == Family::V4);
        if let Some(gate) = v4.filter(|gate| gate.is_open()) {
            match kernel.neighbours() {
                Some(neighbours) => {
                    self.connectivity.neighbours.apply(neighbours, &self.links, gate.unconfirmed(), problems);
                }
                None => self.connectivity.neighbours.leave(),
            }
        }
    }

    /// Returns the times from now to the next checks and retries.
    fn timed_wakeups(&self, now: Duration) -> Vec<Duration> {
        let retry = self.config.retry_interval;
        let ownership = self.ownership();
        let mut wakeups: Vec<Duration> =
            self.connectivity.routes.iter().filter_map(|table| table.next(now, retry, &ownership)).collect();
        wakeups.extend(self.connectivity.neighbours.next(now, retry));
        for overlay in &self.connectivity.overlays {
            let devices = std::iter::once(&overlay.vxlan).chain(&overlay.ipip);
            wakeups.extend(devices.filter_map(|device| device.next(now)));
            wakeups.extend(overlay.entries.next(now, retry, self.config.routes.refresh_interval));
        }
        wakeups.extend(
            self.connectivity.wireguards.iter().filter_map(|wireguard| wireguard.next(now, retry, &self.links)),
        );
        wakeups.extend(self.connectivity.proxy_neighbours.iter().filter_map(|proxy| proxy.next(now, retry)));
        wakeups.extend(self.connectivity.sysctls.next(now, retry));
        wakeups.extend(self.managers.workload_addresses.next(now, retry));
        wakeups.extend(self.next_migration(now));
        wakeups.extend(self.connectivity.bandwidth.next(now, self.config.routes.refresh_interval));
        wakeups.extend(self.connectivity.peer_addresses.next(now));
        let refresh = self.config.ip_sets.refresh_interval.zip(self.timers.sets_refreshed);
        wakeups.extend(refresh.map(|(interval, last)| (last + interval).saturating_sub(now)));
        wakeups
    }
}

fn chosen<'a>(
    families: &'a mut [FamilyOutput],
    handled: &'a [bool],
) -> impl Iterator<Item = &'a mut FamilyOutput> + use<'a> {
    families.iter_mut().zip(handled).filter(|(_, is_handled)| **is_handled).map(|(family, _)| family)
}

/// Returns the reports of the managed families at their positions among all.
fn spread(reports: Vec<Report>, handled: &[bool]) -> Vec<Report> {
    let mut reports = reports.into_iter();
    handled.iter().map(|is_handled| if *is_handled { reports.next() } else { None }.unwrap_or_default()).collect()
}

/// Returns the chains that stand-ins replace.
fn refused_chains(problems: &[DataplaneProblem]) -> BTreeSet<ChainName> {
    let refused = problems.iter().filter_map(|problem| match problem {
        DataplaneProblem::Chain { problem: ChainProblem::Refused { chain, .. }, .. }
        | DataplaneProblem::Table(TableError::Refused { chain, .. }) => Some(*chain),
        _ => None,
    });
    refused.collect()
}

fn chain_of(problem: &ChainProblem) -> Option<ChainName> {
    match problem {
        ChainProblem::Undefined { chain }
        | ChainProblem::Refused { chain, .. }
        | ChainProblem::OverBudget { chain, .. }
        | ChainProblem::Undeletable { chain, .. }
        | ChainProblem::WrongOwner { chain } => Some(*chain),
        _ => None,
    }
}
