//! A separate root directory, and agents that run in it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tortie_lab::netns::Namespace;

/// A root directory for processes in a separate mount namespace and network namespace.
pub(crate) struct Machine {
    /// Process that keeps the mount namespace.
    holder: Child,
    pub(crate) network: Namespace,
    /// The folder with the mounts.
    folder: TempDir,
    /// The root directory, as processes in the namespace see it.
    pub(crate) root: PathBuf,
}

impl Machine {
    /// Returns a machine with the files of the test's machine, but without an agent's state.
    /// [`Machine::written`] lists the files that are written there.
    pub(crate) fn like_this_one() -> Self {
        // The upper directory of an overlay must not be below its lower directory, so that it needs
        // a separate file system. The devices hide the directories of these names in the lower one.
        let overlay = "mkdir -p upper work root bare/var/lib
            for folder in calico tortie; do mknod bare/var/lib/$folder c 0 0; done
            mount -t overlay overlay -o lowerdir=bare:/,upperdir=$PWD/upper,workdir=$PWD/work root
            mount --rbind /dev root/dev
            mount -t tmpfs tmpfs root/run
            mount -t tmpfs tmpfs root/tmp";
        Self::new(overlay, |folder| folder.join("root"))
    }

    /// Returns a machine with this root directory, which stays unchanged.
    pub(crate) fn of(root: &Path) -> Self {
        Self::new("", |_| root.to_owned())
    }

    fn new(prepare: &str, root: impl FnOnce(&Path) -> PathBuf) -> Self {
        let network = Namespace::new().unwrap();
        let folder = TempDir::new().unwrap();
        let root = root(folder.path());
        let script = format!(
            "mount --make-rprivate /
            mount -t tmpfs tmpfs .
            cd $PWD
            {prepare}
            mount --rbind {root} {root}
            mount -t proc proc {root}/proc
            mount -t sysfs sysfs {root}/sys
            echo mounted
            exec sleep 600",
            root = root.display()
        );
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "sh", "-euc", &script]).current_dir(folder.path()).stdout(Stdio::piped());
        let mut holder = network.spawn(&mut holder).unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n");
        Self { holder, network, folder, root }
    }

    /// Returns a command that runs a script outside of the root directory, which is `$ROOT` there.
    pub(crate) fn outside(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()));
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id()));
        command.arg(format!("--wd={}", self.folder.path().display()));
        command.args(["sh", "-euc", script]).env("ROOT", &self.root);
        command
    }

    /// Runs a program in the root directory.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        let mut command = self.outside("exec chroot \"$ROOT\" \"$@\"");
        command.arg("sh").args(words).env("DEBIAN_FRONTEND", "noninteractive").output().unwrap()
    }

    /// Returns the output of a program that must succeed there.
    pub(crate) fn output_of(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let mut command = self.outside("mkdir -p \"$(dirname \"$ROOT$0\")\"; printf %s \"$TEXT\" >\"$ROOT$0\"");
        super::output_of(command.arg(path).env("TEXT", text));
    }

    pub(crate) fn read(&self, path: &str) -> String {
        super::output_of(self.outside("cat \"$ROOT$0\"").arg(path))
    }

    /// Returns all files that were written or removed since the root directory was created; `/run`
    /// and `/tmp` were empty then.
    pub(crate) fn written(&self) -> Vec<String> {
        let list = "cd upper; find . -not -type d -printf '%P\\n' | sort
            find \"$ROOT/run\" -not -type d -printf 'run/%P\\n' | sort";
        let found = super::output_of(&mut self.outside(list));
        found.lines().map(str::to_owned).collect()
    }

    /// Returns the kernel's nftables rules.
    pub(crate) fn ruleset(&self) -> String {
        self.network.shell("PATH=$PATH:/usr/sbin:/sbin nft list ruleset").unwrap()
    }

    /// Starts an agent as a unit does, and receives its notifications.
    pub(crate) fn start(&self, service: &Service) -> Agent {
        // Abstract names belong to a network namespace, where an earlier listener may still exist.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("tortie-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let bind = || UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let socket = self.network.run(bind).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
        let writable: String = service
            .writable
            .iter()
            .map(|path| format!("mkdir -p \"$ROOT{path}\"; mount --bind \"$ROOT{path}\" \"$ROOT{path}\"; "))
            .collect();
        let bounded = match service.capabilities.join(",") {
            none if none.is_empty() => String::new(),
            some => format!("setpriv --bounding-set=-all,{some} --no-new-privs"),
        };
        // The root is mounted a second time, so that this mount can be read-only.
        let script = format!(
            "mount --rbind \"$ROOT\" \"$ROOT\"; cd \"$ROOT\"; ROOT=$PWD
            {writable} mount -o remount,bind,ro \"$ROOT\"
            exec env -i PATH=/usr/bin:/usr/sbin NOTIFY_SOCKET=@{name} {environment} chroot \"$ROOT\" {bounded} \"$@\"",
            environment = service.environment.join(" "),
        );
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()));
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id()));
        command.args(["unshare", "--mount", "sh", "-euc", &script, "sh"]).args(&service.words);
        command.env("ROOT", &self.root).stdout(Stdio::piped()).stderr(Stdio::piped());
        Agent { process: command.spawn().unwrap(), is_traced: service.words[0] == "strace", socket }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The settings of a unit that determine the start of a program.
pub(crate) struct Service {
    pub(crate) words: Vec<String>,
    pub(crate) environment: Vec<String>,
    /// In the form of `setpriv`: `+net_admin`; all if none is named.
    pub(crate) capabilities: Vec<String>,
    pub(crate) writable: Vec<String>,
}

/// A running agent.
pub(crate) struct Agent {
    process: Child,
    is_traced: bool,
    socket: UnixDatagram,
}

impl Agent {
    /// Returns the next notification to the service manager.
    pub(crate) fn next_notification(&mut self) -> String {
        let mut bytes = [0; 256];
        match self.socket.recv(&mut bytes) {
            Ok(read) => String::from_utf8_lossy(&bytes[..read]).into_owned(),
            Err(error) => {
                let (status, log) = self.end();
                panic!("{error}; {status}: {log}")
            }
        }
    }

    /// Waits until the agent notifies its service manager that policy is in force, after the
    /// notification that it waits.
    pub(crate) fn is_ready(&mut self) {
        let notifications = [self.next_notification(), self.next_notification()];
        assert!(
            notifications[0].starts_with("STATUS=waiting ") && notifications[1].starts_with("READY=1\n"),
            "{notifications:?}"
        );
    }

    /// Ends the agent as a service manager does, and returns the rest of its log.
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// A tracer does not forward signals, and would leave the agent behind.
    fn signal(&self, signal: Signal) {
        let own = self.process.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        let traced = children.split_whitespace().next().filter(|_| self.is_traced);
        let pid = traced.map_or(i32::try_from(own).unwrap(), |child| child.parse().unwrap());
        // It may have ended already.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
    }

    /// Waits until the agent ends by itself.
    pub(crate) fn wait(&mut self) -> (ExitStatus, String) {
        let log = self.process.stderr.take().map(std::io::read_to_string);
        (self.process.wait().unwrap(), log.unwrap().unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes the cluster of the demonstration, as files of a directory.
pub(crate) fn write_cluster(machine: &Machine, folder: &str) {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo");
    for entry in fs::read_dir(demo).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        machine.write(&format!("{folder}/{name}"), &fs::read_to_string(&path).unwrap());
    }
}
