mod answer;
mod collect;
mod flow;
mod legacy;
mod listing;
mod nf_log;
mod owners;
mod plan;
mod programs;
mod rules;
mod steps;
mod verdict;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use tortie_analysis::trace::Connection;
use tortie_config::settings;
use tortie_linux::exec::Runner;
use tortie_linux::netlink::nftrace::Nftrace;
use tortie_linux::netlink::{Flow, Netlink, Nflog};
use tortie_linux::probe::{self, FlowFields, Probe, ProbeAnswer};
use tortie_linux::stop::Stop;
use tortie_model::Hostname;
use tortie_rules::RulesConfig;

use super::agent_names::AgentNames;
use super::group::GroupAnswer;
use super::question::{Question, QuestionArgs};
use super::view::View;
use crate::capability::{self, Capability};
use crate::cluster::ParametersError;
use crate::signals::{self, Handlers};
use crate::{Failure, render};
pub(super) use answer::LiveAnswer;
use collect::{Listeners, Sender, TraceResult};
use flow::TracedFlow;
use listing::Rules;
use nf_log::NfLog;
use owners::Owners;
use plan::{Plan, TraceMethod};
use programs::Programs;
use steps::{Packet, Recorder, principal};
use tortie_node::local_api::DEFAULT_SOCKET;
pub(super) use verdict::Agreement;
use verdict::compare;

const COMMAND: &str = "tortie trace --live";
/// NFLOG group of the packets that iptables-legacy traces.
const TRACE_GROUP: u16 = 0;
const TIMEOUT: Duration = Duration::from_secs(10);
const PORTS: std::ops::Range<u16> = 50_000..60_000;

/// Options for tracing in the kernel.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LiveArgs {
    /// Trace in the kernel of this node as well: send a probe from the pod, or wait for the real
    /// flow, and show each chain and rule that it passes, with counters. Needs root.
    #[arg(long, conflicts_with = "batch")]
    pub(super) live: bool,
    /// With --live: send nothing, and wait for the real flow.
    #[arg(long, requires = "live")]
    pub(super) watch: bool,
    /// With --live: seconds to wait for the real flow.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,
    /// Socket of the agent, which reports the names that endpoints have resolved, and with --live
    /// the counters of eBPF programs if these enforce policy; see `tortie run --socket`.
    #[arg(long, value_name = "FILE", env = "TORTIE_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// With --live: directory of the kernel's settings; see `tortie run --proc-sys`.
    #[arg(long, value_name = "DIR", env = "TORTIE_PROC_SYS", default_value = "/proc/sys")]
    proc_sys: PathBuf,
}

impl LiveArgs {
    pub(super) fn agent_names(&self) -> AgentNames {
        AgentNames::new(self.socket.clone())
    }
}

pub(super) enum Calculated<'a> {
    Connection(&'a Connection, &'a View),
    Group(&'a GroupAnswer<'a>),
}

impl Calculated<'_> {
    pub(super) fn view(&self) -> &View {
        match self {
            Self::Connection(_, view) => view,
            Self::Group(answer) => answer.view(),
        }
    }

    fn to(&self, end: Option<SocketAddr>) -> Option<&Connection> {
        match self {
            Self::Connection(connection, _) => Some(connection),
            Self::Group(answer) => answer.connection_to(end?),
        }
    }
}

/// Policy is not evaluated again for a connection with a conntrack entry.
pub(super) fn source_port() -> u16 {
    let mut random = [0; 2];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    PORTS.start + u16::from_ne_bytes(random) % (PORTS.end - PORTS.start)
}

pub(super) fn require_privileges() -> Result<(), Failure> {
    capability::require(COMMAND, &[Capability::NetAdmin])
}

pub(super) fn ask(
    args: &LiveArgs,
    options: &QuestionArgs,
    datastore: &str,
    question: &Question,
    calculated: &Calculated<'_>,
    node: &Hostname,
) -> Result<LiveAnswer, Failure> {
    let plan = Plan::new(args.watch, options, datastore, question, calculated.view(), node).map_err(Failure::failed)?;
    let Plan { flow, method, mut notes } = plan;
    let sending = Sending::of(&method, &flow)?;
    let stop = signals::follow(Handlers::new(|| {}))?;
    let runner = Runner::new(stop.clone());
    let family = flow.family();
    let before = rules::has_legacy(family).then(|| rules::legacy(family, &runner, &mut notes));
    let before = before.filter(|listing| listing.is_empty() || listing.has_effect());
    let is_by_programs = calculated.view().config(node).is_ok_and(|config| config.bpf_enabled);
    let programs = programs::CountersBefore::ask(&args.socket, is_by_programs);
    let (result, recorder) = trace(args, (&flow, &method), sending, before.is_some(), &stop)?;
    let TraceResult { answer, lost, unreadable, .. } = result;
    let probe = answer.transpose().map_err(|error| not_sent(&flow, error))?;
    let programs = programs.counted_since(&args.socket);
    let left_out = recorder.left_out;
    let packets = recorder.finish();
    let Some(first) = principal(&packets).and_then(|index| packets.get(index)) else {
        return Err(Failure::failed(match probe {
            Some(_) => format!("the probe {flow} did not reach the rules of this node: check the routes in the pod"),
            None => format!("no packet of {flow} came within {} s", args.wait),
        }));
    };
    let (owners, problem) = owners(calculated.view(), node, &flow);
    notes.extend(problem);
    let rules = rules::all(family, &packets, before, &runner, &mut notes);
    let agreement = agreement(calculated, node, first, (&rules, programs.as_ref()), &owners);
    let links = Netlink::open(TIMEOUT).and_then(|mut netlink| netlink.links()).map_err(Failure::failed)?;
    let interfaces = links.into_iter().map(|link| (link.index, link.name.to_string())).collect();
    let node = node.clone();
    Ok(LiveAnswer {
        node,
        flow,
        probe,
        packets,
        rules,
        owners,
        interfaces,
        agreement,
        programs,
        lost,
        unreadable,
        left_out,
        notes,
    })
}

