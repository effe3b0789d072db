//! When programs are given what they are to enforce, and what is said of that.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::time::Duration;

use tortie_dataplane::{LinkEvent, ProgramProblem};
use tortie_ebpf::layout::{CounterRecord, MapKind, VERDICT_BITS};
use tortie_ebpf::{AdoptError, DecisionId, Interface, Node, NodeSettings, Problem, Write};
use tortie_evaluate::{DecidedBy, Verdict};
use tortie_flows::Hit;
use tortie_model::desired::{DesiredUpdate, Rules};
use tortie_model::{Direction, Family, RuleAction, with_causes};

use super::edge::Edge;
use super::generations::{Contents, EdgeError, Generations, Repairs};
use super::interfaces::{InterfaceChange, Interfaces};
use super::log::PacketLog;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// How often it is looked whether somebody may have detached programs, where others can.
const WATCH: Duration = Duration::from_secs(1);

/// How it is with policy that programs enforce.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyState {
    /// Whether all that was told is in force.
    pub in_force: bool,
    /// What is wrong.
    pub problems: Vec<ProgramProblem>,
}

/// About how many packets something decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionCount {
    /// Packets to endpoints (ingress) or from them (egress); `None` for what is denied because it is not known.
    pub direction: Option<Direction>,
    /// What is decided.
    pub verdict: Verdict,
    /// What decides; `None` for what is denied because it is not known.
    pub by: Option<DecidedBy>,
    /// How many.
    pub counted: CounterRecord,
}

/// What policy by programs takes of the kernel, and what was done there since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Blocks of 1,024 bytes that tables are in.
    pub blocks: u64,
    /// How many there may be.
    pub max_blocks: u64,
    /// Stretches of addresses that rules tell apart.
    pub addresses: u64,
    /// The number of the maps and programs in use; 0 if there are none.
    pub generation: u64,
    /// Values of maps that were written.
    pub map_writes: u64,
    /// How often maps and programs were made and attached.
    pub built: u64,
    /// What somebody else had changed, and was put right.
    pub repairs: u64,
}

/// Programs that enforce what they are told.
pub trait PolicyPrograms: fmt::Debug + Send {
    /// Takes a change of what is to be enforced.
    fn on_update(&mut self, update: &DesiredUpdate);
    /// Takes a change of a network interface.
    fn on_link(&mut self, event: &LinkEvent);
    /// All interfaces that exist have been told.
    fn on_links_in_sync(&mut self);
    /// Has the kernel enforce what was told, as soon as everything has been told once.
    fn apply(&mut self, now: Duration) -> PolicyState;
    /// What they take of the kernel.
    fn stats(&self) -> PolicyStats;
    /// How long there is nothing to do if nothing is told; never if `None`.
    fn next(&self, now: Duration) -> Option<Duration>;
    /// What has been counted since the programs were attached, for each decision that there is.
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

/// Policy by programs, as one dataplane sees it.
#[derive(Debug)]
pub struct ProgramPolicy<E: Edge> {
    node: Node,
    generations: Generations<E>,
    interfaces: Interfaces,
    has_datastore: bool,
    has_links: bool,
    /// Something was told that is not in force.
    is_dirty: bool,
    check_interval: Option<Duration>,
    checked: Option<Duration>,
    watched: Option<Duration>,
    failure: Option<Failure>,
    pause: Duration,
    support: Support,
    /// What could not be made sense of.
    misunderstood: Option<String>,
    problems: Vec<ProgramProblem>,
    /// Policies and profiles that log.
    logging: BTreeSet<String>,
    log: Option<LogOf>,
}

/// A log that is wanted.
#[derive(Debug)]
struct LogOf {
    log: PacketLog,
    /// Of the maps and programs with this number; 0 for none.
    generation: u64,
    /// Whether all decisions have been named.
    is_named: bool,
    /// Whether all that is decided is wanted, and not only while some rule logs.
    wants_all: bool,
}

/// Whether the kernel can enforce anything.
#[derive(Debug)]
enum Support {
    Unasked,
    Full,
    /// Why it cannot.
    Lacking(String),
}

#[derive(Debug)]
struct Failure {
    why: EdgeError,
    retry_at: Duration,
}

impl<E: Edge> ProgramPolicy<E> {
    /// Touches nothing yet. What is in the kernel is looked at every `check_interval`.
    pub fn new(settings: NodeSettings, families: Vec<Family>, edge: E, check_interval: Option<Duration>) -> Self {
        Self {
            node: Node::new(settings),
            generations: Generations::new(edge, families),
            interfaces: Interfaces::default(),
            has_datastore: false,
            has_links: false,
            is_dirty: true,
            check_interval,
            checked: None,
            watched: None,
            failure: None,
            pause: FIRST_PAUSE,
            support: Support::Unasked,
            misunderstood: None,
            problems: Vec::new(),
            logging: BTreeSet::new(),
            log: None,
        }
    }

