//! Private network namespaces.
//!
//! A namespace has no name in the file system: it lives as long as this program holds its descriptor or something runs
//! in it. So nothing stays behind, however the program ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::cli::Failure;
use crate::exec::{Job, Runner};

/// How long `ip` may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A private network namespace.
#[derive(Debug)]
pub(super) struct Namespace {
    link: File,
}

impl Namespace {
    /// An empty one.
    pub(super) fn new() -> io::Result<Self> {
        on_own_thread(|| {
            unshare_network()?;
            File::open("/proc/thread-self/ns/net")
        })
        .map(|link| Self { link })
    }

    /// A path that names it to other programs while this one runs.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.link.as_raw_fd())
    }

    /// Runs `body` on a thread inside. Sockets made, processes and threads started there belong to the namespace.
    pub(super) fn run<T: Send>(&self, body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_own_thread(|| {
            move_into_link_name_space(self.link.as_fd(), Some(LinkNameSpaceType::Network))?;
            body()
        })
    }

    /// Hands lines to `ip -batch` inside.
    pub(super) fn ip(&self, lines: &[String]) -> Result<(), Failure> {
        let input = lines.iter().flat_map(|line| [line.as_bytes(), b"\n"]).collect::<Vec<_>>().concat();
        let job = Job { program: "ip".into(), args: vec!["-batch".into(), "-".into()], input, limit: LIMIT };
        let done = self.run(|| Runner::default().run(&job).map_err(io::Error::other)).map_err(Failure::io("ip"))?;
        if done.status.success() {
            return Ok(());
        }
        Err(Failure::Failed(format!("ip -batch failed: {}", String::from_utf8_lossy(&done.stderr).trim())))
    }

    /// Writes settings below `/proc/sys/net` of this namespace.
    pub(super) fn sysctl(&self, settings: &[(&str, &str)]) -> Result<(), Failure> {
        for (name, value) in settings {
            let path = format!("/proc/sys/net/{name}");
            self.run(|| std::fs::write(&path, value)).map_err(Failure::io(&path))?;
        }
        Ok(())
    }
}

/// Moves the calling thread into a new network namespace.
#[allow(deprecated, reason = "the replacement is unsafe because of CLONE_FILES, which is not asked for here")]
fn unshare_network() -> io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNET).map_err(Into::into)
}

/// Runs `body` on a thread of its own, so that the caller stays in its namespace.
fn on_own_thread<T: Send>(body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".into()).spawn_scoped(scope, body)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread in a namespace panicked")))
    })
}
