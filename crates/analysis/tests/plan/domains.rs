//! Rules by domain name: rows for names that patterns distinguish.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

use std::net::IpAddr;

use tortie_analysis::plan::{Options, between, plan};
use tortie_analysis::trace::{Cluster, ConnectionQuery};
use tortie_calc::GraphConfig;
use tortie_classes::L4Detail;
use tortie_classes::evaluate::{Packet, Settings, Verdict};
use tortie_datastore::{DirState, FileContent};
use tortie_model::{DomainName, DomainPattern, Update};
use tortie_resources::manifest;

/// Returns two pods, a network set with domains, and a policy of the first pod.
fn updates(rules: &str, domains: &str) -> Vec<Update> {
    let pod = |number: u8, app: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{namespace: shop, name: {app}, labels: {{app: {app}}}}}\n\
             spec: {{nodeName: n1, containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.0.0.{number}}}]}}\n"
        )
    };
    let text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n{}{}\
         ---\napiVersion: projectcalico.org/v3\nkind: NetworkSet\nmetadata: {{namespace: shop, name: cdn, labels: {{kind: cdn}}}}\n\
         spec: {{nets: [198.51.100.0/24], allowedEgressDomains: [{domains}]}}\n\
         ---\napiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{namespace: shop, name: names}}\n\
         spec: {{selector: app == 'web', types: [Egress], egress: [{rules}]}}\n",
        pod(1, "web"),
        pod(2, "db"),
    );
    let mut directory = DirState::new(manifest::Options::default());
    let mut updates = directory.take_updates();
    updates.extend(directory.set_file("cluster.yaml".as_ref(), Some(FileContent::Text(&text))));
    assert_eq!(directory.problems().collect::<Vec<_>>(), [], "{text}");
    updates
}

fn by_name(domains: &str, port: u16) -> String {
    format!("{{action: Allow, protocol: TCP, destination: {{domains: [{domains}], ports: [{port}]}}}}")
}

const BY_SET: &str = "{action: Allow, protocol: TCP, destination: {selector: kind == 'cdn', ports: [80]}}";
const NAMES: [&str; 7] = ["a.io", "x.a.io", "y.a.io", "b.io", "c.b.io", "z.c.b.io", "cdn.net"];

/// Reports whether the first pod can connect to a name at an address outside all networks.
fn passes(cluster: &mut Cluster, name: &str, port: u16) -> bool {
    let (own, elsewhere): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
    let packet = Packet::tcp((own, 40_000), (elsewhere, port)).unwrap();
    let name: DomainName = name.parse().unwrap();
    let query = ConnectionQuery::new(cluster.place_of(own), cluster.place_of(elsewhere), packet).named([name].into());
    cluster.evaluate(&query).unwrap().verdict() == Verdict::Allow
}

#[test]
fn a_plan_lists_the_names_to_which_connections_open_and_close() {
    let states = [
        (vec![], ""),
        (vec![by_name("'*.a.io'", 443)], ""),
        (vec![by_name("'*.a.io', b.io", 443), BY_SET.to_owned()], "cdn.net, '*.b.io'"),
        (vec![by_name("x.a.io", 443), BY_SET.to_owned()], "'*.b.io'"),
        (vec![by_name("x.a.io", 80), by_name("'*.c.b.io'", 443)], "'*.b.io'"),
        (vec!["{action: Allow, destination: {notNets: [10.0.0.0/8]}}".to_owned(), by_name("a.io", 443)], "a.io"),
    ];
    let states = states.map(|(rules, domains)| updates(&rules.join(", "), domains));
    let options = Options::new(GraphConfig::new("any".into()), Settings::default());
    let mut changes = 0;
    for before in &states {
        for after in &states {
            let found = plan(before.clone(), between(before, after), &options).unwrap();
            assert!(!found.names_left_out);
            let clusters = [before, after].map(|state| state.iter().cloned().collect::<Cluster>());
            let [mut old, mut new] = clusters;
            for (name, port) in NAMES.into_iter().flat_map(|name| [80, 443].map(|port| (name, port))) {
                let (was, is) = (passes(&mut old, name, port), passes(&mut new, name, port));
                let listed = found.connections.iter().filter(|shift| {
                    let is_there = match is_in_patterns(before, name) || is_in_patterns(after, name) {
                        true => shift.to.domains.iter().any(|text| row_has(text, name)),
                        // It is at an address elsewhere, and no different from others.
                        false => shift.to.networks.iter().any(|net| net.to_string() == "0.0.0.0/0"),
                    };
                    is_there
                        && shift.from.workloads.iter().any(|from| **from == *"shop/web")
                        && shift.packets.traffic.contains(6, L4Detail::Port(port))
                });
                let listed: Vec<bool> = listed.map(|shift| shift.packets.opens).collect();
                let expected: Vec<bool> = (was != is).then_some(is).into_iter().collect();
                assert_eq!(listed, expected, "{name} {port}: {found:#?}");
                changes += expected.len();
            }
            assert!(found.connections.iter().all(|shift| shift.from.domains.is_empty()));
            assert!(found.connections.iter().all(|shift| !shift.to.to_string().contains("240.")), "{found:#?}");
        }
    }
    assert!(changes > 50, "{changes}");
}

/// Reports whether some rule has a pattern of a name, or selects the network set that has one.
fn is_in_patterns(updates: &[Update], name: &str) -> bool {
    let name: DomainName = name.parse().unwrap();
    let is_matched = |patterns: &[DomainPattern]| patterns.iter().any(|pattern| pattern.matches(&name));
    let selects = |update: &Update| match update {
        Update::Policy(_, Some(policy)) => policy.outbound.iter().any(|rule| rule.destination.selector.is_some()),
        _ => false,
    };
    let selects = updates.iter().any(selects);
    updates.iter().any(|update| match update {
        Update::Policy(_, Some(policy)) => {
            policy.outbound.iter().any(|rule| is_matched(&rule.destination.extras.domains))
        }
        Update::NetworkSet(_, Some(set)) => selects && is_matched(&set.domains),
        _ => false,
    })
}

/// Reports whether the text of a row has a name. No text here is cut.
fn row_has(text: &str, name: &str) -> bool {
    let (own, excluded) = text.split_once(" but not ").unwrap_or((text, ""));
    let name: DomainName = name.parse().unwrap();
    let matches = |patterns: &str| {
        let mut patterns = patterns.split(", ").filter(|pattern| !pattern.is_empty());
        patterns.any(|pattern| pattern.parse::<DomainPattern>().unwrap().matches(&name))
    };
    matches(own) && !matches(excluded)
}

#[test]
fn rules_by_name_have_findings_like_others() {
    let options = Options::new(GraphConfig::new("any".into()), Settings::default());
    let before = updates("", "");
    let findings = |rules: &str, domains: &str| -> Vec<String> {
        let found = plan(before.clone(), between(&before, &updates(rules, domains)), &options).unwrap();
        found.findings.iter().map(|finding| format!("{finding:?}")).collect()
    };
    assert_eq!(findings(&by_name("a.io", 443), ""), [""; 0]);
    assert_eq!(findings(BY_SET, "a.io"), [""; 0]);
    let shadowed = findings(&[by_name("'*.io'", 443), by_name("a.io", 443)].join(", "), "");
    assert!(
        shadowed.len() == 1 && shadowed[0].starts_with("RuleShadowed") && shadowed[0].contains("index: 1"),
        "{shadowed:?}"
    );
}
