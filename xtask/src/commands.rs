//! Commands that build and run programs.

use std::path::PathBuf;
use std::process::Command;

use xtask::package::{self, Binary, BuiltPackages, Limit, Package};

use crate::needs;
use crate::programs::{OF_TESTS, Programs};
use crate::samples;
use crate::shell::{built, built_with, cargo, command, is_installed, output, root, run};
use crate::tools::Tool;

const CARGO_AUDITABLE: Tool = Tool { name: "cargo-auditable", version: "0.7.7" };

/// Builds the agent and runs the demo.
pub(crate) fn demo(args: &[String]) -> Result<(), String> {
    needs::to_show()?;
    let programs = built(&mut build_of_demo())?;
    let path = |name: &str| programs.get(name).ok_or_else(|| format!("cargo did not report the path of {name}"));
    let mut demo = Command::new(path("demo")?);
    run(demo.arg("--agent").arg(path("tortie")?).args(args).current_dir(root()))
}

/// Returns the build of the demo and its agent.
pub(crate) fn build_of_demo() -> Command {
    let mut build = cargo(&["build", "--locked"]);
    build.args(["--package", "tortie-agent", "--bin", "tortie", "--package", "tortie-lab", "--bin", "demo"]);
    // Line tables for backtraces and incremental state take a third of the build time of our
    // crates.
    build.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    build
}

/// Runs this program again, built with a feature.
#[cfg(not(all(feature = "codegen", feature = "api", feature = "tidy")))]
pub(crate) fn with_feature(feature: &str, command: &str, args: &[String]) -> Result<(), String> {
    let again = ["run", "--quiet", "--locked", "--package", "xtask", "--features", feature, "--", command];
    run(cargo(&again).args(args))
}

/// Runs all tests, and the rotating parts of conformance cases and faults. With `--all`, runs all
/// cases and faults; other arguments are passed to `cargo test`, and nothing else runs.
pub(crate) fn test(args: &[String]) -> Result<(), String> {
    needs::to_test()?;
    let is_all = args == ["--all"];
    if !is_all && !args.is_empty() {
        return run(cargo(&["test"]).args(OF_TESTS).args(args));
    }
    let change = if is_all { "all".to_owned() } else { samples::change()?.to_string() };
    run_tests(&change)?;
    if std::env::var("TORTIE_SKIP_KERNEL_TESTS").is_ok_and(|skip| skip == "1") {
        println!("conformance cases and faults skipped: TORTIE_SKIP_KERNEL_TESTS=1");
        return Ok(());
    }
    let programs = Programs::build()?;
    if is_all { samples::run_all(&programs) } else { samples::run(&programs) }
}

/// Runs the tests of all programs in parallel if nextest is installed, which takes half the time;
/// otherwise one program after the other. Nextest does not run tests in documentation. `change`
/// chooses the parts of the conformance cases: see `of_change` in crates/lab/src/cases.rs.
fn run_tests(change: &str) -> Result<(), String> {
    // Tests of programs mostly wait for these.
    let threads = 2 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let with_threads = |test: &mut Command, variable| {
        if std::env::var_os(variable).is_none() {
            test.env(variable, threads.to_string());
        }
        run(test.env("TORTIE_CHANGE", change))
    };
    if !is_installed("cargo-nextest") {
        println!("cargo-nextest is not installed: the tests take twice the time");
        return with_threads(cargo(&["test"]).args(OF_TESTS), "RUST_TEST_THREADS");
    }
    with_threads(cargo(&["nextest", "run"]).args(OF_TESTS), "NEXTEST_TEST_THREADS")?;
    with_threads(cargo(&["test", "--doc"]).args(OF_TESTS), "RUST_TEST_THREADS")
}

/// Runs a program of a laboratory with the agent on a real kernel: conformance cases, or faults
/// under traffic.
pub(crate) fn on_kernel(program: &str, args: &[String]) -> Result<(), String> {
    needs::to_test()?;
    Programs::build()?.run_with_agent(program, args.iter().map(String::as_str))
}

