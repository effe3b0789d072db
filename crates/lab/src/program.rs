//! Programs that run beside a laboratory, and their HTTP answers.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::netns::{Namespace, NetnsError};

/// Time that a program has to exit after SIGTERM.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Error of starting or running a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// It cannot be started.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// Its log cannot be opened, or its process cannot be waited for.
    #[error("{}: {source}", path.display())]
    Log {
        /// Path of the log.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// It ended unexpectedly.
    #[error("the {program} ended ({status}); the end of its log:\n{log}")]
    Died {
        /// Name of the program.
        program: &'static str,
        /// Exit status as text.
        status: String,
        /// Last lines of its log.
        log: String,
    },
}

/// Returns the path of a program by a search of `PATH`.
pub(crate) fn find(name: &str) -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name} is not installed")))
}

/// Names of the iptables, ipset and nft programs. They are links to a few files.
const PACKET_FILTERS: [&str; 13] = [
    "iptables",
    "ip6tables",
    "iptables-nft",
    "iptables-nft-save",
    "iptables-nft-restore",
    "ip6tables-nft-restore",
    "iptables-legacy",
    "iptables-legacy-save",
    "iptables-legacy-restore",
    "ip6tables-legacy-restore",
    "iptables-restore",
    "ipset",
    "nft",
];

/// Returns shell text that hides all programs named in `PACKET_FILTERS` in its mount namespace,
/// which must be a private one, so that the following commands cannot run them by any name. The
/// text exits with a message if one can still be run.
#[must_use]
pub fn hiding_packet_filters() -> String {
    let folders = "/usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin";
    let names = PACKET_FILTERS.join(" ");
    format!(
        "for folder in {folders}; do for name in {names}; do
           if [ -L $folder ]; then continue; fi
           file=$(readlink -f $folder/$name); if [ -f \"$file\" ]; then mount --bind /dev/null \"$file\" || exit 97; fi
         done; done
         for folder in {folders}; do for name in {names}; do
           if [ -e $folder/$name ] && $folder/$name --version >/dev/null 2>&1; then echo \"$folder/$name can be run\" >&2; exit 97; fi
         done; done"
    )
}

/// Returns a command with a private BPF file system, so that its pinned objects disappear with it.
///
/// # Errors
/// If a required program is not installed.
pub fn with_own_pins(program: &Path) -> io::Result<Command> {
    in_own_mounts(program, &format!("'{}' -t bpf bpf /sys/fs/bpf || exit", find("mount")?.display()))
}

/// Returns a command that cannot run any of iptables, ipset and nft; with a private BPF file system
/// if it pins objects, which needs root.
pub(crate) fn without_packet_filters(program: &Path, pins: bool) -> io::Result<Command> {
    let mount = format!("'{}' -t bpf bpf /sys/fs/bpf || exit", find("mount")?.display());
    let pins = if pins { mount } else { String::new() };
    // The program's `PATH` may differ from the one needed here.
    let hiding = hiding_packet_filters();
    in_own_mounts(
        program,
        &format!("{pins}\nafterwards=$PATH; PATH=/usr/sbin:/usr/bin:/sbin:/bin\n{hiding}\nPATH=$afterwards"),
    )
}

/// Returns a command that runs this shell text and then the program, in a private mount namespace.
fn in_own_mounts(program: &Path, text: &str) -> io::Result<Command> {
    let become_it = format!("{text}\nexec \"$0\" \"$@\"");
    let mut command = Command::new(find("unshare")?);
    command.args(["--mount", "--propagation", "private", "--"]).arg(find("sh")?).args(["-c", &become_it]).arg(program);
    Ok(command)
}

/// A program in a namespace. When dropped, it receives SIGTERM, and later SIGKILL if it does not
/// exit.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts a program whose output is appended to `folder`/`name`.log.
    ///
    /// # Errors
    /// If its log cannot be opened, or it cannot be started.
    pub fn start(
        name: &'static str,
        namespace: &Namespace,
        folder: &Path,
        command: &mut Command,
    ) -> Result<Self, ProgramError> {
        let log = folder.join(format!("{name}.log"));
        let failed = |source| ProgramError::Log { path: log.clone(), source };
        let output: File = OpenOptions::new().create(true).append(true).open(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        command.current_dir(folder).stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = namespace.spawn(command)?;
        Ok(Self { name, child, log })
    }

    /// Returns its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Checks that it is running.
    ///
    /// # Errors
    /// If it has ended, with its status and the end of its log.
    pub fn check(&mut self) -> Result<(), ProgramError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                Err(ProgramError::Died { program: self.name, status: status.to_string(), log: self.log_tail() })
            }
            Err(source) => Err(ProgramError::Log { path: self.log.clone(), source }),
        }
    }

    /// Sends SIGTERM and waits for its exit.
    ///
    /// # Errors
    /// If its process cannot be waited for.
    pub fn stop(self) -> Result<ExitStatus, ProgramError> {
        self.stop_by(Signal::TERM)
    }

    /// Sends a terminating signal and waits for its exit.
    ///
    /// # Errors
    /// If its process cannot be waited for.
    pub fn stop_by(mut self, signal: Signal) -> Result<ExitStatus, ProgramError> {
        self.send(signal);
        self.child.wait().map_err(|source| ProgramError::Log { path: self.log.clone(), source })
    }

    fn send(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended already.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let patience = Instant::now() + STOP_PATIENCE;
        self.send(Signal::TERM);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An HTTP answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl Answer {
    /// Sends a GET request to the loopback interface of `namespace`.
    ///
    /// # Errors
    /// If no process listens, or no valid answer arrives within `patience`.
    pub fn get(namespace: &Namespace, port: u16, path: &str, patience: Duration) -> io::Result<Self> {
        namespace.run(|| http_get(port, path, patience)).map_err(io::Error::other)?
    }

    /// Returns the value of a metric without labels.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    }
}

fn http_get(port: u16, path: &str, patience: Duration) -> io::Result<Answer> {
    http(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), "GET", path, "", patience)
}

/// Sends a POST request from the namespace of the calling thread.
#[cfg(feature = "servers")]
pub(crate) fn http_post(address: SocketAddr, path: &str, body: &str, patience: Duration) -> io::Result<Answer> {
    http(address, "POST", path, body, patience)
}

fn http(address: SocketAddr, method: &str, path: &str, body: &str, patience: Duration) -> io::Result<Answer> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{length}\r\n{body}")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    if begun.elapsed() > patience {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split_ascii_whitespace().nth(1).and_then(|status| status.parse().ok());
    Ok(Answer { status: status.ok_or(io::ErrorKind::InvalidData)?, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_test;

    /// Reports whether a shell fails to run any of the programs, by name and by path.
    fn tried(mut command: Command) -> bool {
        let names = PACKET_FILTERS.join(" ");
        let text = format!(
            "for name in {names}; do for file in $name /usr/sbin/$name /sbin/$name; do
               if $file --version >/dev/null 2>&1; then exit 1; fi
             done; done"
        );
        command.args(["-c", &text]).status().unwrap().success()
    }

    kernel_test! {
        fn hidden_programs_cannot_be_run_by_any_name() {
            let shell = find("sh").unwrap();
            assert!(!tried(Command::new(&shell)), "nothing is installed that could be hidden");
            assert!(tried(without_packet_filters(&shell, false).unwrap()));
            // They are hidden from that command only.
            assert!(!tried(Command::new(&shell)));
        }
    }
}
