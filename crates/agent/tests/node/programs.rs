//! iptables programs that are slow or missing.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::agent::Node;
use crate::CLUSTER;

tortie_lab::kernel_test! {
    fn an_apply_of_many_slow_programs_does_not_look_like_one_that_is_stuck() {
        let mut node = Node::new("nft", CLUSTER);
        // Each takes less time than the agent may be silent, but all together take more.
        let silence = Duration::from_secs(4);
        for program in ["ipset", "iptables-nft-save", "ip6tables-nft-save", "ip6tables-nft-restore"] {
            node.wrap(program, "sleep 1; exec $REAL \"$@\"");
        }
        let timeout = format!("{}s", silence.as_secs());
        let timeouts = format!("InternalDataplaneMainLoop={timeout},CalculationGraph={timeout}");
        node.set("FELIX_HEALTHTIMEOUTOVERRIDES", &timeouts);
        node.spawn();
        let begin = Instant::now();
        let mut requests = 0;
        loop {
            let answer = node.get(9099, "/liveness");
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 200"), "{answer}\n{}", node.log());
            if node.get(9099, "/readiness").starts_with("HTTP/1.1 200") {
                break;
            }
            requests += usize::from(!answer.is_empty());
            assert!(begin.elapsed() < Duration::from_secs(120), "{}", node.log());
            thread::sleep(Duration::from_millis(20));
        }
        assert!(requests > 10 && begin.elapsed() > silence, "{requests} {:?}", begin.elapsed());
    }

    fn an_apply_that_is_stuck_looks_like_it() {
        let mut node = Node::new("nft", CLUSTER);
        node.wrap("iptables-nft-restore", "sleep 300");
        node.set("FELIX_HEALTHTIMEOUTOVERRIDES", "InternalDataplaneMainLoop=1s,CalculationGraph=1s");
        node.spawn();
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = node.get(9099, "/liveness");
            if answer.starts_with("HTTP/1.1 503") {
                assert!(answer.contains("InternalDataplaneMainLoop") && answer.contains("no report in time"), "{answer}");
                break;
            }
            assert!(Instant::now() < patience, "{answer}\n{}", node.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn an_implementation_that_is_not_installed_leaves_the_other_in_force() {
        let mut node = Node::new("nft", CLUSTER);
        // A search path without the legacy implementation.
        let bin = node.folder().join("only-nft");
        fs::create_dir(&bin).unwrap();
        for program in ["iptables", "ip6tables"] {
            for verb in ["save", "restore"] {
                let name = format!("{program}-nft-{verb}");
                let real = node.shell(&format!("command -v {name}"));
                std::os::unix::fs::symlink(real.trim(), bin.join(name)).unwrap();
            }
        }
        for name in ["ipset", "iptables"] {
            let real = node.shell(&format!("command -v {name} || true"));
            if !real.trim().is_empty() {
                std::os::unix::fs::symlink(real.trim(), bin.join(name)).unwrap();
            }
        }
        let path = bin.display().to_string();
        node.set("PATH", &path);
        node.leave_the_back_end_open();
        node.start();
        let good = node.kernel_state();
        assert!(good.contains("cali-pi-"), "{good}");
        let felix = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: \
                     {iptablesBackend: Legacy}\n";
        node.write("felix.yaml", felix);
        node.until_ready("going on with nft");
        assert_eq!(node.kernel_state(), good);
        assert_eq!(node.metric("tortie_dataplane_problems"), 1.0);
        // Changes are still enforced.
        node.write("friend.yaml", crate::FRIEND);
        node.until("the friend is allowed", |state| state.contains("10.65.9.9"));
        fs::remove_file(node.manifests().join("felix.yaml")).unwrap();
        node.until_readiness("200", |answer| !answer.contains("going on with"));
        assert_eq!(node.metric("tortie_dataplane_problems"), 0.0);
    }
}
