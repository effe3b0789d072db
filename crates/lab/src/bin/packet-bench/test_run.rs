//! Cost of the eBPF programs alone, by the kernel's test runs.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use tortie_bpf::{ArrayMap, HashMap, NetfilterLink, NetfilterPosition, PerCpuArrayMap, Program, RingBuffer};
use tortie_ebpf::classes::evaluate::{EndpointToHost, Settings};
use tortie_ebpf::hooks::{Attachment, Hook, HookSettings, KernelLayout, LICENSE, program};
use tortie_ebpf::layout::{CounterRecord, LOG_BYTES, LearnedKey, MapKind, ROOTS};
use tortie_ebpf::{Btf, Interface, MapSizes, Node, NodeSettings, Write};
use tortie_lab::netns::Namespace;
use tortie_model::{Family, with_causes};

use crate::Result;
use crate::policy::{Policy, STRANGER};
use crate::straight_line::StraightLine;
use crate::table::TestRunRow;
use crate::updates;

/// Runs of a packet in one measurement with warm caches: short enough that some measurements are
/// undisturbed while other processes use the processor.
const WARM: u32 = 20_000;
/// Measurements per repetition.
const MEASUREMENTS: u32 = 10;
/// Runs with cold caches. In a build without optimizations, evicting the caches takes longer than
/// the measurement, so that there are few.
const COLD: usize = if cfg!(debug_assertions) { 10 } else { 200 };
/// Bytes; more than the processor's caches hold.
const CACHES: usize = 64 << 20;
/// Interface index of the loopback interface, on which test runs happen.
const LOOPBACK: u32 = 1;
const NF_ACCEPT: u32 = 1;
/// A program that accepts: `r0 = 1; exit`.
const ACCEPTS: [u8; 16] = [0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
/// Source address of the packets.
pub(crate) const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 1);

/// Endpoints that filter a packet. In test runs all interfaces are the loopback interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketPath {
    /// The host endpoint from which a packet of the host leaves.
    Output,
    /// The workload that sends a packet to the host.
    Input,
    /// The workload that sends a packet and the receiving workload, which accepts all ingress.
    Forward,
}

impl PacketPath {
    pub(crate) const ALL: [Self; 3] = [Self::Output, Self::Input, Self::Forward];

    const fn hook(self) -> Hook {
        match self {
            Self::Output => Hook::Output,
            Self::Input => Hook::Input,
            Self::Forward => Hook::Forward,
        }
    }

    /// Beginnings of the names of workloads' interfaces.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Output => "cali",
            Self::Input | Self::Forward => "lo",
        }
    }
}

impl fmt::Display for PacketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Output => "from a host endpoint",
            Self::Input => "from a workload to the host",
            Self::Forward => "from a workload to another",
        })
    }
}

/// Measures a policy of an endpoint at the loopback interface.
pub(crate) fn measure(policy: Policy, family: Family, path: PacketPath, times: u32) -> Result<TestRunRow> {
    let settings = NodeSettings { workload_prefixes: vec![path.prefix().into()], ..NodeSettings::default() };
    let mut node = Node::new(settings);
    let begin = Instant::now();
    for update in updates::of(policy, family, path) {
        node.on_update(&update)?;
    }
    node.on_interface(Interface {
        name: "lo".parse().expect("an interface name"),
        index: LOOPBACK,
        addresses: Vec::new(),
    });
    let writes: Vec<Write> = node.flush().writes().collect();
    let compiled = begin.elapsed();
    node.reclaim();
    if let Some(problem) = node.flush().problems().first() {
        return Err(with_causes(problem).into());
    }

    let begin = Instant::now();
    let maps = Maps::new(&node)?;
    maps.write(&writes)?;
    let filled = begin.elapsed();
    let begin = Instant::now();
    let program = maps.load(family, path)?;
    let loaded = begin.elapsed();
    let attached = attach(&program, position(family, path), times)?;

    let [entry, first, last, none] = costs(&program, (policy, family, path), times)?;
    if maps.counted()? == 0 {
        return Err("no packet was counted".into());
    }

    let edit = edit(&mut node, &maps, (policy, family), times)?;
    // Instructions cost the same whatever the family.
    let straight_line = (family == Family::V4 && path == PacketPath::Output)
        .then(|| StraightLine::measure(policy, WARM, times.saturating_mul(MEASUREMENTS)))
        .transpose()?;
    let kernel_bytes = maps.kernel_bytes()?;
    let bytes = u64::from(node.sizes().get(MapKind::Blocks)) * u64::try_from(MapKind::Blocks.value_size())?;
    Ok(TestRunRow {
        policy,
        family,
        path,
        entry,
        first,
        last,
        none,
        compiled,
        filled,
        loaded,
        attached,
        edit,
        bytes,
        kernel_bytes,
        straight_line,
    })
}

