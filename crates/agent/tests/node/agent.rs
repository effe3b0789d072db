//! A node in a namespace with the agent on it.
#![allow(dead_code, reason = "each program of tests needs another part of it")]

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tortie_lab::etcd::Proxy;
use tortie_lab::netns::Namespace;
use tortie_linux::netlink::Nftables;

const PATIENCE: Duration = Duration::from_secs(90);

/// Runs a program as a container runtime does, with writable kernel settings in the directory given
/// before it.
const CONFINE: &str = "set -e
mount --bind /proc/sys \"$0\"
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
exec setpriv --bounding-set=-all,+net_admin,+net_raw --no-new-privs \"$@\"";

pub(crate) struct Node {
    namespace: Namespace,
    folder: TempDir,
    backend: &'static str,
    /// Datastore URL of the agent.
    datastore: String,
    environment: Vec<(&'static str, String)>,
    flags: Vec<&'static str>,
    /// The agent's configuration file.
    config: Option<PathBuf>,
    /// Whether the environment leaves the choice of the back end to the agent.
    is_open: bool,
    /// Whether the agent has the mounts and capabilities of an unprivileged container.
    confined: bool,
    /// Whether a driver enforces the agent's calculation.
    driven: bool,
    agent: Option<Child>,
    /// Processes that run as long as the node exists.
    beside: Vec<Child>,
}

impl Node {
    /// Returns a node whose agent reads a directory with this manifest.
    pub(crate) fn new(backend: &'static str, cluster: &str) -> Self {
        let mut node = Self::reading(backend, String::new());
        fs::create_dir(node.manifests()).unwrap();
        node.write("cluster.yaml", cluster);
        node.datastore = format!("file:{}", node.manifests().display());
        node
    }

    /// Returns a node whose agent reads this datastore.
    pub(crate) fn reading(backend: &'static str, datastore: String) -> Self {
        let namespace = Namespace::new().unwrap();
        namespace.ip(["link set lo up"]).unwrap();
        let folder = TempDir::new().unwrap();
        Self {
            namespace,
            folder,
            backend,
            datastore,
            environment: Vec::new(),
            flags: Vec::new(),
            config: None,
            is_open: false,
            confined: false,
            driven: false,
            agent: None,
            beside: Vec::new(),
        }
    }

    /// From the next start on, sets this variable in the agent's environment.
    pub(crate) fn set(&mut self, name: &'static str, value: &str) {
        self.environment.retain(|(known, _)| *known != name);
        self.environment.push((name, value.to_owned()));
    }

    /// From the next start on, leaves the choice of the back end to the agent.
    pub(crate) fn leave_the_back_end_open(&mut self) {
        self.is_open = true;
    }

    /// From the next start on, gives the agent the mounts and capabilities of an unprivileged
    /// container, and writable kernel settings in another directory.
    pub(crate) fn confine(&mut self) {
        fs::create_dir(self.folder.path().join("sys")).unwrap();
        self.confined = true;
    }

    /// From the next start on, gives the agent this configuration file.
    pub(crate) fn configure(&mut self, file: &std::path::Path) {
        self.config = Some(file.to_path_buf());
    }

    /// From the next start on, puts a script in place of a program of the agent; `$REAL` is the
    /// program itself.
    pub(crate) fn wrap(&mut self, program: &str, script: &str) {
        let real = self.shell(&format!("command -v {program}"));
        let folder = self.folder.path().join("bin");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(program);
        fs::write(&path, format!("#!/bin/sh\nREAL={}\n{script}\n", real.trim())).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        let path = std::env::var("PATH").unwrap();
        self.set("PATH", &format!("{}:{path}", folder.display()));
    }

    /// Removes such a script.
    pub(crate) fn unwrap(&self, program: &str) {
        fs::remove_file(self.folder.path().join("bin").join(program)).unwrap();
    }

    /// Returns the directory for the files of a test.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Returns the processor time of the agent, its threads included.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.agent.as_ref().unwrap().id())).unwrap();
        // The 12th and 13th field after the name, which may contain blanks: hundredths of a second.
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks = |field: &str| field.parse::<u64>().unwrap();
        Duration::from_millis(10 * (ticks(fields[11]) + ticks(fields[12])))
    }