/// Writes completions for shells, and manual pages, laid out as below `/usr/share`.
pub(crate) fn manual(args: &[String]) -> Result<(), String> {
    let folder = match args {
        [] => root().join("target/manual"),
        [folder] => PathBuf::from(folder),
        _ => return Err("manual takes one directory".to_owned()),
    };
    needs::to_build()?;
    package::write_manual(Programs::build()?.agent()?, &folder)?;
    println!("{}", folder.display());
    Ok(())
}

/// Makes the packages. Fails if a program exceeds its size limit.
pub(crate) fn package(args: &[String]) -> Result<(), String> {
    let mut out = root().join("target/packages");
    let (mut default, mut full) = (true, true);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--out" => out = args.next().ok_or("--out takes a directory")?.into(),
            "--default" => full = false,
            "--full" => default = false,
            other => return Err(format!("package does not know `{other}`; it takes --out DIR, --default or --full")),
        }
    }
    if !default && !full {
        return Err("--default and --full exclude each other; without them both are made".to_owned());
    }
    needs::to_package()?;
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut binaries = Vec::new();
    if default {
        let agent = build_dist(&[])?;
        binaries.push(("default features", Binary::split(&agent, &out, "tortie-default")?, Limit::DEFAULT));
    }
    if full {
        let agent = build_dist(&["--features", "full"])?;
        let sbom = out.join("tortie.cdx.json");
        let package = Package { agent, out, epoch: package::epoch(), compression: 9 };
        let BuiltPackages { binary, debian, image } = package.make()?;
        let bill = package::write_sbom(&["--features", "full"], &host()?, &sbom)?;
        println!("{}\n{}\n{}", debian.display(), image.display(), bill.display());
        binaries.push(("all features (`full`)", binary, Limit::FULL));
    }
    let rows: Vec<_> = binaries.iter().map(|(name, binary, limit)| (*name, binary, *limit)).collect();
    print!("{}", package::table(&rows));
    binaries.iter().try_for_each(|(_, binary, limit)| binary.hold_to(*limit))
}

/// Returns the target of packages.
fn host() -> Result<String, String> {
    let version = output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc did not print its host".to_owned())
}

/// Builds the agent for a release, with the list of its dependencies in the program (section
/// `.dep-v0`), which scanners such as `cargo audit bin` read. If `cargo-auditable` cannot be
/// installed, prints that the list is missing.
fn build_dist(options: &[&str]) -> Result<PathBuf, String> {
    let mut build = match CARGO_AUDITABLE.installed() {
        Ok(program) => command(&program.display().to_string(), &["auditable"]),
        Err(error) => {
            println!("no list of dependencies in the program: cargo-auditable cannot be installed: {error}");
            cargo(&[])
        }
    };
    build.args(["rustc", "--locked", "--profile", "dist", "--package", "tortie-agent", "--bin", "tortie"]);
    // Since Rust 1.90, the linker of this target supports this. No code compares addresses of
    // functions.
    let fold: &[&str] = if cfg!(target_arch = "x86_64") { &["-Clink-arg=-Wl,--icf=all"] } else { &[] };
    let mut programs = built_with(build.args(options), fold)?;
    programs.remove("tortie").ok_or_else(|| "cargo did not report the path of the agent".to_owned())
}

fn build_agent_with(options: &[&str]) -> Result<PathBuf, String> {
    let mut programs = built(cargo(&["build", "--locked", "--package", "tortie-agent"]).args(options))?;
    programs.remove("tortie").ok_or_else(|| "cargo did not report the path of the agent".to_owned())
}

/// Benchmarks that run each of their cases once with `--test`.
const BENCHMARKS: [&str; 13] = [
    "engine", "worst", "memory", "cluster", "cost", "changes", "tables", "packets", "updates", "policies", "selector",
    "nftables", "chains",
];

/// Runs a third of the benchmarks once, small, without optimizations, because tests have built most
/// of their code that way. Three changes cover all of them; with `--all`, one does.
pub(crate) fn bench_smoke(args: &[String]) -> Result<(), String> {
    needs::to_run()?;
    let parts = match args {
        [] => vec![samples::change()? % 3],
        [all] if all == "--all" => (0..3).collect(),
        _ => return Err("bench-smoke takes no argument but --all".to_owned()),
    };
    for part in parts {
        let benchmarks: Vec<&str> = BENCHMARKS.into_iter().skip(part).step_by(3).collect();
        let with_load = if part == 0 { [&benchmarks[..], &["load"]].concat() } else { benchmarks.clone() };
        let programs = Programs::build_with(&with_load)?;
        for benchmark in benchmarks {
            programs.run(benchmark, ["--test"])?;
        }
        small_runs(&programs, part)?;
    }
    Ok(())
}

