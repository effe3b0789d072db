//! A node with Felix's state: the rules that Felix writes into an empty kernel, recorded by running
//! it (`crates/rules/testdata/README.md`).

use std::fmt::Write as _;
use std::fs::File;
use std::process::Command;

use flate2::read::GzDecoder;
use serde_json::Value;
use tortie_lab::netns::Namespace;

use super::session::root;

/// Felix's rules, with the state that Felix expects.
pub(crate) struct Felix {
    chains: Value,
}

/// Writes Felix's rules of both families with iptables-nft.
pub(crate) fn leave_its_rules(node: &Namespace) -> Felix {
    let file = File::open(root().join("crates/rules/testdata/rules.json.gz")).unwrap();
    let mut recorded: Value = serde_json::from_reader(GzDecoder::new(file)).unwrap();
    let chains = recorded["config_chains"]["default"].take();
    for (version, family) in [("4", "inet"), ("6", "inet6")] {
        for (set, kind) in
            [("dscp-src-net", "net"), ("masq-ipam-pools", "net"), ("network-ip-pools", "net"), ("this-host", "ip")]
        {
            let create = format!("ipset create cali{version}0{set} hash:{kind} family {family} maxelem 1048576");
            node.shell(&create).unwrap();
        }
        let tables = &chains[format!("v{version}")]["restore_input_full_tables"]["nft"];
        for call in tables.as_object().unwrap().values().flat_map(|calls| calls.as_array().unwrap()) {
            let program = call["cmd"].as_str().unwrap().split(' ').next().unwrap();
            let lines = call["input_lines"].as_array().unwrap().iter().map(|line| line.as_str().unwrap());
            // The recorded cluster has workloads with IPv4 addresses in the chains of both
            // families.
            let lines = lines.filter(|line| version == "4" || !line.contains("10.0.0."));
            let input = lines.fold(String::new(), |mut text, line| {
                writeln!(text, "{line}").unwrap();
                text
            });
            node.output(Command::new(program).arg("--noflush"), &input).unwrap();
        }
    }
    Felix { chains }
}

impl Felix {
    /// Asserts that each fixed chain in the kernel has Felix's rules, by the hashes with which
    /// Felix identifies them.
    pub(crate) fn finds_its_chains(&self, node: &Namespace) {
        let mut compared = 0;
        for table in ["filter", "nat", "mangle", "raw"] {
            let there = node.shell(&format!("iptables-nft-save -t {table}")).unwrap();
            for chain in self.chains["v4"][table].as_array().unwrap() {
                let name = chain["name"].as_str().unwrap();
                let rules = there.lines().filter(|line| line.starts_with(&format!("-A {name} ")));
                let hashes: Vec<&str> =
                    rules.map(|rule| rule.split("cali:").nth(1).unwrap().split('"').next().unwrap()).collect();
                if !there.contains(&format!(":{name} ")) {
                    continue;
                }
                let recorded: Vec<&str> =
                    chain["hashes"].as_array().unwrap().iter().map(|hash| hash.as_str().unwrap()).collect();
                assert_eq!(hashes, recorded, "{table} {name}");
                compared += 1;
            }
        }
        assert!(compared >= 10, "{compared} chains were compared");
    }
}
