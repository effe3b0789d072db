//! An API server, and programs that write to it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tortie_lab::apiserver::ApiServer;

use crate::guards;

const PATIENCE: Duration = Duration::from_secs(90);

/// The two forms in which Calico's resources are custom resources.
pub(crate) const FORMS: [&str; 2] = ["crd.projectcalico.org/v1", "projectcalico.org/v3"];

/// An API server, a state directory, and an agent that enforces nothing.
pub(crate) struct World {
    pub(crate) server: ApiServer,
    pub(crate) form: &'static str,
    folder: TempDir,
    agent: Option<Child>,
}

impl World {
    pub(crate) fn new(form: &'static str, resources: &str) -> Self {
        let server = ApiServer::start().unwrap();
        let (group, version) = form.split_once('/').unwrap();
        server.install_calico(group, version);
        server.install_admin();
        let world = Self { server, form, folder: TempDir::new().unwrap(), agent: None };
        if !resources.is_empty() {
            good(&world.write(&["apply"], resources));
        }
        world
    }

    pub(crate) fn url(&self) -> String {
        format!("kubernetes:{}", self.server.kubeconfig().display())
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Starts `tortie apply` or `delete` with these resources on standard input.
    pub(crate) fn begin(&self, args: &[&str], resources: &str) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.args(args).args(["--datastore", &self.url(), "-f", "-"]);
        if args.contains(&"--confirm") {
            command.arg("--state-dir").arg(self.state_dir()).env("SUDO_USER", "ada");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(resources.as_bytes()).unwrap();
        child
    }

    pub(crate) fn write(&self, args: &[&str], resources: &str) -> Output {
        self.begin(args, resources).wait_with_output().unwrap()
    }

    /// Runs `tortie` with the state directory.
    pub(crate) fn tortie(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.args(args).arg("--state-dir").arg(self.state_dir()).output().unwrap()
    }

    pub(crate) fn get(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.arg("get").args(args).args(["--datastore", &self.url()]).output().unwrap()
    }

    pub(crate) fn status(&self) -> Value {
        serde_json::from_slice(&self.tortie(&["confirm", "--status", "-o", "json"]).stdout).unwrap_or_default()
    }

    /// Returns the order of a policy of Calico; `None` if there is none.
    pub(crate) fn order(&self, name: &str) -> Option<u64> {
        self.server.get(self.form, "NetworkPolicy", "shop", name)?["spec"]["order"].as_u64()
    }

    /// Returns the spec of a Kubernetes policy.
    pub(crate) fn kubernetes(&self, name: &str) -> Option<Value> {
        self.server.get("networking.k8s.io/v1", "NetworkPolicy", "shop", name).map(|policy| policy["spec"].clone())
    }

    pub(crate) fn until(&self, condition: &str, done: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < until, "waiting until {condition}: {}\n{}", self.status(), self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the agent's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn start(&mut self) {
        let driver = self.folder.path().join("driver");
        if !driver.exists() {
            fs::write(&driver, "#!/bin/sh\nexec cat <&3 >/dev/null\n").unwrap();
            fs::set_permissions(&driver, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let driver = format!("exec:{}", driver.display());
        let agent = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .env("TORTIE_SOCKET", "")
            .env("FELIX_ENDPOINTSTATUSPATHPREFIX", self.folder.path())
            .args(["run", "--node", "n1", "--dataplane", &driver, "--datastore", &self.url(), "--state-dir"])
            .arg(self.state_dir())
            .stderr(log)
            .spawn();
        self.agent = Some(agent.unwrap());
    }

    pub(crate) fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    /// Returns the guard processes that roll a change back.
    pub(crate) fn guards(&self) -> Vec<Pid> {
        guards::guards(&self.state_dir())
    }

    pub(crate) fn kill_guards(&self) {
        guards::kill_guards(&self.state_dir());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        guards::end_guards(&self.state_dir());
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

pub(crate) fn good(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn bad(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    std::str::from_utf8(&output.stderr).unwrap()
}

pub(crate) fn policy(name: &str, order: u32) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{order: \
         {order}, selector: all(), types: [Ingress]}}\n---\n"
    )
}

/// Returns a Kubernetes policy without the fields that the server fills in.
pub(crate) fn kubernetes_policy(name: &str, port: u16) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec: \
         {{podSelector: {{}}, ingress: [{{ports: [{{port: {port}}}]}}]}}\n---\n"
    )
}
