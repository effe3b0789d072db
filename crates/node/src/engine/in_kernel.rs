//! Enforcement by this program itself.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use tortie_config::{Resolved, Sources};
use tortie_dataplane::{
    ApplyReport, Dataplane, DataplaneConfig, DataplaneProblem, Kernel, KernelError, LinkEvent, Measured,
    MigrationChange, ProblemIdentity, WireguardKey,
};
use tortie_evaluate::State as DesiredState;
use tortie_iptables::ChainName;
use tortie_linux::announcements::Announcements;
use tortie_linux::bpf::{CountsError, DecisionCount, PolicyPrograms, PolicyState, Superseded};
use tortie_linux::leftovers::TakeOver;
use tortie_linux::monitor::MonitorEvent;
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, IpSetId, Update, with_causes};
use tortie_nftables::RuleCount;
use tortie_rules::PolicyBackend;

use super::enforcement::{Applied, EnforcedBy, Enforcement, EnforcementReport, HEARTBEAT, Listing, Progress};
use super::observe;
use super::simulated_faults::{DataplaneFaults, HANG};
use super::throttle::Throttle;
use crate::connections::ConnectionCutter;
use crate::flows::FlowCollector;
use crate::machine::Machine;
use crate::metrics::{ActiveLocal, SharedMetrics};
use tortie_telemetry::health::{Condition, Health, Reporter};

const TAKE_OVER_RETRY: Duration = Duration::from_secs(10);

/// A dataplane and the kernel that it programs.
#[derive(Debug)]
pub struct InKernel<K> {
    dataplane: Dataplane,
    kernel: K,
    health: Health,
    metrics: SharedMetrics,
    throttle: Throttle,
    batches: observe::LinkBatches,
    outcome: Outcome,
    listings: Vec<Listing>,
    by: EnforcedBy,
    companions: Companions,
    apply_delay: Duration,
    hang_at: Option<Duration>,
}

#[derive(Debug)]
struct Outcome {
    started: Instant,
    applied_once: bool,
    last_apply: Option<Applied>,
    /// Logged problems that keep the kernel out of sync, each with its text from the last apply.
    problems: BTreeMap<ProblemIdentity, String>,
    /// Number of problems of the last apply.
    refused: usize,
    drawback: Option<String>,
    degraded: Option<String>,
    /// Reason why Felix's dataplane stays, and the time of the next attempt to remove it.
    obstacle: Option<(String, Duration)>,
}

/// Tasks on this machine besides the dataplane.
#[derive(Debug, Default)]
pub struct Companions {
    /// Watches the machine, and keeps the file with the MTU of workloads.
    pub machine: Option<Machine>,
    /// Removes the remains of Felix's dataplane, once policy is in force.
    pub take_over: Option<TakeOver>,
    /// Cuts established connections that a change of policy denies.
    pub cutter: Option<ConnectionCutter>,
    /// Collects flows.
    pub flows: Option<FlowCollector>,
    /// Listens for virtual machines that move here.
    pub announcements: Option<Announcements>,
    /// eBPF programs that enforce policy, where the dataplane leaves that to them.
    pub programs: Option<Box<dyn PolicyPrograms>>,
    /// Programs of an earlier configuration, to be detached once chains enforce policy.
    pub superseded: Option<Superseded>,
}

