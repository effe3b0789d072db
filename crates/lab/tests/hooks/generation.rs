//! Maps, programs and links of a node.

use tortie_bpf::{ArrayMap, HashMap, NetfilterLink, NetfilterPosition, PerCpuArrayMap, Program, RingBuffer};
use tortie_ebpf::hooks::{Attachment, Hook, HookSettings, KernelLayout, LICENSE, program};
use tortie_ebpf::layout::{CounterRecord, LOG_BYTES, LearnedKey, MapKind, ROOTS};
use tortie_ebpf::{Btf, DecisionId, MapSizes};
use tortie_lab::pods::Lab;
use tortie_model::Family;

/// Number of values per map.
const VALUES: u32 = 2048;
const SIZES: MapSizes = MapSizes { blocks: VALUES, groups: VALUES, endpoints: VALUES, counters: VALUES, exact: VALUES };

/// The programs that filter a node's packets, with their maps and links.
pub(crate) struct Generation {
    arrays: Vec<(MapKind, ArrayMap)>,
    counters: PerCpuArrayMap,
    pub(crate) programs: Vec<((Hook, Family), Program)>,
    pub(crate) links: Vec<NetfilterLink>,
}

fn kernel() -> KernelLayout {
    let mut btf = Btf::parse(std::fs::read("/sys/kernel/btf/vmlinux").unwrap()).unwrap();
    if let Ok(module) = std::fs::read("/sys/kernel/btf/nf_conntrack") {
        btf.add_module(module).unwrap();
    }
    KernelLayout::read(Attachment::Link, &btf).unwrap()
}

/// Returns hook, family and priority of a program; `turn` chooses one of the hook's two priorities.
pub(crate) fn position((hook, family): (Hook, Family), turn: usize) -> NetfilterPosition {
    let family = match family {
        Family::V4 => 2,
        Family::V6 => 10,
    };
    NetfilterPosition { family, hook: hook.number(), priority: hook.priorities()[turn], defragment: true }
}

impl Generation {
    /// Loads the programs without attaching them.
    pub(crate) fn load(settings: &HookSettings) -> Self {
        let size = |kind: MapKind| u32::try_from(kind.value_size()).unwrap();
        let kinds = MapKind::ALL.into_iter().filter(|kind| !kind.is_per_cpu() && !kind.is_ring() && !kind.is_hash());
        let create = |kind: MapKind| {
            let create = if kind.is_joined() { ArrayMap::create_joined } else { ArrayMap::create };
            let values = match kind {
                MapKind::Current => 1,
                MapKind::Roots => ROOTS,
                _ => VALUES,
            };
            create(kind.name(), size(kind), values).unwrap()
        };
        let arrays: Vec<_> = kinds.map(|kind| (kind, create(kind))).collect();
        let counters = PerCpuArrayMap::create("counters", size(MapKind::Counters), 2048).unwrap();
        let log = RingBuffer::create("log", LOG_BYTES).unwrap();
        let key = u32::try_from(LearnedKey::SIZE).unwrap();
        let learned = HashMap::create("learned", key, size(MapKind::Learned), VALUES).unwrap();
        let kernel = kernel();
        let both = Hook::ALL.into_iter().flat_map(|hook| Family::ALL.map(|family| (hook, family)));
        let programs = both.map(|(hook, family)| {
            let bytes = program(hook, family, &kernel, settings, &SIZES).unwrap().bytes(|map| {
                match arrays.iter().find(|(kind, _)| kind.id() == map) {
                    Some((_, array)) => array.descriptor(),
                    None if map == MapKind::Log.id() => log.descriptor(),
                    None if map == MapKind::Learned.id() => learned.descriptor(),
                    None => counters.descriptor(),
                }
            });
            ((hook, family), Program::load_netfilter(hook.name(), LICENSE, &bytes).unwrap())
        });
        let programs = programs.collect();
        Self { arrays, counters, programs, links: Vec::new() }
    }

    /// Attaches the programs to the node with the first or the second priority.
    pub(crate) fn attach(&mut self, lab: &Lab, turn: usize) -> std::io::Result<()> {
        let attached = lab.node().run(|| {
            let links = self.programs.iter().map(|(at, program)| NetfilterLink::attach(program, position(*at, turn)));
            links.collect::<std::io::Result<Vec<_>>>()
        });
        self.links = attached.unwrap()?;
        Ok(())
    }

    pub(crate) fn write(&self, kind: MapKind, index: u32, value: &[u8]) {
        let (_, array) = self.arrays.iter().find(|(of, _)| *of == kind).unwrap();
        array.write(index, value).unwrap();
    }

    pub(crate) fn counted(&self, decision: DecisionId) -> CounterRecord {
        CounterRecord::sum(&self.counters.read(decision.number()).unwrap())
    }
}

/// Keeps conntrack enabled, which nothing else does in a new namespace.
pub(crate) fn track(lab: &Lab) {
    lab.node()
        .shell(
            "nft -f - <<END
             table inet track {
                 chain prerouting { type filter hook prerouting priority 0; ct state new counter; }
                 chain output { type filter hook output priority 0; ct state new counter; }
             }
END",
        )
        .unwrap();
}
