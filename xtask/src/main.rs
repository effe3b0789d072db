//! Automation of the workspace: `cargo xtask help`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "automation runs programs and reads files")]

#[cfg(feature = "api")]
mod api;
#[cfg(feature = "api")]
mod api_errors;
#[cfg(feature = "codegen")]
mod codegen;
mod commands;
#[cfg(feature = "tidy")]
mod cycles;
mod deny;
mod features;
mod fuzz;
mod metadata;
mod needs;
#[cfg(feature = "tidy")]
mod packages;
mod programs;
#[cfg(feature = "tidy")]
mod prose;
mod publish;
mod report;
mod samples;
#[cfg(feature = "tidy")]
mod shape;
mod site;
#[cfg(feature = "tidy")]
mod tidy;
mod tools;
mod trial;
#[cfg(feature = "tidy")]
mod unused;

use xtask::shell;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  demo [ARGS]         build a node of network namespaces on this machine, enforce examples/demo, show the effect; --help
                      tells what can be chosen
  test [ARGS]         all tests, and a part of the conformance cases and of the faults; each commit has another part, so that ten in a
                      row have run all; --all runs all at once, for hours; other ARGS go to cargo test, and leave it at that
  conformance [ARGS]  all conformance cases; --help tells what can be chosen
  faults [ARGS]       faults that happen to the agent while packets are sent; --help tells what can be chosen
  prepare             install what is missing for building and testing
  codegen             Rust from the protocol files, to be committed
  api [--check]       what is public of each library, to be committed; or only whether that is up to date
  parameters          the table of Felix's parameters in docs/parameters.md, to be committed
  manual [DIR]        manual pages of all commands, and what bash, zsh and fish complete them by, into DIR (target/manual), laid out as
                      below /usr/share
  package [--out DIR] [--default | --full]
                      what is given away, into DIR (target/packages): the agent without its symbols and these beside it, a Debian
                      package, and an image in the OCI's layout, with all features (--full); and the agent with its default
                      features (--default); says how large they are, and fails if that is more than is allowed
  try-package FILE.deb
                      installs a Debian package on a machine that systemd runs, a container with a network of its own, and has it
                      enforce policy by each back end, fail, be restarted and be removed; as root, and with Debian's mirror in reach
  try-kernel DIR -- COMMAND…
                      a command of the checkout as root under the kernel of an unpacked Debian package, in a virtual machine with the
                      files of this one, of which nothing is written; --help tells where kernels are from, and what can be chosen
  site [--out DIR] [--agent PROGRAM]
                      the documentation as a site, into DIR (target/site): docs/book, other documents, and a reference made from the
                      program; fails where a link leads nowhere
  tidy [--list [RULE]]
                      check dependencies between crates, sizes and documents; or only list the places that break a rule of the
                      language, or the number of places of each rule
  deny                what we depend on, against deny.toml: licences, duplicates, sources, who may use what
  features            whether each crate compiles with each of its features alone
  publish-check [--oldest]
                      whether the packages that would be published compile from what is in them; --oldest: with the oldest
                      compiler that must work, which is installed
  oldest [--rotate]   whether each crate alone, with its default features, compiles with that compiler, without a warning;
                      --rotate: a fifth of the crates, another for each commit
  fuzz [--minutes N] [TARGET…]
                      fuzzing guided by coverage, of all targets if none is named, N minutes (10) in total; what reaches
                      different code becomes the corpus in fuzz/corpus
  fuzz-smoke [SECS]   every fuzz target for a few seconds
  bench-smoke         every benchmark once, small
  bench-report [--runs N]
                      the benchmarks of the whole engine, each run N times (15; the worst cases 5), into the tables of
                      benches/README.md
  cost-bench [NAME…]  cost of one object of 1 MB, of each kind and each field that can grow, or of those whose name contains
                      NAME; fails if one takes more than 1 s or 100 MiB
  fanout-bench [ARGS] 1,000 clients of `tortie fanout`, 100,000 endpoints, 500 updates a second; or as ARGS say:
                      --clients N, --endpoints N, --rate N, --seconds N
  scale [ARGS]        5,000 nodes, 250,000 pods, 5,000 policies, 2,000 changes a second behind two levels of
                      `tortie fanout`: what a change costs servers and nodes, and what a larger cluster would need; --help
                      tells what can be chosen
  apply-bench [ARGS]  the agent on a node with 200 pods and 2,000 policies: start, restart, edits, deletions, and what it
                      takes while nothing changes; or as ARGS say: --pods N, --policies N, --backend nft|legacy, …

  nftables-bench      tables of nftables with 500 pods and 2,000 policies, beside iptables-nft and bare nft -f, into the terminal as
                      the table that benches/README.md has
  packet-bench [ARGS] what a packet costs by the rules that it meets, under each back end, into the terminal as the table that
                      benches/README.md has; --help tells what can be chosen

`demo`, `test`, `conformance` and `faults` first install what they need (iptables, ipset, protoc, etcd, …) where that is missing.";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    // What is run there tells how it went.
    if command == "try-kernel" {
        return trial::try_kernel(&rest).map_or_else(|error| failure(&error), ExitCode::from);
    }
    let result = match command.as_str() {
        "demo" => commands::demo(&rest),
        "test" => commands::test(&rest),
        "conformance" | "faults" => commands::on_kernel(&command, &rest),
        "prepare" => needs::to_test(),
        #[cfg(feature = "codegen")]
        "codegen" => codegen::run(),
        #[cfg(not(feature = "codegen"))]
        "codegen" => commands::with_feature("codegen", &rest),
        #[cfg(feature = "api")]
        "api" => api::run(&rest),
        #[cfg(not(feature = "api"))]
        "api" => commands::with_feature("api", &rest),
        "parameters" => commands::parameters(),
        "manual" => commands::manual(&rest),
        "package" => commands::package(&rest),
        "try-package" => trial::try_package(&rest),
        "site" => site::build(&rest),
        #[cfg(feature = "tidy")]
        "tidy" => tidy::run(&rest),
        #[cfg(not(feature = "tidy"))]
        "tidy" => commands::with_feature("tidy", &rest),
        "deny" => deny::run(),
        "features" => features::check(&rest),
        "publish-check" => publish::check(&rest),
        "oldest" => publish::oldest(&rest),
        "fuzz" => fuzz::run(&rest),
        "fuzz-smoke" => fuzz::smoke(&rest),
        "bench-smoke" => commands::bench_smoke(),
        "bench-report" => report::bench_report(&rest),
        "cost-bench" => commands::cost_bench(&rest),
        "apply-bench" => commands::apply_bench(&rest),
        "nftables-bench" => commands::nftables_bench(&rest),
        "packet-bench" => commands::packet_bench(&rest),
        "fanout-bench" => commands::fanout_bench(&rest),
        "scale" => commands::scale(&rest),
        "" | "help" | "--help" | "-h" => {
            println!("{HELP}");
            Ok(())
        }
        other => Err(format!("there is no command `{other}`; see cargo xtask help")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&error),
    }
}

fn failure(error: &str) -> ExitCode {
    eprintln!("xtask: {error}");
    ExitCode::FAILURE
}
