//! Each program of `examples/` is run, and its output is compared. Each has fewer than 30 lines,
//! but for the agents of a guide, which `agents.rs` runs on a kernel.

#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "tests read files")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::{Arguments, Write};
use std::path::Path;

thread_local! {
    static PRINTED: RefCell<String> = const { RefCell::new(String::new()) };
}

fn print_line(line: Arguments<'_>) {
    PRINTED.with_borrow_mut(|printed| writeln!(printed, "{line}")).unwrap();
}

// In the modules below it stands before the standard library's, so that programs which print are
// called like functions.
macro_rules! println {
    ($($line:tt)*) => { crate::print_line(format_args!($($line)*)) };
}

#[allow(unreachable_pub, reason = "where it is a program, it is public")]
#[path = "../../../examples/calculate.rs"]
mod calculate;
#[allow(unreachable_pub, reason = "where it is a program, it is public")]
#[path = "../../../examples/desired_state.rs"]
mod desired_state;
#[allow(unreachable_pub, reason = "where it is a program, it is public")]
#[path = "../../../examples/label_index.rs"]
mod label_index;
#[allow(unreachable_pub, reason = "where it is a program, it is public")]
#[path = "../../../examples/own_dataplane.rs"]
mod own_dataplane;
#[allow(unreachable_pub, reason = "where it is a program, it is public")]
#[path = "../../../examples/reconcile.rs"]
mod reconcile;
#[allow(unreachable_pub, reason = "where it is a program, it is public")]
#[path = "../../../examples/rule_text.rs"]
mod rule_text;
#[allow(unreachable_pub, reason = "where it is a program, it is public")]
#[path = "../../../examples/select.rs"]
mod select;
#[allow(unreachable_pub, reason = "where it is a program, it is public")]
#[path = "../../../examples/trace.rs"]
mod trace;
#[allow(unreachable_pub, reason = "where it is a program, it is public")]
#[path = "../../../examples/watch.rs"]
mod watch;