impl<K: Kernel> InKernel<K> {
    /// Writes nothing yet. Conditions are reported to `health`, and counts to `metrics`.
    pub fn new(config: DataplaneConfig, mut kernel: K, health: Health, metrics: SharedMetrics) -> Self {
        let throttle = Throttle::new(kernel.now());
        let programs = |family| match family {
            Family::V4 => &config.iptables.programs_v4,
            Family::V6 => &config.iptables.programs_v6,
        };
        let listing = |family: &Family| Listing { family: *family, program: programs(*family).save.clone() };
        let by = match config.rules.policy_backend {
            PolicyBackend::Programs => EnforcedBy::Programs,
            PolicyBackend::Chains if config.nftables.is_some() => EnforcedBy::Nftables,
            PolicyBackend::Chains => EnforcedBy::Iptables,
        };
        let listings = match by {
            EnforcedBy::Iptables => config.families.iter().map(listing).collect(),
            _ => Vec::new(),
        };
        // Every interface will be reported again.
        metrics.lock().kernel.interfaces.clear();
        metrics.lock().dataplane.bpf = None;
        Self {
            dataplane: Dataplane::new(config),
            kernel,
            health,
            metrics,
            throttle,
            batches: observe::LinkBatches::default(),
            outcome: Outcome {
                started: Instant::now(),
                applied_once: false,
                last_apply: None,
                problems: BTreeMap::new(),
                refused: 0,
                drawback: None,
                degraded: None,
                obstacle: None,
            },
            listings,
            by,
            companions: Companions::default(),
            apply_delay: Duration::ZERO,
            hang_at: None,
        }
    }

    /// Reports a deviation from the configuration for as long as this enforces.
    #[must_use]
    pub fn with_drawback(mut self, drawback: Option<String>) -> Self {
        self.outcome.drawback = drawback;
        self
    }

    /// Adds tasks beside the dataplane.
    #[must_use]
    pub fn with_companions(self, companions: Companions) -> Self {
        Self { companions, ..self }
    }

    /// Simulates faults, for tests of their consequences.
    #[must_use]
    pub fn with_faults(mut self, faults: DataplaneFaults) -> Self {
        self.apply_delay = faults.apply_delay;
        self.hang_at = faults.hang_after.map(|after| self.kernel.now().saturating_add(after));
        self
    }

    #[cfg(test)]
    pub(crate) fn into_kernel(self) -> K {
        self.kernel
    }

    #[cfg(test)]
    pub(crate) fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    fn note(&mut self, report: &ApplyReport, took: Duration) -> bool {
        let stats = self.dataplane.stats();
        observe::dataplane(&stats, &mut self.metrics.lock());
        let mut now = BTreeMap::new();
        for problem in &report.problems {
            let (identity, text) = (problem.identity(), with_causes(problem));
            if !self.outcome.problems.contains_key(&identity) && !now.contains_key(&identity) {
                match problem {
                    // Sets are as desired; only a service is absent.
                    DataplaneProblem::DnsService(service) => {
                        tracing::warn!(%service, "trusted DNS service does not exist; its answers open nothing");
                    }
                    _ => tracing::error!(problem = %text, "out of sync"),
                }
            }
            now.entry(identity).or_insert(text);
        }
        for (identity, _) in self.outcome.problems.iter().filter(|(identity, _)| !now.contains_key(*identity)) {
            tracing::info!(problem = %identity, "resolved");
        }
        self.outcome.problems = now;
        for change in &report.statuses {
            observe::log_status(change);
        }
        if !report.applied {
            return false;
        }
        self.outcome.last_apply = Some(Applied { ended: Instant::now(), took, complete: report.enforced() });
        self.outcome.refused = report.problems.len();
        let mut metrics = self.metrics.lock();
        metrics.dataplane.apply_time.observe(took, Instant::now());
        if report.enforced() && !self.outcome.applied_once {
            self.outcome.applied_once = true;
            metrics.dataplane.initial_resync = Some(self.outcome.started.elapsed());
            let restores: u64 = stats.tables.iter().map(|(_, _, table)| table.restore_calls).sum();
            let set_lines = stats.ipset_lines;
            let ActiveLocal { endpoints, policies, .. } = metrics.calculation.active_local;
            let took_ms = self.outcome.started.elapsed().as_millis();
            tracing::info!(took_ms, endpoints, policies, restores, set_lines, "policy is in force");
        }
        drop(metrics);
        if self.outcome.applied_once && self.outcome.obstacle.is_none() {
            self.take_over();
        }
        self.count_problems();
        let by_programs = self.by == EnforcedBy::Programs;
        let mut degraded = report.problems.iter().filter(|problem| problem.is_degraded());
        if let Some(cutter) = &mut self.companions.cutter {
            let is_of_policy = |problem: &DataplaneProblem| !(by_programs && problem.is_of_chains());
            cutter.in_force(report.enforced() && !degraded.clone().any(is_of_policy));
        }
        // A tenant can cause a limit that the kernel refuses.
        let degraded = degraded.find(|problem| !(by_programs && matches!(problem, DataplaneProblem::Chain { .. })));
        self.outcome.degraded = degraded.map(|problem| with_causes(problem));
        self.health.report(Reporter::Dataplane, self.condition());
        report.enforced()
    }

