//! State of the kernel while manifests are replaced, and after starts with manifests that cannot be
//! used.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::agent::Node;
use crate::{CLUSTER, FRIEND};

/// Mark in the kernel of endpoints whose traffic is denied because of unusable input.
const CLOSED: &str = "tortie-unreadable";
const GARBAGE: &str = "kind: [\n";

/// Returns the rules of policies, and those of workloads that lead to them.
fn policies(state: &str) -> Vec<String> {
    let is_of_workload =
        |line: &&str| ["-A cali-pi-", "-A cali-tw-", "-A cali-fw-"].iter().any(|start| line.starts_with(start));
    state.lines().filter(is_of_workload).map(str::to_owned).collect()
}

/// Returns the number of closed IPv4 endpoints.
fn closed_endpoints(state: &str) -> usize {
    let family = state.split("COMMIT").find(|table| table.contains("cali-from-wl-dispatch")).unwrap_or_default();
    let chain = |line: &str| line.contains(CLOSED).then(|| line.split(' ').nth(1).unwrap_or_default().to_owned());
    let chains: BTreeSet<String> =
        family.lines().filter_map(chain).filter(|chain| chain.starts_with("cali-tw-")).collect();
    chains.len()
}

/// Ends the agent and clears the kernel, as a reboot does.
fn reboot(node: &mut Node, signal: Signal) {
    node.stop(signal);
    node.cleanup();
    assert!(!node.kernel_state().contains("cali"));
}