/// The lines that a program prints, which is started where the repository begins.
fn printed_by(main: fn() -> Result<(), Box<dyn Error>>) -> Vec<String> {
    std::env::set_current_dir(root()).unwrap();
    main().unwrap();
    PRINTED.take().lines().map(str::to_owned).collect()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn calculate_prints() {
    let lines = [
        r#"-A cali-pi-gnp/open -m comment --comment "cali:j2Gt4UY7JtapfoaZ" -m comment --comment "GlobalNetworkPolicy open ingress" --jump MARK --set-mark 0x10000/0x10000"#,
        r#"-A cali-tw-cali1 -m comment --comment "cali:fbqkDgkBZyS7J-Gt" -m mark --mark 0/0x20000 --jump cali-pi-gnp/open"#,
    ];
    assert_eq!(printed_by(calculate::main), lines);
}

#[test]
fn desired_state_prints() {
    let lines = [
        "NetworkPolicy/shop/db-clients: 2 ingress rules, 0 egress rules",
        "GlobalNetworkPolicy/visitors-see-the-web-only: 0 ingress rules, 2 egress rules",
        "KubernetesNetworkPolicy/shop/api-from-web: 1 ingress rules, 0 egress rules",
        "KubernetesNetworkPolicy/shop/deny-by-default: 0 ingress rules, 0 egress rules",
        "KubernetesNetworkPolicy/shop/web-is-open: 1 ingress rules, 0 egress rules",
        "k8s/shop/api/eth0: KubernetesNetworkPolicy/shop/api-from-web, KubernetesNetworkPolicy/shop/deny-by-default",
        "k8s/shop/db/eth0: NetworkPolicy/shop/db-clients, KubernetesNetworkPolicy/shop/deny-by-default",
        "k8s/shop/web/eth0: KubernetesNetworkPolicy/shop/deny-by-default, KubernetesNetworkPolicy/shop/web-is-open",
        "k8s/visitors/guest/eth0: GlobalNetworkPolicy/visitors-see-the-web-only",
    ];
    assert_eq!(printed_by(desired_state::main), lines);
}

#[test]
fn label_index_prints() {
    let lines = [
        "0: pod-1 enters policy everybody",
        "1: pod-1 enters policy databases",
        "2: pod-1 leaves policy databases",
        "2: pod-1 leaves policy everybody",
    ];
    assert_eq!(printed_by(label_index::main), lines);
}

#[test]
fn own_dataplane_prints() {
    let lines = [
        "set n:SdDD5i7T9SrenrqW-C2DoGui6OBO4b4pUeMkPw, 2 members",
        "set n:cl9_Kgeu4H0OGLbhovVR3NBLUOZscKeMK1Mu4A, 2 members",
        "set s:GBOmyCQjFrWRY68nz_LVkUugHF5sa1RWuc-V3w, 2 members",
        "set s:XpRe9QGuetb_Eg6fuXn99zN_da3meij67sBqrQ, 2 members",
        "set s:rXtz5Ak_MI8KByvr4wuG_TZ_1_fBGSEdaXLWDQ, 2 members",
        r#"policy NetworkPolicy/shop/db-clients for (role == "db" && projectcalico.org/namespace == "shop")"#,
        r#"policy GlobalNetworkPolicy/visitors-see-the-web-only for pcns.team == "visitors""#,
        r#"policy KubernetesNetworkPolicy/shop/api-from-web for ((projectcalico.org/orchestrator == "k8s" && role == "api") && projectcalico.org/namespace == "shop")"#,
        r#"policy KubernetesNetworkPolicy/shop/deny-by-default for (projectcalico.org/orchestrator == "k8s" && projectcalico.org/namespace == "shop")"#,
        r#"policy KubernetesNetworkPolicy/shop/web-is-open for ((projectcalico.org/orchestrator == "k8s" && role == "web") && projectcalico.org/namespace == "shop")"#,
        "no policy NetworkPolicy/shop/db-clients",
        "no set s:rXtz5Ak_MI8KByvr4wuG_TZ_1_fBGSEdaXLWDQ",
    ];
    assert_eq!(printed_by(own_dataplane::main), lines);
}

#[test]
fn reconcile_prints() {
    let lines = [
        "policy NetworkPolicy/shop/db-clients: IPv4 table filter: the kernel refuses chain cali-pi-np/shop/db-clients, and a stand-in is in its place (1 attempts): exit code 2: line 3 failed: db-clients ingress is refused",
        r#"-p tcp -m comment --comment "cali:biisCTmonM2De-t4" -m comment --comment "NetworkPolicy shop/db-clients ingress" -m set --match-set cali40s:rXtz5Ak_MI8KByvr4wuG_TZ src -m multiport --dports 5432 -j MARK --set-xmark 0x10000/0x10000"#,
        r#"-m comment --comment "cali:OdsaKOPQ-19ieNc6" -m mark --mark 0x10000/0x10000 -j RETURN"#,
        r#"-m comment --comment "cali:BIpg7_hBERG3aBJt" -j MARK --set-xmark 0x40000/0x40000"#,
        r#"-m comment --comment "cali:mUvWQEPi56dTkVYz" -m mark --mark 0x40000/0x40000 -j DROP"#,
    ];
    assert_eq!(printed_by(reconcile::main), lines);
}

#[test]
fn rule_text_prints() {
    let lines = [
        r#"-A cali-pi-np/shop/db-clients -m comment --comment "cali:biisCTmonM2De-t4" -m comment --comment "NetworkPolicy shop/db-clients ingress" -p tcp -m set --match-set cali40s:rXtz5Ak_MI8KByvr4wuG_TZ src -m multiport --destination-ports 5432 --jump MARK --set-mark 0x10000/0x10000"#,
        r#"add rule ip calico filter-cali-pi-np/shop/db-clients meta l4proto tcp ip saddr @cali40s-rXtz5Ak_MI8KByvr4wuG_TZ tcp dport { 5432 } counter meta mark set mark or 0x10000 comment "cali:CK5QiknahuWkkd9k; NetworkPolicy shop/db-clients ingress""#,
    ];
    assert_eq!(printed_by(rule_text::main), lines);
}

#[test]
fn select_prints() {
    let lines = [
        r#"role == "web": web-0, web-test"#,
        r#"(role in {"api", "web"} && env != "test"): web-0, api-0"#,
        r#"(!has(role) || env == "test"): web-test"#,
        "`=` is not an operator; is `==` meant?",
    ];
    assert_eq!(printed_by(select::main), lines);
}

#[test]
fn trace_prints() {
    let lines = [
        "10.65.1.2 to 10.65.1.3: Allow",
        "  allowed at shop/api on demo-node, egress, by profile kns.shop, egress rule 0",
        "  allowed at shop/db on demo-node, ingress, by NetworkPolicy/shop/db-clients, ingress rule 0",
        "10.65.1.1 to 10.65.1.3: Deny",
        "  allowed at shop/web on demo-node, egress, by profile kns.shop, egress rule 0",
        "  denied at shop/db on demo-node, ingress, by NetworkPolicy/shop/db-clients, ingress rule 1",
    ];
    assert_eq!(printed_by(trace::main), lines);
}

#[test]
fn watch_prints() {
    let lines = ["k8s/shop/db/eth0"];
    assert_eq!(printed_by(watch::main), lines);
}

/// Those that need a kernel, with their limit of lines and the function that the test of a kernel
/// calls.
const AGENTS: [(&str, usize, &str); 2] = [("cni_agent", 50, "enforce"), ("own_source", 40, "main")];

fn agent(name: &str) -> Option<(&str, usize, &str)> {
    AGENTS.into_iter().find(|(agent, ..)| *agent == name)
}

/// The programs in `examples/` by their names.
fn programs() -> BTreeMap<String, String> {
    let files = std::fs::read_dir(root().join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let programs = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    programs.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect()
}

#[test]
fn each_has_fewer_than_30_lines_with_imports_and_comments() {
    let lines = programs().into_iter().map(|(name, text)| (name, text.lines().count()));
    let limit = |name: &str| agent(name).map_or(29, |(_, limit, _)| limit);
    let long: Vec<(String, usize)> = lines.filter(|(name, lines)| *lines > limit(name)).collect();
    assert_eq!(long, []);
}

#[test]
fn each_is_run_here_is_an_example_of_cargo_and_is_listed() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let tests = read("crates/tortie/tests/examples.rs") + &read("crates/tortie/tests/agents.rs");
    let manifest = read("crates/tortie/Cargo.toml");
    let (of_book, of_crate) = (read("docs/book/src/library.md"), read("crates/tortie/README.md"));
    let programs = programs();
    assert_eq!(manifest.matches("[[example]]").count(), programs.len());
    for (name, text) in programs {
        let run = match agent(&name) {
            Some((_, _, function)) => format!("{name}::{function}("),
            None => format!("printed_by({name}::main)"),
        };
        assert!(tests.contains(&run), "{name} is not run");
        assert!(manifest.contains(&format!("path = \"../../examples/{name}.rs\"")), "{name} is no example of cargo");
        let command = format!("`cargo run --package tortie --example {name}");
        assert!(text.lines().take(2).any(|line| line.contains(&command)), "{name} does not say how to run it");
        // Published documents link to no file of the repository.
        let is_listed =
            of_book.contains(&format!("`examples/{name}.rs`")) && of_crate.contains(&format!("* `{name}`: "));
        assert!(is_listed, "{name} is not listed");
    }
}
