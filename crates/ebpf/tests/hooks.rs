//! Programs for netfilter hooks in the running kernel; requires root.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]
#![allow(clippy::disallowed_methods, reason = "the kernel's own types are files")]

#[path = "hooks/addresses.rs"]
mod addresses;
#[path = "hooks/headers.rs"]
mod headers;
#[path = "hooks/learned.rs"]
mod learned;
#[path = "hooks/log.rs"]
mod log;
#[path = "hooks/records.rs"]
mod records;
#[path = "hooks/sources.rs"]
mod sources;

use std::cell::RefCell;

use tortie_bpf::{ArrayMap, HashMap, NetfilterPosition, PerCpuArrayMap, Program, RingBuffer};
use tortie_ebpf::classes::evaluate::{EndpointToHost, FailsafePort, Settings};
use tortie_ebpf::hooks::{Attachment, Hook, HookSettings, KernelLayout, LICENSE, program};
use tortie_ebpf::layout::{
    ALLOW, CounterRecord, DENY, EndpointKind, EndpointRecord, LOG_BYTES, LearnedKey, MapKind, ROOTS, RootsRecord,
    VERDICT_BITS,
};
use tortie_ebpf::{Assignment, Blocks, Btf, Cell, GroupRoots, MapSizes, Shortcuts};
use tortie_model::{Family, Protocol};

/// Returns the attachments that this kernel supports.
fn attachments() -> Vec<Attachment> {
    let accept = [[0xb7, 0, 0, 0, 1, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]].concat();
    let has_links = Program::load_netfilter("accept", LICENSE, &accept).is_ok();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version: Vec<u32> = release.split(['.', '-']).take(2).map(|part| part.parse().unwrap()).collect();
    assert_eq!(has_links, version >= vec![6, 4], "{release}");
    Attachment::ALL.into_iter().filter(|attachment| has_links || *attachment == Attachment::Rule).collect()
}

/// Returns a kernel layout for test runs. A test run has an outgoing interface at every hook: here
/// it serves as the incoming one as well. It has no connection. With `are_known`, another address
/// takes the place of one: its lowest bits are 0, so the packet belongs to a known connection.
fn kernel_of_test_runs(attachment: Attachment, are_known: bool) -> KernelLayout {
    let btf = btf();
    KernelLayout::new(
        attachment,
        |structure, member| {
            let member = match (structure, member) {
                ("nf_hook_state", "in") => "out",
                ("sk_buff", "_nfct") if are_known => "head",
                _ => member,
            };
            btf.offset(structure, member)
        },
        |name| btf.structure(name),
        |name| btf.function(name),
    )
    .unwrap()
}

/// Does the same to a program with links, for which newer kernels let no pointer take the place of
/// the number that a connection is.
fn make_known(instructions: &mut [u8]) {
    const LOAD: u8 = 0x79;
    const MOVE: u8 = 0xb7;
    let connection = i16::try_from(btf().offset("sk_buff", "_nfct").unwrap()).unwrap().to_ne_bytes();
    let mut loads = 0;
    for instruction in instructions.chunks_exact_mut(8).filter(|it| it[0] == LOAD && it[2..4] == connection) {
        let to = instruction[1] & 0x0f;
        instruction.copy_from_slice(&[MOVE, to, 0, 0, 8, 0, 0, 0]);
        loads += 1;
    }
    assert!(loads > 0);
}

fn btf() -> Btf {
    let mut btf = Btf::parse(std::fs::read("/sys/kernel/btf/vmlinux").unwrap()).unwrap();
    if let Ok(module) = std::fs::read("/sys/kernel/btf/nf_conntrack") {
        btf.add_module(module).unwrap();
    }
    btf
}

/// Returns the offset of a member in the structure of numbers.
fn number_at(member: &str) -> Option<u32> {
    let numbers = ["rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_errors", "tx_errors"];
    let place = numbers.iter().position(|number| *number == member)?;
    Some(8 * u32::try_from(place).unwrap())
}

