//! Application of policy to eBPF programs, and its status.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::time::Duration;

use tortie_dataplane::{LinkEvent, ProgramProblem};
use tortie_ebpf::layout::{CounterRecord, LEARNED_ENTRIES, LearnedKey, LearnedRecord, MapKind, VERDICT_BITS};
use tortie_ebpf::{AdoptError, DecisionId, Interface, LearnedMember, LearnedWrite, Node, NodeSettings, Problem, Write};
use tortie_evaluate::{DecidedBy, Verdict};
use tortie_flows::Hit;
use tortie_model::desired::{DesiredUpdate, Rules};
use tortie_model::{Direction, Family, RuleAction, with_causes};

use super::edge::Edge;
use super::generations::{Contents, EdgeError, Generations, Repairs};
use super::interfaces::{InterfaceChange, Interfaces};
use super::log::PacketLog;
use super::unanswered::Unanswered;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Interval of the checks for detached programs, if other processes can detach them.
const WATCH: Duration = Duration::from_secs(1);

/// Status of policy that programs enforce.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyState {
    /// Whether all updates are in force.
    pub in_force: bool,
    /// Problems.
    pub problems: Vec<ProgramProblem>,
}

/// Number of packets with the same decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionCount {
    /// Packets to endpoints (ingress) or from them (egress); `None` for packets that are denied as
    /// unknown.
    pub direction: Option<Direction>,
    /// The verdict.
    pub verdict: Verdict,
    /// Deciding rule or default; `None` for packets that are denied as unknown.
    pub by: Option<DecidedBy>,
    /// The counts.
    pub counted: CounterRecord,
}

/// Use of the kernel by policy in programs, and totals since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Blocks of 1,024 bytes that tables use.
    pub blocks: u64,
    /// Maximum number of blocks.
    pub max_blocks: u64,
    /// Address ranges that rules distinguish.
    pub addresses: u64,
    /// Number of the generation in use; 0 if there is none.
    pub generation: u64,
    /// Written values of maps.
    pub map_writes: u64,
    /// Generations of maps and programs that were made and attached.
    pub built: u64,
    /// Repaired changes of other processes.
    pub repairs: u64,
}

/// Programs that enforce the desired state.
pub trait PolicyPrograms: fmt::Debug + Send {
    /// Processes a change of the desired state.
    fn on_update(&mut self, update: &DesiredUpdate);
    /// Processes a change of a network interface.
    fn on_link(&mut self, event: &LinkEvent);
    /// Called after all existing interfaces have been passed.
    fn on_links_in_sync(&mut self);
    /// Makes the kernel enforce the desired state, once it has been received completely.
    fn apply(&mut self, now: Duration) -> PolicyState;
    /// Returns the use of the kernel.
    fn stats(&self) -> PolicyStats;
    /// Returns the time until the next work if there are no updates; `None` if there is none.
    fn next(&self, now: Duration) -> Option<Duration>;
    /// Returns the counts of each decision since the programs were attached.
    ///
    /// # Errors
    /// [`CountsError`].
    fn counts(&mut self) -> Result<Vec<DecisionCount>, CountsError>;
}

/// Reason why the counts of decisions are unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CountsError {
    /// The programs are not attached yet.
    #[error("policy is not in force")]
    NotInForce,
    /// A map cannot be read.
    #[error(transparent)]
    Read(#[from] EdgeError),
}

/// Policy in programs, for one dataplane.
#[derive(Debug)]
pub struct ProgramPolicy<E: Edge> {
    node: Node,
    generations: Generations<E>,
    interfaces: Interfaces,
    has_datastore: bool,
    has_links: bool,
    /// Whether an update is not in force yet.
    is_dirty: bool,
    /// Whether this process has put policy in force.
    has_enforced: bool,
    check_interval: Option<Duration>,
    checked: Option<Duration>,
    watched: Option<Duration>,
    failure: Option<Failure>,
    pause: Duration,
    support: Support,
    /// Error of an update that could not be processed.
    misunderstood: Option<String>,
    problems: Vec<ProgramProblem>,
    /// Policies and profiles that log.
    logging: BTreeSet<String>,
    unanswered: Unanswered,
    log: Option<LogOf>,
}

/// Reader of the programs' log.
#[derive(Debug)]
struct LogOf {
    log: PacketLog,
    /// Number of the generation that is read; 0 for none.
    generation: u64,
    /// Whether the meaning of all decisions has been passed.
    is_named: bool,
    /// Whether all decisions are logged, and not only while some rule logs.
    wants_all: bool,
}

/// Whether the kernel can enforce anything.
#[derive(Debug)]
enum Support {
    Unasked,
    Full,
    /// The reason why it cannot.
    Lacking(String),
}

