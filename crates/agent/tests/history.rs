//! Earlier states of the resources in etcd, and rollbacks to them, with a real etcd and real
//! programs.
#![cfg(feature = "etcd")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests that run the program")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tortie_lab::etcd::{Etcd, EtcdOptions};

const PATIENCE: Duration = Duration::from_secs(90);

/// An etcd, and an agent whose driver accepts everything and does nothing.
struct World {
    etcd: Etcd,
    folder: TempDir,
    agent: Option<Child>,
}

impl World {
    fn new(resources: &str) -> Self {
        let etcd = Etcd::start(EtcdOptions::default()).unwrap();
        let mut world = Self { etcd, folder: TempDir::new().unwrap(), agent: None };
        let driver = world.folder.path().join("driver");
        fs::write(&driver, "#!/bin/sh\nexec cat <&3 >/dev/null\n").unwrap();
        fs::set_permissions(driver, fs::Permissions::from_mode(0o755)).unwrap();
        world.apply(resources);
        world.start();
        world.until("the first state is known", |world| world.states() == 1);
        world
    }

    fn start(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let driver = format!("exec:{}", self.folder.path().join("driver").display());
        let agent = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .env("TORTIE_SOCKET", "")
            .env("FELIX_ENDPOINTSTATUSPATHPREFIX", self.folder.path())
            .args(["run", "--node", "n1", "--dataplane", &driver, "--datastore", &self.etcd.url(), "--state-dir"])
            .arg(self.state_dir())
            .stderr(log)
            .spawn();
        self.agent = Some(agent.unwrap());
    }