#[test]
fn missing_kernel_features_are_reported() {
    type Offset = fn(&str, &str) -> Option<u32>;
    let read = |offset: Offset, has_structures: bool, has_functions: bool| {
        KernelLayout::new(Attachment::Link, offset, |_| has_structures.then_some(1), |_| has_functions.then_some(1))
    };
    let usual: Offset = |_, member| Some(number_at(member).unwrap_or(8));
    assert!(read(usual, true, true).is_ok());
    let without: Offset = |structure, member| match (structure, member) {
        ("dst_entry", "dev") => None,
        (_, member) => Some(number_at(member).unwrap_or(8)),
    };
    let error = read(without, true, true).unwrap_err();
    assert_eq!(error.to_string(), "the kernel has no dst_entry.dev that programs could read");
    let error = read(usual, false, true).unwrap_err();
    assert_eq!(error.to_string(), "the kernel has no dst_entry that programs could read");
    let error = read(usual, true, false).unwrap_err();
    assert_eq!(error.to_string(), "the kernel has no function bpf_dynptr_from_skb that programs could call");
    assert!(read(|_, _| Some(8), true, true).is_err(), "other numbers than are thought");
    let long: Offset = |structure, member| match member {
        _ if number_at(member).is_some() => number_at(member),
        "dst.u3" => Some(32),
        _ if structure == "nf_conntrack_tuple" => Some(16),
        _ => Some(8),
    };
    assert!(read(long, true, true).is_err(), "a tuple that is too long");
    let far: Offset = |_, member| {
        Some(match member {
            _ if number_at(member).is_some() => return number_at(member),
            "_nfct" => 1 << 15,
            _ => 8,
        })
    };
    assert!(read(far, true, true).is_err(), "too far for a program");
    let of_rules = |offset: Offset| KernelLayout::new(Attachment::Rule, offset, |_| None, |_| None);
    assert_eq!(of_rules(usual).unwrap().attachment(), Attachment::Rule);
    let error = of_rules(|_, member| (member != "dev").then_some(8)).unwrap_err();
    assert_eq!(error.to_string(), "the kernel has no sk_buff.dev that programs could read");
}

/// Number of values of each map.
const VALUES: u32 = 64;

const SIZES: MapSizes = MapSizes { blocks: VALUES, groups: VALUES, endpoints: VALUES, counters: VALUES, exact: VALUES };

struct Maps {
    arrays: Vec<(MapKind, ArrayMap)>,
    counters: PerCpuArrayMap,
    learned: HashMap,
    log: RefCell<RingBuffer>,
}

impl Maps {
    fn new() -> Self {
        let kinds = MapKind::ALL.into_iter().filter(|kind| !kind.is_per_cpu() && !kind.is_ring() && !kind.is_hash());
        let size = |kind: MapKind| u32::try_from(kind.value_size()).unwrap();
        let create = |kind: MapKind| {
            let values = match kind {
                MapKind::Current => 1,
                MapKind::Roots => ROOTS,
                _ => VALUES,
            };
            let create = if kind.is_joined() { ArrayMap::create_joined } else { ArrayMap::create };
            create(kind.name(), size(kind), values).unwrap()
        };
        let arrays = kinds.map(|kind| (kind, create(kind))).collect();
        let counters = PerCpuArrayMap::create("counters", size(MapKind::Counters), 64).unwrap();
        let log = RefCell::new(RingBuffer::create("log", LOG_BYTES).unwrap());
        let key = u32::try_from(LearnedKey::SIZE).unwrap();
        let learned = HashMap::create("learned", key, size(MapKind::Learned), VALUES).unwrap();
        Self { arrays, counters, learned, log }
    }

    fn load(&self, hook: Hook, family: Family, kernel: &KernelLayout, settings: &HookSettings) -> Program {
        self.load_changed(hook, family, kernel, settings, |_| {})
    }

