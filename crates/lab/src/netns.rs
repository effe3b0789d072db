//! Private network namespaces.
//!
//! A [`Namespace`] has no name in the file system. It exists as long as its descriptor is open, a
//! socket made in it exists, or a process runs in it. No namespace remains when a test is killed,
//! and parallel tests cannot conflict.

use std::{
    fs::File,
    io::Write,
    os::fd::{AsFd, AsRawFd},
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Error of creating or using a namespace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetnsError {
    /// The kernel refused to create a namespace.
    #[error("cannot create a network namespace: {0}")]
    Create(#[source] std::io::Error),
    /// The kernel refused to enter a namespace.
    #[error("cannot enter a network namespace: {0}")]
    Enter(#[source] std::io::Error),
    /// A command could not be started.
    #[error("cannot start {command:?}: {source}")]
    Start {
        /// The program and its arguments.
        command: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A command ended with a failure.
    #[error("{command:?} failed ({status}): {stderr}")]
    Command {
        /// The program and its arguments, or its batch input.
        command: String,
        /// Exit status as text.
        status: String,
        /// Its standard error.
        stderr: String,
    },
    /// A kernel setting under `/proc/sys` could not be written.
    #[error("cannot write {value:?} to {path}: {source}")]
    Sysctl {
        /// Path of the setting.
        path: String,
        /// The value.
        value: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A socket could not be created or used.
    #[error("{description}: {source}")]
    Socket {
        /// The attempted operation and its subject.
        description: String,
        /// The reason.
        source: std::io::Error,
    },
}

/// A private network namespace, held by a descriptor.
#[derive(Debug)]
pub struct Namespace {
    link: File,
}

impl Namespace {
    /// Creates an empty namespace with its loopback interface up.
    ///
    /// # Errors
    /// If the kernel refuses, mostly for lack of privilege: see [`crate::kernel::require`].
    pub fn new() -> Result<Self, NetnsError> {
        let link = on_own_thread(|| {
            unshare_network()?;
            File::open("/proc/thread-self/ns/net")
        })
        .map_err(NetnsError::Create)?;
        let namespace = Self { link };
        namespace.ip(["link set lo up"])?;
        Ok(namespace)
    }

    /// Returns a path of this namespace, for `nsenter --net=PATH` or `ip link … netns PATH`; valid
    /// while `self` exists.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.link.as_raw_fd()).into()
    }

    /// Moves the calling thread into this namespace permanently. Prefer [`Namespace::run`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn enter(&self) -> Result<(), NetnsError> {
        move_into_link_name_space(self.link.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| NetnsError::Enter(errno.into()))
    }

    /// Runs `body` on a thread inside this namespace. Sockets created and processes started there
    /// stay in the namespace, regardless of the thread that uses them later.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        on_own_thread(|| self.enter().map(|()| body()))
    }

    /// Starts `command` inside this namespace.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(&self, command: &mut Command) -> Result<std::process::Child, NetnsError> {
        let text = describe(command);
        self.run(|| command.spawn())?.map_err(|source| NetnsError::Start { command: text, source })
    }

    /// Runs `command` with `stdin` inside this namespace, and returns its output.
    ///
    /// # Errors
    /// If it cannot be started or ends with a failure.
    pub fn output(&self, command: &mut Command, stdin: &str) -> Result<Output, NetnsError> {
        let text = describe(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn(command)?;
        if let Some(mut pipe) = child.stdin.take() {
            // A child that exits without reading its input reports the reason on its standard
            // error.
            let _ = pipe.write_all(stdin.as_bytes());
        }
        let output = child.wait_with_output().map_err(|source| NetnsError::Start { command: text.clone(), source })?;
        if output.status.success() {
            return Ok(output);
        }
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let command = if stdin.is_empty() { text } else { format!("{text} <<< {stdin}") };
        Err(NetnsError::Command { command, status: output.status.to_string(), stderr })
    }

    /// Runs a shell command line inside this namespace and returns its standard output.
    ///
    /// # Errors
    /// If it ends with a failure.
    pub fn shell(&self, line: &str) -> Result<String, NetnsError> {
        let output = self.output(Command::new("sh").args(["-euc", line]), "")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Passes lines to `ip -batch` inside this namespace.
    ///
    /// # Errors
    /// If one of them fails.
    pub fn ip<S: AsRef<str>>(&self, lines: impl IntoIterator<Item = S>) -> Result<(), NetnsError> {
        let batch: String = lines.into_iter().flat_map(|line| [line.as_ref().to_owned(), "\n".to_owned()]).collect();
        if batch.is_empty() {
            return Ok(());
        }
        self.output(Command::new("ip").args(["-batch", "-"]), &batch).map(drop)
    }

    /// Writes settings under `/proc/sys/net` of this namespace: pairs of a path below that folder
    /// and a value.
    ///
    /// # Errors
    /// If one cannot be written.
    pub fn sysctl(&self, settings: &[(String, &str)]) -> Result<(), NetnsError> {
        self.run(|| {
            settings.iter().try_for_each(|(name, value)| {
                let path = format!("/proc/sys/net/{name}");
                std::fs::write(&path, value).map_err(|source| NetnsError::Sysctl {
                    path,
                    value: (*value).to_owned(),
                    source,
                })
            })
        })?
    }
}

/// Moves the calling thread into a new network namespace.
#[allow(deprecated, reason = "the replacement is unsafe because of CLONE_FILES, which is not used here")]
pub(crate) fn unshare_network() -> std::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNET).map_err(Into::into)
}

/// Runs `body` on a separate thread, so that changing the namespace does not affect the caller.
pub(crate) fn on_own_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(body).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn describe(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