    fn kill(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    fn state_dir(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn tortie(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tortie")).args(args).arg("--state-dir").arg(self.state_dir()).output().unwrap()
    }

    fn apply(&self, resources: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        command.args(["apply", "--datastore", &self.etcd.url(), "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(resources.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    fn delete(&self, kind: &str, name: &str) {
        let args = ["delete", kind, name, "-n", "shop", "--datastore", &self.etcd.url()];
        let output = Command::new(env!("CARGO_BIN_EXE_tortie")).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Changes a policy by a command that takes its name.
    fn change(&self, args: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        let output = command.args(args).args(["-n", "shop", "--datastore", &self.etcd.url()]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns the number of states.
    fn states(&self) -> usize {
        let output = self.tortie(&["history", "-o", "json"]);
        let whole: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        whole["states"].as_array().map_or(0, Vec::len)
    }

    fn until(&self, condition: &str, done: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            let log = || fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(Instant::now() < until, "waiting until {condition}: {:?}\n{}", self.tortie(&["history"]), log());
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn until_there_are(&self, states: usize) {
        self.until("a state is known", |world| world.states() == states);
    }

    /// Returns the order of a policy; `None` if there is none.
    fn order(&self, name: &str) -> Option<u64> {
        let path = format!("/calico/resources/v3/projectcalico.org/networkpolicies/shop/{name}");
        let policy: Value = serde_json::from_str(&self.etcd.get(&path).unwrap()).ok()?;
        policy["spec"]["order"].as_u64()
    }

    /// Returns all resources that users have written, with their paths.
    fn everything(&self) -> Vec<Value> {
        let written = ["networkpolicies", "tiers", "bgpfilters", "kubecontrollersconfigurations"];
        let all = written.map(|plural| {
            let prefix = format!("/calico/resources/v3/projectcalico.org/{plural}/");
            self.etcd.ctl(&["get", "--prefix", &prefix]).unwrap()
        });
        all.iter().flat_map(|text| text.lines()).map(without_assigned_metadata).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// Returns a resource without the metadata that differ when it is created again.
fn without_assigned_metadata(line: &str) -> Value {
    let Ok(mut object) = serde_json::from_str::<Value>(line) else { return line.into() };
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|name, _| !["uid", "creationTimestamp"].contains(&name.as_str()));
    }
    object
}

fn good(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

fn bad(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    std::str::from_utf8(&output.stderr).unwrap()
}

fn policy(name: &str, tier: &str, order: u32) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{tier: \
         {tier}, order: {order}, selector: all(), types: [Ingress]}}\n---\n"
    )
}

const TIER: &str = "apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: platform}\nspec: {order: 5}\n---\n";

/// Kinds that the agent reads for the history only.
const OTHERS: &str = "
apiVersion: projectcalico.org/v3
kind: BGPFilter
metadata: {name: some}
spec: {importV4: [{action: Accept}]}
---
apiVersion: projectcalico.org/v3
kind: KubeControllersConfiguration
metadata: {name: default}
spec: {logSeverityScreen: Info}
---
";

#[test]
fn resources_go_back_to_an_earlier_state_and_forth_again() {
    let mut world = World::new(&policy("web", "default", 1));
    let first = world.everything();
    let new = policy("web", "default", 2) + TIER + &policy("db", "platform", 3) + OTHERS;
    world.apply(&new);
    world.until_there_are(2);
    let second = world.everything();

    let table = good(&world.tortie(&["history"])).to_owned();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((lines[1][0], &lines[1][2..4]), ("2", &["+4", "~1"][..]), "{table}");
    assert_eq!((lines[2][0], &lines[2][2..]), ("1", &["first", "known"][..]), "{table}");
    let diff = good(&world.tortie(&["history", "2", "--datastore", &world.etcd.url()])).to_owned();
    assert!(
        diff.contains("\n  + NetworkPolicy/shop/db\n") && diff.contains("\n  ~ NetworkPolicy/shop/web\n"),
        "{diff}"
    );
    assert!(diff.contains("--- NetworkPolicy/shop/web\n+++ NetworkPolicy/shop/web\n"), "{diff}");
    assert!(diff.contains("\n-  order: 1\n+  order: 2\n"), "{diff}");

    let planned = good(&world.tortie(&["rollback", "1", "--dry-run"])).to_owned();
    assert!(planned.contains("\n-  order: 2\n+  order: 1\n") && world.order("web") == Some(2), "{planned}");
    let done = world.tortie(&["rollback", "1"]);
    let words = [
        "NetworkPolicy/shop/web restored",
        "KubeControllersConfiguration/default removed",
        "NetworkPolicy/shop/db removed",
        "BGPFilter/some removed",
        "Tier/platform removed",
    ];
    assert_eq!(good(&done).lines().collect::<Vec<_>>(), words);
    assert_eq!(world.everything(), first);
    world.until_there_are(3);
    assert_eq!(good(&world.tortie(&["rollback", "1"])), "everything is as in state 1\n");

    // A rollback can be reverted by the state that it has created.
    good(&world.tortie(&["rollback", "2"]));
    assert_eq!(world.everything(), second);
    world.until_there_are(4);
    good(&world.tortie(&["rollback", "3"]));
    assert_eq!(world.everything(), first);
    world.until_there_are(5);

    // Changes while no agent runs become one state when an agent runs again.
    world.kill();
    world.apply(&policy("web", "default", 7));
    world.apply(&policy("late", "default", 8));
    let refused = world.tortie(&["rollback", "2"]);
    assert!(
        bad(&refused).contains("NetworkPolicy/shop/web: has content that the history does not have\n"),
        "{refused:?}"
    );
    assert!(
        bad(&refused).ends_with("tortie: nothing has been changed; --force rolls back and discards that content\n")
    );
    assert_eq!(world.order("web"), Some(7));
    world.start();
    world.until_there_are(6);
    good(&world.tortie(&["rollback", "5"]));
    assert_eq!(world.everything(), first);
}

#[test]
fn an_unconfirmed_rollback_is_rolled_back() {
    let world = World::new(&policy("web", "default", 1));
    world.apply(&policy("web", "default", 2));
    world.until_there_are(2);
    let made = world.tortie(&["rollback", "1", "--confirm", "2s"]);
    assert_eq!(good(&made), "NetworkPolicy/shop/web restored\n");
    assert!(String::from_utf8_lossy(&made.stderr).contains(" rolls this back in 2 s"), "{made:?}");
    world.until("it is rolled back", |world| world.order("web") == Some(2));

    // A rollback without `--confirm` does not wait.
    world.until("that is known", |world| !world.tortie(&["confirm", "--status"]).status.success());
    world.until("the history knows it", |world| world.tortie(&["rollback", "1"]).status.success());
    let status = world.tortie(&["confirm", "--status", "-o", "json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((status["phase"].as_str(), world.order("web")), (Some("confirmed"), Some(1)));
}

#[test]
fn rollbacks_are_complete_or_refused() {
    let world = World::new(&(policy("web", "default", 1) + TIER));
    world.apply(&policy("web", "default", 2));
    world.until_there_are(2);
    world.delete("tier", "platform");
    world.until_there_are(3);
    // The recorded text of one resource is missing, so that the other one must not be rolled back
    // alone.
    let history = fs::read_dir(world.state_dir().join("history")).unwrap().next().unwrap().unwrap().path();
    for text in fs::read_dir(history.join("texts")).unwrap() {
        let text = text.unwrap().path();
        if fs::read_to_string(&text).unwrap().contains("kind: Tier") {
            fs::remove_file(text).unwrap();
        }
    }
    let refused = world.tortie(&["rollback", "1", "--force"]);
    assert!(bad(&refused).contains("Tier/platform.yaml: the text that it had is not kept"), "{refused:?}");
    assert_eq!(world.order("web"), Some(2));
}

#[test]
fn another_etcd_at_the_same_place_is_a_change_like_any_other() {
    let mut world = World::new(&policy("web", "default", 1));
    // The number of changes distinguishes the two clusters.
    for _ in 0..20 {
        world.etcd.put("/calico/resources/v3/projectcalico.org/gadgets/x", "{}").unwrap();
    }
    world.apply(&policy("web", "default", 2));
    world.until_there_are(2);
    let second = world.everything();
    // As if an older snapshot had been restored while the agent runs.
    world.etcd.kill(0);
    fs::remove_dir_all(world.etcd.folder().join("m0")).unwrap();
    world.etcd.restart(0).unwrap();
    world.apply(&policy("old", "default", 9));
    world.until("it is known", |world| {
        let states = world.tortie(&["history", "-o", "json"]);
        String::from_utf8_lossy(&states.stdout).contains("NetworkPolicy/shop/old")
    });
    world.until("the whole state is restored", |world| world.tortie(&["rollback", "2"]).status.success());
    assert_eq!(world.everything(), second);
}

#[test]
fn patches_and_labels_are_states_like_any_other_change() {
    let world = World::new(&policy("web", "default", 1));
    world.change(&["patch", "np", "web", "-p", "{spec: {order: 2}}"]);
    world.until_there_are(2);
    world.change(&["label", "np", "web", "a=b"]);
    world.until_there_are(3);
    world.change(&["label", "np", "web", "c=d", "--dry-run"]);
    let diff = good(&world.tortie(&["history", "2"])).to_owned();
    assert!(diff.contains("\n-  order: 1\n+  order: 2\n"), "{diff}");
    let diff = good(&world.tortie(&["history", "3"])).to_owned();
    assert!(diff.contains("\n+    a: b\n") && !diff.contains("order: 2\n-"), "{diff}");
    good(&world.tortie(&["rollback", "1"]));
    assert_eq!(world.order("web"), Some(1));
    world.until_there_are(4);
}