    fn load_changed(
        &self,
        hook: Hook,
        family: Family,
        kernel: &KernelLayout,
        settings: &HookSettings,
        change: impl FnOnce(&mut [u8]),
    ) -> Program {
        let program = program(hook, family, kernel, settings, &SIZES).unwrap();
        let mut bytes = program.bytes(|map| {
            let found = self.arrays.iter().find(|(kind, _)| kind.id() == map);
            match found {
                Some((_, array)) => array.descriptor(),
                None if map == MapKind::Log.id() => self.log.borrow().descriptor(),
                None if map == MapKind::Learned.id() => self.learned.descriptor(),
                None => self.counters.descriptor(),
            }
        });
        change(&mut bytes);
        let load = match kernel.attachment() {
            Attachment::Link => Program::load_netfilter,
            Attachment::Rule => Program::load_socket_filter,
        };
        match load(hook.name(), LICENSE, &bytes) {
            Ok(program) => program,
            Err(error) => panic!("{hook:?} {family:?}: {error}\n{program}"),
        }
    }
}

fn all_settings() -> Vec<HookSettings> {
    let port =
        |protocol, port, net: Option<&str>| FailsafePort { protocol, port, net: net.map(|net| net.parse().unwrap()) };
    let nets =
        [None, Some("10.0.0.0/8"), Some("10.1.2.3/32"), Some("0.0.0.0/0"), Some("fd00::/9"), Some("fd00::1/128")];
    let ports: Vec<FailsafePort> = nets
        .iter()
        .flat_map(|net| [port(Protocol::TCP, 22, *net), port(Protocol::UDP, 68, *net), port(Protocol::SCTP, 80, *net)])
        .collect();
    let busy = Settings {
        failsafe_inbound: ports.clone(),
        failsafe_outbound: ports.iter().cycle().take(100).copied().collect(),
        endpoint_to_host: EndpointToHost::Allow,
        vxlan_port: 4790,
        vxlan_from_workloads: true,
        ipip_from_workloads: true,
    };
    vec![
        HookSettings::default(),
        HookSettings {
            workload_prefixes: vec!["cali".into(), "tap".into(), "a_name_of_15_by".into(), String::new()],
            policy: busy.clone(),
            deny_invalid_conntrack: false,
        },
        HookSettings { workload_prefixes: vec![], policy: busy, deny_invalid_conntrack: true },
    ]
}

#[test]
fn the_kernel_takes_the_programs_of_all_hooks() {
    let maps = Maps::new();
    for attachment in attachments() {
        let kernel = KernelLayout::read(attachment, &btf()).unwrap();
        for (number, settings) in all_settings().iter().enumerate() {
            for (hook, family) in Hook::ALL.into_iter().flat_map(|hook| Family::ALL.map(|family| (hook, family))) {
                let length = program(hook, family, &kernel, settings, &SIZES).unwrap().len();
                let verified = maps.load(hook, family, &kernel, settings).info().unwrap().verified;
                let case = format!("{attachment:?}, settings {number}, {hook:?} {family:?}");
                println!("{case}: {length} instructions, {verified} verified");
                assert!(length < 8_000 && verified < 30_000, "{case}: {length}, {verified}");
            }
        }
    }
}

/// A host endpoint at the loopback interface, where test runs are. Its one group allows one kind of
/// packet.
struct Bench {
    maps: Maps,
    program: Program,
    attachment: Attachment,
    hook: Hook,
    family: Family,
}

/// Packets that a group allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expected {
    protocol: u8,
    /// Destination port or ICMP message.
    detail: Option<u16>,
    source_port: Option<u16>,
}

const SOURCE_CLASS: u32 = 5;
const DESTINATION_CLASS: u32 = 6;
/// More than any valid sum.
const NOWHERE: u32 = 1 << 16;

impl Bench {
    fn new(attachment: Attachment, family: Family) -> Self {
        Self::at_hook(attachment, Hook::Output, family, HookSettings::default())
    }

    /// Returns a bench whose packets belong to known connections.
    fn of_known(attachment: Attachment, hook: Hook, family: Family, settings: &HookSettings) -> Self {
        let maps = Maps::new();
        let program = match attachment {
            Attachment::Link => {
                maps.load_changed(hook, family, &kernel_of_test_runs(attachment, false), settings, make_known)
            }
            Attachment::Rule => maps.load(hook, family, &kernel_of_test_runs(attachment, true), settings),
        };
        Self { maps, program, attachment, hook, family }
    }

