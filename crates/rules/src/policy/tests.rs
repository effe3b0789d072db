//! Policies as rules must decide every packet as the policies themselves do.

mod openings;
mod walk;

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use tortie_iptables::{Action, Match, RejectWith, Side, matches_text};
use tortie_model::desired::{self, RuleSets, Rules, SetIds};
use tortie_model::{
    Cidr, Direction, EntityExtras, EntityMatch, Family, HttpMatch, List, NamedProtocol, Policy, PolicyId, PolicyKind,
    PortSpec, Protocol, Rule, RuleAction, RuleExtras,
};

use self::walk::{ChainOutcome, Packet, is_in, walk};
use super::{InvalidCondition, RuleFallback};
use crate::marks::tests::marks_written;
use crate::names::chain;
use crate::{DenyAction, LogConfig, Marks, RejectReply, Renderer, RulesConfig};

fn renderer() -> Renderer {
    Renderer::new(RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).unwrap())
}

fn id() -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "ns", "web")
}

fn policy(rules: Vec<(Rule, RuleSets)>) -> desired::Policy {
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = rules.into_iter().unzip();
    desired::Policy {
        source: Arc::new(Policy::default()),
        selector: "all()".into(),
        inbound: Rules::new(rules.into(), sets.into()).unwrap(),
        outbound: Rules::default(),
    }
}

fn net() -> impl Strategy<Value = Cidr> {
    // Few addresses, so that packets hit often.
    prop_oneof![
        (0u8..8, 28u8..=32).prop_map(|(low, len)| Cidr::new([10, 0, 0, low].into(), len).unwrap()),
        (0u16..8, 124u8..=128).prop_map(|(low, len)| Cidr::new([0xfd00, 0, 0, 0, 0, 0, 0, low].into(), len).unwrap()),
        Just("0.0.0.0/0".parse().unwrap()),
        Just("::/0".parse().unwrap()),
    ]
}

fn ports() -> impl Strategy<Value = List<PortSpec>> {
    let range = prop_oneof![
        (0u16..40).prop_map(PortSpec::single),
        (0u16..40, 0u16..4).prop_map(|(first, more)| PortSpec::Range { first, last: first + more }),
    ];
    prop_oneof![3 => Just(Vec::new()), 3 => vec(range.clone(), 1..4), 1 => vec(range, 10..24)].prop_map(Into::into)
}

fn nets() -> impl Strategy<Value = List<Cidr>> {
    prop_oneof![2 => Just(Vec::new()), 3 => vec(net(), 1..5)].prop_map(Into::into)
}

fn entity() -> impl Strategy<Value = EntityMatch> {
    (nets(), nets(), ports(), ports()).prop_map(|(nets, not_nets, ports, not_ports)| EntityMatch {
        nets,
        ports,
        extras: EntityExtras { not_nets, not_ports, ..EntityExtras::default() }.into(),
        ..EntityMatch::default()
    })
}

fn set_ids(letter: char) -> impl Strategy<Value = SetIds> {
    let ids = prop_oneof![4 => Just(Vec::new()), 1 => vec(0u8..3, 1..3)];
    ids.prop_map(move |ids| ids.into_iter().map(|n| format!("{letter}:{n}").as_str().into()).collect())
}

fn sets() -> impl Strategy<Value = RuleSets> {
    let end = || (set_ids('s'), set_ids('n'), set_ids('s'), set_ids('n'));
    (end(), end(), set_ids('v')).prop_map(|(source, destination, services)| RuleSets {
        src: source.0,
        src_named_ports: source.1,
        not_src: source.2,
        not_src_named_ports: source.3,
        dst: destination.0,
        dst_named_ports: destination.1,
        not_dst: destination.2,
        not_dst_named_ports: destination.3,
        dst_domains: SetIds::new(),
        dst_ip_ports: services,
    })
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![
        4 => Just(Protocol::Named(NamedProtocol::Tcp)),
        2 => Just(Protocol::Number(17)),
        1 => Just(Protocol::Named(NamedProtocol::Icmp)),
        1 => Just(Protocol::Number(58)),
        1 => (0u8..3).prop_map(Protocol::Number),
    ]
}

