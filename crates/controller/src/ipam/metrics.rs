//! Metrics of allocated and leaked addresses, with the names of kube-controllers.

use std::collections::BTreeMap;

use super::collector::Collector;
use super::pools::{NO_POOL, Pools, size};
use crate::ipam::Settled;

/// Samples of one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricFamily {
    /// Its name.
    pub name: &'static str,
    /// Its help text.
    pub help: &'static str,
    /// Its type.
    pub kind: MetricKind,
    /// The values with their labels.
    pub samples: Vec<(Vec<(&'static str, String)>, f64)>,
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The value can rise and fall.
    Gauge,
    /// The value only grows.
    Counter,
}

/// `node` label of addresses whose allocation names no node.
const UNKNOWN_NODE: &str = "unknown_node";
/// `node` label of blocks without an affinity.
const NO_AFFINITY: &str = "no_affinity";

/// Number of released addresses by pool and node.
#[derive(Debug, Default)]
pub(crate) struct Reclaimed(BTreeMap<String, BTreeMap<String, usize>>);

impl Reclaimed {
    /// Counts released addresses. The counts of a node without blocks are removed.
    pub(crate) fn count(&mut self, settled: &Settled, pools: &Pools) {
        for (cidr, node) in &settled.released {
            let node = if node.is_empty() { UNKNOWN_NODE } else { node };
            let nodes = self.0.entry(pools.of_block(*cidr).to_owned()).or_default();
            *nodes.entry(node.to_owned()).or_default() += 1;
        }
        if let Some(node) = &settled.cleared {
            for nodes in self.0.values_mut() {
                nodes.remove(node);
            }
        }
    }

    /// Removes the counts of deleted pools.
    pub(crate) fn retain(&mut self, pools: &Pools) {
        self.0.retain(|name, _| name == NO_POOL || pools.all().any(|(pool, _)| pool == name));
    }
}

/// Returns all address metrics, without samples.
#[must_use]
pub fn metric_families() -> Vec<MetricFamily> {
    families(&Collector::default(), &Pools::default(), &[], &Reclaimed::default())
}

/// Numbers by pool and node.
type Table<'n> = BTreeMap<(&'n str, &'n str), usize>;

/// Addresses and blocks, counted by pool and node.
struct Tables<'n> {
    in_use: Table<'n>,
    borrowed: Table<'n>,
    candidates: Table<'n>,
    blocks: Table<'n>,
}

impl<'n> Tables<'n> {
    fn count(collector: &'n Collector, pools: &'n Pools, nodes: &[&'n str]) -> Self {
        let zeros: Table<'_> =
            pools.all().flat_map(|(pool, _)| nodes.iter().map(move |node| ((pool, *node), 0))).collect();
        let mut tables =
            Self { in_use: zeros.clone(), borrowed: zeros.clone(), candidates: zeros, blocks: Table::new() };
        for (cidr, block) in collector.blocks() {
            let pool = pools.of_block(cidr);
            let affine = block.node.as_deref().unwrap_or(NO_AFFINITY);
            *tables.blocks.entry((pool, affine)).or_default() += 1;
            for (ordinal, allocation) in &block.allocations {
                let node = if allocation.node.is_empty() { UNKNOWN_NODE } else { &*allocation.node };
                *tables.in_use.entry((pool, node)).or_default() += 1;
                if !allocation.node.is_empty() && block.node.as_deref() != Some(node) {
                    *tables.borrowed.entry((pool, node)).or_default() += 1;
                }
                if collector.is_suspect((cidr, *ordinal)) {
                    *tables.candidates.entry((pool, node)).or_default() += 1;
                }
            }
        }
        tables
    }
}

/// Returns the sums over all pools.
fn sums(table: &Table<'_>) -> Samples {
    let mut sums: BTreeMap<&str, usize> = BTreeMap::new();
    for ((_, node), count) in table.iter().filter(|(_, count)| **count > 0) {
        *sums.entry(node).or_default() += count;
    }
    by_node(sums)
}

/// Returns all address metrics. A node without addresses in a pool has a sample of zero.
pub(crate) fn families<'n>(
    collector: &'n Collector,
    pools: &'n Pools,
    nodes: &[&'n str],
    reclaimed: &Reclaimed,
) -> Vec<MetricFamily> {
    let Tables { in_use, borrowed, candidates, blocks } = Tables::count(collector, pools, nodes);
    let (borrowed_by_node, blocks_by_node) = (sums(&borrowed), sums(&blocks));
    let reclaimed = reclaimed.0.iter();
    let reclaimed =
        reclaimed.flat_map(|(pool, nodes)| nodes.iter().map(move |(node, count)| ((&**pool, &**node), *count)));
    let of_pools = |value: &dyn Fn(tortie_net::Cidr) -> f64| {
        pools.all().map(|(pool, cidr)| (vec![("ippool", pool.to_owned())], value(cidr))).collect()
    };
    let gauge = |name, help, samples| MetricFamily { name, help, kind: MetricKind::Gauge, samples };
    vec![
        gauge("ipam_allocations_in_use", "Number of allocated addresses, by pool and node.", by_pool(in_use)),
        gauge(
            "ipam_allocations_borrowed",
            "Number of addresses allocated from IPAM blocks of other nodes, by pool and node.",
            by_pool(borrowed),
        ),
        gauge("ipam_blocks", "Number of IPAM blocks, by pool and affine node.", by_pool(blocks)),
        gauge(
            "ipam_allocations_gc_candidates",
            "Number of possibly leaked addresses, by pool and node.",
            by_pool(candidates),
        ),
        MetricFamily {
            name: "ipam_allocations_gc_reclamations",
            help: "Number of released leaked addresses, by pool and node.",
            kind: MetricKind::Counter,
            samples: by_pool(reclaimed.collect()),
        },
        gauge("ipam_ippool_size", "Number of addresses of a pool.", of_pools(&size)),
        gauge(
            "ipam_ippool_reserved",
            "Number of reserved addresses of a pool.",
            of_pools(&|cidr| pools.reserved(cidr)),
        ),
        gauge(
            "ipam_allocations_per_node",
            "Number of allocated addresses, by node.",
            by_node(collector.allocated_by_node().collect()),
        ),
        gauge(
            "ipam_allocations_borrowed_per_node",
            "Number of addresses allocated from IPAM blocks of other nodes, by node.",
            borrowed_by_node,
        ),
        gauge("ipam_blocks_per_node", "Number of IPAM blocks, by affine node.", blocks_by_node),
    ]
}

type Samples = Vec<(Vec<(&'static str, String)>, f64)>;

fn by_pool(table: Table<'_>) -> Samples {
    let labels = |pool: &str, node: &str| vec![("ippool", pool.to_owned()), ("node", node.to_owned())];
    table.into_iter().map(|((pool, node), count)| (labels(pool, node), number(count))).collect()
}

fn by_node(counts: BTreeMap<&str, usize>) -> Samples {
    counts.into_iter().map(|(node, count)| (vec![("node", node.to_owned())], number(count))).collect()
}

fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}
