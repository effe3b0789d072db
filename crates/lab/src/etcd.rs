//! Real etcd clusters on loopback, with failure injection.
//!
//! ```no_run
//! use tortie_lab::etcd::{Etcd, EtcdOptions};
//!
//! let mut etcd = Etcd::start(EtcdOptions { members: 3, ..EtcdOptions::default() })?;
//! etcd.put("/calico/x", "1")?;
//! etcd.kill(0);
//! assert_eq!(etcd.get("/calico/x")?, "1");
//! etcd.restart(0)?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod certificates;
mod objects;
mod proxy;

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use std::{io, mem};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub use certificates::Certificates;
pub use objects::to_calico;
pub use proxy::Proxy;

use crate::program::http_post;
use objects::transaction;

/// Maximum time until a cluster is ready.
const PATIENCE: Duration = Duration::from_secs(90);

/// Attempts to draw ports for a cluster, in case another process binds one before its member does.
const DRAWS: usize = 4;

/// Options of a cluster.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Number of members.
    pub members: usize,
    /// Whether clients must use TLS and present a certificate of [`Etcd::certificates`].
    pub tls: bool,
    /// Seconds without a request after which the token of a user expires.
    pub token_ttl: u32,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self { members: 1, tls: false, token_ttl: 300 }
    }
}

/// A cluster of etcd with dedicated directories and ports. It ends when dropped.
#[derive(Debug)]
pub struct Etcd {
    options: EtcdOptions,
    folder: TempDir,
    members: Vec<Member>,
    certificates: Option<Certificates>,
    /// User and password for [`Etcd::ctl`].
    root: Option<String>,
}

#[derive(Debug)]
struct Member {
    client: u16,
    peer: u16,
    process: Option<Child>,
}

impl Member {
    fn signal(&self, signal: Signal) {
        let pid = self.process.as_ref().and_then(|process| Pid::from_raw(i32::try_from(process.id()).ok()?));
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    fn end(&mut self, signal: Signal) {
        self.signal(signal);
        if let Some(mut process) = self.process.take() {
            let _ = process.wait();
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.end(Signal::KILL);
        }
    }
}

impl Etcd {
    /// Starts a cluster and waits until it has a leader.
    ///
    /// # Errors
    /// If etcd is not installed, or does not become ready.
    pub fn start(options: EtcdOptions) -> io::Result<Self> {
        Self::start_at(options, draw_ports)
    }

    /// Starts a cluster whose members use these ports for clients and for peers. Draws again if a
    /// port is taken.
    fn start_at(
        mut options: EtcdOptions,
        mut ports: impl FnMut(usize) -> io::Result<Vec<(u16, u16)>>,
    ) -> io::Result<Self> {
        let mut draws = 1;
        loop {
            let folder = tempfile::tempdir()?;
            let certificates = options.tls.then(|| Certificates::write(folder.path())).transpose()?;
            let members = ports(options.members)?.into_iter();
            let members = members.map(|(client, peer)| Member { client, peer, process: None }).collect();
            let mut etcd = Self { options, folder, members, certificates, root: None };
            for member in 0..etcd.members.len() {
                etcd.spawn(member)?;
            }
            match etcd.await_start() {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && draws < DRAWS => {
                    draws += 1;
                    options = mem::take(&mut etcd.options);
                }
                result => return result.map(|()| etcd),
            }
        }
    }

