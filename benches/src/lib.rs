//! Scenarios of Felix's calculation graph benchmarks for the whole engine, and worst cases of a
//! cluster.
//!
//! [`scenarios`] returns the inputs of the benchmarks of `felix/calc/calc_graph_bench_test.go`,
//! built exactly as there, with the expected counts and Felix's figures, and some more.
//! [`worst_cases`] returns inputs that are most expensive for an engine. [`floor()`] does the
//! unavoidable work for the same inputs. The benchmarks are `benches/engine.rs` and
//! `benches/worst.rs` (time) and `benches/memory.rs` (heap and allocations); `README.md` has the
//! numbers.
#![forbid(unsafe_code)]

mod arguments;
mod counts;
mod customers;
mod floor;
mod list;
mod routes;
mod scenario;
mod snapshot;
mod timing;
mod worst;

pub use arguments::Arguments;
pub use counts::Counts;
pub use customers::customers;
pub use floor::{Floor, Stored, floor};
pub use list::{Named, scenarios, small_scenarios, small_worst_cases, worst_cases};
pub use routes::routes;
pub use scenario::{Bounds, Effort, Input, LATER_PARTS, Observer, Original, Outcome, Scenario, run};
pub use snapshot::{Snapshot, snapshot};
pub use timing::{Stopwatch, Timing};

use tortie_model::Cidr;

pub(crate) const LOCAL: &str = "localhost";
pub(crate) const REMOTE: &str = "remotehost";

/// Returns the `n`-th address after 10.0.0.0 as Felix's generator does: it writes the four bytes to
/// the wrong end of a 16-byte address, so that `10.0.0.1` becomes `a00:1::ffff:0:0`.
pub(crate) fn address(n: u32) -> Cidr {
    let bits = u128::from(0x0a00_0000 + n) << 96 | 0xffff << 32;
    Cidr::host(std::net::Ipv6Addr::from_bits(bits).into())
}
