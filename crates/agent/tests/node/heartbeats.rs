//! Liveness of the threads on which enforcement depends.
#![allow(unsafe_code, reason = "no safe crate of the workspace stops one thread of another process")]

use std::fs;
use std::ptr::null_mut;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::agent::Node;
use crate::CLUSTER;

/// Names of threads, of which the kernel keeps 15 bytes, with their reporters.
const THREADS: &[(&str, &str)] = &[
    ("directory", "Datastore"),
    ("interfaces", "InterfaceMonitor"),
    ("nftables", "RulesetMonitor"),
    #[cfg(feature = "policysync")]
    ("policysync", "PolicySync"),
];
const TIMEOUT: Duration = Duration::from_secs(6);

/// A thread of the agent that does not run until this is dropped.
pub(super) struct Stopped(libc::pid_t);

impl Stopped {
    pub(super) fn new(process: u32, name: &str) -> Self {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|task| task.unwrap());
        let mut tasks = tasks.filter(|task| fs::read_to_string(task.path().join("comm")).unwrap().trim() == name);
        let thread = tasks.next().unwrap_or_else(|| panic!("no thread {name}")).file_name();
        let thread = Self(thread.to_str().unwrap().parse().unwrap());
        assert!(thread.ptrace(libc::PTRACE_SEIZE) && thread.ptrace(libc::PTRACE_INTERRUPT), "{name}");
        thread
    }

    fn ptrace(&self, request: libc::c_uint) -> bool {
        // SAFETY: these requests read and write no memory of this process.
        unsafe { libc::ptrace(request, self.0, null_mut::<libc::c_void>(), null_mut::<libc::c_void>()) == 0 }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // The request fails until the thread has stopped.
        while !self.ptrace(libc::PTRACE_DETACH) {
            sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the reporters that are not live, in the order of the table.
fn silent(node: &Node) -> Vec<String> {
    let answer = node.get(9099, "/liveness");
    let silent = answer.lines().filter(|line| line.contains("no report in time"));
    let silent: Vec<String> = silent.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(silent.is_empty(), answer.starts_with("HTTP/1.1 200"), "{answer}");
    silent
}

pub(super) fn until_silent(node: &Node, reporters: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while silent(node) != reporters {
        assert!(Instant::now() < deadline, "{:?} instead of {reporters:?}\n{}", silent(node), node.log());
        sleep(Duration::from_millis(20));
    }
}

tortie_lab::kernel_test! {
    fn a_thread_that_is_stuck_fails_liveness_and_idle_threads_do_not() {
        let mut node = Node::new("nft", CLUSTER);
        let main = ["CalculationGraph", "InternalDataplaneMainLoop"];
        let reporters: Vec<&str> = THREADS.iter().map(|(_, reporter)| *reporter).collect();
        let overrides: Vec<String> =
            main.iter().chain(&reporters).map(|name| format!("{name}={}s", TIMEOUT.as_secs())).collect();
        node.set("FELIX_HEALTHTIMEOUTOVERRIDES", &overrides.join(","));
        node.set("FELIX_NFTABLESMODE", "Enabled");
        let sockets = node.folder().join("sockets").display().to_string();
        node.set("FELIX_POLICYSYNCPATHPREFIX", &sockets);
        node.start();
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT * 3 / 2 {
            assert_eq!(silent(&node), [""; 0], "{}", node.log());
            sleep(Duration::from_millis(50));
        }
        for (name, reporter) in THREADS {
            let stopped = Stopped::new(node.process(), name);
            until_silent(&node, &[reporter]);
            drop(stopped);
            until_silent(&node, &[]);
        }
        let stopped = Stopped::new(node.process(), "tortie");
        until_silent(&node, &main);
        drop(stopped);
        until_silent(&node, &[]);
    }
}
