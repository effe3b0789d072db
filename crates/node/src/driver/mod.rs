//! Dataplanes in other programs, by Felix's protocol of external drivers (`felix/dataplane/external/ext_dataplane.go`).
//!
//! [`Driver`] is the engine's side: it starts the program, sends it the desired state, and receives its reports. [`DriverAgent`](crate::DriverAgent)
//! is the other side: it obeys the calculation of another program and enforces it in this kernel.
//!
//! The two talk over two pipes. The program is started without arguments; it reads from its descriptor 3 and writes to its
//! descriptor 4. A message is eight bytes of length and a `felix.ToDataplane` or `felix.FromDataplane`. First comes the
//! configuration, then what is to be enforced, and `InSync` after everything that is known at start.
//!
//! Where one side goes, what is in the kernel stays in force, and the other side ends, too: neither can know what the next
//! one knows. Both start again, as with the original, and find in the kernel what was left.

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

/// What becomes known of a driver.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverEvent {
    /// It says something.
    Report(Report),
    /// It has taken something, so that there is room for more.
    Room,
    /// It has taken the last message that was known at start.
    InSyncWritten,
    /// A pipe to it is broken; the text says how.
    Broken(String),
}

/// Why nothing can be enforced by a driver any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// It cannot be started.
    #[error("the dataplane driver {} cannot be started", program.display())]
    Start {
        /// The driver.
        program: PathBuf,
        /// What is wrong.
        #[source]
        error: std::io::Error,
    },
    /// It ended.
    #[error("the dataplane driver {} has ended ({status}); what it enforced may still be in force", program.display())]
    Ended {
        /// The driver.
        program: PathBuf,
        /// How.
        status: ExitStatus,
    },
    /// A pipe to it broke although it still runs.
    #[error("the dataplane driver {} cannot be talked to: {why}", program.display())]
    Broken {
        /// The driver.
        program: PathBuf,
        /// What happened.
        why: String,
    },
}
