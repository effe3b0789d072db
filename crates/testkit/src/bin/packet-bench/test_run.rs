//! What programs cost by themselves, as the kernel's own test runs say.

use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use tortie_bpf::{ArrayMap, NetfilterPosition, PerCpuArrayMap, Program};
use tortie_ebpf::hooks::{Hook, HookSettings, KernelLayout, LICENSE, program};
use tortie_ebpf::layout::{CounterRecord, MapKind};
use tortie_ebpf::{Btf, Interface, Node, NodeSettings, Write};
use tortie_model::Family;

use crate::Result;
use crate::policy::{Policy, STRANGER};
use crate::straight::StraightLine;
use crate::table::TestRunRow;
use crate::updates;

/// How often a packet is judged for one measurement with warm caches.
const WARM: u32 = 200_000;
/// How often with cold ones.
const COLD: usize = 200;
/// More than caches hold.
const CACHES: usize = 64 << 20;
/// The index of the loopback interface, where test runs are.
const LOOPBACK: u32 = 1;
const NF_ACCEPT: u32 = 1;

/// Measures a policy for what leaves by the loopback interface.
pub(crate) fn measure(policy: Policy, times: u32) -> Result<TestRunRow> {
    let mut node = Node::new(NodeSettings::default());
    let begin = Instant::now();
    for update in updates::of(policy) {
        node.on_update(&update)?;
    }
    node.on_interface(Interface { name: "lo".into(), index: LOOPBACK, addresses: Vec::new() });
    let writes: Vec<Write> = node.flush().writes().collect();
    let compiled = begin.elapsed();
    node.reclaim();
    if let Some(problem) = node.flush().problems().first() {
        return Err(problem.to_string().into());
    }

    let begin = Instant::now();
    let maps = Maps::new(&node)?;
    maps.write(&writes)?;
    let filled = begin.elapsed();
    let begin = Instant::now();
    let program = maps.load()?;
    let loaded = begin.elapsed();

    let mut cold = ColdCaches::new();
    let mut of = |(address, port): (Ipv4Addr, u16), accepted: bool| -> Result<[f64; 2]> {
        let packet = packet(address, port);
        let run = |runs| program.test_run_netfilter(POSITION, &packet, runs);
        if (run(1)?.result == NF_ACCEPT) != accepted {
            return Err(format!("policy does not do what it should about {address} port {port}").into());
        }
        let warm = (0..times).map(|_| Ok(f64::from(run(WARM)?.nanoseconds)));
        let warm = warm.collect::<Result<Vec<f64>>>()?.into_iter().fold(f64::INFINITY, f64::min);
        let cold = cold.mean(|| Ok(run(1)?.nanoseconds))?;
        Ok([warm, cold])
    };
    let first = of(policy.admitted(0), true)?;
    let last = of(policy.admitted(policy.rules - 1), true)?;
    let none = of((STRANGER, 9), false)?;
    if maps.counted()? == 0 {
        return Err("no packet was counted".into());
    }

    let edit = edit(&mut node, &maps, policy, times)?;
    let straight = StraightLine::measure(policy, WARM, times)?;
    let bytes = u64::from(node.sizes().get(MapKind::Blocks)) * u64::try_from(MapKind::Blocks.value_size())?;
    Ok(TestRunRow { policy, first, last, none, compiled, filled, loaded, edit, bytes, straight })
}

/// How long it takes until another port is in force in the last rule.
fn edit(node: &mut Node, maps: &Maps, policy: Policy, times: u32) -> Result<Duration> {
    let mut least = Duration::MAX;
    for time in 0..times {
        let begin = Instant::now();
        node.on_update(&updates::edited(policy, u16::try_from(time)?))?;
        let writes: Vec<Write> = node.flush().writes().collect();
        maps.write(&writes)?;
        least = least.min(begin.elapsed());
        node.reclaim();
    }
    Ok(least)
}

const POSITION: NetfilterPosition =
    NetfilterPosition { family: 2, hook: Hook::Output.number(), priority: 0, defragment: false };

struct Maps {
    arrays: Vec<(MapKind, ArrayMap)>,
    counters: PerCpuArrayMap,
}

impl Maps {
    /// With room for what there is, and an edit.
    fn new(node: &Node) -> Result<Self> {
        let sizes = node.sizes();
        let size = |kind: MapKind| u32::try_from(kind.value_size());
        let entries = |kind| sizes.get(kind).saturating_mul(2).max(64);
        let mut arrays = Vec::new();
        for kind in MapKind::ALL.into_iter().filter(|kind| !kind.is_per_cpu()) {
            arrays.push((kind, ArrayMap::create(kind.name(), size(kind)?, entries(kind))?));
        }
        let counters = MapKind::Counters;
        let counters = PerCpuArrayMap::create(counters.name(), size(counters)?, entries(counters))?;
        Ok(Self { arrays, counters })
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

    fn load(&self) -> Result<Program> {
        let mut btf = Btf::parse(fs::read("/sys/kernel/btf/vmlinux")?)?;
        // Part of the kernel, or a module.
        if let Ok(module) = fs::read("/sys/kernel/btf/nf_conntrack") {
            btf.add_module(module)?;
        }
        let kernel = KernelLayout::read(&btf)?;
        // Test runs are unknown to connection tracking.
        let settings = HookSettings { deny_invalid_conntrack: false, ..HookSettings::default() };
        let program = program(Hook::Output, Family::V4, &kernel, &settings)?;
        let bytes = program.bytes(|map| {
            let array = self.arrays.iter().find(|(kind, _)| kind.id() == map);
            array.map_or(self.counters.descriptor(), |(_, array)| array.descriptor())
        });
        Ok(Program::load_netfilter("output", LICENSE, &bytes)?)
    }

    /// How many packets have been counted for any decision.
    fn counted(&self) -> Result<u64> {
        let all = 0..self.counters.info().entries;
        let counted = all.map(|decision| Ok(CounterRecord::sum(&self.counters.read(decision)?).packets));
        counted.sum()
    }
}

/// UDP from the host.
pub(crate) fn packet(destination: Ipv4Addr, port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 64, 0, 0, 0, 0, 64, 17, 0, 0, 10, 64, 0, 1];
    packet.extend(destination.octets());
    packet.extend(40_000_u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend(44_u16.to_be_bytes());
    packet.resize(64, 0);
    packet
}

/// Fills the processor's caches with something else.
struct ColdCaches(Vec<u8>);

impl ColdCaches {
    fn new() -> Self {
        Self(vec![1; CACHES])
    }

    /// Of some runs, each with cold caches.
    fn mean(&mut self, mut run: impl FnMut() -> Result<u32>) -> Result<f64> {
        let mut all = Vec::new();
        for _ in 0..COLD {
            self.0.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
            std::hint::black_box(&self.0);
            all.push(f64::from(run()?));
        }
        // Interrupts are not what is measured.
        all.sort_unstable_by(f64::total_cmp);
        Ok(all.get(all.len() / 2).copied().unwrap_or_default())
    }
}
