//! End of the agent in various states.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::agent::Node;
use crate::CLUSTER;

/// Waits until a script has written this many process numbers into a file.
fn written(file: &Path, count: usize) -> Vec<String> {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        let processes: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if processes.len() >= count {
            return processes;
        }
        assert!(Instant::now() < patience, "{text}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn assert_gone(processes: &[String]) {
    let alive = |process: &String| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
    };
    let patience = Instant::now() + Duration::from_secs(20);
    while processes.iter().any(alive) {
        assert!(Instant::now() < patience, "{processes:?} are still there");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a script that hangs, with a child process that holds its pipes.
fn hanging(pids: &Path, prelude: &str) -> String {
    format!("{prelude}\nsleep 300 &\necho $$ $! >>{}\nwait", pids.display())
}

tortie_lab::kernel_test! {
    fn the_first_signal_ends_it_although_a_program_hangs_and_the_next_start_converges() {
        for (backend, program) in [("nft", "iptables-nft-restore"), ("legacy", "ipset"), ("nft", "ip6tables-nft-save")] {
            let mut node = Node::new(backend, CLUSTER);
            let pids = node.folder().join("pids");
            node.wrap(program, &hanging(&pids, "trap '' TERM"));
            node.spawn();
            written(&pids, 2);
            let begin = Instant::now();
            node.stop(Signal::TERM);
            assert!(begin.elapsed() < Duration::from_secs(25), "{program}: {:?}\n{}", begin.elapsed(), node.log());
            assert_gone(&written(&pids, 2));
            node.unwrap(program);
            node.start();
            assert!(node.kernel_state().contains("cali-pi-"));
        }
    }

    fn the_second_signal_ends_the_agent_and_its_children_at_once() {
        let mut node = Node::new("nft", CLUSTER);
        let pids = node.folder().join("pids");
        node.wrap("iptables-nft-restore", &hanging(&pids, "trap '' TERM"));
        node.spawn();
        written(&pids, 2);
        // The second signal follows at once: the hanging program would be killed soon, and the
        // agent would end by itself.
        node.signal(Signal::TERM);
        node.signal(Signal::INT);
        assert_eq!(node.wait().code(), Some(1), "{}", node.log());
        assert_gone(&written(&pids, 2));
    }

    fn a_driver_that_takes_nothing_and_does_not_end_is_killed_with_its_children() {
        let mut node = Node::new("nft", CLUSTER);
        let pids = node.folder().join("pids");
        node.drive_with(&hanging(&pids, "trap '' TERM"));
        node.spawn();
        written(&pids, 2);
        let begin = Instant::now();
        node.stop(Signal::TERM);
        assert!(begin.elapsed() < Duration::from_secs(25), "{:?}\n{}", begin.elapsed(), node.log());
        assert_gone(&written(&pids, 2));
    }

    fn signals_that_mean_nothing_have_no_effect_and_a_hangup_reads_again() {
        let mut node = Node::new("nft", CLUSTER);
        let config = node.folder().join("felix.cfg");
        fs::write(&config, "[global]\n").unwrap();
        node.configure(&config);
        node.start();
        let good = node.kernel_state();
        for signal in [Signal::USR1, Signal::USR2, Signal::PIPE, Signal::HUP] {
            node.signal(signal);
        }
        thread::sleep(Duration::from_millis(200));
        node.until_ready("");
        assert_eq!(node.kernel_state(), good);
        assert!(!node.log().contains("the engine restarts"), "{}", node.log());
        fs::write(&config, "[global]\nIptablesFilterDenyAction = Reject\n").unwrap();
        node.signal(Signal::HUP);
        node.until("denied packets are rejected", |state| state.contains("Unknown interface\" -j REJECT"));
        // An unreadable configuration file leaves everything in force.
        fs::remove_file(&config).unwrap();
        node.signal(Signal::HUP);
        thread::sleep(Duration::from_millis(200));
        node.until_ready("");
        assert!(node.log().contains("the configuration in force stays in force"), "{}", node.log());
        node.stop(Signal::TERM);
    }
}

#[test]
fn a_missing_capability_is_one_error_line() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
    command
        .env("TORTIE_SOCKET", "")
        .args(["run", "--node", "n1", "--datastore", "file:/nowhere"])
        .env("FELIX_NONSENSE", "1")
        .env("FELIX_ENDPOINTSTATUSPATHPREFIX", "none");
    if rustix::process::geteuid().is_root() {
        command.uid(65534);
    }
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    assert!(stderr.starts_with("tortie: `tortie run` needs CAP_NET_ADMIN"), "{stderr}");
}
