//! Differential test: the tables of `tortie-ebpf` give the verdicts of the evaluator and of the
//! brute-force evaluator, read in Rust, by the program in `rbpf`, and by the same program in the
//! kernel.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use proptest::test_runner::TestCaseError;
use tortie_bpf::ArrayMap;
use tortie_classes::{Classes, Compiled, GroupId};
use tortie_ebpf::{
    Assembler, Base, BlocksPlace, CELLS, Cell, DecisionId, Helper, MapId, Program, Register, Size, Tables, Transport,
};
use tortie_evaluate::{Answer, DecidedBy, Evaluator, Layer, Packet, Verdict};
use tortie_model::desired::{
    DesiredUpdate, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{AdminState, Cidr, Direction, Family, PolicyId, PolicyKind, Protocol, Rule, RuleAction, TierName};
use tortie_testkit::evaluator::{Layer as OracleLayer, OracleVerdict};

use crate::chains::Question;
use crate::evaluate::{evaluated, evaluator, messages, settings};
use crate::runner;
use crate::scenario::{Scenario, host_name, scenarios, unenforceable, workload_id};

thread_local! {
    static MAP: RefCell<Vec<[u32; CELLS]>> = const { RefCell::new(Vec::new()) };
}

/// Returns the place of a map with this number of blocks.
fn blocks(count: u32) -> BlocksPlace {
    BlocksPlace { map: MapId(0), register: Register::R5, count }
}

/// Returns the places of a question's parts in the program's memory.
fn question(family: Family, count: u32) -> tortie_ebpf::Question {
    tortie_ebpf::Question {
        blocks: blocks(count),
        family,
        base: Register::R7.into(),
        addresses: 0,
        exact: None,
        learned: None,
        group: 4,
        own: 68,
        peer: 84,
        protocol: 100,
        detail: 101,
        source_port: 103,
        has_detail: 105,
        has_source_port: 106,
    }
}

fn program(family: Family, count: u32) -> Program {
    let mut program = Assembler::new();
    let missing = program.label();
    program.set(Register::R7, Register::R1).set(Register::R6, Register::R1);
    program.decide(&question(family, count), missing);
    program.set(Register::R0, Register::R9).exit();
    // A missing block must not count as a decision.
    program.place(missing).set(Register::R0, -1).exit();
    program.assemble().unwrap()
}

/// Returns the input of the program.
pub(crate) fn memory(tables: &Tables, group: GroupId, direction: Direction, packet: &Packet) -> Vec<u8> {
    let octets = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => [&address.octets()[..], &[0; 12]].concat(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    };
    let (own, peer) = match direction {
        Direction::Ingress => (packet.destination(), packet.source()),
        Direction::Egress => (packet.source(), packet.destination()),
    };
    let Transport { protocol, detail, source_port } = Transport::of(packet);
    let mut memory = tables.addresses(packet.family()).bits().to_ne_bytes().to_vec();
    memory.extend(tables.group(group).unwrap().to_bytes());
    memory.extend([octets(own), octets(peer)].concat());
    memory.push(protocol);
    memory.extend(detail.unwrap_or(0xaaaa).to_be_bytes());
    memory.extend(source_port.unwrap_or(0xaaaa).to_be_bytes());
    memory.extend([u8::from(detail.is_some()), u8::from(source_port.is_some())]);
    memory
}

/// The program with its maps in the kernel. Question and answer are in an array.
pub(crate) struct Kernel {
    blocks: ArrayMap,
    query: ArrayMap,
    programs: [tortie_bpf::Program; 2],
}

/// Number of blocks in the kernel's map.
const BLOCKS: u32 = 1 << 15;
/// Bytes of a question, followed by eight bytes of answer.
const QUERY_SIZE: usize = 120;
const ANSWER: i16 = 112;
const NOTHING: i32 = -1;

impl Kernel {
    pub(crate) fn new() -> Self {
        let blocks = ArrayMap::create_joined("blocks", u32::try_from(4 * CELLS).unwrap(), BLOCKS).unwrap();
        let query = ArrayMap::create("query", u32::try_from(QUERY_SIZE).unwrap(), 1).unwrap();
        let programs = Family::ALL.map(|family| {
            let descriptor = |map: MapId| if map == MapId(0) { blocks.descriptor() } else { query.descriptor() };
            tortie_bpf::Program::load_classifier("decide", &Self::program(family).bytes(descriptor)).unwrap()
        });
        Self { blocks, query, programs }
    }

    fn program(family: Family) -> Program {
        let mut program = Assembler::new();
        let (missing, end) = (program.label(), program.label());
        program
            .store(Size::U32, Base::Frame, -4, 0)
            .set_map(Register::R1, MapId(1))
            .set_stack(Register::R2, 4)
            .call(Helper::MapLookup)
            .jump_if(Register::R0, tortie_ebpf::Test::Equal, 0, end)
            .set(Register::R7, Register::R0)
            .set(Register::R6, Register::R0)
            .store(Size::U64, Register::R7, ANSWER, NOTHING)
            .decide(&question(family, BLOCKS), missing)
            .store(Size::U64, Register::R7, ANSWER, Register::R9)
            .place(missing)
            .place(end)
            .set(Register::R0, 0)
            .exit();
        program.assemble().unwrap()
    }

    fn write(&self, written: &[(u32, [Cell; CELLS])]) {
        for (number, cells) in written {
            self.blocks.write(*number, &cells.map(|cell| cell.bits().to_ne_bytes()).concat()).unwrap();
        }
    }

    pub(crate) fn write_new(&self, tables: &mut Tables) {
        self.write(&written(tables));
    }

    pub(crate) fn decide(&self, tables: &Tables, group: GroupId, direction: Direction, packet: &Packet) -> DecisionId {
        let (decision, _) = self.run(packet.family(), memory(tables, group, direction, packet), 1);
        DecisionId::from_cell(u32::try_from(decision).unwrap_or_default())
    }

    /// Returns the decision and the elapsed time.
    fn run(&self, family: Family, mut memory: Vec<u8>, times: u32) -> (u64, u32) {
        memory.resize(QUERY_SIZE, 0);
        self.query.write(0, &memory).unwrap();
        let run = self.programs[usize::from(family == Family::V6)].test_run(&[0; 64], times).unwrap();
        self.query.read(0, &mut memory).unwrap();
        let answer = memory[ANSWER as usize..].try_into().unwrap();
        (u64::from_ne_bytes(answer), run.nanoseconds)
    }
}

/// The program in `rbpf`, which reads a thread-local copy of the blocks.
pub(crate) struct Machine {
    programs: [Vec<u8>; 2],
}

/// Takes the cells of the blocks that are new since the last call.
pub(crate) fn written(tables: &mut Tables) -> Vec<(u32, [Cell; CELLS])> {
    let blocks = tables.blocks();
    blocks.take_written().into_iter().map(|number| (number, blocks.cells(number).unwrap())).collect()
}

impl Machine {
    /// Creates it with all blocks of new tables, which are also written to the kernel.
    pub(crate) fn of(tables: &mut Tables, kernel: &Kernel) -> Self {
        let extent = tables.blocks().extent();
        let written = written(tables);
        kernel.write(&written);
        Self::new(&written, extent)
    }

    /// Creates it with all written blocks.
    fn new(written: &[(u32, [Cell; CELLS])], extent: usize) -> Self {
        MAP.with_borrow_mut(|map| {
            map.clear();
            map.resize(extent, [0; CELLS]);
            for (number, cells) in written.iter().copied() {
                map[number as usize] = cells.map(Cell::bits);
            }
        });
        let count = u32::try_from(extent).unwrap();
        let address = MAP.with_borrow(|map| map.as_ptr() as u64);
        Self { programs: Family::ALL.map(|family| program(family, count).bytes_with_addresses(|_| address)) }
    }

    /// Returns the deciding cell; all bits set if a block is missing.
    pub(crate) fn run(&self, family: Family, mut memory: Vec<u8>) -> u64 {
        let program = &self.programs[usize::from(family == Family::V6)];
        let mut machine = rbpf::EbpfVmRaw::new(Some(program)).unwrap();
        MAP.with_borrow(|map| {
            let all = map.as_ptr_range();
            machine.register_allowed_memory(all.start as u64..all.end as u64);
        });
        machine.execute_program(&mut memory).unwrap()
    }
}

/// Returns the groups to evaluate, with the direction.
pub(crate) fn groups(compiled: &Compiled<'_>) -> Vec<(GroupId, Direction)> {
    questions().into_iter().filter_map(|question| group(compiled, question)).collect()
}

/// Returns the questions about groups: each corresponds to a group, and to the meaning of an
/// endpoint's policies.
fn questions() -> Vec<Question> {
    let mut questions = Vec::new();
    for direction in [Direction::Ingress, Direction::Egress] {
        questions.push(Question::Workload(direction));
        for layer in [OracleLayer::Normal, OracleLayer::Forward, OracleLayer::Untracked, OracleLayer::PreDnat] {
            questions.push(Question::Host(layer, direction));
        }
    }
    questions
}

fn layer(layer: OracleLayer) -> Layer {
    match layer {
        OracleLayer::Normal => Layer::Normal,
        OracleLayer::Forward => Layer::Forward,
        OracleLayer::Untracked => Layer::Untracked,
        OracleLayer::PreDnat => Layer::PreDnat,
    }
}

fn group(compiled: &Compiled<'_>, question: Question) -> Option<(GroupId, Direction)> {
    let (group, direction) = match question {
        Question::Workload(direction) => {
            (compiled.workload_group(&workload_id(AdminState::Active), direction), direction)
        }
        Question::Host(of, direction) => (compiled.host_group(&host_name(), layer(of), direction), direction),
        Question::InactiveWorkload | Question::TranslatedFromHost | Question::WorkloadToHost => return None,
    };
    Some((group?, direction))
}

fn evaluate(evaluator: &Evaluator, question: Question, packet: &Packet) -> Option<Answer> {
    let answer = match question {
        Question::Workload(direction) => evaluator.workload(&workload_id(AdminState::Active), direction, packet),
        Question::Host(of, direction) => evaluator.host(&host_name(), layer(of), direction, packet),
        Question::InactiveWorkload | Question::TranslatedFromHost | Question::WorkloadToHost => return None,
    };
    answer.ok()
}

fn comes_before(answer: &Answer) -> bool {
    matches!(answer.decided_by, DecidedBy::Guard(_) | DecidedBy::Failsafe(_))
}

fn by_meaning(verdict: OracleVerdict) -> Verdict {
    match verdict {
        OracleVerdict::Allow => Verdict::Allow,
        OracleVerdict::Deny => Verdict::Deny,
        OracleVerdict::Undecided => Verdict::Undecided,
    }
}

/// Checks that the program in the kernel, the one in `rbpf`, the tables in Rust, the classes, the
/// evaluator and the brute-force evaluator (if it supports the rules) agree on each packet.
fn check(
    scenario: &Scenario,
    config: &tortie_rules::RulesConfig,
    kernel: &Kernel,
    statistics: &mut Statistics,
) -> Result<(), TestCaseError> {
    let mut classes = Classes::new(settings(config));
    messages(&scenario.state).for_each(|update| classes.apply(&update).unwrap());
    let evaluator = evaluator(settings(config), &scenario.state);
    let compiled = classes.flush();
    let mut tables = Tables::new(&compiled);
    let machine = Machine::of(&mut tables, kernel);
    for plain in &scenario.packets {
        let packet = evaluated(plain);
        for question in questions() {
            let Some((group, direction)) = group(&compiled, question) else { continue };
            let decision = tables.decide(group, direction, &packet);
            let fail = |failure: String| Err(TestCaseError::fail(format!("{packet:?}, {question:?}: {failure}")));
            let memory = memory(&tables, group, direction, &packet);
            let (in_kernel, _) = kernel.run(packet.family(), memory.clone(), 1);
            let run = machine.run(packet.family(), memory);
            if in_kernel != run {
                return fail(format!("the kernel says {in_kernel}, and rbpf {run}"));
            }
            let is_large = tables.closed().any(|(closed, _)| closed == group);
            let cell = decision.to_cell(tables.decided(decision).0);
            if run != u64::from(cell) && !(is_large && run == u64::MAX) {
                return fail(format!("the program says {run}, not {decision:?}"));
            }
            let expected = super::classes::by_cell(&compiled, group, direction, &packet);
            let (verdict, by) = tables.decided(decision);
            match by {
                Some(by) if (verdict, by) == (expected.verdict, &expected.decided_by) => {}
                None if is_large && decision == DecisionId::default() => continue,
                _ => return fail(format!("{decision:?} is {verdict:?} by {by:?}, not {expected:?}")),
            }
            if tables.decided_direction(decision) != Some(direction) {
                return fail(format!("{decision:?} is of {:?}", tables.decided_direction(decision)));
            }
            // Checks before policy are in other programs.
            let answer = evaluate(&evaluator, question, &packet);
            if answer.as_ref().is_some_and(comes_before) {
                continue;
            }
            if answer.as_ref() != Some(&expected) {
                return fail(format!("the evaluator says {answer:?}, not {expected:?}"));
            }
            if statistics.oracle_knows_rules {
                let oracle_verdict = question.evaluate(&scenario.state, plain).map(by_meaning);
                if oracle_verdict != Ok(expected.verdict) {
                    return fail(format!("policies mean {oracle_verdict:?}, not {expected:?}"));
                }
            }
            let by_rule = matches!(expected.decided_by, DecidedBy::PolicyRule { .. } | DecidedBy::ProfileRule { .. });
            *statistics.decided.entry((packet.protocol(), by_rule)).or_default() += 1;
            statistics.at_once += usize::from(tables.group(group).is_some_and(|roots| roots.only_decision().is_some()));
        }
    }
    Ok(())
}

/// Statistics of the comparisons.
struct Statistics {
    /// Whether the brute-force evaluator supports the rules.
    oracle_knows_rules: bool,
    /// Number of decisions, by protocol and by whether a rule decided.
    decided: BTreeMap<(u8, bool), usize>,
    /// Number of decisions by a group that reads no field.
    at_once: usize,
}

fn run(config: &tortie_rules::RulesConfig, spoil: bool) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(25);
    let strategy = (scenarios(), unenforceable());
    let strategy =
        proptest::strategy::Strategy::prop_map(
            strategy,
            |(scenario, spoils)| {
                if spoil { scenario.spoilt(&spoils) } else { scenario }
            },
        );
    let kernel = Kernel::new();
    let statistics = RefCell::new(Statistics { oracle_knows_rules: !spoil, decided: BTreeMap::new(), at_once: 0 });
    let property = |scenario: Scenario| check(&scenario, config, &kernel, &mut statistics.borrow_mut());
    if let Err(error) = runner(cases, 200).run(&strategy, property) {
        panic!("{error}");
    }
    let Statistics { decided, at_once, .. } = statistics.into_inner();
    println!("by protocol, and whether a rule decided: {decided:?}; at once: {at_once}");
    assert!(at_once > 0, "no group has decided without a look at the packet");
    for protocol in [1, 6, 17, 58, 132, 136] {
        assert!(decided.contains_key(&(protocol, true)), "no rule has decided about protocol {protocol}");
    }
}