/// Returns the nanoseconds, with warm and with cold caches, of an empty program, and of this one
/// for a packet that the first rule allows, one that the last rule allows, and one that no rule
/// allows.
fn costs(program: &Program, case: (Policy, Family, PacketPath), times: u32) -> Result<[[f64; 2]; 4]> {
    let (_, family, path) = case;
    let accepts = Program::load_netfilter("accepts", LICENSE, &ACCEPTS)?;
    let run = |program: &Program, packet: &[u8], runs| {
        program.test_run_netfilter(position(family, path), packet, runs).map(|run| (run.result, run.nanoseconds))
    };
    let packets = packets(case);
    for TestPacket { packet, address, port, accepted } in &packets {
        let (result, _) = run(program, packet, 1)?;
        if (result == NF_ACCEPT) != *accepted {
            return Err(format!("wrong verdict for {address} port {port}").into());
        }
    }
    let mut caches = ColdCaches::new();
    let [first, last, none] = packets.map(|packet| packet.packet);
    let all = [(&accepts, &first), (program, &first), (program, &last), (program, &none)];
    // In turns, so that all programs run under the same conditions.
    let mut warm = [f64::INFINITY; 4];
    for _ in 0..times.saturating_mul(MEASUREMENTS) {
        for (best, (program, packet)) in warm.iter_mut().zip(all) {
            *best = best.min(f64::from(run(program, packet, WARM)?.1));
        }
    }
    let mut cold_costs = [0.0; 4];
    for (cost, (program, packet)) in cold_costs.iter_mut().zip(all) {
        *cost = caches.median(|| Ok(run(program, packet, 1)?.1))?;
    }
    Ok(std::array::from_fn(|of| [warm[of], cold_costs[of]]))
}

/// A packet of a test run, and whether policy allows it.
struct TestPacket {
    packet: Vec<u8>,
    address: Ipv4Addr,
    port: u16,
    accepted: bool,
}

/// Returns a packet that the first rule allows, one that the last rule allows, and one that no rule
/// allows.
fn packets((policy, family, path): (Policy, Family, PacketPath)) -> [TestPacket; 3] {
    let mapped = |address| updates::address(policy.peers, family, address);
    let cases = [(policy.admitted(0), true), (policy.admitted(policy.rules - 1), true), ((STRANGER, 9), false)];
    cases.map(|((address, port), accepted)| {
        let packet = packet(mapped(SOURCE), mapped(address), port);
        // An incoming packet has an Ethernet header.
        let protocol = if family == Family::V4 { [0x08, 0] } else { [0x86, 0xdd] };
        let frame = if path == PacketPath::Output { vec![] } else { [&[0; 12][..], &protocol].concat() };
        TestPacket { packet: [frame, packet].concat(), address, port, accepted }
    })
}

/// Returns the least time until another port in the last rule is in force.
fn edit(node: &mut Node, maps: &Maps, (policy, family): (Policy, Family), times: u32) -> Result<Duration> {
    let mut least = Duration::MAX;
    for time in 0..times {
        let begin = Instant::now();
        node.on_update(&updates::edited(policy, family, u16::try_from(time)?))?;
        let writes: Vec<Write> = node.flush().writes().collect();
        maps.write(&writes)?;
        least = least.min(begin.elapsed());
        node.reclaim();
    }
    Ok(least)
}

/// Returns the least times to attach the program to its hook in a network namespace, and to detach
/// it.
fn attach(program: &Program, position: NetfilterPosition, times: u32) -> Result<[Duration; 2]> {
    let namespace = Namespace::new()?;
    let mut least = [Duration::MAX; 2];
    for _ in 0..times {
        let took = namespace.run(|| -> std::io::Result<[Duration; 2]> {
            let begin = Instant::now();
            let link = NetfilterLink::attach(program, position)?;
            let attached = begin.elapsed();
            let begin = Instant::now();
            link.detach()?;
            Ok([attached, begin.elapsed()])
        })??;
        least = [least[0].min(took[0]), least[1].min(took[1])];
    }
    Ok(least)
}

const fn position(family: Family, path: PacketPath) -> NetfilterPosition {
    let family = match family {
        Family::V4 => 2,
        Family::V6 => 10,
    };
    NetfilterPosition { family, hook: path.hook().number(), priority: 0, defragment: false }
}

struct Maps {
    arrays: Vec<(MapKind, ArrayMap)>,
    counters: PerCpuArrayMap,
    learned: HashMap,
    log: RingBuffer,
}

impl Maps {
    /// Creates maps with room for the node's values and an edit.
    fn new(node: &Node) -> Result<Self> {
        let sizes = node.sizes();
        let size = |kind: MapKind| u32::try_from(kind.value_size());
        let entries = |kind| match kind {
            MapKind::Current => 1,
            MapKind::Roots => ROOTS,
            kind => sizes.get(kind).saturating_mul(2).max(64),
        };
        let mut arrays = Vec::new();
        for kind in MapKind::ALL.into_iter().filter(|kind| !kind.is_per_cpu() && !kind.is_ring() && !kind.is_hash()) {
            let create = if kind.is_joined() { ArrayMap::create_joined } else { ArrayMap::create };
            arrays.push((kind, create(kind.name(), size(kind)?, entries(kind))?));
        }
        let counters = MapKind::Counters;
        let counters = PerCpuArrayMap::create(counters.name(), size(counters)?, entries(counters))?;
        let log = RingBuffer::create(MapKind::Log.name(), LOG_BYTES)?;
        let learned = MapKind::Learned;
        let learned =
            HashMap::create(learned.name(), u32::try_from(LearnedKey::SIZE)?, size(learned)?, entries(learned))?;
        Ok(Self { arrays, counters, learned, log })
    }

