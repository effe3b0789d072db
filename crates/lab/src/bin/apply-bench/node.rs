//! The node: a network namespace with the agent, or Felix, in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use tortie_lab::netns::Namespace;
use tortie_lab::program::{Answer, Program};

use crate::Result;
use crate::backend::Backend;
use crate::cluster::{NODE, status_file};
use crate::links::Links;
use crate::store::Store;

const PATIENCE: Duration = Duration::from_secs(300);

/// The measured program.
#[derive(Clone, Debug)]
pub(crate) enum Software {
    Tortie(PathBuf),
    Felix(PathBuf),
}

/// Changes that a program has taken and applied, by its metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    changes: f64,
    applies: f64,
}

pub(crate) struct Node {
    software: Software,
    pub(crate) backend: Backend,
    // Declared first, so that the program ends before its namespace and folder are dropped.
    program: Option<Program>,
    pins: Option<Child>,
    pub(crate) store: Store,
    pub(crate) namespace: Namespace,
    /// The other ends of interfaces.
    peers: Namespace,
    pub(crate) folder: TempDir,
    ticks_per_second: u64,
}

impl Node {
    /// Creates the node and moves the calling thread into its namespace.
    pub(crate) fn new(software: &Software, backend: Backend, with_etcd: bool) -> Result<Self> {
        let namespace = Namespace::new()?;
        namespace.enter()?;
        let folder = TempDir::new()?;
        let ticks_per_second = namespace.shell("getconf CLK_TCK")?.trim().parse()?;
        Ok(Self {
            software: software.clone(),
            backend,
            program: None,
            pins: (backend == Backend::Ebpf).then(|| holder_of_pins(&namespace)).transpose()?,
            store: if with_etcd { Store::etcd()? } else { Store::directory(folder.path())? },
            namespace,
            peers: Namespace::new()?,
            folder,
            ticks_per_second,
        })
    }

    pub(crate) fn links(&self) -> Result<Links> {
        Links::of(&self.namespace, &self.peers)
    }

    pub(crate) const fn is_felix(&self) -> bool {
        matches!(self.software, Software::Felix(_))
    }