#[test]
fn four_engines_have_the_verdicts_of_the_policies() {
    run(&crate::chains::config(), false);
}

#[test]
fn four_engines_decide_alike_with_odd_rules() {
    run(&crate::evaluate::busy_config(tortie_rules::EndpointToHostAction::Drop), true);
}

/// Returns a workload whose policy has this number of rules, each with a separate set and port.
fn many_rules(count: u16) -> (Classes, GroupId) {
    let pod = workload_id(AdminState::Active);
    let mut classes = Classes::new(settings(&crate::chains::config()));
    let (mut rules, mut sets) = (Vec::new(), Vec::new());
    for number in 0..count {
        let set = format!("s:{number}");
        // Each of 100,000 addresses is in a set.
        let nets = (0..100_000 / u32::from(count)).map(|member| {
            Cidr::host(Ipv4Addr::from_bits(0x0a00_0000 + u32::from(number) + member * u32::from(count)).into())
        });
        let members = Members::Nets(nets.collect());
        classes
            .apply(&DesiredUpdate::IpSet(IpSetUpdate { id: set.as_str().into(), set_type: IpSetType::Net, members }))
            .unwrap();
        let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
        rule.destination.ports = [tortie_model::PortSpec::single(1000 + number)].into();
        rules.push(rule);
        sets.push(RuleSets { src: [set.as_str().into()].into_iter().collect(), ..RuleSets::default() });
    }
    let policy = Policy {
        source: std::sync::Arc::default(),
        selector: "all()".into(),
        inbound: Rules::new(rules.into(), sets.into()).unwrap(),
        outbound: Rules::default(),
    };
    let id = PolicyId::new(PolicyKind::NetworkPolicy, "shop", "web");
    let tier = TierPolicies {
        name: TierName::default_tier(),
        default_action: None,
        ingress: [id.clone()].into(),
        egress: [].into(),
    };
    classes.apply(&DesiredUpdate::Policy(id, policy.into())).unwrap();
    let state = WorkloadEndpointState { tiers: [tier].into(), ..WorkloadEndpointState::default() };
    classes.apply(&DesiredUpdate::WorkloadEndpoint(pod.clone(), state)).unwrap();
    let group = classes.flush().workload_group(&pod, Direction::Ingress).unwrap();
    (classes, group)
}

