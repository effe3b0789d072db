//! Garbage collection of leaked addresses (`kube-controllers/pkg/controllers/node/ipam.go`).

mod affinities;
mod block;
mod collector;
mod index;
mod leak;
mod metrics;
mod pods;
mod pools;
mod release;
mod stepwise;
mod transaction;

pub(crate) use block::{
    Allocated, Block, affinity_at, block_at, is_deleted, is_leaving, is_windows_handle, sane_handle,
};
pub(crate) use collector::{BlockDecision, Collector, NodeState, Touched, View};
pub(crate) use leak::{Counts, PodName, Settled};
pub use metrics::{MetricFamily, MetricKind, metric_families};
pub(crate) use metrics::{Reclaimed, families};
pub(crate) use pods::{PodAddresses, PodFacts, assigned_addresses};
pub(crate) use pools::{NO_POOL, Pools, size};
pub(crate) use release::ReleaseTask;