fn rule() -> impl Strategy<Value = (Rule, RuleSets)> {
    let action = prop_oneof![
        4 => Just(RuleAction::Allow),
        3 => Just(RuleAction::Deny),
        2 => Just(RuleAction::NextTier),
        1 => Just(RuleAction::Log),
    ];
    let icmp = || weighted(0.2, 7u8..10);
    let head = (action, weighted(0.9, protocol()), weighted(0.2, protocol()), icmp(), icmp());
    (head, entity(), entity(), sets()).prop_map(|(head, source, destination, sets)| {
        let (action, protocol, not_protocol, icmp_type, not_icmp_type) = head;
        let extras = RuleExtras { not_protocol, icmp_type, not_icmp_type, ..RuleExtras::default() }.into();
        let rule = Rule { protocol, source, destination, extras, ..Rule::new(action) };
        (rule, sets)
    })
}

fn packet() -> impl Strategy<Value = Packet> {
    let addresses = prop_oneof![
        (0u8..16, 0u8..16).prop_map(|(a, b)| ([10, 0, 0, a].into(), [10, 0, 0, b].into())),
        (0u16..16, 0u16..16)
            .prop_map(|(a, b)| { ([0xfd00, 0, 0, 0, 0, 0, 0, a].into(), [0xfd00, 0, 0, 0, 0, 0, 0, b].into()) }),
    ];
    let protocol = prop_oneof![4 => Just(6u8), 2 => Just(17), 1 => Just(1), 1 => Just(58)];
    (addresses, protocol, 0u16..44, 0u16..44, 7u8..10, any::<u32>()).prop_map(
        |((source, destination), protocol, source_port, destination_port, icmp_type, noise)| Packet {
            source,
            destination,
            protocol,
            source_port,
            destination_port,
            icmp_type,
            noise,
        },
    )
}

/// Returns the verdict of a policy by its definition: the first rule that matches and decides.
fn meaning(rules: &Rules, packet: &Packet) -> ChainOutcome {
    let family = packet.family();
    for view in rules.iter() {
        let matches = view.ip_version().is_none_or(|only| only == family) && rule_matches(view, packet);
        match view.action() {
            _ if !matches => {}
            RuleAction::Allow | RuleAction::Unspecified => return ChainOutcome::Accept,
            RuleAction::Deny => return ChainOutcome::Deny,
            RuleAction::NextTier => return ChainOutcome::Pass,
            RuleAction::Log => {}
        }
    }
    ChainOutcome::None
}

fn rule_matches(view: desired::RuleView<'_>, packet: &Packet) -> bool {
    let desired::RuleView { rule, sets, .. } = view;
    let has_ports = matches!(packet.protocol, 6 | 17);
    let own_icmp = match packet.family() {
        Family::V4 => 1,
        Family::V6 => 58,
    };
    let in_nets = |nets: &[Cidr], address| nets.iter().any(|net| net.contains(address));
    // A list that has networks, but of the other family only, matches nothing, also when it
    // excludes.
    let other_family_only = |nets: &[Cidr]| !nets.is_empty() && nets.iter().all(|net| net.family() != packet.family());
    let in_ports = |specs: &[PortSpec], port: u16| {
        let within =
            |spec: &PortSpec| matches!(spec, PortSpec::Range { first, last } if (*first..=*last).contains(&port));
        has_ports && specs.iter().any(within)
    };
    let end = |end: &EntityMatch,
               address,
               port,
               all: &[&SetIds],
               with_port: &SetIds,
               named: &SetIds,
               none: &SetIds,
               named_none: &SetIds| {
        let member = |id: &tortie_model::IpSetId| is_in(id.as_str(), address, None);
        let member_with_port = |id: &tortie_model::IpSetId| is_in(id.as_str(), address, Some((packet.protocol, port)));
        (end.nets.is_empty() || in_nets(&end.nets, address))
            && !in_nets(&end.extras.not_nets, address)
            && !other_family_only(&end.extras.not_nets)
            && all.iter().all(|ids| ids.iter().all(member))
            && with_port.iter().all(member_with_port)
            && ((end.ports.is_empty() && named.is_empty())
                || in_ports(&end.ports, port)
                || named.iter().any(member_with_port))
            && !none.iter().any(member)
            && !in_ports(&end.extras.not_ports, port)
            && !named_none.iter().any(member_with_port)
    };
    let no_sets = SetIds::new();
    rule.protocol.is_none_or(|protocol| protocol.number() == packet.protocol)
        && rule.extras.not_protocol.is_none_or(|protocol| protocol.number() != packet.protocol)
        && rule.extras.icmp_type.is_none_or(|number| packet.protocol == own_icmp && packet.icmp_type == number)
        && rule.extras.not_icmp_type.is_none_or(|number| packet.protocol == own_icmp && packet.icmp_type != number)
        && end(
            &rule.source,
            packet.source,
            packet.source_port,
            &[&sets.src],
            &no_sets,
            &sets.src_named_ports,
            &sets.not_src,
            &sets.not_src_named_ports,
        )
        && end(
            &rule.destination,
            packet.destination,
            packet.destination_port,
            &[&sets.dst],
            &sets.dst_ip_ports,
            &sets.dst_named_ports,
            &sets.not_dst,
            &sets.not_dst_named_ports,
        )
}

