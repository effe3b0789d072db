//! Scenario generators shared by the benchmarks.