#[derive(Debug)]
struct Failure {
    why: EdgeError,
    retry_at: Duration,
}

impl<E: Edge> ProgramPolicy<E> {
    /// Creates it without any access to the kernel. The kernel's state is checked every
    /// `check_interval`.
    pub fn new(settings: NodeSettings, families: Vec<Family>, edge: E, check_interval: Option<Duration>) -> Self {
        Self {
            node: Node::new(settings),
            generations: Generations::new(edge, families),
            interfaces: Interfaces::default(),
            has_datastore: false,
            has_links: false,
            is_dirty: true,
            has_enforced: false,
            check_interval,
            checked: None,
            watched: None,
            failure: None,
            pause: FIRST_PAUSE,
            support: Support::Unasked,
            misunderstood: None,
            problems: Vec::new(),
            logging: BTreeSet::new(),
            unanswered: Unanswered::default(),
            log: None,
        }
    }

    /// Makes programs log their decisions while a policy or profile has rules that log, or always
    /// if `wants_all` is set. Passes the source and the meaning of decisions to `log`.
    #[must_use]
    pub fn with_log(mut self, log: PacketLog, wants_all: bool) -> Self {
        self.node.set_logs(wants_all);
        Self { log: Some(LogOf { log, generation: 0, is_named: false, wants_all }), ..self }
    }

    /// Makes programs log while a policy or profile has rules that log. Without a reader of the
    /// log, warns that these rules have no effect.
    fn note_logging(&mut self, update: &DesiredUpdate) {
        let none = Rules::default();
        let (name, rules) = match update {
            DesiredUpdate::Policy(id, policy) => (format!("policy {id}"), [&policy.inbound, &policy.outbound]),
            DesiredUpdate::Profile(name, profile) => (format!("profile {name}"), [&profile.inbound, &profile.outbound]),
            DesiredUpdate::PolicyRemove(id) => (format!("policy {id}"), [&none, &none]),
            DesiredUpdate::ProfileRemove(name) => (format!("profile {name}"), [&none, &none]),
            _ => return,
        };
        let logs = rules.into_iter().any(|rules| rules.iter().any(|view| view.rule.action == RuleAction::Log));
        if !logs {
            self.logging.remove(&name);
        } else if self.logging.insert(name.clone()) && self.log.is_none() {
            tracing::warn!(owner = %name, "rules with the action Log have no effect: the log of eBPF programs has no reader here");
        }
        if let Some(log) = &self.log {
            self.node.set_logs(log.wants_all || !self.logging.is_empty());
        }
    }

    /// Stops reading the log of programs that are about to be replaced: numbers of decisions that
    /// they still log will be reused.
    fn leave_former_log(&mut self) {
        if let Some(log) = self.log.as_mut().filter(|log| log.generation != 0 && !self.generations.is_in_force()) {
            log.log.set_source(None);
            log.generation = 0;
        }
    }

    /// Passes the log of the programs in use to its reader. Policy is in force without it.
    fn follow_log(&mut self) {
        let generation = self.generations.number();
        let Some(log) = self.log.as_mut().filter(|log| log.generation != generation) else { return };
        log.generation = generation;
        log.log.set_source(self.generations.open_log().unwrap_or_else(|error| {
            tracing::error!(error = %with_causes(&error), "flows are reported without the decisions of eBPF programs");
            None
        }));
    }

    fn check_at(&self) -> Option<Duration> {
        self.checked.zip(self.check_interval).map(|(checked, interval)| checked + interval)
    }

    fn watch_at(&self) -> Option<Duration> {
        self.watched.filter(|_| self.generations.is_watched()).map(|watched| watched + WATCH)
    }

    /// Writes everything that differs, and reads the log of the programs that are in use then.
    fn reconcile(&mut self) -> Result<(), EdgeError> {
        let mut contents = NodeContents::new(&mut self.node, self.log.as_mut());
        let result = self.generations.reconcile(&mut contents);
        if let Some(problems) = contents.problems {
            self.problems = problems;
        }
        result?;
        self.follow_log();
        self.is_dirty = false;
        self.has_enforced = true;
        Ok(())
    }

    /// Adds learned addresses (`true`) or removes them at once, but those before policy is in force
    /// for the first time together with policy. Returns the positions of those for which there is
    /// no room.
    pub(super) fn learn(&mut self, changes: &[(LearnedMember, bool)]) -> Result<Vec<usize>, EdgeError> {
        self.node.learn(changes);
        self.is_dirty = true;
        if !self.has_enforced {
            return Ok(Vec::new());
        }
        if let Some(failure) = &self.failure {
            let operation = "writing learned addresses, which wait for policy".to_owned();
            return Err(EdgeError { operation, error: io::Error::other(with_causes(&failure.why)) });
        }
        self.leave_former_log();
        self.reconcile()?;
        let is_refused = |(member, is_present): &(LearnedMember, bool)| *is_present && self.node.is_refused(member);
        Ok((0..).zip(changes).filter(|(_, change)| is_refused(change)).map(|(at, _)| at).collect())
    }

