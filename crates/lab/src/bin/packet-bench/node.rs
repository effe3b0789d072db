//! The node between client and pod: three network namespaces in a row.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tortie_lab::netns::Namespace;
use tortie_lab::pods::{LabHost, interface_name};
use tortie_lab::program::{Answer, Program};

use crate::policy::{POD, Policy};
use crate::{Backend, Result, Workloads};

const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) struct Node {
    // Declared first, so that the agent ends before its namespace and folder are dropped.
    program: Option<(PathBuf, Program)>,
    namespace: Namespace,
    client: Namespace,
    pod: Namespace,
    interface: String,
    folder: TempDir,
}

impl Node {
    /// Creates and connects the namespaces, without any packet filter.
    pub(crate) fn new() -> Result<Self> {
        let (namespace, client, pod) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
        let interface = interface_name(&LabHost::pod("bench", "server")).ok_or("pods have interfaces")?;
        namespace.ip([
            format!("link add eth0 type veth peer name eth0 netns {}", client.path().display()),
            format!("link add {interface} type veth peer name eth0 netns {}", pod.path().display()),
            "link set eth0 up".to_owned(),
            format!("link set {interface} up"),
            "addr add 10.64.0.1/24 dev eth0".to_owned(),
            "route add 0.0.0.0/0 via 10.64.0.2".to_owned(),
            format!("route add {POD}/32 dev {interface}"),
        ])?;
        let on = |name: &str| (name.to_owned(), "1");
        let proxy_arp = format!("ipv4/conf/{interface}/proxy_arp");
        let off = |name: &str| (format!("ipv4/conf/{name}/rp_filter"), "0");
        // Proxy ARP must not delay the pod's first answer.
        let proxy_delay = (format!("ipv4/neigh/{interface}/proxy_delay"), "0");
        namespace.sysctl(&[
            on("ipv4/ip_forward"),
            on(&proxy_arp),
            proxy_delay,
            off("all"),
            off("eth0"),
            off(&interface),
        ])?;
        client.ip(["addr add 10.64.0.2/24 dev eth0", "link set eth0 up"])?;
        pod.ip([
            format!("addr add {POD}/32 dev eth0"),
            "link set eth0 up".to_owned(),
            "route add 169.254.1.1/32 dev eth0".to_owned(),
            "route add 0.0.0.0/0 via 169.254.1.1".to_owned(),
        ])?;
        pod.sysctl(&[off("all"), off("eth0")])?;
        Ok(Self { program: None, namespace, client, pod, interface, folder: TempDir::new()? })
    }

    pub(crate) const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) const fn client(&self) -> &Namespace {
        &self.client
    }

    pub(crate) const fn pod(&self) -> &Namespace {
        &self.pod
    }

    /// Returns the MAC address of an interface of the node.
    pub(crate) fn address_of(&self, interface: &str) -> Result<[u8; 6]> {
        let text = self.namespace.shell(&format!("ip -o link show {interface}"))?;
        let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether");
        let text = words.nth(1).ok_or("an interface has an address")?;
        let bytes: Vec<u8> =
            text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<std::result::Result<_, _>>()?;
        Ok(bytes.try_into().map_err(|_| format!("{text} is no address of Ethernet"))?)
    }

    /// Starts the agent and waits until the policy is in force. Returns the elapsed time.
    pub(crate) fn start(
        &mut self,
        agent: &Path,
        (backend, workloads): (Backend, Workloads),
        policy: Policy,
        flow_logs: bool,
    ) -> Result<Duration> {
        let manifests = self.folder.path().join("manifests");
        fs::create_dir(&manifests)?;
        fs::write(manifests.join("bench.yaml"), policy.manifests())?;
        let begin = Instant::now();
        let agent = agent.canonicalize()?;
        let mut command = Command::new(&agent);
        command
            .args(["run", "--node", "n1", "--datastore"])
            .arg(format!("file:{}", manifests.display()))
            .arg("--state-dir")
            .arg(self.folder.path().join("state"))
            .arg("--mtu-file")
            .arg(self.folder.path().join("mtu"))
            .env("XTABLES_LOCKFILE", self.folder.path().join("xtables.lock"))
            .env("FELIX_ENDPOINTSTATUSPATHPREFIX", self.folder.path())
            .env("TORTIE_SOCKET", "")
            .env("FELIX_HEALTHENABLED", "true")
            .env("FELIX_IPV6SUPPORT", "false")
            .envs(backend.parameters().iter().copied());
        if workloads == Workloads::ByAddress {
            command.args(["--workloads", "by-address"]);
        }
        if flow_logs {
            command.env("FELIX_FLOWLOGSFILE", self.folder.path().join("flows"));
        }
        let mut program = Program::start("agent", &self.namespace, self.folder.path(), &mut command)?;
        let is_ready = || {
            let answer = Answer::get(&self.namespace, 9099, "/readiness", Duration::from_secs(5));
            answer.is_ok_and(|answer| answer.status == 200)
        };
        while !is_ready() {
            program.check()?;
            if begin.elapsed() > PATIENCE {
                return Err(format!("the agent is not ready; the end of its log:\n{}", program.log_tail()).into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.program = Some((agent, program));
        Ok(begin.elapsed())
    }

    /// Runs a command on the node.
    pub(crate) fn shell(&self, command: &str) -> Result<String> {
        Ok(self.namespace.shell(command)?)
    }

    /// Returns the name of the node's interface to the pod.
    pub(crate) fn interface(&self) -> &str {
        &self.interface
    }

    /// Deletes all conntrack entries, if an agent runs.
    pub(crate) fn delete_connections(&self) -> Result<()> {
        if self.program.is_some() {
            self.namespace.shell("conntrack -F 2>&1")?;
        }
        Ok(())
    }

    /// Ends the agent and removes its state from the kernel.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let Some((agent, program)) = self.program.take() else { return Ok(()) };
        let status = program.stop()?;
        if !status.success() {
            return Err(format!("the agent ended with {status}").into());
        }
        // Pinned objects would keep the namespace alive.
        let lock = self.folder.path().join("xtables.lock");
        self.namespace.output(Command::new(agent).arg("cleanup").env("XTABLES_LOCKFILE", lock), "")?;
        Ok(())
    }
}
