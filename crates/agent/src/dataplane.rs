//! `tortie dataplane`.

use std::fs::{File, OpenOptions};
use std::io;

use tortie_config::{LogSeverity, from_environment};

use super::machine::MachineArgs;
use tortie_cli::Failure;
use tortie_cli::capability;
use tortie_cli::memory;
use tortie_cli::signals::{self, Handlers, STOP_PATIENCE};
use tortie_node::DriverAgent;
use tortie_node::driver::ServedEnd;
use tortie_telemetry::logging::{self, LogFormat};

/// Exit code after a change of a parameter, on which Felix restarts the driver
/// (`felix/daemon/daemon.go`).
const RECONFIGURED: u8 = 129;

/// Enforce the calculation of another program, as a driver of Felix.
///
/// Reads messages of Felix's driver protocol from descriptor 3, and writes reports to descriptor 4.
/// Felix starts this command with UseInternalDataplaneDriver=false and DataplaneDriver=PATH, where
/// PATH names a script with `exec tortie dataplane`; so does `tortie run --dataplane exec:PATH`.
/// Needs CAP_NET_ADMIN.
///
/// Parameters come with the messages; FELIX_* variables of this process override them. Health and
/// metrics are left to the other program. If that program ends, or sends an invalid message, this
/// one ends and leaves everything in force.
///
/// Exit codes: 0 when the other program is gone, and after SIGTERM; 129 when a parameter or the
/// machine has changed so that both programs must be started again; 1 otherwise.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The descriptor to read messages from.
    #[arg(long, value_name = "FD", default_value_t = 3)]
    read_fd: u32,
    /// The descriptor to write reports to.
    #[arg(long, value_name = "FD", default_value_t = 4)]
    write_fd: u32,
    #[command(flatten)]
    machine: MachineArgs,
    /// Format of log lines, which go to standard error.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    logging::init(args.log_format, LogSeverity::Info);
    capability::require_net_admin("tortie dataplane")?;
    let agent =
        DriverAgent::new(from_environment(std::env::vars()), args.machine.options()).map_err(Failure::failed)?;
    let messages = open(args.read_fd, OpenOptions::new().read(true))?;
    let reports = open(args.write_fd, OpenOptions::new().write(true))?;
    let handlers = Handlers { patience: Some(STOP_PATIENCE), ..Handlers::new(agent.waker()) };
    signals::follow_for(agent.stop(), handlers)?;
    memory::return_unused(agent.stop())?;
    match agent.run(messages, reports).map_err(Failure::failed)? {
        None => {}
        Some(ServedEnd::Stopped) => tracing::info!("stopping; policy stays in force"),
        Some(ServedEnd::PeerGone) => tracing::info!("the engine is gone; policy stays in force"),
        Some(ServedEnd::Reconfigured) => {
            tracing::info!("the configuration changed; ending to be started again");
            return Err(Failure::Reported(RECONFIGURED));
        }
        Some(ServedEnd::Outdated) => return Err(Failure::Reported(RECONFIGURED)),
    }
    Ok(())
}

/// Opens an inherited descriptor again under another number, which child processes do not inherit.
fn open(descriptor: u32, options: &OpenOptions) -> Result<File, Failure> {
    let path = format!("/proc/self/fd/{descriptor}");
    options.open(&path).map_err(|error| Failure::failed(NotInherited { descriptor, error }))
}

/// A descriptor that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("descriptor {descriptor}, which an engine leaves to this program, cannot be used")]
struct NotInherited {
    descriptor: u32,
    #[source]
    error: io::Error,
}
