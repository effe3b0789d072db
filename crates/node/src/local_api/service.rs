//! Answers to calls.

use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tortie_flows::Event;
use tortie_learner::DnsLookup;
use tortie_linux::exec::Runner;
use tortie_model::with_causes;

use super::counters;
use super::domains;
use super::wire::{Call, Reply};
use crate::engine::inspect::{Answer, EngineStatus, Listing, Policy, Query, Question, RuleCounts};
use crate::flows::{FlowReceiver, FlowRecord, SharedFlows};
use crate::metrics::SharedMetrics;
use tortie_datastore::pending_change::PendingSummary;
use tortie_telemetry::health::Health;

pub(super) const INTERFACE: &str = "org.tortie.agent";
const DESCRIPTION: &str = include_str!("org.tortie.agent.varlink");
/// The interface that every varlink service has (<https://varlink.org/Service>).
const STANDARD: &str = "org.varlink.service";
const STANDARD_DESCRIPTION: &str = include_str!("org.varlink.service.varlink");

/// Timeout of the engine's answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same if the rest of the answer is useful without it.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);

/// Facts that do not change while the program runs.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The node's name.
    pub node: String,
    /// The datastore, without anything that is secret.
    pub datastore: String,
    /// Dataplane: `internal` or `exec:PATH`.
    pub dataplane: String,
    /// When the program began.
    pub started: Instant,
}

/// State of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// The node's name.
    pub node: String,
    /// The datastore, without anything that is secret.
    pub datastore: String,
    /// Dataplane: `internal` or `exec:PATH`.
    pub dataplane: String,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Whether all parts work.
    pub live: bool,
    /// Whether policy is in force and nothing is held back.
    pub ready: bool,
    /// The parts.
    pub components: Vec<Component>,
    /// Since its start.
    pub counters: Counters,
    /// A change in the datastore that is rolled back unless it is confirmed.
    pub pending_change: Option<PendingSummary>,
    /// State of the engine; `None` if it is busy.
    pub engine: Option<EngineStatus>,
}

/// A part of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Component {
    /// Its name.
    pub name: String,
    /// Whether it works.
    pub live: bool,
    /// Whether it does its job.
    pub ready: bool,
    /// Details.
    pub detail: String,
}

/// Counts since the program's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Changes that came from the datastore.
    pub updates: u64,
    /// Changes that are in the kernel.
    pub events_to_kernel: u64,
    /// Mean time from the arrival of a change to its enforcement in the kernel.
    pub event_to_kernel_mean_ms: Option<f64>,
    /// The same time of the changes that reached the kernel last; the longest if there were
    /// several.
    #[serde(default)]
    pub event_to_kernel_last_ms: Option<f64>,
    /// Median of these times in the last ten minutes.
    #[serde(default)]
    pub event_to_kernel_p50_ms: Option<f64>,
    /// 90th percentile of these times in the last ten minutes.
    #[serde(default)]
    pub event_to_kernel_p90_ms: Option<f64>,
    /// 99th percentile of these times in the last ten minutes.
    #[serde(default)]
    pub event_to_kernel_p99_ms: Option<f64>,
    /// Changes from the datastore that wait for the engine.
    #[serde(default)]
    pub waiting_for_engine: u64,
    /// Incomplete applies.
    pub apply_failures: u64,
    /// Current problems of the input.
    pub input_problems: u64,
    /// Objects that the kernel refuses now.
    pub dataplane_problems: u64,
}

/// State of other parts of the program, which can be read at any time.
#[derive(Clone, Debug, Default)]
pub struct StatusSources {
    /// Health of the parts.
    pub health: Health,
    /// Metrics.
    pub metrics: SharedMetrics,
    /// Flows.
    pub flows: SharedFlows,
    /// Names that endpoints have learned.
    pub domains: DnsLookup,
}

#[derive(Debug)]
pub(super) enum CallAnswer {
    Once(Reply),
    Flows(FlowReceiver),
}

