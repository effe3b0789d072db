//! The node: a namespace with the agent on it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tortie_testkit::netns::Namespace;
use tortie_testkit::program::{Answer, Program};

use crate::Result;

const PATIENCE: Duration = Duration::from_secs(300);
const FAMILIES: [&str; 2] = ["iptables", "ip6tables"];

pub(crate) struct Node {
    agent: PathBuf,
    backend: String,
    // Ends before its namespace and folder go.
    program: Option<Program>,
    namespace: Namespace,
    folder: TempDir,
}

impl Node {
    /// Moves the calling thread to the node as well.
    pub(crate) fn new(agent: &Path, backend: &str) -> Result<Self> {
        let namespace = Namespace::new()?;
        namespace.enter()?;
        let folder = TempDir::new()?;
        fs::create_dir(folder.path().join("manifests"))?;
        Ok(Self { agent: agent.canonicalize()?, backend: backend.to_owned(), namespace, folder, program: None })
    }

    /// Replaces a manifest as an editor does.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let new = self.folder.path().join("new");
        fs::write(&new, text)?;
        Ok(fs::rename(new, self.folder.path().join("manifests").join(name))?)
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        Ok(fs::remove_file(self.folder.path().join("manifests").join(name))?)
    }

    /// Starts the agent and waits until the kernel is as wanted. Returns how long that took.
    pub(crate) fn start(&mut self) -> Result<Duration> {
        let begin = Instant::now();
        let mut command = Command::new(&self.agent);
        command
            .args(["run", "--node", "n1", "--datastore"])
            .arg(format!("file:{}", self.folder.path().join("manifests").display()))
            .arg("--state-dir")
            .arg(self.folder.path().join("state"))
            .env("XTABLES_LOCKFILE", self.folder.path().join("xtables.lock"))
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

    fn until(&mut self, what: &str, pause: Duration, mut done: impl FnMut(&Self) -> Result<bool>) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !done(self)? {
            let program = self.program.as_mut().ok_or("the agent does not run")?;
            program.check()?;
            if Instant::now() > end {
                return Err(format!("waiting until {what}; the end of the log:\n{}", program.log_tail()).into());
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

    /// How many updates have arrived in the kernel.
    pub(crate) fn applied(&self) -> Result<f64> {
        self.metric("tortie_event_to_kernel_seconds_count")
    }

    pub(crate) fn until_applied(&mut self, more_than: f64) -> Result<()> {
        self.until("an edit is in force", Duration::from_millis(5), |node| Ok(node.applied()? > more_than))
    }

    /// The number of IP sets.
    pub(crate) fn sets(&self) -> Result<usize> {
        Ok(output("ipset", &["list", "-name"], "")?.lines().count())
    }

    pub(crate) fn until_sets(&mut self, count: usize) -> Result<()> {
        self.until("unneeded sets are gone", Duration::from_millis(20), |node| Ok(node.sets()? <= count))
    }

    /// The processor time of the agent, and of the programs that it has run.
    pub(crate) fn processor_time(&self) -> Result<Duration> {
        let program = self.program.as_ref().ok_or("the agent does not run")?;
        let stat = fs::read_to_string(format!("/proc/{}/stat", program.id()))?;
        // The name, in parentheses, may have spaces.
        let (_, rest) = stat.rsplit_once(')').ok_or("unreadable /proc/PID/stat")?;
        let ticks: u64 = rest.split_whitespace().skip(11).take(4).map(|field| field.parse::<u64>().unwrap_or(0)).sum();
        let per_second: u64 = output("getconf", &["CLK_TCK"], "")?.trim().parse()?;
        Ok(Duration::from_millis(ticks * 1000 / per_second.max(1)))
    }

    /// Writes the same change as an edit of the policy that admits this port, both IP versions side by side, with nothing
    /// but `iptables-restore`. Returns how long each took.
    pub(crate) fn restores(&self, port: usize, times: usize) -> Result<Vec<Duration>> {
        let mut inputs = Vec::new();
        for family in FAMILIES {
            let saved = output(&format!("{family}-{}-save", self.backend), &["-t", "filter"], "")?;
            let word = port.to_string();
            let line = saved.lines().find(|line| line.starts_with("-A") && line.split(' ').any(|part| part == word));
            let chain = line.and_then(|line| line.split(' ').nth(1)).ok_or("the last edit is not in the kernel")?;
            let rules: Vec<&str> = saved.lines().filter(|line| line.split(' ').take(2).eq(["-A", chain])).collect();
            inputs.push(match self.backend.as_str() {
                "nft" => format!("*filter\n:{chain} - -\n{}\nCOMMIT\n", rules.join("\n")),
                _ => {
                    let replaced =
                        rules.iter().enumerate().filter(|(_, rule)| rule.contains(&word)).map(|(at, rule)| {
                            rule.replacen(&format!("-A {chain}"), &format!("-R {chain} {}", at + 1), 1)
                        });
                    format!("*filter\n{}\nCOMMIT\n", replaced.collect::<Vec<_>>().join("\n"))
                }
            });
        }
        let mut took = Vec::new();
        for time in 1..=times {
            let other = (port + time).to_string();
            let begin = Instant::now();
            let mut running = Vec::new();
            for (family, input) in FAMILIES.iter().zip(&inputs) {
                let mut command = Command::new(format!("{family}-{}-restore", self.backend));
                command.args(["--noflush", "--wait"]).stdin(Stdio::piped()).stderr(Stdio::null());
                command.env("XTABLES_LOCKFILE", self.folder.path().join("xtables.lock"));
                let mut child = command.spawn()?;
                let text = input.replace(&port.to_string(), &other);
                child.stdin.take().ok_or("no pipe")?.write_all(text.as_bytes())?;
                running.push(child);
            }
            for mut child in running {
                if !child.wait()?.success() {
                    return Err("iptables-restore failed".into());
                }
            }
            took.push(begin.elapsed());
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(took)
    }
}

/// What a program prints that must end well.
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
