use std::sync::Arc;

use tortie_iptables::{Features, Renderer as Lines};
use tortie_model::desired::{Policy, RuleSets, Rules};
use tortie_model::{Direction, Family, NamedProtocol, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction};
use tortie_netfilter::PacketRate;

use crate::policy::{InvalidCondition, RuleFallback};
use crate::{DomainRules, Renderer, RulesConfig};

fn id() -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "ns", "web")
}

fn empty() -> Policy {
    Policy { source: Arc::default(), selector: "all()".into(), inbound: Rules::default(), outbound: Rules::default() }
}

fn tcp_rule(action: RuleAction) -> Rule {
    Rule { protocol: Some(Protocol::Named(NamedProtocol::Tcp)), ..Rule::new(action) }
}

fn with_domains(domains: Option<DomainRules>) -> Renderer {
    Renderer::new(RulesConfig { domains, ..RulesConfig::default() })
}

const LEARNED: DomainRules =
    DomainRules { queue: 101, reply_limit: PacketRate::new(1, 1).unwrap(), shards: 2, host: true };

/// Each alternative has all other conditions; blocks before them are rendered once.
#[test]
fn domains_are_alternatives_with_all_other_conditions() {
    let mut rule = tcp_rule(RuleAction::Allow);
    rule.destination.ports = (0..20).map(|port| PortSpec::single(2 * port + 1)).collect();
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect();
    let sets = RuleSets { dst: ids(&["s:y", "s:z"]), dst_domains: ids(&["d:x"]), ..RuleSets::default() };
    let rules = || Rules::new([rule.clone()].into(), [sets.clone()].into()).unwrap();
    let policy = Policy { outbound: rules(), ..empty() };
    let rendered = with_domains(Some(LEARNED)).policy(&id(), &policy, Family::V6).unwrap();
    assert_eq!(rendered.problems, []);
    let lines: Vec<String> = Lines::new(Features::ALL).chain(&rendered.outbound).append_lines().collect();
    let sets_mark = "--jump MARK --set-mark 0x10000/0x10000";
    let others: Vec<&str> = lines.iter().filter(|line| line.contains(sets_mark)).map(String::as_str).collect();
    assert_eq!(others.len(), 4, "{lines:#?}");
    for (line, matches) in others.iter().zip([
        "-m set --match-set cali60s:y dst -m set --match-set cali60s:z dst",
        "-m set --match-set cali60d:x.0 dst,src",
        "-m set --match-set cali60d:x.1 dst,src",
        "-m addrtype --src-type LOCAL -m set --match-set cali60d:x.h dst",
    ]) {
        assert!(
            line.contains(&format!("-p tcp -m mark --mark 0x80000/0x80000 {matches} --jump")),
            "{matches} in {line}"
        );
    }
    assert_eq!(lines.iter().filter(|line| line.contains("multiport")).count(), 2, "one block");
}

#[test]
fn domains_that_cannot_be_matched_are_left_out() {
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect();
    let sets = RuleSets { dst_domains: ids(&["d:x"]), ..RuleSets::default() };
    let both = RuleSets { dst: ids(&["s:y"]), ..sets.clone() };
    let problems = |renderer: &Renderer, direction, sets: &RuleSets| {
        let rules = Rules::new([tcp_rule(RuleAction::Allow)].into(), [sets.clone()].into()).unwrap();
        let (inbound, outbound) = match direction {
            Direction::Ingress => (rules, Rules::default()),
            Direction::Egress => (Rules::default(), rules),
        };
        let policy = Policy { inbound, outbound, ..empty() };
        let chains = renderer.policy(&id(), &policy, Family::V4).unwrap();
        let count =
            chains.inbound.rules.iter().chain(&chains.outbound.rules).filter(|rule| rule.action.is_some()).count();
        let problems = chains.problems.into_iter().map(|problem| (problem.condition, problem.fallback));
        (problems.collect::<Vec<_>>(), count)
    };
    use InvalidCondition::{DomainsElsewhere, DomainsUnlearned};
    let left_out = |condition| (vec![(condition, RuleFallback::LeftOut)], 0);
    let reduced = |condition| (vec![(condition, RuleFallback::WithoutDomains)], 1);
    let (without, with) = (with_domains(None), with_domains(Some(LEARNED)));
    assert_eq!(problems(&without, Direction::Egress, &sets), left_out(DomainsUnlearned));
    assert_eq!(problems(&without, Direction::Egress, &both), reduced(DomainsUnlearned));
    assert_eq!(problems(&with, Direction::Ingress, &sets), left_out(DomainsElsewhere));
    assert_eq!(problems(&with, Direction::Ingress, &both), reduced(DomainsElsewhere));
    // While nothing learns, there is no set.
    let idle = with_domains(Some(DomainRules { shards: 0, host: false, ..LEARNED }));
    assert_eq!(problems(&idle, Direction::Egress, &sets), (vec![], 0));
}