#[test]
fn programs_decide_by_tables_of_millions_of_cells() {
    let kernel = Kernel::new();
    let (mut classes, group) = many_rules(1500);
    let compiled = classes.flush();
    let mut tables = Tables::new(&compiled);
    assert!(tables.group(group).is_some_and(|roots| roots.is_large) && tables.closed().next().is_none());
    assert!(tables.blocks().in_use() < 4000, "{}", tables.blocks().in_use());
    kernel.write_new(&mut tables);
    for set in [0, 1, 255, 256, 700, 1498, 1499] {
        for rule in [0, 1, 255, 256, 700, 1498, 1499, 1500] {
            let source = Ipv4Addr::from_bits(0x0a00_0000 + u32::from(set));
            let packet = Packet::tcp((source.into(), 40000), ([10, 9, 9, 9].into(), 1000 + rule)).unwrap();
            let decision = kernel.decide(&tables, group, Direction::Ingress, &packet);
            assert_eq!(decision, tables.decide(group, Direction::Ingress, &packet));
            let (verdict, by) = tables.decided(decision);
            let expected = super::classes::by_cell(&compiled, group, Direction::Ingress, &packet);
            assert_eq!((verdict, by), (expected.verdict, Some(&expected.decided_by)));
            assert_eq!(verdict == Verdict::Allow, set == rule, "{packet:?}");
        }
    }
}

