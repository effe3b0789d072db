//! Policies, profiles, endpoints, dispatch, static and NAT rules rendered as iptables chains.
#![forbid(unsafe_code)]