    /// Returns all learned addresses.
    pub(super) fn learned(&self) -> Vec<LearnedMember> {
        self.node.learned().collect()
    }

    /// Returns a problem while the map of learned addresses is full.
    fn problem_of_learned(&self) -> Option<ProgramProblem> {
        let refused = self.node.refused();
        let why =
            format!("{refused} addresses that endpoints learned have no room among {LEARNED_ENTRIES}, and are closed");
        (refused > 0).then(|| ProgramProblem { object: "eBPF map of domains".to_owned(), why, is_degraded: false })
    }

    fn try_all(&mut self, now: Duration) -> Result<(), EdgeError> {
        if matches!(self.support, Support::Unasked) {
            self.support = self.generations.lacks_hooks()?.map_or(Support::Full, Support::Lacking);
        }
        if matches!(self.support, Support::Lacking(_)) {
            return Ok(());
        }
        let repairs = if self.check_at().is_some_and(|at| at <= now) {
            self.checked = Some(now);
            self.generations.check(&NodeContents::new(&mut self.node, None))
        } else if self.watch_at().is_some_and(|at| at <= now) {
            self.watched = Some(now);
            self.generations.watch()
        } else {
            Ok(Repairs::default())
        };
        for problem in repairs?.repaired {
            tracing::warn!(%problem, "eBPF objects changed by another process; repaired");
        }
        if self.is_dirty || self.node.is_settling() || self.failure.is_some() || !self.generations.is_in_force() {
            self.leave_former_log();
            self.reconcile()?;
            self.checked.get_or_insert(now);
            if self.watched.is_none() {
                self.watched = Some(now);
                self.generations.watch()?;
            }
        }
        Ok(())
    }
}

impl<E: Edge> PolicyPrograms for ProgramPolicy<E> {
    fn on_update(&mut self, update: &DesiredUpdate) {
        self.is_dirty = true;
        self.note_logging(update);
        self.unanswered.on_update(update);
        self.has_datastore |= matches!(update, DesiredUpdate::InSync);
        if let Err(error) = self.node.on_update(update) {
            let error = with_causes(&error);
            tracing::error!(%error, "policy for eBPF programs cannot be processed");
            self.misunderstood = Some(error);
        }
    }

    fn on_link(&mut self, event: &LinkEvent) {
        for change in self.interfaces.apply(event) {
            self.is_dirty = true;
            match change {
                InterfaceChange::Is { index, name, addresses } => {
                    self.node.on_interface(Interface { name, index, addresses });
                }
                InterfaceChange::Gone(index) => self.node.on_interface_gone(index),
            }
        }
    }

    fn on_links_in_sync(&mut self) {
        self.has_links = true;
    }

    fn apply(&mut self, now: Duration) -> PolicyState {
        if !self.has_datastore || !self.has_links {
            return PolicyState::default();
        }
        let must_wait = self.failure.as_ref().is_some_and(|failure| now < failure.retry_at);
        if !must_wait {
            match self.try_all(now) {
                Ok(()) => {
                    self.failure = None;
                    self.pause = FIRST_PAUSE;
                }
                Err(why) => {
                    self.failure = Some(Failure { why, retry_at: now + self.pause });
                    self.pause = (self.pause * 2).min(LAST_PAUSE);
                }
            }
        }
        let problem = |object: &str, why: &str| ProgramProblem {
            object: object.to_owned(),
            why: why.to_owned(),
            is_degraded: true,
        };
        if let Support::Lacking(why) = &self.support {
            return PolicyState { in_force: false, problems: vec![problem("BPFEnabled", why)] };
        }
        let mut problems = self.problems.clone();
        problems.extend(self.unanswered.problem());
        problems.extend(self.problem_of_learned());
        problems.extend(self.failure.as_ref().map(|failure| {
            problem("eBPF programs do not enforce the current policy; tried again", &with_causes(&failure.why))
        }));
        problems.extend(self.misunderstood.as_ref().map(|why| problem("policy for eBPF programs", why)));
        let in_force =
            self.failure.is_none() && !self.is_dirty && self.misunderstood.is_none() && self.generations.is_in_force();
        PolicyState { in_force, problems }
    }

    fn stats(&self) -> PolicyStats {
        let counts = self.generations.counts();
        PolicyStats {
            blocks: self.node.tables().block_count() as u64,
            max_blocks: u64::from(self.node.tables().max_blocks()),
            addresses: self.node.tables().address_count() as u64,
            generation: self.generations.number(),
            map_writes: counts.writes,
            built: counts.built,
            repairs: counts.repairs,
        }
    }

