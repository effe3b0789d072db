//! The node: a network namespace with the agent in it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tortie_lab::netns::Namespace;
use tortie_lab::program::{Answer, Program};

use crate::Result;

const PATIENCE: Duration = Duration::from_secs(300);
const FAMILIES: [&str; 2] = ["iptables", "ip6tables"];

pub(crate) struct Node {
    agent: PathBuf,
    backend: String,
    // Declared first, so that the agent ends before its namespace and folder are dropped.
    program: Option<Program>,
    namespace: Namespace,
    folder: TempDir,
}

impl Node {
    /// Creates the node and moves the calling thread into its namespace.
    pub(crate) fn new(agent: &Path, backend: &str) -> Result<Self> {
        let namespace = Namespace::new()?;
        namespace.enter()?;
        let folder = TempDir::new()?;
        fs::create_dir(folder.path().join("manifests"))?;
        Ok(Self { agent: agent.canonicalize()?, backend: backend.to_owned(), namespace, folder, program: None })
    }

    /// Replaces a manifest by rename, as an editor does.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let new = self.folder.path().join("new");
        fs::write(&new, text)?;
        Ok(fs::rename(new, self.folder.path().join("manifests").join(name))?)
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        Ok(fs::remove_file(self.folder.path().join("manifests").join(name))?)
    }

    /// Starts the agent and waits until the kernel is in the desired state. Returns the elapsed
    /// time.
    pub(crate) fn start(&mut self) -> Result<Duration> {
        let begin = Instant::now();
        let mut command = Command::new(&self.agent);
        command
            .args(["run", "--node", "n1", "--datastore"])
            .arg(format!("file:{}", self.folder.path().join("manifests").display()))
            .arg("--state-dir")
            .arg(self.folder.path().join("state"))
            .arg("--mtu-file")
            .arg(self.folder.path().join("mtu"))
            .env("XTABLES_LOCKFILE", self.folder.path().join("xtables.lock"))
            .env("FELIX_ENDPOINTSTATUSPATHPREFIX", self.folder.path())
            .env("TORTIE_SOCKET", "")
            .envs([
                ("FELIX_IPTABLESBACKEND", self.backend.as_str()),
                ("FELIX_HEALTHENABLED", "true"),
                ("FELIX_PROMETHEUSMETRICSENABLED", "true"),
            ]);
        self.program = Some(Program::start("agent", &self.namespace, self.folder.path(), &mut command)?);
        self.until("the agent is ready", Duration::from_millis(5), |node| {
            Ok(node.get(9099, "/readiness").is_ok_and(|answer| answer.status == 200))
        })?;
        Ok(begin.elapsed())
    }

    pub(crate) fn stop(&mut self) -> Result<()> {
        let Some(program) = self.program.take() else { return Ok(()) };
        let status = program.stop()?;
        if status.success() { Ok(()) } else { Err(format!("the agent ended with {status}").into()) }
    }

    fn until(&mut self, description: &str, pause: Duration, mut done: impl FnMut(&Self) -> Result<bool>) -> Result<()> {
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

    pub(crate) fn metric(&self, name: &str) -> Result<f64> {
        let value = self.get(9091, "/metrics")?.metric(name);
        Ok(value.ok_or_else(|| format!("no metric {name}"))?)
    }

    fn get(&self, port: u16, path: &str) -> std::io::Result<Answer> {
        Answer::get(&self.namespace, port, path, Duration::from_secs(5))
    }

    /// Returns processor time and peak memory of the agent so far, without and with its child
    /// processes.
    pub(crate) fn effort(&self) -> Result<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process()?))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM in /proc/PID/status")?;
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse()?;
        let (own, all) = self.processor_times()?;
        let (own, all) = (own.as_secs_f64(), all.as_secs_f64());
        Ok(format!("{own:.2} s of processor time, {all:.2} s with its programs; {} MiB at most", peak / 1024))
    }

    /// Returns the size of the tables and the duration of the applies that wrote them.
    pub(crate) fn applies(&self) -> Result<String> {
        let metrics = self.get(9091, "/metrics")?;
        let sum = |name: &str| -> f64 {
            let samples = metrics.body.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
            samples.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
        };
        let (rules, chains) = (sum("felix_iptables_rules"), sum("felix_iptables_chains"));
        let applies = sum("felix_int_dataplane_apply_time_seconds_sum");
        Ok(format!("{applies:.2} s in applies, for {rules} rules in {chains} chains"))
    }

    /// Returns the number of updates that have reached the kernel.
    pub(crate) fn applied(&self) -> Result<f64> {
        self.metric("tortie_event_to_kernel_seconds_count")
    }

    pub(crate) fn until_applied(&mut self, more_than: f64) -> Result<()> {
        self.until("an edit is in force", Duration::from_millis(5), |node| Ok(node.applied()? > more_than))
    }

    /// Returns the number of IP sets in the kernel.
    pub(crate) fn sets(&self) -> Result<usize> {
        Ok(output("ipset", &["list", "-name"], "")?.lines().count())
    }

    pub(crate) fn until_sets(&mut self, count: usize) -> Result<()> {
        self.until("unneeded sets are gone", Duration::from_millis(20), |node| Ok(node.sets()? <= count))
    }

    fn process(&self) -> Result<u32> {
        Ok(self.program.as_ref().ok_or("the agent does not run")?.id())
    }

    /// Returns the processor time of the agent and its child processes.
    pub(crate) fn processor_time(&self) -> Result<Duration> {
        Ok(self.processor_times()?.1)
    }

    /// Returns the processor time of the agent, without and with its child processes.
    fn processor_times(&self) -> Result<(Duration, Duration)> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process()?))?;
        // The process name, in parentheses, may contain spaces.
        let (_, rest) = stat.rsplit_once(')').ok_or("unreadable /proc/PID/stat")?;
        let ticks = rest.split_whitespace().skip(11).take(4).map(|field| field.parse().unwrap_or(0));
        let ticks: Vec<u64> = ticks.collect();
        let per_second: u64 = output("getconf", &["CLK_TCK"], "")?.trim().parse()?;
        let time = |ticks: &[u64]| Duration::from_millis(ticks.iter().sum::<u64>() * 1000 / per_second.max(1));
        Ok((time(ticks.get(..2).unwrap_or_default()), time(&ticks)))
    }

    /// Writes the kernel's complete state into an empty namespace, both IP versions in parallel.
    /// Returns the elapsed time.
    pub(crate) fn restore_all(&self) -> Result<Duration> {
        let (folder, backend) = (self.folder.path().display(), &self.backend);
        let lock = format!("export XTABLES_LOCKFILE={folder}/xtables.lock\n");
        self.namespace.shell(&format!(
            "{lock}ipset save >{folder}/sets\n\
             iptables-{backend}-save >{folder}/v4\n\
             ip6tables-{backend}-save >{folder}/v6"
        ))?;
        let empty = Namespace::new()?;
        let begin = Instant::now();
        empty.shell(&format!(
            "{lock}ipset restore <{folder}/sets\n\
             iptables-{backend}-restore --noflush --wait <{folder}/v4 & v4=$!\n\
             ip6tables-{backend}-restore --noflush --wait <{folder}/v6\n\
             wait $v4"
        ))?;
        Ok(begin.elapsed())
    }

    /// Writes the same change as an edit of the policy that allows this port, with
    /// `iptables-restore` alone and both IP versions in parallel. Returns the duration of each
    /// write.
    pub(crate) fn restores(&self, port: usize, times: usize) -> Result<Vec<Duration>> {
        let mut inputs = [String::new(), String::new()];
        for (input, family) in inputs.iter_mut().zip(FAMILIES) {
            let saved = output(&format!("{family}-{}-save", self.backend), &["-t", "filter"], "")?;
            let word = port.to_string();
            let line = saved.lines().find(|line| line.starts_with("-A") && line.split(' ').any(|part| part == word));
            let chain = line.and_then(|line| line.split(' ').nth(1)).ok_or("the last edit is not in the kernel")?;
            let rules: Vec<&str> = saved.lines().filter(|line| line.split(' ').take(2).eq(["-A", chain])).collect();
            *input = match self.backend.as_str() {
                "nft" => format!("*filter\n:{chain} - -\n{}\nCOMMIT\n", rules.join("\n")),
                _ => {
                    let replaced =
                        rules.iter().enumerate().filter(|(_, rule)| rule.contains(&word)).map(|(at, rule)| {
                            rule.replacen(&format!("-A {chain}"), &format!("-R {chain} {}", at + 1), 1)
                        });
                    format!("*filter\n{}\nCOMMIT\n", replaced.collect::<Vec<_>>().join("\n"))
                }
            };
        }
        (1..=times)
            .map(|time| {
                let other = (port + time).to_string();
                self.restore_side_by_side(&inputs.each_ref().map(|input| input.replace(&port.to_string(), &other)))
            })
            .collect()
    }

    /// Creates a chain of one rule in each IP version with `iptables-restore` alone, as the minimal
    /// cost of a write. Returns the duration of each write.
    pub(crate) fn smallest_writes(&self, times: usize) -> Result<Vec<Duration>> {
        let input = "*filter\n:bench - -\n-A bench -j ACCEPT\nCOMMIT\n".to_owned();
        (0..times).map(|_| self.restore_side_by_side(&[input.clone(), input.clone()])).collect()
    }

    /// Writes one input per IP version, in parallel, and returns the elapsed time.
    fn restore_side_by_side(&self, inputs: &[String; 2]) -> Result<Duration> {
        std::thread::sleep(Duration::from_millis(100));
        let begin = Instant::now();
        let mut running = Vec::new();
        for (family, input) in FAMILIES.iter().zip(inputs) {
            let mut command = Command::new(format!("{family}-{}-restore", self.backend));
            command.args(["--noflush", "--wait"]).stdin(Stdio::piped()).stderr(Stdio::null());
            command.env("XTABLES_LOCKFILE", self.folder.path().join("xtables.lock"));
            let mut child = command.spawn()?;
            child.stdin.take().ok_or("no pipe")?.write_all(input.as_bytes())?;
            running.push(child);
        }
        for mut child in running {
            if !child.wait()?.success() {
                return Err("iptables-restore failed".into());
            }
        }
        Ok(begin.elapsed())
    }
}

/// Returns the output of a program that must succeed.
fn output(program: &str, args: &[&str], input: &str) -> Result<String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    child.stdin.take().ok_or("no pipe")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {}: {}: {}", args.join(" "), output.status, stderr.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
