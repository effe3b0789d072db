#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod calculation;
mod changes;
mod problem;
mod state;

pub use calculation::Node;
pub use changes::{Change, Changes};
pub use problem::ClusterProblem;
pub use state::NodeState;
#[cfg(feature = "node")]
pub use tortie_node::{Agent, AgentOptions};

#[cfg(feature = "analysis")]
pub use tortie_analysis::{map, plan, trace};
#[cfg(feature = "bpf")]
pub use tortie_bpf as bpf;
pub use tortie_calc as calc;
#[cfg(feature = "classes")]
pub use tortie_classes as classes;
#[cfg(feature = "config")]
pub use tortie_config as config;
#[cfg(feature = "controller")]
pub use tortie_controller as controller;
pub use tortie_dataplane as dataplane;
pub use tortie_datastore as datastore;
pub use tortie_datastore::store;
#[cfg(feature = "ebpf")]
pub use tortie_ebpf as ebpf;
#[cfg(feature = "evaluate")]
pub use tortie_evaluate as evaluate;
#[cfg(feature = "fanout")]
pub use tortie_fanout as fanout;
#[cfg(feature = "flows")]
pub use tortie_flows as flows;
pub use tortie_ipsets as ipsets;
pub use tortie_iptables as iptables;
pub use tortie_labelindex as labelindex;
#[cfg(feature = "linux")]
pub use tortie_linux as linux;
pub use tortie_model as model;
pub use tortie_net as net;
pub use tortie_netfilter as netfilter;
pub use tortie_netfilter::delta;
pub use tortie_nftables as nftables;
#[cfg(feature = "node")]
pub use tortie_node as node;
pub use tortie_parameters as parameters;
#[cfg(feature = "protocol")]
pub use tortie_protocol as protocol;
pub use tortie_resources as resources;
pub use tortie_revisions as revisions;
pub use tortie_rules as rules;
pub use tortie_selector as selector;
#[cfg(feature = "suggest")]
pub use tortie_suggest as suggest;