    fn take_over(&mut self) {
        let Some(take_over) = self.companions.take_over.take() else { return };
        // Both steps may wait for the kernel and for programs; this thread calculates as well.
        self.health.pause(Reporter::CalculationGraph);
        let obstacle = take_over.obstacle();
        // A stop ends the search for kube-proxy, which then finds none.
        if self.kernel.is_stopping() {
            return;
        }
        match obstacle {
            None => {
                if self.outcome.obstacle.take().is_some() {
                    tracing::info!("the dataplane of Felix can be removed now");
                }
                take_over.run();
            }
            Some(why) => {
                if self.outcome.obstacle.is_none() {
                    tracing::error!(problem = %why, "the dataplane of Felix cannot be removed");
                }
                self.outcome.obstacle = Some((why, self.kernel.now() + TAKE_OVER_RETRY));
                self.companions.take_over = Some(take_over);
            }
        }
        self.health.still_alive(Reporter::CalculationGraph);
    }

    fn count_problems(&self) {
        let outcome = &self.outcome;
        let count = outcome.refused + usize::from(outcome.drawback.is_some()) + usize::from(outcome.obstacle.is_some());
        self.metrics.lock().dataplane.problems = count as u64;
    }

    /// Logs the progress of live migrations, and listens where announcements are expected now.
    fn follow_migrations(&mut self) {
        for MigrationChange { id, uid, from, to, .. } in self.dataplane.take_migrations() {
            tracing::info!(endpoint = %id, migration = %uid, %from, %to, "live migration");
        }
        if let Some(announcements) = &mut self.companions.announcements {
            announcements.expect(self.dataplane.announcement_watches().collect());
        }
    }

    fn condition(&self) -> Condition {
        let missing = self.companions.machine.as_ref().and_then(Machine::problem);
        // While a stand-in takes the place of a part of the policy, the node is not ready.
        let obstacle = self.outcome.obstacle.as_ref().map(|(why, _)| why.as_str());
        let unready = self.outcome.degraded.as_deref().or(obstacle).or(missing);
        let other = self.outcome.problems.values().next().or(self.outcome.drawback.as_ref());
        let detail = unready.or_else(|| other.map(String::as_str)).unwrap_or_default().to_owned();
        Condition { live: true, ready: self.outcome.applied_once && unready.is_none(), detail }
    }

    /// Must run before the dataplane leads traffic to workloads; returns the time until the next
    /// attempt.
    fn apply_programs(&mut self, now: Duration) -> Duration {
        let Some(programs) = &mut self.companions.programs else { return HEARTBEAT };
        self.dataplane.prepare_programs(&mut self.kernel);
        let span = tracing::debug_span!("programs", problems = tracing::field::Empty).entered();
        let PolicyState { in_force, problems } = programs.apply(now);
        span.record("problems", problems.len());
        self.metrics.lock().dataplane.bpf = Some(programs.stats());
        self.dataplane.set_policy_in_force(in_force, problems);
        programs.next(now).unwrap_or(HEARTBEAT)
    }