    /// Waits until all members answer at their ports, not members of another cluster.
    fn await_start(&mut self) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            for member in 0..self.members.len() {
                let log = self.folder.path().join(format!("m{member}.log"));
                if let Some(process) = &mut self.members[member].process
                    && let Some(status) = process.try_wait()?
                {
                    let log = std::fs::read_to_string(log)?;
                    let is_taken = log.contains("address already in use");
                    let kind = if is_taken { io::ErrorKind::AddrInUse } else { io::ErrorKind::Other };
                    return Err(io::Error::new(kind, format!("etcd ended with {status}: {log}")));
                }
            }
            let is_own = |members: String| {
                self.members.iter().all(|member| members.contains(&format!("http://127.0.0.1:{},", member.peer)))
            };
            let is_ready = self.get("/").and_then(|_| self.ctl(&["member", "list"])).map(is_own);
            match is_ready {
                Ok(true) => return Ok(()),
                Err(error) if Instant::now() > until => return Err(error),
                Ok(false) if Instant::now() > until => return Err(io::Error::other("another cluster has its ports")),
                _ => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn spawn(&mut self, member: usize) -> io::Result<()> {
        let scheme = if self.options.tls { "https" } else { "http" };
        let Member { client, peer, .. } = self.members[member];
        let (client, peer) = (format!("{scheme}://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let cluster: Vec<String> =
            self.members.iter().enumerate().map(|(n, m)| format!("m{n}=http://127.0.0.1:{}", m.peer)).collect();
        let log = File::options().create(true).append(true).open(self.folder.path().join(format!("m{member}.log")))?;
        let mut command = Command::new("etcd");
        command
            .args(["--name", &format!("m{member}"), "--logger", "zap", "--log-level", "warn"])
            .arg("--data-dir")
            .arg(self.folder.path().join(format!("m{member}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(["--grpc-keepalive-min-time", "100ms", "--experimental-watch-progress-notify-interval", "1s"])
            .args(["--auth-token-ttl", &self.options.token_ttl.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(certificates) = &self.certificates {
            command
                .arg("--client-cert-auth")
                .arg("--trusted-ca-file")
                .arg(&certificates.ca)
                .arg("--cert-file")
                .arg(&certificates.server)
                .arg("--key-file")
                .arg(&certificates.server_key);
        }
        self.members[member].process = Some(command.spawn()?);
        Ok(())
    }

    fn await_ready(&self) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.get("/") {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Returns host and port of every member.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len()).map(|member| self.address(member).to_string()).collect()
    }

    /// Returns the URL: `etcd://` and the endpoints.
    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://{}", self.endpoints().join(","))
    }

    /// Returns the client address of a member.
    #[must_use]
    pub fn address(&self, member: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.members[member].client))
    }

    /// Returns the certificates of a cluster with TLS.
    #[must_use]
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Returns a directory that exists as long as the cluster.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills a member by SIGKILL.
    pub fn kill(&mut self, member: usize) {
        self.members[member].end(Signal::KILL);
    }

    /// Stops a member by SIGTERM.
    pub fn stop(&mut self, member: usize) {
        self.members[member].end(Signal::TERM);
    }

    /// Restarts a stopped or killed member, and waits for the cluster.
    ///
    /// # Errors
    /// If it does not become ready.
    pub fn restart(&mut self, member: usize) -> io::Result<()> {
        self.spawn(member)?;
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address(member)).is_err() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        self.await_ready()
    }

    /// Suspends a member: its connections stay open without answers.
    pub fn freeze(&self, member: usize) {
        self.members[member].signal(Signal::STOP);
    }

    /// Ends [`Etcd::freeze`].
    pub fn thaw(&self, member: usize) {
        self.members[member].signal(Signal::CONT);
    }

    /// Runs `etcdctl` against the running members, and returns its output.
    ///
    /// # Errors
    /// If it fails, with its standard error.
    pub fn ctl(&self, arguments: &[&str]) -> io::Result<String> {
        let running: Vec<String> = (0..self.members.len())
            .filter(|member| self.members[*member].process.is_some())
            .map(|member| self.address(member).to_string())
            .collect();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &running.join(","), "--command-timeout", "3s"]);
        command.args(["--dial-timeout", "2s"]);
        if let Some(certificates) = &self.certificates {
            command
                .args(["--insecure-transport=false", "--cacert"])
                .arg(&certificates.ca)
                .arg("--cert")
                .arg(&certificates.client)
                .arg("--key")
                .arg(&certificates.client_key);
        }
        if let Some(root) = &self.root {
            command.args(["--user", root]);
        }
        let output = command.args(arguments).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Writes a value.
    ///
    /// # Errors
    /// As [`Etcd::ctl`].
    pub fn put(&self, key: &str, value: &str) -> io::Result<()> {
        self.ctl(&["put", "--", key, value]).map(drop)
    }

    /// Reads a value; empty if the key is missing.
    ///
    /// # Errors
    /// As [`Etcd::ctl`].
    pub fn get(&self, key: &str) -> io::Result<String> {
        self.ctl(&["get", "--print-value-only", "--", key]).map(|value| value.trim_end_matches('\n').to_owned())
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// As [`Etcd::ctl`].
    pub fn delete(&self, key: &str) -> io::Result<()> {
        self.ctl(&["del", "--", key]).map(drop)
    }

    /// Writes values, and deletes the keys without a value, in one transaction and without a
    /// process. Takes a cluster without TLS and users, from a thread of its namespace; keys must be
    /// distinct.
    ///
    /// # Errors
    /// If the first member does not answer, or refuses.
    pub fn transact(&self, changes: &[(String, Option<String>)]) -> io::Result<()> {
        let answer = http_post(self.address(0), "/v3/kv/txn", &transaction(changes), Duration::from_secs(20))?;
        if answer.status == 200 { Ok(()) } else { Err(io::Error::other(answer.body)) }
    }

    /// Returns the present revision.
    ///
    /// # Errors
    /// As [`Etcd::ctl`], or if the output cannot be parsed.
    pub fn revision(&self) -> io::Result<i64> {
        let answer: serde_json::Value = serde_json::from_str(&self.ctl(&["get", "/", "-w", "json"])?)?;
        answer["header"]["revision"].as_i64().ok_or_else(|| io::Error::other("no revision"))
    }

    /// Compacts the history up to the present revision.
    ///
    /// # Errors
    /// As [`Etcd::ctl`].
    pub fn compact(&self) -> io::Result<()> {
        self.ctl(&["compact", &self.revision()?.to_string()]).map(drop)
    }

    /// Enables authentication, with the users `root` and `user`, who may read and write all keys.
    ///
    /// # Errors
    /// As [`Etcd::ctl`].
    pub fn enable_users(&mut self, user: &str, password: &str) -> io::Result<()> {
        for arguments in [
            &["user", "add", "root:rootpw"][..],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "everything"],
            &["role", "grant-permission", "everything", "readwrite", "--prefix=true", "/"],
            &["user", "add", &format!("{user}:{password}")],
            &["user", "grant-role", user, "everything"],
            &["auth", "enable"],
        ] {
            self.ctl(arguments)?;
        }
        self.root = Some("root:rootpw".into());
        Ok(())
    }

    /// Replaces the password of the user of [`Etcd::enable_users`], whose tokens become invalid.
    ///
    /// # Errors
    /// As [`Etcd::ctl`].
    pub fn replace_password(&self, user: &str, password: &str) -> io::Result<()> {
        let account = format!("{user}:{password}");
        for arguments in
            [&["user", "delete", user][..], &["user", "add", &account], &["user", "grant-role", user, "everything"]]
        {
            self.ctl(arguments)?;
        }
        Ok(())
    }
}

/// Returns free ports of each member, for clients and for peers.
fn draw_ports(members: usize) -> io::Result<Vec<(u16, u16)>> {
    // All sockets are bound before any is closed, so that the ports differ.
    let listeners: Vec<TcpListener> =
        (0..members * 2).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    listeners.chunks(2).map(|pair| Ok((port(&pair[0])?, port(&pair[1])?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_writes_and_deletes() {
        let etcd = Etcd::start(EtcdOptions::default()).unwrap();
        etcd.put("/old", "1").unwrap();
        // Lengths with each padding of base64.
        let texts = ["{\"é\": 1}", "ab", "a"].map(|text| Some(text.to_owned()));
        let mut changes: Vec<_> =
            texts.clone().into_iter().enumerate().map(|(n, text)| (format!("/{n}"), text)).collect();
        changes.push(("/old".to_owned(), None));
        etcd.transact(&changes).unwrap();
        assert_eq!(["/0", "/1", "/2"].map(|key| Some(etcd.get(key).unwrap())), texts);
        assert_eq!(etcd.get("/old").unwrap(), "");
        let twice = [("/a".to_owned(), Some(String::new())), ("/a".to_owned(), Some(String::new()))];
        assert!(etcd.transact(&twice).unwrap_err().to_string().contains("duplicate key"));
    }

    #[test]
    fn a_cluster_does_not_use_the_port_of_another() {
        let first = Etcd::start(EtcdOptions::default()).unwrap();
        first.put("/x", "1").unwrap();
        let mut taken = Some(first.address(0).port());
        let ports = |members| {
            let mut ports = draw_ports(members)?;
            if let Some(port) = taken.take() {
                ports[0].0 = port;
            }
            Ok(ports)
        };
        let second = Etcd::start_at(EtcdOptions::default(), ports).unwrap();
        assert_ne!(second.address(0), first.address(0));
        assert_eq!(second.get("/x").unwrap(), "");
        assert_eq!(first.get("/x").unwrap(), "1");
    }
}