    /// Returns a bench for a hook. Connection tracking has not seen the packets of test runs.
    fn at_hook(attachment: Attachment, hook: Hook, family: Family, settings: HookSettings) -> Self {
        let settings = HookSettings { deny_invalid_conntrack: false, ..settings };
        let maps = Maps::new();
        let program = maps.load(hook, family, &kernel_of_test_runs(attachment, false), &settings);
        Self { maps, program, attachment, hook, family }
    }

    fn at(&self) -> NetfilterPosition {
        let family = if self.family == Family::V4 { 2 } else { 10 };
        NetfilterPosition { family, hook: self.hook.number(), priority: 0, defragment: false }
    }

    fn write(&self, kind: MapKind, index: u32, value: &[u8]) {
        let (_, array) = self.maps.arrays.iter().find(|(of, _)| *of == kind).unwrap();
        array.write(index, value).unwrap();
    }

    /// Allows the expected packets, from one address to the other, and nothing else.
    fn expect(&self, source: &[u8], destination: &[u8], expected: Expected) {
        let mut blocks = Blocks::new();
        let tree = |blocks: &mut Blocks, rest: u32, keys: &[(&[u8], u32)]| {
            let bits = |key: &[u8]| u8::try_from(key.len() * 8).unwrap();
            let all = keys.iter().map(|(key, value)| Assignment { key, bits: bits(key), value: *value });
            blocks.assign(Cell::value(rest), &all.collect::<Vec<_>>())
        };
        // The highest of the 24 bits of a class is the family.
        let of_family = |class: u32| if self.family == Family::V6 { class | 1 << 23 } else { class };
        let class = |class: u32| of_family(class).to_be_bytes()[1..].to_vec();
        let [high, low] = expected.detail.unwrap_or_default().to_be_bytes();
        let detail = [expected.protocol, high, low];
        let details: Vec<(&[u8], u32)> = expected.detail.iter().map(|_| (&detail[..], 4)).collect();
        let bare = [expected.protocol];
        let protocols: Vec<(&[u8], u32)> = if expected.detail.is_none() { vec![(&bare[..], 4)] } else { vec![] };
        let port = expected.source_port.unwrap_or_default().to_be_bytes();
        let ports: Vec<(&[u8], u32)> = expected.source_port.iter().map(|_| (&port[..], 8)).collect();
        let group = GroupRoots {
            own: tree(&mut blocks, NOWHERE, &[(&class(SOURCE_CLASS), 1)]),
            peer: tree(&mut blocks, NOWHERE, &[(&class(DESTINATION_CLASS), 2)]),
            details: tree(&mut blocks, NOWHERE, &details),
            protocols: tree(&mut blocks, NOWHERE, &protocols),
            source_ports: tree(&mut blocks, NOWHERE, &ports),
            no_source_port: Cell::value(if expected.source_port.is_none() { 8 } else { NOWHERE }),
            cells: tree(&mut blocks, 2 << VERDICT_BITS | DENY, &[(&[0, 15], 1 << VERDICT_BITS | ALLOW)]),
            is_large: false,
            shortcuts: Shortcuts::default(),
        };
        let group = group.with_shortcuts(&blocks);
        let ends = [(source, of_family(SOURCE_CLASS)), (destination, of_family(DESTINATION_CLASS))];
        let addresses = tree(&mut blocks, 0, &ends);
        let interfaces = tree(&mut blocks, 0, &[(&1_u32.to_be_bytes(), 1)]);
        for number in blocks.take_written() {
            let cells = blocks.cells(number).expect("a new block is in use");
            self.write(MapKind::Blocks, number, &cells.map(|cell| cell.bits().to_ne_bytes()).concat());
        }
        self.write(MapKind::Groups, 3, &group.to_bytes());
        let evaluated = if self.hook == Hook::Output { 0b10 } else { 0b1 };
        let endpoint =
            EndpointRecord { kind: EndpointKind::Host, evaluated, groups: [3; 8], ..EndpointRecord::default() };
        self.write(MapKind::Endpoints, 1, &endpoint.to_bytes());
        let roots = RootsRecord { addresses: [addresses; 2], is_in_force: true, ..RootsRecord::default() };
        let roots = roots.with_interfaces(interfaces, &blocks);
        self.write(MapKind::Roots, 2, &roots.to_bytes());
        self.write(MapKind::Current, 0, &2_u64.to_ne_bytes());
    }