    fn look_at_machine(&mut self, now: Duration) -> Duration {
        if self.outcome.obstacle.as_ref().is_some_and(|(_, next)| now >= *next) {
            self.take_over();
            self.count_problems();
            self.health.report(Reporter::Dataplane, self.condition());
        }
        let Some(machine) = &mut self.companions.machine else { return HEARTBEAT };
        let missing = machine.problem().map(str::to_owned);
        let next = machine.look(now);
        if self.outcome.applied_once && machine.problem() != missing.as_deref() {
            self.health.report(Reporter::Dataplane, self.condition());
        }
        next
    }
}

impl<K: Kernel + Measured> Enforcement for InKernel<K> {
    type Event = MonitorEvent;
    type Error = Infallible;
    const EVENTS: &'static str = "links";

    fn must_restart(&self, old: &Resolved, new: &Resolved) -> bool {
        old.effective() != new.effective()
    }

    /// Every change that has an effect starts a new session, so this configuration is the one in
    /// use.
    fn on_config(&mut self, _: &Sources, _: &Resolved) -> Result<(), Infallible> {
        Ok(())
    }

    fn takes_more(&self) -> bool {
        true
    }

    fn on_object(&mut self, update: &Update) {
        if let Some(flows) = &self.companions.flows {
            flows.on_object(update);
        }
    }

    fn reads_state(&self) -> bool {
        self.companions.cutter.is_some() || self.companions.flows.is_some()
    }

    fn on_state(&mut self, state: &DesiredState, changes: &[DesiredUpdate]) {
        if let Some(cutter) = &mut self.companions.cutter {
            cutter.on_state(state);
        }
        if let Some(flows) = &self.companions.flows {
            flows.on_state(state, changes);
        }
    }

    fn on_update(&mut self, update: DesiredUpdate) {
        if let (DesiredUpdate::Encapsulation(encapsulation), Some(machine)) = (&update, &mut self.companions.machine) {
            machine.on_encapsulation(*encapsulation);
        }
        if let Some(programs) = &mut self.companions.programs {
            programs.on_update(&update);
        }
        self.dataplane.on_update(update);
    }

    fn on_event(&mut self, event: MonitorEvent) -> Result<(), Infallible> {
        match event {
            MonitorEvent::Link(event) => {
                self.batches.count(&event, &mut self.metrics.lock());
                let (LinkEvent::Up { name, .. }
                | LinkEvent::Down { name, .. }
                | LinkEvent::Gone { name }
                | LinkEvent::Addresses { name, .. }) = &event;
                if let Some(machine) = &mut self.companions.machine {
                    machine.on_interface(name.as_str());
                }
                if let Some(programs) = &mut self.companions.programs {
                    programs.on_link(&event);
                }
                self.dataplane.on_link(event);
            }
            MonitorEvent::InSync => {
                if let Some(programs) = &mut self.companions.programs {
                    programs.on_links_in_sync();
                }
                self.dataplane.on_links_in_sync();
            }
            MonitorEvent::Announcement(number) => self.dataplane.on_announcement(number),
            MonitorEvent::Ruleset(news) => self.dataplane.on_ruleset(news),
            MonitorEvent::Failed(error) => {
                tracing::error!(error = %with_causes(&error), "network interfaces cannot be watched; trying again");
            }
        }
        Ok(())
    }