#[test]
#[ignore = "prints figures that only an optimized build on a quiet machine has; other tests assert the decisions"]
fn nanoseconds_of_a_decision() {
    let kernel = Kernel::new();
    for count in [10, 100, 1_000, 10_000] {
        let (mut classes, group) = many_rules(count);
        let begin = std::time::Instant::now();
        let mut tables = Tables::new(&classes.flush());
        let took = begin.elapsed();
        let written = written(&mut tables);
        assert!(tables.closed().next().is_none() && written.len() <= BLOCKS as usize, "{}", written.len());
        kernel.write(&written);
        println!("{count} rules: {} blocks in {took:?}", written.len());
        for (failure, rule, port) in [("first", 0, 1000), ("last", count - 1, 999 + count), ("none", 0, 80)] {
            let source = Ipv4Addr::from_bits(0x0a00_0000 + u32::from(rule));
            let packet = Packet::tcp((source.into(), 40000), ([10, 9, 9, 9].into(), port)).unwrap();
            let query = memory(&tables, group, Direction::Ingress, &packet);
            let times: Vec<u32> = (0..9).map(|_| kernel.run(Family::V4, query.clone(), 1_000_000).1).collect();
            let verdict = tables.decided(tables.decide(group, Direction::Ingress, &packet)).0;
            println!(
                "  {failure} rule, {verdict:?}: {} ns at best, {} ns at worst",
                times.iter().min().unwrap(),
                times.iter().max().unwrap()
            );
        }
    }
}
