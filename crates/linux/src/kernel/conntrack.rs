//! Deletion of conntrack entries with the `conntrack` program (`felix/conntrack/conntrack.go`).

use std::net::IpAddr;
use std::time::Duration;

use tortie_dataplane::KernelError;
use tortie_model::Cause;

use crate::exec::{ExecError, Finished, Job};

/// Maximum number of attempts; the program fails at random occasionally.
const ATTEMPTS: usize = 4;

/// Possible positions of a workload's address in a conntrack entry: source of the original
/// direction, or source of the replies, after address translation.
const DIRECTIONS: [&str; 2] = ["--orig-src", "--reply-src"];

/// Returns an error with the program's message.
fn failure(job: &Job, finished: &Finished) -> KernelError {
    let output = String::from_utf8_lossy(&finished.stderr);
    KernelError::Failed(format!("conntrack {}: {}: {}", job.args.join(" "), finished.status, output.trim()).into())
}

/// Deletes all conntrack entries of connections from this address, or whose replies come from it.
/// Tries both even if one fails.
pub(super) fn flush(
    address: IpAddr,
    limit: Duration,
    mut run: impl FnMut(&Job) -> Result<Finished, ExecError>,
) -> Result<(), KernelError> {
    let mut result = Ok(());
    for direction in DIRECTIONS {
        let job = job(address, direction, limit);
        let flushed = (1..=ATTEMPTS).find_map(|attempt| match run(&job) {
            Ok(finished) if finished.status.success() || had_none(&finished) => Some(Ok(())),
            Ok(finished) if attempt == ATTEMPTS => Some(Err(failure(&job, &finished))),
            Ok(_) => None,
            Err(error) => Some(Err(KernelError::Failed(Cause::new(error)))),
        });
        result = result.and(flushed.unwrap_or(Ok(())));
    }
    result
}

fn job(address: IpAddr, direction: &str, limit: Duration) -> Job {
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    Job {
        program: "conntrack".to_owned(),
        args: ["--family", family, "--delete", direction, &address.to_string()].map(str::to_owned).to_vec(),
        input: Vec::new(),
        limit,
    }
}

/// The program reports failure if there was nothing to delete.
fn had_none(finished: &Finished) -> bool {
    String::from_utf8_lossy(&finished.stderr).contains("0 flow entries")
}

#[cfg(test)]
mod tests;