    fn enforce(&mut self) -> Result<Progress, Infallible> {
        self.batches.note(&mut self.metrics.lock());
        self.health.still_alive(Reporter::Dataplane);
        self.follow_migrations();
        let now = self.kernel.now();
        if self.hang_at.take_if(|at| *at <= now).is_some() {
            tracing::warn!("DebugSimulateDataplaneHangAfter: the dataplane hangs for an hour");
            self.health.pause(Reporter::CalculationGraph);
            self.kernel.sleep(HANG);
            self.health.still_alive(Reporter::CalculationGraph);
        }
        let next_look = self.look_at_machine(now);
        if self.outdated().is_some() {
            return Ok(Progress::idle(Duration::ZERO));
        }
        let next_look = next_look.min(self.apply_programs(now));
        self.companions.superseded.take_if(|superseded| self.outcome.applied_once && superseded.remove(now));
        if !self.dataplane.wants_apply(now) {
            let next = self.dataplane.next_wakeup(now);
            return Ok(Progress::idle(next.unwrap_or(HEARTBEAT).min(HEARTBEAT).min(next_look)));
        }
        if let Err(wait) = self.throttle.admit(now) {
            return Ok(Progress::idle(wait));
        }
        let begin = Instant::now();
        // Meanwhile this thread, which calculates as well, is busy.
        self.health.pause(Reporter::CalculationGraph);
        if !self.apply_delay.is_zero() {
            self.kernel.sleep(self.apply_delay);
        }
        self.kernel.take_call_times();
        let report = self.dataplane.apply(&mut self.kernel);
        let times = self.kernel.take_call_times();
        let in_kernel = times.spent;
        {
            let mut metrics = self.metrics.lock();
            let now = Instant::now();
            times.route_lists.iter().for_each(|took| metrics.kernel.route_resyncs.observe(*took, now));
            times.interface_lists.iter().for_each(|took| metrics.kernel.route_partial_resyncs.observe(*took, now));
            times.conntrack_waits.iter().for_each(|took| metrics.kernel.conntrack_waits.observe(*took, now));
        }
        self.health.still_alive(Reporter::CalculationGraph);
        if self.kernel.is_stopping() {
            return Ok(Progress::idle(HEARTBEAT));
        }
        self.follow_migrations();
        let done = self.note(&report, begin.elapsed());
        self.health.still_alive(Reporter::Dataplane);
        let next = report.next.unwrap_or(HEARTBEAT).min(HEARTBEAT).min(next_look);
        let text = |key: Option<WireguardKey>| key.map(|key| key.to_string()).unwrap_or_default();
        let wireguard_keys = report.wireguard_keys.into_iter().map(|(family, key)| (family, text(key))).collect();
        Ok(Progress { done, next, in_kernel, statuses: report.statuses, process_status: None, wireguard_keys })
    }

    fn now(&mut self) -> Duration {
        self.kernel.now()
    }

    fn outdated(&self) -> Option<&str> {
        self.companions.machine.as_ref().and_then(Machine::outdated)
    }

    fn has_enforced(&self) -> bool {
        self.outcome.applied_once
    }

    fn report(&self) -> EnforcementReport {
        let lasting = self
            .outcome
            .drawback
            .as_deref()
            .into_iter()
            .chain(self.companions.machine.as_ref().and_then(Machine::problem));
        let lasting = lasting.chain(self.outcome.obstacle.as_ref().map(|(why, _)| why.as_str()));
        let lasting = lasting.chain(self.companions.superseded.as_ref().and_then(Superseded::problem));
        EnforcementReport {
            problems: self.outcome.problems.values().map(String::as_str).chain(lasting).map(str::to_owned).collect(),
            last_apply: self.outcome.last_apply,
            workloads: self.dataplane.workload_statuses().map(|(id, status)| (id.clone(), status)).collect(),
            listings: self.listings.clone(),
            by: self.by,
            hosts: self.dataplane.host_statuses().map(|(name, status)| (name.clone(), status)).collect(),
        }
    }

    fn decision_counts(&mut self) -> Option<Result<Vec<DecisionCount>, CountsError>> {
        self.companions.programs.as_mut().map(|programs| programs.counts())
    }

    fn rule_counts(&mut self) -> Option<Result<Vec<(Family, RuleCount)>, KernelError>> {
        self.dataplane.rule_counts(&mut self.kernel)
    }

    fn kernel_name(&self, chain: ChainName) -> Option<String> {
        // eBPF programs have no chains.
        if self.companions.programs.is_some() { None } else { self.dataplane.kernel_name(chain) }
    }

    fn set_members(&self, id: &IpSetId) -> Option<Vec<String>> {
        self.dataplane.ip_set_members(id).map(|members| members.iter().map(ToString::to_string).collect())
    }
}

#[cfg(test)]
mod tests;