    fn write(&self, writes: &[Write]) -> Result<()> {
        for Write { map, index, value } in writes {
            match self.arrays.iter().find(|(kind, _)| kind == map) {
                Some((_, array)) => array.write(*index, value)?,
                None => self.counters.clear(*index)?,
            }
        }
        Ok(())
    }

    fn load(&self, family: Family, path: PacketPath) -> Result<Program> {
        let mut btf = Btf::parse(fs::read("/sys/kernel/btf/vmlinux")?)?;
        // Conntrack may be built in or a module.
        if let Ok(module) = fs::read("/sys/kernel/btf/nf_conntrack") {
            btf.add_module(module)?;
        }
        // The packet of a test run has only an outgoing interface; it serves as the incoming
        // interface too.
        let kernel = KernelLayout::new(
            Attachment::Link,
            |structure, member| {
                let of = if (structure, member) == ("nf_hook_state", "in") { "out" } else { member };
                btf.offset(structure, of)
            },
            |name| btf.structure(name),
            |name| btf.function(name),
        )?;
        // Packets of test runs have no conntrack state.
        let settings = HookSettings {
            workload_prefixes: vec![path.prefix().to_owned()],
            policy: Settings { endpoint_to_host: EndpointToHost::Allow, ..Settings::default() },
            deny_invalid_conntrack: false,
        };
        let entries = |of: MapKind| {
            let array = self.arrays.iter().find(|(kind, _)| *kind == of);
            array.map_or(0, |(_, array)| array.info().entries)
        };
        let sizes = MapSizes {
            blocks: entries(MapKind::Blocks),
            groups: entries(MapKind::Groups),
            endpoints: entries(MapKind::Endpoints),
            exact: entries(MapKind::Exact),
            ..MapSizes::default()
        };
        let program = program(path.hook(), family, &kernel, &settings, &sizes)?;
        let bytes = program.bytes(|map| match self.arrays.iter().find(|(kind, _)| kind.id() == map) {
            Some((_, array)) => array.descriptor(),
            None if map == MapKind::Log.id() => self.log.descriptor(),
            None if map == MapKind::Learned.id() => self.learned.descriptor(),
            None => self.counters.descriptor(),
        });
        Ok(Program::load_netfilter("measured", LICENSE, &bytes)?)
    }

    /// Returns the number of packets counted for all decisions.
    fn counted(&self) -> Result<u64> {
        let all = 0..self.counters.info().entries;
        let counted = all.map(|decision| Ok(CounterRecord::sum(&self.counters.read(decision)?).packets));
        counted.sum()
    }

    /// Returns the size of all maps as the kernel reports it, including unused entries.
    fn kernel_bytes(&self) -> Result<u64> {
        let descriptors = self
            .arrays
            .iter()
            .map(|(_, array)| array.descriptor())
            .chain([self.counters.descriptor(), self.log.descriptor()]);
        let bytes = descriptors.map(|descriptor| -> Result<u64> {
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}"))?;
            let bytes = info.lines().find_map(|line| line.strip_prefix("memlock:"));
            Ok(bytes.ok_or("the kernel reports no `memlock` of a map")?.trim().parse()?)
        });
        bytes.sum()
    }
}

/// Returns a UDP packet from the IP header on.
pub(crate) fn packet(source: IpAddr, destination: IpAddr, port: u16) -> Vec<u8> {
    let mut packet = match (source, destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let begin = vec![0x60, 0, 0, 0, 0, 44, 17, 64];
            [begin, source.octets().to_vec(), destination.octets().to_vec()].concat()
        }
        (source, destination) => {
            let begin = vec![0x45, 0, 0, 64, 0, 0, 0, 0, 64, 17, 0, 0];
            let octets = |address| match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            [begin, octets(source), octets(destination)].concat()
        }
    };
    packet.extend(40_000_u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend(44_u16.to_be_bytes());
    packet.resize(packet.len() + 38, 0);
    packet
}

/// Evicts the processor's caches.
struct ColdCaches(Vec<u8>);

impl ColdCaches {
    fn new() -> Self {
        Self(vec![1; CACHES])
    }

    /// Returns the median cost of runs with cold caches.
    fn median(&mut self, mut run: impl FnMut() -> Result<u32>) -> Result<f64> {
        let mut all = Vec::new();
        for _ in 0..COLD {
            self.0.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
            std::hint::black_box(&self.0);
            all.push(f64::from(run()?));
        }
        // The median leaves out interrupts.
        all.sort_unstable_by(f64::total_cmp);
        Ok(all.get(all.len() / 2).copied().unwrap_or_default())
    }
}
