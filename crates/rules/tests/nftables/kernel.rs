//! Messages to the kernel equal those that `nft` makes of Tortie's text, for all recorded rules.

#![allow(clippy::disallowed_methods, reason = "asks the real nft, in private network namespaces")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_iptables::{Action, Chain, Match, Table};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_lab::nft::Nft;
use tortie_model::{AdminState, Family};
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{
    Command, Context, Features, FullNames, LayeredName, ProgramRule, SetKind, SetName, TableId, Transaction,
};
use tortie_rules::{HostDispatch, Renderer};
use tortie_testkit::golden::assert_count;

use super::load::{self, list, text};

/// Returns all recorded chains of a family, rendered by Tortie.
fn chains(json: &serde_json::Value, family: Family) -> Vec<(Table, Chain)> {
    let mut chains: Vec<(Table, Chain)> = Vec::new();
    for (config, recorded) in json["config_chains"].as_object().unwrap() {
        let renderer = Renderer::new(load::config(&json["configs"][config.as_str()]));
        if renderer.config().packet_filter
            != Renderer::new(load::config(&json["configs"]["default"])).config().packet_filter
        {
            // This kernel need not have flow tables.
            continue;
        }
        for layer in Table::ALL {
            chains.extend(renderer.fixed_chains(layer, family).into_iter().map(|chain| (layer, chain)));
        }
        chains.push((Table::Nat, renderer.nat_outgoing(true, family)));
        let mut filter = Vec::new();
        for recorded in list(&recorded["workload_endpoints"]) {
            let input = &json["endpoint_inputs"][usize::try_from(load::number(&recorded["input"])).unwrap()];
            let (tiers, qos) = (load::tiers(&input["tiers"]), load::qos(&input["qos"]));
            let interface = load::cut_interface(&input["iface"]);
            let profiles = load::profiles(&input["profiles"]);
            filter.extend(renderer.workload_endpoint(interface, AdminState::Active, &tiers, &profiles, qos.as_ref()));
        }
        filter.extend(renderer.workload_dispatch([]));
        let names = list(&json["dispatch_inputs"]["tree"]).iter().map(load::interface);
        filter.extend(renderer.host_dispatch(HostDispatch::Filter, names, true));
        chains.extend(filter.into_iter().map(|chain| (Table::Filter, chain)));
    }
    for (kind, owners) in [("policies", &json["policies"]), ("profiles", &json["profiles"])] {
        for case in list(owners) {
            for rendered in list(&case["rendered"]).iter().filter(|it| load::family(&it["ip_version"]) == family) {
                let renderer = Renderer::new(load::config(&json["configs"][text(&rendered["config"])]));
                let made = if kind == "policies" {
                    renderer.policy(&load::policy_id(&case["id"]), &load::policy(&case["policy"], family), family)
                } else {
                    let profile = load::profile(&case["profile"], family);
                    Some(renderer.profile(&text(&case["id"]).into(), &profile, family))
                };
                let made = made.into_iter().flat_map(|made| [made.inbound, made.outbound]);
                chains.extend(made.map(|chain| (Table::Filter, chain)));
            }
        }
    }
    chains
}