    fn next(&self, now: Duration) -> Option<Duration> {
        if !self.has_datastore || !self.has_links || matches!(self.support, Support::Lacking(_)) {
            return None;
        }
        let at = match &self.failure {
            Some(failure) => Some(failure.retry_at),
            None if self.is_dirty || self.node.is_settling() => Some(now),
            None => self.check_at().into_iter().chain(self.watch_at()).min(),
        };
        at.map(|at| at.saturating_sub(now))
    }

    fn counts(&mut self) -> Result<Vec<DecisionCount>, CountsError> {
        if !self.generations.is_in_force() {
            return Err(CountsError::NotInForce);
        }
        let mut counts = Vec::new();
        for number in (0..).take(self.node.tables().decision_extent()) {
            let id = DecisionId::from_cell(number << VERDICT_BITS);
            let (verdict, by) = self.node.decided(id);
            // 0 stands for unknown packets; other numbers without a decision are free.
            if by.is_none() && number != 0 {
                continue;
            }
            let (by, direction) = (by.cloned(), self.node.decided_direction(id));
            let read = self.generations.read(MapKind::Counters, number)?;
            let counted = CounterRecord::sum(&read.unwrap_or_default());
            counts.push(DecisionCount { direction, verdict, by, counted });
        }
        Ok(counts)
    }
}

/// Node as the source of the maps' contents.
struct NodeContents<'a> {
    node: &'a mut Node,
    log: Option<&'a mut LogOf>,
    /// Problems of the last flush, if there was one.
    problems: Option<Vec<ProgramProblem>>,
    /// Learned addresses of the last flush.
    learned: Vec<LearnedWrite>,
}

impl<'a> NodeContents<'a> {
    fn new(node: &'a mut Node, log: Option<&'a mut LogOf>) -> Self {
        Self { node, log, problems: None, learned: Vec::new() }
    }

    /// Passes the meaning of the decisions that are about to be written. No packet has their
    /// numbers yet.
    fn name_decisions(&mut self, writes: &[Write]) {
        let Some(log) = &mut self.log else { return };
        let hit = |number: u32| {
            let id = DecisionId::from_number(number);
            let (verdict, by) = self.node.decided(id);
            let verdict = match verdict {
                Verdict::Allow => tortie_rules::PrefixVerdict::Allow,
                Verdict::Deny => tortie_rules::PrefixVerdict::Deny,
                // The next step of the evaluation decides.
                Verdict::Undecided => return (id, None),
            };
            let direction = self.node.decided_direction(id);
            (id, by.zip(direction).map(|(by, direction)| Hit { direction, verdict, decided_by: by.clone() }))
        };
        if std::mem::replace(&mut log.is_named, true) {
            let written = writes.iter().filter(|write| write.map == MapKind::Decisions);
            log.log.name(written.map(|write| hit(write.index)));
        } else {
            // Decisions of a former process are not written again.
            log.log.name((0..).take(self.node.tables().decision_extent()).map(hit));
        }
    }
}

impl Contents for NodeContents<'_> {
    fn entries(&self, map: MapKind) -> u32 {
        self.node.sizes().get(map)
    }

    fn flush(&mut self) -> Vec<Write> {
        let flush = self.node.flush();
        let problem = |problem: Problem| ProgramProblem {
            object: format!("eBPF policy of {} ({:?}, {:?})", problem.endpoint, problem.layer, problem.direction),
            why: format!("everything is denied: {}", with_causes(&problem.why)),
            is_degraded: true,
        };
        self.problems = Some(flush.problems().into_iter().map(problem).collect());
        let writes: Vec<Write> = flush.writes().collect();
        self.learned = flush.learned().to_vec();
        self.name_decisions(&writes);
        writes
    }

    fn take_learned(&mut self) -> Vec<LearnedWrite> {
        std::mem::take(&mut self.learned)
    }

    fn all_learned(&self) -> Vec<(LearnedKey, LearnedRecord)> {
        self.node.all_learned().collect()
    }

    fn note_refused(&mut self, key: LearnedKey) {
        self.node.note_refused(key);
    }

    fn all(&self) -> Vec<Write> {
        self.node.all().collect()
    }

    fn reclaim(&mut self) {
        self.node.reclaim();
    }

    fn adopt(
        &mut self,
        decisions: u32,
        learned: &[(Vec<u8>, Vec<u8>)],
        read: &mut dyn FnMut(MapKind, u32) -> io::Result<Vec<u8>>,
    ) -> Result<(), AdoptError<io::Error>> {
        self.node.adopt_learned(learned)?;
        self.node.adopt(decisions, read)
    }
}

#[cfg(test)]
mod tests;