/// Reports whether `iptables-restore` and the kernel accept the matches of one rule; otherwise they
/// refuse the whole table.
fn is_acceptable(matches: &[Match]) -> bool {
    let protocols: Vec<(u8, bool)> = matches
        .iter()
        .filter_map(|question| match question {
            Match::Protocol { protocol, negated } => Some((protocol.number(), *negated)),
            _ => None,
        })
        .collect();
    let nets_of = |side| matches.iter().filter(|m| matches!(m, Match::Net { side: of, .. } if *of == side)).count();
    let asks_for_ports = matches.iter().any(|m| matches!(m, Match::Ports { .. }));
    let asks_for_icmp = |family| matches.iter().any(|m| matches!(m, Match::Icmp { family: of, .. } if *of == family));
    protocols.len() <= 1
        && protocols.iter().all(|(number, _)| *number != 0)
        && nets_of(Side::Source) <= 1
        && nets_of(Side::Destination) <= 1
        && (!asks_for_ports || matches!(protocols[..], [(6 | 17 | 33 | 132 | 136, false)]))
        && (!asks_for_icmp(Family::V4) || protocols == [(1, false)])
        && (!asks_for_icmp(Family::V6) || protocols == [(58, false)])
}

/// Reports whether a verdict allows no more than the policy as written.
fn is_closed(verdict: ChainOutcome, meaning: ChainOutcome) -> bool {
    match verdict {
        ChainOutcome::Accept => meaning == ChainOutcome::Accept,
        ChainOutcome::Pass => matches!(meaning, ChainOutcome::Accept | ChainOutcome::Pass),
        ChainOutcome::Deny | ChainOutcome::None => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// For any initial scratch bits.
    #[test]
    fn chains_have_the_verdicts_of_the_policies(rules in vec(rule(), 1..4), packets in vec(packet(), 40)) {
        let policy = policy(rules);
        let renderer = renderer();
        let chains = Family::ALL.map(|family| renderer.policy(&id(), &policy, family).unwrap());
        for packet in packets {
            let chains = &chains[usize::from(packet.family() == Family::V6)];
            let verdict = walk(&chains.inbound, renderer.marks(), &packet);
            let meaning = meaning(&policy.inbound, &packet);
            if chains.problems.is_empty() {
                prop_assert_eq!(verdict, meaning, "{:?}\n{:#?}", packet, policy.inbound);
            } else {
                prop_assert!(is_closed(verdict, meaning));
            }
        }
    }

    #[test]
    fn nothing_is_allowed_behind_a_rule_that_cannot_be_expressed(
        action in prop_oneof![
            Just(RuleAction::Allow), Just(RuleAction::Deny), Just(RuleAction::NextTier), Just(RuleAction::Log)
        ],
        nets in nets(),
        ports in ports(),
        packets in vec(packet(), 20),
    ) {
        let mut broken = Rule::new(action);
        broken.source.nets = nets;
        broken.destination.ports = ports;
        let everything = Rule::new(RuleAction::Allow);
        let policy = policy(vec![(broken, RuleSets::default()), (everything, RuleSets::default())]);
        let renderer = renderer();
        for packet in packets {
            let chains = renderer.policy(&id(), &policy, packet.family()).unwrap();
            let verdict = walk(&chains.inbound, renderer.marks(), &packet);
            prop_assert!(is_closed(verdict, meaning(&policy.inbound, &packet)));
        }
    }

    #[test]
    fn the_kernel_accepts_every_rule(rules in vec(rule(), 1..4)) {
        let policy = policy(rules);
        for family in Family::ALL {
            let chains = renderer().policy(&id(), &policy, family).unwrap();
            for rule in &chains.inbound.rules {
                prop_assert!(is_acceptable(&rule.matches), "{}", matches_text(&rule.matches));
            }
        }
    }

    #[test]
    fn no_bit_outside_the_policy_bits_is_written(rules in vec(rule(), 1..6), mask in any::<u32>()) {
        let Ok(marks) = Marks::allocate(mask, false, false) else { return Ok(()) };
        let config = RulesConfig { marks, flow_logs: true, ..renderer().config().clone() };
        let ours = (marks.policy() | marks.drop).get();
        prop_assert_eq!(ours & !mask, 0);
        let chains = Renderer::new(config).policy(&id(), &policy(rules), Family::V4).unwrap();
        for rule in &chains.inbound.rules {
            prop_assert_eq!(rule.action.as_ref().map_or(0, marks_written) & !ours, 0);
        }
    }

    #[test]
    fn the_order_of_annotations_does_not_matter(
        rule in rule(),
        annotations in proptest::collection::btree_map("[a-c]{1,2}", "[a-z]{0,3}", 0..5),
    ) {
        let forward: Vec<(Arc<str>, Arc<str>)> =
            annotations.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect();
        let render = |annotations: Vec<(Arc<str>, Arc<str>)>| {
            let mut rule = rule.clone();
            rule.0.extras.annotations = annotations.into();
            renderer().policy(&id(), &policy(vec![rule]), Family::V4)
        };
        prop_assert_eq!(render(forward.clone()), render(forward.into_iter().rev().collect()));
    }
}

fn tcp_rule(action: RuleAction) -> Rule {
    Rule { protocol: Some(Protocol::Named(NamedProtocol::Tcp)), ..Rule::new(action) }
}

fn problem_of(rule: Rule, sets: RuleSets) -> (Vec<String>, Vec<Option<Action>>) {
    let chains = renderer().policy(&id(), &policy(vec![(rule, sets)]), Family::V4).unwrap();
    let problems = chains.problems.iter().map(ToString::to_string).collect();
    (problems, chains.inbound.rules.into_iter().map(|rule| rule.action).collect())
}

/// A node has thousands of them.
#[test]
fn chains_of_policies_have_no_spare_room() {
    for rules in [vec![], vec![(Rule::new(RuleAction::Allow), RuleSets::default()); 3]] {
        let chains = renderer().policy(&id(), &policy(rules), Family::V4).unwrap();
        for chain in [chains.inbound, chains.outbound] {
            assert_eq!(chain.rules.capacity(), chain.rules.len());
        }
    }
}

#[test]
fn a_rule_that_cannot_be_expressed_fails_closed() {
    let with_ports = |action, protocol| {
        let mut rule = Rule { protocol, ..Rule::new(action) };
        rule.destination.ports = [PortSpec::single(80)].into();
        rule
    };
    let (problems, actions) = problem_of(with_ports(RuleAction::Allow, None), RuleSets::default());
    assert_eq!(
        problems,
        ["NetworkPolicy/ns/web: ingress rule 0: ports need a protocol that has ports; the rule is left out"]
    );
    assert_eq!(actions, [None]);

    for action in [RuleAction::Deny, RuleAction::NextTier] {
        let icmp = Some(Protocol::Named(NamedProtocol::Icmp));
        let (problems, actions) = problem_of(with_ports(action, icmp), RuleSets::default());
        assert_eq!(
            problems,
            ["NetworkPolicy/ns/web: ingress rule 0: ports need a protocol that has ports; \
                 the rule denies everything that its other conditions match"]
        );
        assert_eq!(actions.last(), Some(&Some(Action::Drop)));
    }
}

#[test]
fn each_condition_that_cannot_be_expressed_is_named() {
    let conditions = |rule: Rule, sets: RuleSets| -> Vec<InvalidCondition> {
        let chains = renderer().policy(&id(), &policy(vec![(rule, sets)]), Family::V4).unwrap();
        assert!(
            chains.problems.iter().all(|p| p.fallback == RuleFallback::LeftOut && p.direction == Direction::Ingress)
        );
        chains.problems.into_iter().map(|problem| problem.condition).collect()
    };
    let allow = || tcp_rule(RuleAction::Allow);

    let mut rule = allow();
    rule.source.extras.not_ports = [PortSpec::Range { first: 9, last: 8 }].into();
    assert_eq!(conditions(rule, RuleSets::default()), [InvalidCondition::EmptyPortRange { first: 9, last: 8 }]);

    let mut rule = allow();
    rule.extras.icmp_type = Some(8);
    assert_eq!(conditions(rule, RuleSets::default()), [InvalidCondition::IcmpTypeWithoutProtocol]);

    let mut rule = Rule::new(RuleAction::Allow);
    rule.extras.not_protocol = Some(Protocol::Number(0));
    assert_eq!(conditions(rule, RuleSets::default()), [InvalidCondition::ProtocolZero]);

    let mut rule = Rule { protocol: Some(Protocol::Named(NamedProtocol::Icmp)), ..allow() };
    rule.extras.not_icmp_code = Some(0);
    assert_eq!(conditions(rule, RuleSets::default()), [InvalidCondition::IcmpCodeWithoutType]);

    let sets = RuleSets { src: SetIds::from_iter(["s: --jump ACCEPT".into()]), ..RuleSets::default() };
    assert_eq!(conditions(allow(), sets), [InvalidCondition::IpSetId("s: --jump ACCEPT".to_owned())]);
}

/// `iptables-restore` refuses a second `-p`.
#[test]
fn a_rule_matches_the_protocol_once() {
    let with = |not_protocol| {
        let mut rule = tcp_rule(RuleAction::Deny);
        rule.extras.not_protocol = Some(not_protocol);
        rule
    };
    let same = policy(vec![(with(Protocol::Number(6)), RuleSets::default())]);
    let chains = renderer().policy(&id(), &same, Family::V4).unwrap();
    assert_eq!(chains.inbound.rules[0].action, None);
    let other = policy(vec![(with(Protocol::Number(17)), RuleSets::default())]);
    let chains = renderer().policy(&id(), &other, Family::V4).unwrap();
    assert_eq!(matches_text(&chains.inbound.rules[0].matches), "-p tcp");
    assert_eq!(chains.problems, []);
}

#[test]
fn rules_have_their_origin() {
    let rules =
        vec![(tcp_rule(RuleAction::Allow), RuleSets::default()), (tcp_rule(RuleAction::Deny), RuleSets::default())];
    let chains = renderer().policy(&id(), &policy(rules), Family::V6).unwrap();
    let origins: Vec<(String, Option<u32>)> = chains
        .inbound
        .rules
        .iter()
        .filter_map(|rule| rule.origin.as_ref().map(|origin| (origin.owner.to_string(), origin.part)))
        .collect();
    let of = |part| ("NetworkPolicy/ns/web".to_owned(), Some(part));
    assert_eq!(origins, [of(0), of(0), of(1), of(1)]);
}

#[test]
fn staged_policies_render_nothing() {
    let staged = PolicyId::new(PolicyKind::StagedNetworkPolicy, "ns", "web");
    assert_eq!(renderer().policy(&staged, &policy(Vec::new()), Family::V4), None);
}

#[test]
fn deny_follows_the_configuration() {
    let config = RulesConfig { deny: DenyAction::Reject, ..renderer().config().clone() };
    let rules = vec![(tcp_rule(RuleAction::Deny), RuleSets::default())];
    let chains = Renderer::new(config).policy(&id(), &policy(rules), Family::V4).unwrap();
    assert_eq!(chains.inbound.rules[1].action, Some(Action::Reject(RejectWith::PortUnreachable)));
}

/// The action of the policy comes before that of the node, and an answer in the form of Felix is
/// for the latter alone.
#[test]
fn denied_packets_are_rejected_by_the_policy_or_the_node() {
    use DenyAction::{Drop, Reject};
    use RejectReply::{PortUnreachable, ResetOrProhibited};

    let answered = Action::Goto(chain::REJECT);
    let in_felix = Action::Reject(RejectWith::PortUnreachable);
    for (own, deny, reject_with, expected) in [
        (None, Drop, PortUnreachable, Action::Drop),
        (None, Drop, ResetOrProhibited, Action::Drop),
        (None, Reject, PortUnreachable, in_felix),
        (None, Reject, ResetOrProhibited, answered.clone()),
        (Some(Drop), Reject, PortUnreachable, Action::Drop),
        (Some(Drop), Reject, ResetOrProhibited, Action::Drop),
        (Some(Reject), Drop, PortUnreachable, answered.clone()),
        (Some(Reject), Reject, PortUnreachable, answered),
    ] {
        let renderer = Renderer::new(RulesConfig { deny, reject_with, ..renderer().config().clone() });
        let mut policy = policy(vec![(tcp_rule(RuleAction::Deny), RuleSets::default())]);
        policy.source = Policy { deny_action: own, ..Policy::clone(&policy.source) }.into();
        let chains = renderer.policy(&id(), &policy, Family::V4).unwrap();
        assert_eq!(chains.inbound.rules[1].action, Some(expected), "{own:?} {deny:?} {reject_with:?}");
    }
}

#[test]
fn log_prefixes_are_filled_in() {
    let prefix = |format: &str| {
        let log = LogConfig { prefix: format.to_owned(), limit: None };
        let config = RulesConfig { log, ..renderer().config().clone() };
        let chains = Renderer::new(config).policy(
            &id(),
            &policy(vec![(tcp_rule(RuleAction::Log), RuleSets::default())]),
            Family::V4,
        );
        match chains.unwrap().inbound.rules.swap_remove(0).action {
            Some(Action::Log(prefix)) => prefix.as_str().to_owned(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(prefix(""), "calico-packet");
    assert_eq!(prefix("%t|%k|%n|%p"), "default|np|web|ns/web");
    assert_eq!(prefix("100% %x %%t %"), "100% %x %default %");
    assert_eq!(prefix("a\"b\\"), "a_b_");
}

/// The worked example: eight port ranges and a named port, two source networks, two excluded ones.
#[test]
fn match_blocks() {
    let mut rule = tcp_rule(RuleAction::Allow);
    rule.source.ports = (0..8).map(|i| PortSpec::Range { first: 2 * i + 1, last: 2 * i + 2 }).collect();
    rule.source.nets = ["10.1.0.0/16", "11.0.0.0/8"].map(|net| net.parse().unwrap()).into();
    rule.source.extras.not_nets = ["14.1.0.0/16", "15.0.0.0/8"].map(|net| net.parse().unwrap()).into();
    let sets = RuleSets { src_named_ports: SetIds::from_iter(["n:x".into()]), ..RuleSets::default() };
    let chains = renderer().policy(&id(), &policy(vec![(rule, sets)]), Family::V4).unwrap();
    let lines: Vec<String> = chains
        .inbound
        .rules
        .iter()
        .map(|rule| {
            let mut line = String::new();
            tortie_iptables::write_rest(rule, &tortie_iptables::Features::ALL, &mut line);
            line
        })
        .collect();
    assert_eq!(
        lines,
        [
            "-m comment --comment \"NetworkPolicy ns/web ingress\" --jump MARK --set-mark 0x0/0x180000",
            "-p tcp -m multiport --source-ports 1:2,3:4,5:6,7:8,9:10,11:12,13:14 \
             --jump MARK --set-mark 0x80000/0x80000",
            "-p tcp -m multiport --source-ports 15:16 --jump MARK --set-mark 0x80000/0x80000",
            "-m set --match-set cali40n:x src,src --jump MARK --set-mark 0x80000/0x80000",
            "--source 10.1.0.0/16 --jump MARK --set-mark 0x100000/0x100000",
            "--source 11.0.0.0/8 --jump MARK --set-mark 0x100000/0x100000",
            "-m mark --mark 0/0x100000 --jump MARK --set-mark 0/0x80000",
            "--source 14.1.0.0/16 --jump MARK --set-mark 0/0x80000",
            "--source 15.0.0.0/8 --jump MARK --set-mark 0/0x80000",
            "-p tcp -m mark --mark 0x80000/0x80000 --jump MARK --set-mark 0x10000/0x10000",
        ]
    );
}

/// A tier passed the packet; the profile must still be read to its end.
#[test]
fn a_profile_clears_an_earlier_pass_mark() {
    let render = |actions: &[RuleAction]| {
        let rules = actions.iter().map(|action| (tcp_rule(*action), RuleSets::default())).collect();
        let profile = desired::Profile { inbound: policy(rules).inbound, outbound: Rules::default() };
        renderer().profile(&"p".into(), &profile, Family::V4).inbound
    };
    let clear = Action::ClearMark(renderer().marks().pass);
    let begins_by_clearing = |chain: &tortie_iptables::Chain| {
        let first = &chain.rules[0];
        first.matches.is_empty() && first.action.as_ref() == Some(&clear)
    };
    use RuleAction::{Allow, Deny, NextTier};
    let passes = render(&[Allow, NextTier, Deny]);
    assert!(begins_by_clearing(&passes));
    assert_eq!(passes.rules[0].comments[0].as_str(), "Profile p ingress");
    assert_eq!(passes.rules[0].origin.as_ref().unwrap().owner.as_ref(), "Profile/p");
    assert_eq!(passes.rules.len(), 7);
    // No rule of these depends on the mark, so it is not cleared.
    assert!(!begins_by_clearing(&render(&[Allow, Deny])));
    assert!(!begins_by_clearing(&render(&[Deny, NextTier])));
    assert!(!begins_by_clearing(&render(&[])));
}

/// HTTP is not inspected, so a rule with such a match allows nothing that another rule would deny.
#[test]
fn an_http_match_allows_nothing() {
    use RuleAction::{Allow, Deny, Log, NextTier, Unspecified};
    let http = |action| {
        let methods = ["GET".into()].into();
        let mut rule = tcp_rule(action);
        rule.extras.http = Some(Box::new(HttpMatch { methods, paths: Box::default() }));
        problem_of(rule, RuleSets::default())
    };
    for action in [Allow, Unspecified, Log] {
        let (problems, actions) = http(action);
        assert_eq!(
            problems,
            ["NetworkPolicy/ns/web: ingress rule 0: nothing enforces a match on HTTP; the rule is left out"]
        );
        assert_eq!(actions, [None]);
    }
    // One that passes would keep packets from the denials behind it.
    for action in [Deny, NextTier] {
        let (problems, actions) = http(action);
        assert_eq!(
            problems,
            ["NetworkPolicy/ns/web: ingress rule 0: nothing enforces a match on HTTP; \
                 the rule denies everything that its other conditions match"]
        );
        assert_eq!(actions.last(), Some(&Some(Action::Drop)));
    }
}

/// A proxy cannot allow what a packet filter denies, so it needs the packets of the request.
#[test]
fn an_allow_rule_with_an_http_match_is_rendered_without_it_if_a_proxy_enforces_it() {
    let with = |action, http, http_by_proxy| {
        let mut rule = tcp_rule(action);
        rule.extras.http = http;
        let mut policy = policy(vec![(rule, RuleSets::default())]);
        policy.inbound = policy.inbound.with_http_by_proxy(http_by_proxy);
        renderer().policy(&id(), &policy, Family::V4).unwrap()
    };
    for action in [RuleAction::Allow, RuleAction::Unspecified] {
        let chains = with(action, Some(Box::default()), true);
        assert_eq!((chains.problems.len(), &chains.inbound), (0, &with(action, None, false).inbound));
    }
    for action in [RuleAction::Deny, RuleAction::NextTier, RuleAction::Log] {
        let (proxy, none) = (with(action, Some(Box::default()), true), with(action, Some(Box::default()), false));
        assert_eq!((proxy.problems.len(), &proxy.inbound), (1, &none.inbound));
    }
}