/// Answers calls.
pub struct Service {
    facts: Facts,
    sources: StatusSources,
    /// Passes a question to the engine; returns whether the engine had room for it.
    ask: Box<dyn Fn(Question) -> bool + Send + Sync>,
    runner: Runner,
    state_dir: Option<PathBuf>,
    waiting: Box<dyn Fn() -> usize + Send + Sync>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Service {
    /// `ask` passes a question to the engine without waiting: true if it was taken. `runner` lists
    /// kernel rules.
    pub fn new(
        facts: Facts,
        sources: StatusSources,
        ask: impl Fn(Question) -> bool + Send + Sync + 'static,
        runner: Runner,
    ) -> Self {
        Self { facts, sources, ask: Box::new(ask), runner, state_dir: None, waiting: Box::new(|| 0) }
    }

    /// Also reports the number of changes from the datastore that wait for the engine.
    #[must_use]
    pub fn with_waiting(self, waiting: impl Fn() -> usize + Send + Sync + 'static) -> Self {
        Self { waiting: Box::new(waiting), ..self }
    }

    /// Also reports the change that is kept in a state directory.
    #[must_use]
    pub fn with_state_dir(self, state_dir: Option<PathBuf>) -> Self {
        Self { state_dir, ..self }
    }

    /// `None` if no answer is wanted. `is_root` states whether the client may make changes.
    pub(super) fn answer(&self, message: &[u8], is_root: bool) -> Result<Option<CallAnswer>, serde_json::Error> {
        let call: Call = serde_json::from_slice(message)?;
        if call.more
            && call.parameters.is_empty()
            && call.method.strip_suffix("Flows").is_some_and(|rest| rest.strip_suffix('.') == Some(INTERFACE))
        {
            let followed = self.sources.flows.follow();
            return Ok(Some(followed.map_or_else(|| CallAnswer::Once(not_collected()), CallAnswer::Flows)));
        }
        let is_order = call.method.strip_prefix(INTERFACE) == Some(".ConfirmHostChanges");
        let reply = if is_order && !is_root { permission_denied() } else { self.reply(&call) };
        Ok((!call.oneway).then_some(CallAnswer::Once(reply)))
    }

    fn reply(&self, call: &Call) -> Reply {
        let Some((interface, method)) = call.method.rsplit_once('.') else {
            return method_not_found(&call.method);
        };
        match interface {
            INTERFACE => self.own(method, call),
            STANDARD => standard(method, call),
            other => standard_error("InterfaceNotFound", "interface", other),
        }
    }

    fn own(&self, method: &str, call: &Call) -> Reply {
        if method == "Flows" {
            return match which(&call.parameters, None) {
                Ok(_) => self.sources.flows.recent().map_or_else(not_collected, |events| flows(&events)),
                Err(UnknownParameter(name)) => standard_error("InvalidParameter", "parameter", &name),
            };
        }
        if method == "Domains" {
            return self.domains(&call.parameters);
        }
        match query(method, &call.parameters) {
            None => method_not_found(&call.method),
            Some(Err(UnknownParameter(name))) => standard_error("InvalidParameter", "parameter", &name),
            Some(Ok(Query::Status)) => Reply::of(json!(self.status())),
            Some(Ok(query)) => self.ask_engine(method, query),
        }
    }

    fn domains(&self, parameters: &Map<String, Value>) -> Reply {
        let mut parameters = parameters.clone();
        let address = match parameters.shift_remove("address") {
            None | Some(Value::Null) => None,
            Some(given) => match given.as_str().and_then(|text| text.parse().ok()) {
                Some(address) => Some(address),
                None => return standard_error("InvalidParameter", "parameter", "address"),
            },
        };
        let name = match which(&parameters, Some("name")) {
            Ok(name) => name,
            Err(UnknownParameter(name)) => return standard_error("InvalidParameter", "parameter", &name),
        };
        let answers = (self.engine(Query::Endpoints(name), PATIENCE), self.engine(Query::IpSets(None), PATIENCE));
        let (Some(Answer::Endpoints(endpoints)), Some(Answer::IpSets(sets))) = answers else { return busy() };
        let learned = domains::learned(&self.sources.domains, &self.facts.node, (&endpoints, &sets), address);
        learned.map_or_else(|_| busy(), |learned| Reply::of(json!(learned)))
    }

    fn ask_engine(&self, method: &str, query: Query) -> Reply {
        match self.engine(query, PATIENCE) {
            Some(Answer::Configuration(configuration)) => Reply::of(json!(configuration)),
            Some(Answer::Endpoints(endpoints)) => Reply::of(json!({ "endpoints": endpoints })),
            Some(Answer::Policies(policies, counts)) => self.policies(method, policies, counts),
            Some(Answer::IpSets(sets)) => Reply::of(json!({ "ip_sets": sets })),
            Some(Answer::Confirmed(confirmed)) => Reply::of(json!(confirmed)),
            Some(Answer::Status(_) | Answer::Busy) | None => busy(),
        }
    }

    fn policies(&self, method: &str, mut policies: Vec<Policy>, counts: Option<RuleCounts>) -> Reply {
        for policy in &mut policies {
            policy.last_hit = self.sources.flows.last_hit(&policy.id);
        }
        let list = |listing: &Listing| counters::list(listing, &self.runner);
        match counts.map(|counts| counters::note(&mut policies, counts, list)).transpose() {
            Err(why) => Reply::error(&format!("{INTERFACE}.NotListed"), json!({ "why": with_causes(&why) })),
            Ok(Some(decisions)) if method == "Counters" => Reply::of(json!({
                // Where eBPF decisions are counted, policies have no other counters.
                "policies": if decisions.is_some() { Vec::new() } else { policies },
                "decisions": decisions,
            })),
            Ok(_) => Reply::of(json!({ "policies": policies })),
        }
    }

    fn engine(&self, query: Query, patience: Duration) -> Option<Answer> {
        let (reply, answer) = sync_channel(1);
        (self.ask)(Question { query, reply }).then(|| answer.recv_timeout(patience).ok())?
    }

    fn status(&self) -> Status {
        let Facts { node, datastore, dataplane, started } = &self.facts;
        let engine = match self.engine(Query::Status, SHORT_PATIENCE) {
            Some(Answer::Status(status)) => Some(*status),
            _ => None,
        };
        let components: Vec<Component> = self
            .sources
            .health
            .conditions()
            .into_iter()
            .map(|(reporter, condition)| Component {
                name: reporter.name().to_owned(),
                live: condition.live,
                ready: condition.ready,
                detail: condition.detail,
            })
            .collect();
        let waiting_for_engine = (self.waiting)() as u64;
        let metrics = self.sources.metrics.lock();
        let now = Instant::now();
        let quantile =
            |part| Some(metrics.main_loop.recent_event_to_kernel.quantile(part, now) * 1e3).filter(|ms| !ms.is_nan());
        let counters = Counters {
            updates: metrics.datastore.updates_processed.values().sum(),
            events_to_kernel: metrics.main_loop.event_to_kernel.count(),
            event_to_kernel_mean_ms: metrics.main_loop.event_to_kernel.mean().map(|mean| mean * 1e3),
            event_to_kernel_last_ms: metrics.main_loop.last_event_to_kernel.map(|last| last.as_secs_f64() * 1e3),
            event_to_kernel_p50_ms: quantile(0.5),
            event_to_kernel_p90_ms: quantile(0.9),
            event_to_kernel_p99_ms: quantile(0.99),
            waiting_for_engine,
            apply_failures: metrics.dataplane.apply_failures,
            input_problems: metrics.datastore.input_problems,
            dataplane_problems: metrics.dataplane.problems,
        };
        drop(metrics);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            node: node.clone(),
            datastore: datastore.clone(),
            dataplane: dataplane.clone(),
            uptime_seconds: started.elapsed().as_secs(),
            live: components.iter().all(|component| component.live),
            ready: components.iter().all(|component| component.ready),
            components,
            counters,
            pending_change: self.state_dir.as_deref().and_then(PendingSummary::of),
            engine,
        }
    }
}

