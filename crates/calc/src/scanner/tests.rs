use std::sync::Arc;

use tortie_model::{NamedProtocol, NamespacedName, PortSpec, Protocol, Rule, RuleAction};
use tortie_selector::Selector;

use super::{RuleScanner, ScannerOut, SetSource};

fn text(text: &str) -> Option<Selector> {
    Some(Selector::parse(text).unwrap())
}

fn rules(rules: impl IntoIterator<Item = Rule>) -> Arc<[Rule]> {
    rules.into_iter().collect()
}

fn from(selector: &str) -> Rule {
    let mut rule = Rule::new(RuleAction::Allow);
    rule.source.selector = text(selector);
    rule
}

fn flush(scanner: &mut RuleScanner) -> ScannerOut {
    let mut out = ScannerOut::default();
    scanner.flush(&mut out);
    out
}

#[test]
fn ids_of_a_published_ruleset() {
    let mut scanner = RuleScanner::default();
    let selector = "(projectcalico.org/namespace == 'policy-demo') && \
                    (projectcalico.org/orchestrator == 'k8s' && run == 'access')";
    let compiled = scanner.acquire(&rules([from(selector)]));
    let sets = compiled.iter().next().unwrap().sets;
    assert_eq!(sets.src[0].as_str(), "s:AMAB7BNa5u3MmIiwZrblkWt4eY3LuNV_frvthw");
}

#[test]
fn two_spellings_share_a_set_until_both_are_removed() {
    let mut scanner = RuleScanner::default();
    let one = scanner.acquire(&rules([from("a == 'b'")]));
    let two = scanner.acquire(&rules([from("a  ==  \"b\"")]));
    assert_eq!(flush(&mut scanner).activated.len(), 1);
    scanner.release(&one);
    assert!(flush(&mut scanner).deactivated.is_empty());
    scanner.release(&two);
    assert_eq!(flush(&mut scanner).deactivated.len(), 1);
    assert!(scanner.is_empty());
}

#[test]
fn a_set_added_and_removed_between_flushes_is_not_sent() {
    let mut scanner = RuleScanner::default();
    let compiled = scanner.acquire(&rules([from("a == 'b'")]));
    scanner.release(&compiled);
    let out = flush(&mut scanner);
    assert!(out.activated.is_empty() && out.deactivated.is_empty() && scanner.is_empty());

    let first = scanner.acquire(&rules([from("a == 'b'")]));
    flush(&mut scanner);
    scanner.release(&first);
    scanner.acquire(&rules([from("a == 'b'")]));
    let out = flush(&mut scanner);
    assert!(out.activated.is_empty() && out.deactivated.is_empty());
}

#[test]
fn a_negated_selector_narrows_a_positive_one() {
    let mut scanner = RuleScanner::default();
    let mut rule = from("a == 'b'");
    rule.source.extras.not_selector = text("has(c)");
    let compiled = scanner.acquire(&rules([rule]));
    let sets = compiled.iter().next().unwrap().sets;
    assert!(sets.not_src.is_empty());
    let out = flush(&mut scanner);
    let SetSource::Selected(definition) = &out.activated[0].1 else { panic!("not a selector") };
    assert_eq!(definition.selector.canonical(), "(a == \"b\" && !has(c))");
}

#[test]
fn named_ports_replace_the_selector_unless_numeric_ports_stand_beside_them() {
    let mut scanner = RuleScanner::default();
    let mut rule = from("a == 'b'");
    rule.protocol = Some(Protocol::Named(NamedProtocol::Udp));
    rule.source.ports = [PortSpec::Named("dns".into())].into();
    let compiled = scanner.acquire(&rules([rule.clone()]));
    let sets = compiled.iter().next().unwrap().sets;
    assert_eq!((sets.src.len(), sets.src_named_ports.len()), (0, 1));

    rule.source.ports = [PortSpec::Named("dns".into()), PortSpec::single(53)].into();
    let compiled = scanner.acquire(&rules([rule]));
    let sets = compiled.iter().next().unwrap().sets;
    assert_eq!((sets.src.len(), sets.src_named_ports.len()), (1, 1));
}

#[test]
fn services_have_ports_only_as_destinations() {
    let mut scanner = RuleScanner::default();
    let mut rule = Rule::new(RuleAction::Allow);
    rule.source.extras.service = Some(NamespacedName::new("ns", "svc").into());
    rule.destination.extras.service = Some(NamespacedName::new("ns", "svc").into());
    let compiled = scanner.acquire(&rules([rule]));
    let sets = compiled.iter().next().unwrap().sets;
    assert!(sets.src[0].as_str().starts_with("svcnoport:"));
    assert!(sets.dst_ip_ports[0].as_str().starts_with("svc:"));
}

#[test]
fn endpoints_of_dns_services_are_needed_while_rules_match_domains() {
    let service = NamespacedName::new("kube-system", "kube-dns");
    let id = super::service_set_id(&service);
    let mut scanner = RuleScanner::new(false, &[service.clone(), service.clone()]);
    let by_name = |name: &str| {
        let mut rule = Rule::new(RuleAction::Allow);
        rule.destination.extras.domains = [name.parse().unwrap()].into();
        rules([rule])
    };
    let plain = scanner.acquire(&rules([from("a == 'b'")]));
    let is_service = |sets: &[(tortie_model::IpSetId, SetSource)]| sets.iter().any(|(of, _)| *of == id);
    assert!(!is_service(&flush(&mut scanner).activated));
    let first = scanner.acquire(&by_name("a.io"));
    assert!(is_service(&flush(&mut scanner).activated));
    // A rule about the service itself has the same set.
    let mut rule = Rule::new(RuleAction::Allow);
    rule.destination.extras.service = Some(Box::new(service));
    let itself = scanner.acquire(&rules([rule]));
    assert_eq!(itself.iter().next().unwrap().sets.dst_ip_ports.first(), Some(&id));
    let second = scanner.acquire(&by_name("b.io"));
    scanner.release(&first);
    scanner.release(&itself);
    assert!(!is_service(&flush(&mut scanner).deactivated));
    scanner.release(&second);
    assert!(is_service(&flush(&mut scanner).deactivated));
    scanner.release(&plain);
    flush(&mut scanner);
    assert!(scanner.is_empty());
}