struct Sending {
    probe: Probe,
    namespace: Option<File>,
}

impl Sending {
    fn of(method: &TraceMethod, flow: &TracedFlow) -> Result<Option<Self>, Failure> {
        let namespace = match method {
            TraceMethod::FromPod { interface } => {
                capability::require(COMMAND, &[Capability::SysAdmin, Capability::SysPtrace])?;
                Some(probe::of_pod(interface.as_deref(), flow.source).map_err(Failure::failed)?)
            }
            TraceMethod::FromNode => None,
            TraceMethod::Watch { .. } => return Ok(None),
        };
        Ok(Some(Self { probe: probe_of(flow)?, namespace }))
    }

    fn send(self, cancel: Stop) -> Result<Receiver<io::Result<ProbeAnswer>>, Failure> {
        let Self { probe, namespace } = self;
        let (sender, answers) = mpsc::channel();
        let thread = thread::Builder::new().name("probe".into()).spawn(move || {
            let answer = match &namespace {
                Some(namespace) => probe::inside(namespace, || probe.send(&cancel)).flatten(),
                None => probe.send(&cancel),
            };
            let _ = sender.send(answer);
        });
        thread.map(|_| answers).map_err(Failure::io("the thread of the probe"))
    }
}

/// Tracing is off again at the end.
fn trace(
    args: &LiveArgs,
    (flow, method): (&TracedFlow, &TraceMethod),
    sending: Option<Sending>,
    has_legacy: bool,
    stop: &Stop,
) -> Result<(TraceResult, Recorder), Failure> {
    let family = flow.family();
    let nflog = has_legacy.then(|| Nflog::open(&[TRACE_GROUP])).transpose().map_err(Failure::failed)?;
    let nf_log = has_legacy.then(|| NfLog::set(family, &args.proc_sys)).transpose()?;
    let table = format!("tortie-trace-{}", std::process::id());
    let nftrace = Nftrace::open(family, &table, &flow.filters()).map_err(Failure::failed)?;
    let mut recorder = Recorder::new(nftrace.table(), flow.from());
    let mut listeners = Listeners { nftrace, nflog };
    let result = match sending {
        Some(sending) => {
            let cancel = Stop::new().map_err(Failure::io("a pipe"))?;
            let answers = sending.send(cancel.clone())?;
            let result = listeners.receive(&mut recorder, &Sender::Probe(&answers, &cancel), stop);
            cancel.set();
            result
        }
        None => {
            let patience = Duration::from_secs(args.wait);
            if let TraceMethod::Watch { request } = method {
                eprintln!("waiting up to {} s for {flow}{request}", args.wait);
            }
            listeners.receive(&mut recorder, &Sender::Others(patience), stop)
        }
    };
    drop(listeners);
    drop(nf_log);
    let result = result.map_err(Failure::failed)?;
    if result.is_interrupted {
        return Err(Failure::failed("ended by a signal; nothing is traced any more"));
    }
    Ok((result, recorder))
}

/// Compares the verdict on the first packet with the verdict calculated for its final destination.
fn agreement(
    calculated: &Calculated<'_>,
    node: &Hostname,
    first: &Packet,
    (rules, programs): (&Rules, Option<&Programs>),
    owners: &Owners,
) -> Agreement {
    let end = match first.last.tuple.flow {
        Flow::Ports { destination, .. } => Some(SocketAddr::new(first.last.tuple.destination, destination)),
        Flow::Icmp { .. } | Flow::Other => None,
    };
    match calculated.to(end) {
        Some(connection) => compare(connection, node, first, (rules, programs), owners),
        None => {
            Agreement::NotCompared("the packet goes to nothing that answers for the Service in the datastore".into())
        }
    }
}

fn probe_of(flow: &TracedFlow) -> Result<Probe, Failure> {
    let (source, target) = match flow.fields {
        FlowFields::Ports { source, destination } => (source.unwrap_or_default(), destination),
        FlowFields::Icmp { .. } | FlowFields::Other => (0, 0),
    };
    if !matches!(flow.protocol, 6 | 17) {
        capability::require(COMMAND, &[Capability::NetRaw])?;
    }
    let (source, target) = (SocketAddr::new(flow.source, source), SocketAddr::new(flow.destination, target));
    Ok(Probe { source, target, protocol: flow.protocol, fields: flow.fields })
}

#[derive(Debug, thiserror::Error)]
#[error("the probe {flow} cannot be sent{advice}")]
struct NotSent {
    flow: TracedFlow,
    advice: &'static str,
    #[source]
    error: io::Error,
}

fn not_sent(flow: &TracedFlow, error: io::Error) -> Failure {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => ": the source port is in use there, choose another one with --source-port",
        io::ErrorKind::AddrNotAvailable => ": the pod does not have the address in the datastore",
        _ => "",
    };
    Failure::failed(NotSent { flow: flow.clone(), advice, error })
}

/// If the node's parameters are invalid, returns none, and the reason.
fn owners(view: &View, node: &Hostname, flow: &TracedFlow) -> (Owners, Option<String>) {
    let known = || -> Result<_, ParametersError> {
        let config = view.config(node)?;
        Ok((settings::rules(&config)?, config))
    };
    match known() {
        Ok((rules, config)) => {
            let (desired, _) = render::calculate(&config, node, view.updates());
            (Owners::new(&desired, &rules, flow.family()), None)
        }
        Err(error) => (Owners::new(&[], &RulesConfig::default(), flow.family()), Some(error.to_string())),
    }
}