/// Returns a transaction that creates these chains, under separate names, with all sets, maps and
/// chains that they refer to.
fn transaction(table: TableId, chains: &[(Table, Chain)]) -> Transaction {
    let mut transaction = Transaction::new(table);
    let mut sets: BTreeMap<SetName, SetKind> = BTreeMap::new();
    let (mut maps, mut targets) = (BTreeSet::new(), BTreeSet::new());
    for (layer, chain) in chains {
        for rule in &chain.rules {
            for question in rule.matches.iter() {
                if let Match::IpSet { set, with_port, .. } = question {
                    // The recordings have one id for sets of two types.
                    let kind = if *with_port { SetKind::AddressPorts } else { SetKind::Networks };
                    sets.entry(SetName::new(*set)).or_insert(kind);
                }
            }
            targets.extend(rule.target().map(|target| LayeredName::new(*layer, target.as_str())));
            if let Some(Action::Dispatch { by, map }) = rule.action {
                maps.insert((LayeredName::new(*layer, map.as_str()), by.kind()));
            }
        }
    }
    let commands = &mut transaction.commands;
    commands.push(Command::AddTable);
    commands.extend(sets.iter().map(|(set, kind)| Command::AddSet { set: *set, kind: *kind }));
    commands.extend(maps.into_iter().map(|(map, kind)| Command::AddMap { map, kind }));
    commands.extend(targets.into_iter().map(|chain| Command::AddChain { chain, base: None }));
    for (number, (layer, chain)) in chains.iter().enumerate() {
        let name = LayeredName::from_kernel(&format!("chain-{number}"));
        commands.push(Command::AddChain { chain: name.clone(), base: None });
        let names = FullNames::default();
        let context = Context { family: table.family, layer: *layer, names: &names, features: Features::ALL };
        let is_of_one_type = |rule: &&tortie_iptables::Rule| {
            rule.matches.iter().all(|question| match question {
                Match::IpSet { set, with_port, .. } => {
                    *with_port == (sets[&SetName::new(*set)] == SetKind::AddressPorts)
                }
                _ => true,
            })
        };
        for rule in chain.rules.iter().filter(is_of_one_type) {
            let shown = tortie_nftables::rules("seed", std::slice::from_ref(rule), context).next().unwrap();
            let expressions = tortie_nftables::compile(rule, &context).unwrap();
            let rule = Arc::new(ProgramRule { shown, expressions });
            commands.push(Command::AddRule { chain: name.clone(), rule });
        }
    }
    transaction
}

fn expressions(snapshot: &Snapshot) -> Vec<(String, String, String)> {
    let of_chain = |(name, chain): (&LayeredName, &tortie_nftables::wire::ObservedChain)| {
        let rules = chain.rules.iter();
        rules
            .map(|rule| (name.to_string(), rule.comment.clone(), format!("{:?}", rule.expressions)))
            .collect::<Vec<_>>()
    };
    snapshot.chains.iter().flat_map(of_chain).collect()
}

kernel_test! {
    fn expressions_match_those_of_nft() {
        let Some(json) = crate::nftables_json() else { return };
        let mut rules = 0;
        for family in Family::ALL {
            let table = TableId::calico(family);
            let transaction = transaction(table, &chains(json, family));
            let by_nft = Namespace::new().unwrap();
            let output = by_nft.output(std::process::Command::new("nft").args(["-f", "-"]), &transaction.to_string());
            let output = output.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let theirs = by_nft.run(|| Nft::open().unwrap().read(table)).unwrap().unwrap();
            let by_us = Namespace::new().unwrap();
            by_us.run(|| Nft::open().unwrap().commit(&transaction)).unwrap().unwrap();
            let ours = by_us.run(|| Nft::open().unwrap().read(table)).unwrap().unwrap();

            let (our_expressions, their_expressions) = (expressions(&ours), expressions(&theirs));
            assert_eq!(our_expressions.len(), their_expressions.len());
            let texts = transaction.commands.iter().filter_map(|command| match command {
                Command::AddRule { chain, rule } => Some((chain.to_string(), rule)),
                _ => None,
            });
            let mut expected: Vec<(String, String, String, String)> = texts
                .map(|(chain, rule)| {
                    let expressions = format!("{:?}", rule.expressions);
                    (chain, rule.shown.comment.clone(), expressions, rule.shown.text.clone())
                })
                .collect();
            expected.sort_by(|a, b| a.0.cmp(&b.0));
            for ((ours, theirs), expected) in our_expressions.iter().zip(&their_expressions).zip(&expected) {
                assert_eq!((&ours.0, &ours.1), (&expected.0, &expected.1));
                assert_eq!(ours.2, expected.2, "the kernel returned another expression: {}", expected.3);
                assert_eq!(ours, theirs, "nft compiles this differently: {}", expected.3);
            }
            assert_eq!(ours.sets, theirs.sets);
            rules += our_expressions.len();
        }
        assert_count("rules", rules, 7178);
    }
}
