//! Options of an agent.

use std::fmt;
use std::path::PathBuf;

use tortie_config::Sources;
use tortie_rules::WorkloadDispatch;

use crate::engine::Unreadable;

/// Options of an [`Agent`](super::Agent): by default Felix's parameters, the kernel's dataplane,
/// and no files.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AgentOptions {
    /// Felix's parameters of this machine. Those of the datastore come with its objects.
    pub parameters: Sources,
    /// Name of the node: `spec.nodeName` of its pods. By default `FelixHostname`, or the name of
    /// the machine.
    pub node: Option<String>,
    /// Dataplane that enforces.
    pub dataplane: DataplaneKind,
    /// Place of the datastore in logs and answers, without secrets.
    pub datastore: String,
    /// True if the source itself reports invalid parameters of the datastore; the agent logs them
    /// otherwise.
    pub reports_parameters: bool,
    /// Reaction to unusable input before policy is in force for the first time.
    pub unreadable: Unreadable,
    /// Directory of records that outlive the agent, such as changes that wait to be confirmed.
    pub state_dir: Option<PathBuf>,
    /// Socket of the local API, on which `tortie status`, `config` and `show` ask.
    pub socket: Option<PathBuf>,
    /// TCP ports of management: changes that cut connections to them wait to be confirmed. `None`
    /// enforces all.
    pub management_ports: Option<Vec<u16>>,
}

impl AgentOptions {
    /// Options of the agent of the node with this name.
    pub fn new(node: impl Into<String>) -> Self {
        Self { node: Some(node.into()), ..Self::default() }
    }
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self {
            parameters: Sources::default(),
            node: None,
            dataplane: DataplaneKind::default(),
            datastore: "embedded".into(),
            reports_parameters: false,
            unreadable: Unreadable::default(),
            state_dir: None,
            socket: None,
            management_ports: None,
        }
    }
}

/// Dataplane of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataplaneKind {
    /// The kernel behind the network namespace of the agent's thread. Needs `CAP_NET_ADMIN`.
    InKernel(MachineOptions),
    /// A driver of Felix's protocol: a program that the agent starts without arguments, and that
    /// ends with it.
    Driver(PathBuf),
}

impl DataplaneKind {
    /// Whether the agent itself identifies workloads by address. A driver follows its own options.
    pub(super) fn is_by_address(&self) -> bool {
        matches!(self, Self::InKernel(machine) if machine.workloads == WorkloadDispatch::Address)
    }
}

impl Default for DataplaneKind {
    fn default() -> Self {
        Self::InKernel(MachineOptions::default())
    }
}

impl fmt::Display for DataplaneKind {
    /// As `tortie run --dataplane` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InKernel(_) => f.write_str("internal"),
            Self::Driver(program) => write!(f, "exec:{}", program.display()),
        }
    }
}

/// Options of enforcement in the kernel of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineOptions {
    /// File with the MTU of workloads, for CNI plugins.
    pub mtu_file: Option<PathBuf>,
    /// Distinction of workloads: by interface name, or by address for CNI plugins that choose names
    /// themselves.
    pub workloads: WorkloadDispatch,
    /// Directory of the kernel's settings; `/proc/sys` by default.
    pub proc_sys: PathBuf,
    /// Whether eBPF programs of Felix are removed although nothing else translates Services.
    pub without_services: bool,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self {
            mtu_file: None,
            workloads: WorkloadDispatch::default(),
            proc_sys: "/proc/sys".into(),
            without_services: false,
        }
    }
}