pub(super) fn flows(events: &[Event]) -> Reply {
    let flows: Vec<FlowRecord> = events.iter().map(FlowRecord::of).collect();
    Reply::of(json!({ "flows": flows }))
}

/// Answer with flow events to a client that follows, and the number of earlier events that it has
/// lost.
pub(super) fn followed(events: &[Event], lost: u64) -> Reply {
    let reply = flows(events);
    if lost == 0 {
        return reply;
    }
    let mut parameters = reply.parameters;
    if let Some(parameters) = parameters.as_object_mut() {
        parameters.insert("lost".to_owned(), lost.into());
    }
    Reply::of(parameters)
}

fn busy() -> Reply {
    Reply::error(&format!("{INTERFACE}.Busy"), json!({}))
}

fn not_collected() -> Reply {
    Reply::error(&format!("{INTERFACE}.NotCollected"), json!({}))
}

struct UnknownParameter(String);

fn query(method: &str, parameters: &Map<String, Value>) -> Option<Result<Query, UnknownParameter>> {
    let mut parameters = parameters.clone();
    let counts = match (method, parameters.get("counters")) {
        ("Policies", Some(Value::Bool(counts))) => {
            let counts = *counts;
            parameters.shift_remove("counters");
            counts
        }
        _ => method == "Counters",
    };
    let allowed = match method {
        "Endpoints" | "Policies" => Some("name"),
        "IpSets" => Some("id"),
        "Status" | "Configuration" | "Counters" | "ConfirmHostChanges" => None,
        _ => return None,
    };
    let which = match which(&parameters, allowed) {
        Ok(which) => which,
        Err(unknown) => return Some(Err(unknown)),
    };
    Some(Ok(match method {
        "Status" => Query::Status,
        "Configuration" => Query::Configuration,
        "Endpoints" => Query::Endpoints(which),
        "IpSets" => Query::IpSets(which),
        "ConfirmHostChanges" => Query::ConfirmHostChanges,
        _ => Query::Policies { name: which, counts },
    }))
}

