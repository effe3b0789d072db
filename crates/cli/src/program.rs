//! Functions that commands share with programs that run a node.

use std::path::Path;
use std::sync::mpsc::SyncSender;

use tortie_config::{Sources, from_environment};
use tortie_model::desired::ConfigSource;

use super::Failure;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
pub use super::confirming::watch_in_background;

/// Returns the configuration of this machine: environment variables and the configuration file.
///
/// # Errors
/// If the file cannot be read or parsed.
pub fn local_sources(file: Option<&Path>) -> Result<Sources, Failure> {
    let mut sources = Sources::default();
    read_again(&mut sources, file)?;
    Ok(sources)
}

/// Replaces the configuration of this machine, if all of it can be read.
///
/// # Errors
/// If the file cannot be read or parsed; nothing is replaced then.
pub fn read_again(sources: &mut Sources, file: Option<&Path>) -> Result<(), Failure> {
    if let Some(file) = file {
        let text = std::fs::read_to_string(file).map_err(Failure::io(file.display().to_string()))?;
        sources.set_file(&text).map_err(Failure::failed_at(file.display().to_string()))?;
    }
    sources.set(ConfigSource::Environment, from_environment(std::env::vars()));
    Ok(())
}

/// Returns a function that sends an event without blocking. If the queue is full, its receiver is
/// awake anyway.
pub fn wake<T: Send + 'static>(sender: &SyncSender<T>, event: fn() -> T) -> impl Fn() + Send + 'static {
    let sender = sender.clone();
    move || {
        let _ = sender.try_send(event());
    }
}