    /// Reports whether a packet is accepted.
    fn passes(&self, packet: &[u8]) -> bool {
        self.is_accepted(self.run(packet, 1))
    }

    fn is_accepted(&self, run: tortie_bpf::TestRun) -> bool {
        match (self.attachment, run.result) {
            (Attachment::Link, 1) | (Attachment::Rule, 0) => true,
            (Attachment::Link, 0) | (Attachment::Rule, 1) => false,
            (_, result) => panic!("{result} is no answer"),
        }
    }

    fn run(&self, packet: &[u8], times: u32) -> tortie_bpf::TestRun {
        // An incoming packet has an Ethernet frame.
        let protocol = if self.family == Family::V4 { [0x08, 0] } else { [0x86, 0xdd] };
        let frame = [&[0; 12][..], &protocol].concat();
        if self.attachment == Attachment::Rule {
            return self.program.test_run(&[frame, packet.to_vec()].concat(), times).unwrap();
        }
        let frame = if self.hook == Hook::Output { vec![] } else { frame };
        self.program.test_run_netfilter(self.at(), &[frame, packet.to_vec()].concat(), times).unwrap()
    }

    fn counted(&self, decision: u32) -> CounterRecord {
        CounterRecord::sum(&self.maps.counters.read(decision).unwrap())
    }
}

const V4: [[u8; 4]; 2] = [[10, 1, 2, 3], [192, 0, 2, 77]];

/// A group that allows every readable packet.
fn open() -> GroupRoots {
    let none = Cell::value(0);
    GroupRoots {
        own: none,
        peer: none,
        details: none,
        protocols: none,
        source_ports: none,
        no_source_port: none,
        cells: Cell::value(1 << VERDICT_BITS | ALLOW),
        is_large: false,
        shortcuts: Shortcuts::default(),
    }
    .with_shortcuts(&Blocks::new())
}

/// An IPv4 packet with this number of option words.
fn v4(protocol: u8, options: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let length = 20 + usize::from(options) * 4 + payload.len();
    let mut packet = vec![0x45 + options, 0];
    packet.extend(u16::try_from(length).unwrap().to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(V4.concat());
    packet.extend(vec![1; usize::from(options) * 4]);
    packet.extend(payload);
    packet
}

/// Source port 0x0611, which begins like TCP, and destination port 80.
const PORTS: [u8; 8] = [0x06, 0x11, 0, 80, 0, 0, 0, 0];

const V6: [[u8; 16]; 2] =
    [[0xfd, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7], [0xfd, 9, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 8]];

fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    packet.extend([next, 64]);
    packet.extend(V6.concat());
    packet.extend(payload);
    packet
}

#[test]
fn decisions_are_counted() {
    for attachment in attachments() {
        let bench = Bench::new(attachment, Family::V4);
        bench.expect(&V4[0], &V4[1], Expected { protocol: 17, detail: Some(80), source_port: Some(0x0611) });
        let packet = v4(17, 0, 0, &PORTS);
        bench.run(&packet, 5);
        assert_eq!(bench.counted(1), CounterRecord { packets: 5, bytes: 5 * 28 });
        assert_eq!(bench.counted(2), CounterRecord::default());
        assert!(!bench.passes(&v4(17, 0, 0, &[0; 4])), "a port that is not expected leads nowhere");
        assert_eq!(bench.counted(0), CounterRecord { packets: 1, bytes: 24 });
    }
}