fn which(parameters: &Map<String, Value>, allowed: Option<&str>) -> Result<Option<String>, UnknownParameter> {
    let mut which = None;
    for (name, value) in parameters {
        match value {
            Value::String(text) if Some(name.as_str()) == allowed => which = Some(text.clone()),
            Value::Null if Some(name.as_str()) == allowed => {}
            _ => return Err(UnknownParameter(name.clone())),
        }
    }
    Ok(which)
}

fn standard(method: &str, call: &Call) -> Reply {
    match method {
        "GetInfo" => Reply::of(json!({
            "vendor": "Tortie",
            "product": "tortie",
            "version": env!("CARGO_PKG_VERSION"),
            "url": "",
            "interfaces": [STANDARD, INTERFACE],
        })),
        "GetInterfaceDescription" => match call.parameters.get("interface").and_then(Value::as_str) {
            Some(INTERFACE) => Reply::of(json!({ "description": DESCRIPTION })),
            Some(STANDARD) => Reply::of(json!({ "description": STANDARD_DESCRIPTION })),
            Some(other) => standard_error("InterfaceNotFound", "interface", other),
            None => standard_error("InvalidParameter", "parameter", "interface"),
        },
        _ => method_not_found(&call.method),
    }
}

pub(super) fn permission_denied() -> Reply {
    Reply::error(&format!("{STANDARD}.PermissionDenied"), json!({}))
}

fn method_not_found(method: &str) -> Reply {
    standard_error("MethodNotFound", "method", method)
}

fn standard_error(error: &str, name: &str, value: &str) -> Reply {
    Reply::error(&format!("{STANDARD}.{error}"), json!({ name: value }))
}

#[cfg(test)]
mod tests;
