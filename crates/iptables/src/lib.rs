//! iptables chains, rendering, rule hashes, and a table reconciler as a plan/result state machine.
#![forbid(unsafe_code)]