    /// Has programs log what they decide while a policy or profile has rules that log, or always if all of it is wanted, and tells
    /// `log` where they do so and what decisions mean.
    #[must_use]
    pub fn with_log(mut self, log: PacketLog, wants_all: bool) -> Self {
        self.node.set_logs(wants_all);
        Self { log: Some(LogOf { log, generation: 0, is_named: false, wants_all }), ..self }
    }

    /// Has programs log as long as a policy or profile has rules that do, or says that nothing comes of these.
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
            tracing::warn!(
                "{name}: nobody reads here what eBPF programs log: its rules with the action Log do nothing"
            );
        }
        if let Some(log) = &self.log {
            self.node.set_logs(log.wants_all || !self.logging.is_empty());
        }
    }

    /// Has whoever reads the log read that of the programs in use. Policy is in force without it.
    fn follow_log(&mut self) {
        let generation = self.generations.number();
        let Some(log) = self.log.as_mut().filter(|log| log.generation != generation) else { return };
        log.generation = generation;
        log.log.set_source(self.generations.open_log().unwrap_or_else(|error| {
            tracing::error!(error = %with_causes(&error), "flows are told without what eBPF programs decide");
            None
        }));
    }

    fn check_at(&self) -> Option<Duration> {
        self.checked.zip(self.check_interval).map(|(checked, interval)| checked + interval)
    }

    fn watch_at(&self) -> Option<Duration> {
        self.watched.filter(|_| self.generations.is_watched()).map(|watched| watched + WATCH)
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
        for thing in repairs?.things {
            tracing::warn!("{thing}; somebody else has changed it, and it is put right");
        }
        if self.is_dirty || self.node.is_settling() || self.failure.is_some() || !self.generations.is_in_force() {
            if let Some(log) = self.log.as_mut().filter(|log| log.generation != 0 && !self.generations.is_in_force()) {
                // Programs are about to be replaced, and numbers given out again that these still log.
                log.log.set_source(None);
                log.generation = 0;
            }
            let mut contents = NodeContents::new(&mut self.node, self.log.as_mut());
            let result = self.generations.bring(&mut contents);
            if let Some(problems) = contents.problems {
                self.problems = problems;
            }
            result?;
            self.follow_log();
            self.is_dirty = false;
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
        self.has_datastore |= matches!(update, DesiredUpdate::InSync);
        if let Err(error) = self.node.on_update(update) {
            let error = with_causes(&error);
            tracing::error!(%error, "policy for eBPF programs cannot be understood");
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
        problems.extend(self.failure.as_ref().map(|failure| {
            problem("policy is not enforced as it should be by eBPF programs; tried again", &with_causes(&failure.why))
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
            // 0 stands for what is not known; of the others, those without anything are free.
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

/// A node as what maps are to hold.
struct NodeContents<'a> {
    node: &'a mut Node,
    log: Option<&'a mut LogOf>,
    /// What the last flush had to say, if there was one.
    problems: Option<Vec<ProgramProblem>>,
}

impl<'a> NodeContents<'a> {
    fn new(node: &'a mut Node, log: Option<&'a mut LogOf>) -> Self {
        Self { node, log, problems: None }
    }

    /// Says what the numbers of decisions mean that are about to be written: packets still have none of them.
    fn name_decisions(&mut self, writes: &[Write]) {
        let Some(log) = &mut self.log else { return };
        let hit = |number: u32| {
            let id = DecisionId::from_number(number);
            let (verdict, by) = self.node.decided(id);
            let verdict = match verdict {
                Verdict::Allow => tortie_rules::Verdict::Allow,
                Verdict::Deny => tortie_rules::Verdict::Deny,
                // What is asked next decides.
                Verdict::Undecided => return (id, None),
            };
            let direction = self.node.decided_direction(id);
            (id, by.zip(direction).map(|(by, direction)| Hit { direction, verdict, decided_by: by.clone() }))
        };
        if std::mem::replace(&mut log.is_named, true) {
            let written = writes.iter().filter(|write| write.map == MapKind::Decisions);
            log.log.name(written.map(|write| hit(write.index)));
        } else {
            // Those that another process has named are not written again.
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
        self.name_decisions(&writes);
        writes
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
        read: &mut dyn FnMut(MapKind, u32) -> io::Result<Vec<u8>>,
    ) -> Result<(), AdoptError<io::Error>> {
        self.node.adopt(decisions, read)
    }
}

#[cfg(test)]
mod tests;