tortie_lab::kernel_test! {
    fn a_manifest_that_is_torn_while_it_is_replaced_opens_nothing() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        let good = policies(&node.shell("iptables-nft-save -t filter"));
        assert!(good.iter().any(|line| line.starts_with("-A cali-pi-")), "{good:?}");
        let (file, new) = (node.manifests().join("cluster.yaml"), node.manifests().join("new"));
        let with_friend = format!("{CLUSTER}---{FRIEND}");
        let scripts = [
            ": > FILE; sleep 0.3; cat NEW > FILE",
            "rm FILE; sleep 0.02; cat NEW > FILE",
            "(head -c 300 NEW; sleep 0.5; tail -c +301 NEW; sleep 0.5) > FILE",
            "head -c 300 NEW > FILE; sleep 0.4; tail -c +301 NEW >> FILE",
        ];
        for (turn, script) in scripts.iter().enumerate() {
            let has_friend = turn % 2 == 0;
            fs::write(&new, if has_friend { &with_friend } else { CLUSTER }).unwrap();
            let script = script.replace("FILE", &file.display().to_string()).replace("NEW", &new.display().to_string());
            let mut samples = 0;
            thread::scope(|scope| {
                let writer = scope.spawn(|| node.shell(&script));
                let mut left = 40;
                // As long as the writer runs, and for somewhat longer than missing objects stay in
                // force.
                while !writer.is_finished() || left > 0 {
                    left -= i32::from(writer.is_finished());
                    let state = node.shell("iptables-nft-save -t filter");
                    for line in &good {
                        assert!(state.contains(line), "{script}: {line}\n{state}\n{}", node.log());
                    }
                    samples += 1;
                    thread::sleep(Duration::from_millis(5));
                }
            });
            assert!(samples > 40);
            node.until("the new version is in force", |state| state.contains("10.65.9.9") == has_friend);
        }
        fs::remove_file(&file).unwrap();
        node.until("the chains of removed policies are deleted", |state| policies(state).iter().all(|line| !line.starts_with("-A cali-pi-")));
    }

    fn invalid_objects_at_the_first_start_fail_closed_until_they_are_repaired() {
        let mut node = Node::new("nft", CLUSTER);
        node.write("broken.yaml", GARBAGE);
        node.spawn();
        node.until_readiness("503", |answer| answer.contains("broken.yaml:"));
        node.until("all is closed", |state| {
            state.contains(CLOSED) && policies(state).iter().any(|line| line.starts_with("-A cali-pi-") && line.contains("-j DROP"))
        });
        // The namespace of the unusable policy is known now.
        let policy = CLUSTER.split("---").last().unwrap().replace("name: from-friends", "name: another");
        let friend = FRIEND.replace("elsewhere", "n1").replace("shop", "other");
        let unknown = policy.replace("matchLabels: {app: web}", "matchLabels: 7");
        node.write("broken.yaml", &format!("{unknown}---{friend}"));
        let is_told = |answer: &str| answer.contains("broken.yaml:") && answer.contains("NetworkPolicy/shop/another");
        node.until_readiness("503", is_told);
        node.until("the other namespace is open", |state| closed_endpoints(state) == 1);
        node.write("broken.yaml", &friend);
        node.until_ready("");
        node.until("nothing is closed", |state| !state.contains(CLOSED));
        let resolved = node.kernel_state();
        // The same at a start after a reboot, without a recorded state.
        reboot(&mut node, Signal::TERM);
        fs::remove_dir_all(node.state()).unwrap();
        node.write("another.yaml", &unknown);
        node.spawn();
        node.until_readiness("503", |answer| answer.contains("another.yaml:"));
        node.until("the namespace is closed", |state| closed_endpoints(state) == 1);
        // Endpoints that were closed before a reboot are closed after it.
        thread::sleep(Duration::from_millis(300));
        reboot(&mut node, Signal::TERM);
        node.spawn();
        node.until_readiness("503", |answer| answer.contains("another.yaml:"));
        node.until("the namespace is closed", |state| closed_endpoints(state) == 1);
        fs::remove_file(node.manifests().join("another.yaml")).unwrap();
        node.until_ready("");
        node.until("nothing is closed", |state| state == resolved);
    }

    fn the_last_valid_version_survives_a_reboot() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        let good = node.kernel_state();
        // The manifest becomes invalid while the agent runs; the next start enforces its last valid
        // version.
        node.write("cluster.yaml", &CLUSTER.replace("friend: 'yes'}}}]", "friend: ['yes']}}}]"));
        node.until_ready("cluster.yaml:17:");
        assert_eq!(node.kernel_state(), good);
        reboot(&mut node, Signal::TERM);
        node.spawn();
        node.until_ready("cluster.yaml:17:");
        assert_eq!(node.kernel_state(), good);
        // The manifest becomes unreadable while no agent runs.
        reboot(&mut node, Signal::TERM);
        node.write("cluster.yaml", GARBAGE);
        node.spawn();
        node.until_ready("cluster.yaml:");
        assert_eq!(node.kernel_state(), good);
        // If the last valid version cannot be stored, the next start denies all traffic.
        reboot(&mut node, Signal::TERM);
        fs::remove_dir_all(node.state()).unwrap();
        fs::write(node.state(), "in the way").unwrap();
        node.spawn();
        node.until_readiness("503", |answer| answer.contains("cluster.yaml:"));
        assert!(node.log().contains("last valid versions cannot be kept"), "{}", node.log());
        node.write("cluster.yaml", CLUSTER);
        node.until_ready("");
        node.until("all is as it was", |state| state == good);
    }

    fn a_manifest_that_turns_up_unreadable_closes_nothing_not_even_after_a_reboot() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        let good = node.kernel_state();
        node.write("broken.yaml", GARBAGE);
        node.until_readiness("503", |answer| answer.contains("broken.yaml:"));
        assert_eq!(node.kernel_state(), good);
        // The state is written with a delay.
        thread::sleep(Duration::from_millis(300));
        reboot(&mut node, Signal::TERM);
        node.spawn();
        node.until_readiness("503", |answer| answer.contains("broken.yaml:"));
        node.until("the last valid policy is in force", |state| state == good);
        fs::remove_file(node.manifests().join("broken.yaml")).unwrap();
        node.until_ready("");
        assert_eq!(node.kernel_state(), good);
    }

    fn killed_while_the_state_is_written_the_next_start_knows_a_good_one() {
        let mut node = Node::new("nft", CLUSTER);
        node.start();
        let good = policies(&node.kernel_state());
        for (delay, size) in [(0, 0), (1, 1), (2, 2), (4, 4), (8, 8), (15, 15), (30, 30), (60, 60)] {
            node.write("cluster.yaml", &format!("{CLUSTER}{}", "# more\n".repeat(size * 1000)));
            thread::sleep(Duration::from_millis(10 + delay));
            node.stop(Signal::KILL);
            if delay % 4 == 0 {
                node.write("cluster.yaml", GARBAGE);
                node.cleanup();
            }
            node.spawn();
            node.until_ready("");
            assert_eq!(policies(&node.kernel_state()), good, "{delay}\n{}", node.log());
        }
        assert!(!node.log().contains("is ignored"), "{}", node.log());
    }
}
