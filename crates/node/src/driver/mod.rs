//! Dataplanes in other programs, by Felix's protocol of external drivers
//! (`felix/dataplane/external/ext_dataplane.go`).
//!
//! [`Driver`] is the engine's side: it starts the program, sends it the desired state, and receives
//! its reports. [`DriverAgent`](crate::DriverAgent) is the other side: it obeys the calculation of
//! another program and enforces it in this kernel.
//!
//! The two exchange messages over two pipes. The program is started without arguments; it reads
//! from its descriptor 3 and writes to its descriptor 4. A message is eight bytes of length and a
//! `felix.ToDataplane` or `felix.FromDataplane`. First comes the configuration, then the desired
//! state, and `InSync` after everything that is known at start.
//!
//! If one side ends, the kernel keeps the policy in force, and the other side ends, too: its state
//! would not match that of a new peer. Both start again, as with Felix, and find the earlier state
//! in the kernel.

mod config;
mod parent;
mod process;
mod queue;
mod reports;
mod served;

use std::path::PathBuf;
use std::process::ExitStatus;

use tortie_protocol::Report;

pub use parent::{Driver, DriverSetup};
pub(crate) use served::{PeerEvent, ServeInput, ServeSetup, Served, configuration, follow_peer};
pub use served::{ServeError, ServedEnd};

/// Event of a driver.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverEvent {
    /// It sent a report.
    Report(Report),
    /// The queue of messages to it has room again.
    Room,
    /// The last message of the initial state has been written to it.
    InSyncWritten,
    /// A pipe to it is broken; the text says how.
    Broken(String),
}

/// Failure that ends enforcement by a driver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// It cannot be started.
    #[error("the dataplane driver {} cannot be started", program.display())]
    Start {
        /// The driver.
        program: PathBuf,
        /// Cause.
        #[source]
        error: std::io::Error,
    },
    /// It ended.
    #[error("the dataplane driver {} has ended ({status}); its policy may still be in force", program.display())]
    Ended {
        /// The driver.
        program: PathBuf,
        /// Exit status.
        status: ExitStatus,
    },
    /// A pipe to it broke although it still runs.
    #[error("the connection to the dataplane driver {} is broken: {why}", program.display())]
    Broken {
        /// The driver.
        program: PathBuf,
        /// Description of the failure.
        why: String,
    },
}