    /// Returns the process id of the agent.
    pub(crate) fn process(&self) -> u32 {
        self.agent.as_ref().unwrap().id()
    }

    /// Sends the agent a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let agent = self.agent.as_ref().unwrap();
        kill_process(Pid::from_raw(i32::try_from(agent.id()).unwrap()).unwrap(), signal).unwrap();
    }

    /// Returns the node's network namespace.
    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Makes the server at this outside address reachable at the same address on the node.
    pub(crate) fn carry(&self, address: SocketAddr) -> Proxy {
        let listener = self.namespace.run(|| TcpListener::bind(address)).unwrap().unwrap();
        Proxy::from(listener, address).unwrap()
    }

    /// From the next start on, uses a driver: a script that writes its process id and becomes
    /// `tortie dataplane`.
    pub(crate) fn drive(&mut self) {
        let mtu_file = self.folder.path().join("mtu");
        self.drive_with(&format!("exec {} dataplane --mtu-file {}", env!("CARGO_BIN_EXE_tortie"), mtu_file.display()));
    }

    /// From the next start on, uses this script as the driver.
    pub(crate) fn drive_with(&mut self, script: &str) {
        let script = format!("#!/bin/sh\necho $$ >{}\n{script}\n", self.folder.path().join("driver.pid").display());
        let path = self.folder.path().join("driver");
        fs::write(&path, script).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        self.driven = true;
    }

    /// Returns the process of the driver that was started last.
    pub(crate) fn driver(&self) -> Pid {
        let pid = fs::read_to_string(self.folder.path().join("driver.pid")).unwrap();
        Pid::from_raw(pid.trim().parse().unwrap()).unwrap()
    }

    /// From the next start on, gives the agent these arguments as well.
    pub(crate) fn give(&mut self, flags: &[&'static str]) {
        self.flags = flags.to_vec();
    }

    /// Returns the agent's state directory.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Returns the agent's local API socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    /// Runs the program with these arguments against the agent's socket.
    pub(crate) fn ask(&self, args: &[&str]) -> Output {
        self.tortie().args(args).arg("--socket").arg(self.socket()).output().unwrap()
    }

    /// Starts the program on the node with these arguments and the agent's datastore.
    pub(crate) fn run(&self, args: &[&str]) -> Child {
        let mut command = self.tortie();
        command.args(args).arg("--datastore").arg(&self.datastore).args(["--node", "n1"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.namespace.spawn(&mut command).unwrap()
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    /// Replaces a manifest as an editor does.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let new = self.folder.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.manifests().join(name)).unwrap();
    }

    pub(crate) fn shell(&self, line: &str) -> String {
        self.namespace.shell(line).unwrap()
    }

    fn tortie(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.env("XTABLES_LOCKFILE", self.folder.path().join("xtables.lock"));
        command
    }

    pub(crate) fn spawn(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let mut command = self.tortie();
        command.args(["run", "--node", "n1", "--log-format", "json", "--datastore"]).arg(&self.datastore);
        command.arg("--state-dir").arg(self.state()).args(&self.flags);
        command.arg("--mtu-file").arg(self.folder.path().join("mtu"));
        command.arg("--socket").arg(self.socket());
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        if self.driven {
            command.arg("--dataplane").arg(format!("exec:{}", self.folder.path().join("driver").display()));
        }
        if self.confined {
            let settings = self.folder.path().join("sys");
            command.arg("--proc-sys").arg(&settings);
            let mut confined = Command::new("unshare");
            confined.args(["--mount", "--propagation", "private", "sh", "-c", CONFINE]).arg(settings);
            confined.arg(command.get_program()).args(command.get_args());
            confined.env("XTABLES_LOCKFILE", self.folder.path().join("xtables.lock"));
            command = confined;
        }
        command
            .envs([
                ("FELIX_IPTABLESBACKEND", self.backend),
                ("FELIX_ENDPOINTSTATUSPATHPREFIX", &self.folder.path().display().to_string()),
                ("FELIX_IPTABLESPOSTWRITECHECKINTERVALSECS", "0.5"),
                ("FELIX_HEALTHENABLED", "true"),
                ("FELIX_PROMETHEUSMETRICSENABLED", "true"),
            ])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if self.is_open {
            command.env_remove("FELIX_IPTABLESBACKEND");
        }
        self.agent = Some(self.namespace.spawn(&mut command).unwrap());
    }

    /// Starts a process that runs as long as the node exists, and returns its output.
    pub(crate) fn start_beside(&mut self, command: &mut Command) -> ChildStdout {
        let mut child = self.namespace.spawn(command).unwrap();
        let output = child.stdout.take().unwrap();
        self.beside.push(child);
        output
    }

    /// Starts the agent and waits until it is ready.
    pub(crate) fn start(&mut self) {
        self.spawn();
        self.until_ready("");
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.agent.take().unwrap().wait().unwrap()
    }

    pub(crate) fn stop(&mut self, signal: Signal) {
        self.signal(signal);
        let status = self.wait();
        assert!(signal == Signal::KILL || status.success(), "{status}\n{}", self.log());
    }

    pub(crate) fn cleanup(&self) {
        let output = self.namespace.output(self.tortie().arg("cleanup"), "").unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Returns all tables and sets, without counters and other values that change by themselves.
    pub(crate) fn kernel_state(&self) -> String {
        let backend = self.backend;
        let state = self.shell(&format!(
            "for table in raw mangle nat filter; do iptables-{backend}-save -t $table; done\n\
             for table in raw mangle nat filter; do ip6tables-{backend}-save -t $table; done\n\
             echo SETS; ipset save"
        ));
        let (rules, sets) = state.split_once("SETS\n").unwrap();
        let rules =
            rules.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(" [").next().unwrap_or(line));
        // Sets are listed in the order of their creation, which does not matter.
        let mut sets: Vec<&str> = sets.lines().map(|line| line.split(" hashsize").next().unwrap_or(line)).collect();
        sets.sort_unstable();
        rules.chain(sets).collect::<Vec<_>>().join("\n")
    }

    /// Returns the number of nftables transactions so far, of all programs.
    pub(crate) fn ruleset_generation(&self) -> u32 {
        let read = || Nftables::open(PATIENCE).unwrap().generation().unwrap();
        self.namespace.run(read).unwrap()
    }

    pub(crate) fn until(&self, condition: &str, done: impl Fn(&str) -> bool) {
        let patience = Instant::now() + PATIENCE;
        loop {
            let began = Instant::now();
            let state = self.kernel_state();
            if done(&state) {
                return;
            }
            assert!(Instant::now() < patience, "waiting until {condition}\n{state}\n{}", self.log());
            // Reading the state starts nine programs, which delay other tests.
            std::thread::sleep(began.elapsed().max(Duration::from_millis(20)));
        }
    }

    /// Waits until the agent is ready and its answer contains these words.
    pub(crate) fn until_ready(&mut self, words: &str) {
        self.until_readiness("200", |answer| answer.contains(words));
    }

    /// Waits until the readiness answer has this code and is as wanted.
    pub(crate) fn until_readiness(&mut self, code: &str, wanted: impl Fn(&str) -> bool) {
        self.until_within(PATIENCE, code, wanted);
    }

    pub(crate) fn until_within(&mut self, patience: Duration, code: &str, wanted: impl Fn(&str) -> bool) {
        let patience = Instant::now() + patience;
        loop {
            let answer = self.get(9099, "/readiness");
            if answer.strip_prefix("HTTP/1.1 ").is_some_and(|rest| rest.starts_with(code)) && wanted(&answer) {
                return;
            }
            let status = self.agent.as_mut().unwrap().try_wait().unwrap();
            assert!(status.is_none() && Instant::now() < patience, "{answer}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let metrics = self.get(9091, "/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{metrics}"));
        line.trim().parse().unwrap()
    }

    /// Returns the agent's answer over HTTP; empty if there is none.
    pub(crate) fn get(&self, port: u16, path: &str) -> String {
        use std::io::{Read, Write};
        self.namespace
            .run(|| {
                let mut answer = String::new();
                if let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) {
                    let _ = write!(stream, "GET {path} HTTP/1.1\r\n\r\n");
                    let _ = stream.read_to_string(&mut answer);
                }
                answer
            })
            .unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for agent in self.agent.iter_mut().chain(&mut self.beside) {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}