    fn command(&self) -> Command {
        let (Software::Tortie(program) | Software::Felix(program)) = &self.software;
        let mut command = match &self.pins {
            None => Command::new(program),
            Some(holder) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--mount=/proc/{}/ns/mnt", holder.id())).arg(program);
                command
            }
        };
        // Parameters in this shell's environment are not for the program.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"FELIX_")) {
            command.env_remove(name);
        }
        command
            .env("XTABLES_LOCKFILE", self.path("xtables.lock"))
            .env("FELIX_ENDPOINTSTATUSPATHPREFIX", self.folder.path())
            .envs([("FELIX_HEALTHENABLED", "true"), ("FELIX_PROMETHEUSMETRICSENABLED", "true")])
            .envs(self.backend.parameters().iter().copied());
        match (&self.software, &self.store) {
            (Software::Felix(_), Store::Etcd(etcd)) => {
                command.envs([
                    ("FELIX_FELIXHOSTNAME", NODE),
                    ("FELIX_DATASTORETYPE", "etcdv3"),
                    ("FELIX_ETCDENDPOINTS", &format!("http://{}", etcd.address(0))),
                    ("FELIX_LOGFILEPATH", "none"),
                    ("FELIX_LOGSEVERITYSYS", "none"),
                    ("FELIX_USAGEREPORTINGENABLED", "false"),
                ]);
            }
            _ => {
                command
                    .args(["run", "--node", NODE, "--datastore", &self.store.url(), "--state-dir"])
                    .arg(self.path("state"))
                    .arg("--mtu-file")
                    .arg(self.path("mtu"))
                    .env("TORTIE_SOCKET", "");
            }
        }
        command
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the program and waits until the kernel is in the desired state. Returns the elapsed
    /// time.
    pub(crate) fn start(&mut self) -> Result<Duration> {
        let begin = Instant::now();
        let mut command = self.command();
        self.program = Some(Program::start("agent", &self.namespace, self.folder.path(), &mut command)?);
        self.until("it is ready", Duration::from_millis(5), |node| {
            Ok(node.get(9099, "/readiness").is_ok_and(|answer| answer.status == 200))
        })?;
        Ok(begin.elapsed())
    }

    pub(crate) fn stop(&mut self) -> Result<()> {
        let Some(program) = self.program.take() else { return Ok(()) };
        let status = program.stop()?;
        // Felix ends by the signal.
        if status.success() || self.is_felix() { Ok(()) } else { Err(format!("the agent ended with {status}").into()) }
    }

    pub(crate) fn until(
        &mut self,
        description: &str,
        pause: Duration,
        mut done: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !done(self)? {
            let program = self.program.as_mut().ok_or("the agent does not run")?;
            program.check()?;
            if Instant::now() > end {
                return Err(format!("waiting until {description}; the end of the log:\n{}", program.log_tail()).into());
            }
            std::thread::sleep(pause);
        }
        Ok(())
    }

    fn get(&self, port: u16, path: &str) -> std::io::Result<Answer> {
        Answer::get(&self.namespace, port, path, Duration::from_secs(5))
    }

    /// Returns the number of writes to the kernel since the start. Felix lacks some of the
    /// counters.
    pub(crate) fn writes(&self) -> Result<f64> {
        let metrics = self.get(9091, "/metrics")?;
        let count = |name: &&str| match metrics.metric(name) {
            None if !self.is_felix() => Err(format!("no metric {name}").into()),
            count => Ok(count.unwrap_or(0.0)),
        };
        self.backend.write_counters().iter().map(count).sum()
    }

    /// Returns the changes taken and applied so far. The agent counts changes that have reached the
    /// kernel; Felix counts messages to its data plane, and applies.
    pub(crate) fn progress(&self) -> Result<Progress> {
        let metrics = self.get(9091, "/metrics")?;
        let count = |name: &str| metrics.metric(name).ok_or_else(|| format!("no metric {name}"));
        if !self.is_felix() {
            return Ok(Progress { changes: count("tortie_event_to_kernel_seconds_count")?, applies: 0.0 });
        }
        let messages = metrics.body.lines().filter_map(|line| line.strip_prefix("felix_int_dataplane_messages"));
        let changes = messages.filter_map(|rest| rest.rsplit_once(' ')?.1.parse::<f64>().ok()).sum();
        Ok(Progress { changes, applies: count("felix_int_dataplane_apply_time_seconds_count")? })
    }

    /// Waits until a change after `before` is in force.
    pub(crate) fn until_applied(&mut self, mut before: Progress) -> Result<()> {
        let is_felix = self.is_felix();
        self.until("an edit is in force", Duration::from_millis(5), |node| {
            let now = node.progress()?;
            if now.changes <= before.changes {
                // An apply before the change is not that of the change.
                before.applies = now.applies;
                return Ok(false);
            }
            Ok(!is_felix || now.applies > before.applies)
        })
    }

    /// Returns the time at which a pod's policy was in force, with its interface.
    pub(crate) fn in_force_since(&self, pod: usize) -> Option<SystemTime> {
        fs::metadata(self.path("endpoint-status").join(status_file(pod))).and_then(|file| file.modified()).ok()
    }

    /// Returns the number of IP sets in the kernel.
    pub(crate) fn sets(&self) -> Result<usize> {
        Ok(self.namespace.shell("ipset list -name")?.lines().count())
    }

    fn process(&self) -> Result<String> {
        Ok(format!("/proc/{}", self.program.as_ref().ok_or("the agent does not run")?.id()))
    }

    /// Returns resident and proportional memory in MiB.
    pub(crate) fn memory(&self) -> Result<[f64; 2]> {
        let rollup = fs::read_to_string(format!("{}/smaps_rollup", self.process()?))?;
        let mebibytes = |name: &str| -> Result<f64> {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name)).ok_or("unreadable smaps_rollup")?;
            Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
        };
        Ok([mebibytes("Rss:")?, mebibytes("Pss:")?])
    }

    /// Returns the seconds of processor time of the program and its ended child processes.
    pub(crate) fn processor_time(&self) -> Result<f64> {
        self.ticks(Path::new(&self.process()?), 11, 4)
    }

    /// Returns the seconds of processor time of this program's ended child processes.
    pub(crate) fn own_children(&self) -> Result<f64> {
        self.ticks(Path::new("/proc/self"), 13, 2)
    }

    fn ticks(&self, process: &Path, first: usize, fields: usize) -> Result<f64> {
        let stat = fs::read_to_string(process.join("stat"))?;
        // The process name, in parentheses, may contain spaces.
        let (_, rest) = stat.rsplit_once(')').ok_or("unreadable /proc/PID/stat")?;
        let ticks = rest.split_whitespace().skip(first).take(fields).map(str::parse::<u32>);
        let ticks: u32 = ticks.sum::<std::result::Result<_, _>>()?;
        Ok(f64::from(ticks) / self.ticks_per_second as f64)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.program.take();
        if let Some(mut holder) = self.pins.take() {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

/// Starts a process whose mount namespace has a BPF file system, so that pinned objects outlast the
/// agent but not this program.
fn holder_of_pins(namespace: &Namespace) -> Result<Child> {
    let mount = "mount -t bpf bpf /sys/fs/bpf && echo mounted && exec sleep infinity";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-c", mount]).stdout(std::process::Stdio::piped());
    let mut holder = namespace.spawn(&mut command)?;
    let mut answer = [0; 8];
    let read = std::io::Read::read_exact(holder.stdout.as_mut().ok_or("no pipe")?, &mut answer);
    read.map_err(|_| "eBPF takes a BPF file system, which only root may mount")?;
    Ok(holder)
}