#[test]
fn a_group_that_is_closed_or_not_there_denies() {
    for attachment in attachments() {
        for (hook, family) in [(Hook::Output, Family::V4), (Hook::Input, Family::V4), (Hook::Output, Family::V6)] {
            let bench = Bench::at_hook(attachment, hook, family, HookSettings::default());
            let expected = Expected { protocol: 17, detail: Some(80), source_port: Some(0x0611) };
            let (good, bad, ends) = match family {
                Family::V4 => (v4(17, 0, 0, &PORTS), v4(17, 0, 0, &[0; 8]), V4.map(|end| end.to_vec())),
                Family::V6 => (v6(17, &PORTS), v6(17, &[0; 8]), V6.map(|end| end.to_vec())),
            };
            // At INPUT, the own end is the destination.
            let [own, peer] = if hook == Hook::Output {
                ends
            } else {
                let [source, destination] = ends;
                [destination, source]
            };
            bench.expect(&own, &peer, expected);
            assert!(bench.passes(&good) && !bench.passes(&bad));
            bench.write(MapKind::Groups, 3, &GroupRoots::CLOSED.to_bytes());
            assert!(!bench.passes(&good), "a group that is closed");
            bench.expect(&own, &peer, expected);
            let endpoint = EndpointRecord {
                kind: EndpointKind::Host,
                evaluated: 0b11,
                groups: [64; 8],
                ..EndpointRecord::default()
            };
            bench.write(MapKind::Endpoints, 1, &endpoint.to_bytes());
            assert!(!bench.passes(&good), "a group that is not there");
        }
    }
}

#[test]
#[ignore = "prints figures that only an optimized build on a quiet machine has; other tests assert the decisions"]
fn nanoseconds_of_a_hook() {
    let expected = Expected { protocol: 17, detail: Some(80), source_port: Some(0x0611) };
    let best = |bench: &Bench, packet: &[u8]| {
        let runs = (0..9).map(|_| bench.run(packet, 1_000_000).nanoseconds);
        runs.min().unwrap()
    };
    let all = attachments().into_iter().flat_map(|attachment| Family::ALL.map(|family| (attachment, family)));
    for (attachment, family) in all {
        let begin = std::time::Instant::now();
        let bench = Bench::new(attachment, family);
        println!("{attachment:?} {family:?}: loaded in {:?}", begin.elapsed());
        let (packet, [source, destination]) = match family {
            Family::V4 => (v4(17, 0, 0, &PORTS), [&V4[0][..], &V4[1][..]]),
            Family::V6 => (v6(17, &PORTS), [&V6[0][..], &V6[1][..]]),
        };
        bench.expect(source, destination, expected);
        println!("  allowed by a host endpoint, counted: {} ns", best(&bench, &packet));
        bench.set_logs(true);
        let logged = (0..500).map(|_| {
            let run = bench.run(&packet, 1000).nanoseconds;
            assert_eq!(bench.logged().len(), 1000);
            run
        });
        println!("  the same, and logged: {} ns", logged.min().unwrap());
        println!("  the same, and there is no room in the log: {} ns", best(&bench, &packet));
        bench.set_logs(false);
        let host = EndpointRecord { kind: EndpointKind::Host, ..EndpointRecord::default() };
        bench.write(MapKind::Endpoints, 1, &host.to_bytes());
        println!("  not asked about: {} ns", best(&bench, &packet));
        bench.write(MapKind::Endpoints, 1, &EndpointRecord { kind: EndpointKind::Workload, ..host }.to_bytes());
        println!("  to a workload: {} ns", best(&bench, &packet));
        for hook in Hook::ALL {
            let bench = Bench::of_known(attachment, hook, family, &HookSettings::default());
            let roots = RootsRecord { is_in_force: true, ..RootsRecord::default() };
            bench.write(MapKind::Current, 0, &2_u64.to_ne_bytes());
            for (case, bytes) in [("some", roots.to_bytes()), ("no", roots.to_bytes_without_untracked())] {
                bench.write(MapKind::Roots, 2, &bytes);
                println!("  known, {hook:?}, {case} untracked policy: {} ns", best(&bench, &packet));
            }
        }
    }
    let accept = [[0xb7, 0, 0, 0, 1, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]].concat();
    let program = Program::load_netfilter("accept", LICENSE, &accept).unwrap();
    let (hook, family) = (Hook::Output, Family::V4);
    let bench = Bench { maps: Maps::new(), program, attachment: Attachment::Link, hook, family };
    println!("a program that accepts: {} ns", best(&bench, &v4(17, 0, 0, &PORTS)));
}
