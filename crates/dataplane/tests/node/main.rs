//! The dataplane of a node against a kernel in memory.

mod bandwidth;
mod basics;
mod by_address;
mod capabilities;
mod common;
mod conntrack;
mod endpoints;
mod faults;
mod layouts;
mod link_changes;
mod log;
mod migrations;
mod nftables;
mod opening;
mod overlay;
mod peer_addresses;
mod programs;
mod proxy_neighbours;
mod random;
mod sets;
mod stopping;
mod sweeping;
mod sysctls;
mod walk;
mod whole;
mod wireguard;