fn small_runs(programs: &Programs, part: usize) -> Result<(), String> {
    let run = |name: &str, args: &str| programs.run_with_agent(name, args.split(' '));
    match part {
        0 => {
            run("load", "fanout-bench --clients 20 --endpoints 200 --rate 100 --seconds 1")?;
            run("load", "scale --nodes 20 --pods 200 --policies 20 --rate 100 --seconds 1 --engines 2")
        }
        1 => {
            let small = "--pods 4 --policies 6 --edits 2 --added 1 --sets 6 --idle 1 --burst 4 --burst-seconds 1";
            run("apply-bench", &format!("{small} --churn 6 --churn-seconds 1 --backend nft,legacy,nftables"))
        }
        _ => run("packet-bench", "--rules 10,300 --packets 200 --times 1"),
    }
}

/// Measures the cost of one object of a megabyte.
pub(crate) fn cost_bench(args: &[String]) -> Result<(), String> {
    needs::to_build()?;
    let bench = ["bench", "--quiet", "--locked", "--package", "tortie-benches", "--bench", "cost", "--"];
    run(cargo(&bench).args(args))
}

/// Measures the agent during the day of a node.
pub(crate) fn apply_bench(args: &[String]) -> Result<(), String> {
    let needs_etcd = args.iter().any(|arg| arg == "--etcd" || arg.starts_with("--felix"));
    if needs_etcd { needs::to_serve() } else { needs::to_run() }?;
    let agent = build_agent_with(&["--profile=bench", "--features=full"])?;
    run(cargo(&["run"]).args(OF_LAB).args(["servers", "--bin", "apply-bench", "--", "--agent"]).arg(agent).args(args))
}

/// Measures nftables tables, next to iptables-nft and bare `nft`.
pub(crate) fn nftables_bench(args: &[String]) -> Result<(), String> {
    needs::to_run()?;
    let bench = ["bench", "--quiet", "--locked", "--package", "tortie-rules", "--bench", "nftables", "--"];
    run(cargo(&bench).args(args))
}

/// Measures the cost of a packet.
pub(crate) fn packet_bench(args: &[String]) -> Result<(), String> {
    needs::to_run()?;
    let agent = build_agent_with(&["--profile=bench"])?;
    // It compiles rules itself and measures the compilation, so it is optimized.
    let mut bench = cargo(&["run", "--profile=bench"]);
    run(bench.args(OF_LAB).args(["programs", "--bin", "packet-bench", "--", "--agent"]).arg(agent).args(args))
}

/// Arguments that select the laboratories with a feature.
const OF_LAB: [&str; 5] = ["--quiet", "--locked", "--package", "tortie-lab", "--features"];

/// Writes the agent's table of Felix's parameters into the documentation.
pub(crate) fn parameters() -> Result<(), String> {
    needs::to_build()?;
    let table = output(Command::new(build_agent_with(&[])?).arg("parameters"))?;
    let path = root().join("docs/parameters.md");
    std::fs::write(&path, table).map_err(|error| format!("{}: {error}", path.display()))
}

/// Measures many clients of one fan-out server.
pub(crate) fn fanout_bench(args: &[String]) -> Result<(), String> {
    load("fanout-bench", args)
}

/// Measures a large cluster: levels of fan-out servers, engines, simulated connections.
pub(crate) fn scale(args: &[String]) -> Result<(), String> {
    load("scale", args)
}

fn load(which: &str, args: &[String]) -> Result<(), String> {
    needs::to_build()?;
    let bench = ["bench", "--quiet", "--locked", "--package", "tortie-fanout", "--bench", "load", "--profile"];
    if args.iter().any(|arg| arg == "--help") {
        return run(cargo(&bench).args(["dev", "--", which]).args(args));
    }
    let agent = build_agent_with(&["--profile=bench", "--features=fanout"])?;
    run(cargo(&bench).args(["bench", "--", which, "--agent"]).arg(agent).args(args))
}
