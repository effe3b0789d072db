//! The commands that build and run things.

use std::path::{Path, PathBuf};

use xtask::package::{self, Binary, Limit, Made, Package};

use crate::needs;
use crate::shell::{built, built_with, cargo, command, output, root, run};
use crate::tools::Tool;

const CARGO_AUDITABLE: Tool = Tool { name: "cargo-auditable", version: "0.7.7" };

/// Builds the agent and lets it be shown.
pub(crate) fn demo(args: &[String]) -> Result<(), String> {
    needs::to_show()?;
    let both = ["--package", "tortie-agent", "--bin", "tortie", "--package", "tortie-testkit", "--bin", "demo"];
    let programs = built(cargo(&["build", "--locked"]).args(both))?;
    let path = |name: &str| programs.get(name).ok_or_else(|| format!("cargo did not tell where {name} is"));
    let mut demo = std::process::Command::new(path("demo")?);
    run(demo.arg("--agent").arg(path("tortie")?).args(args).current_dir(root()))
}

/// Runs this program once more, built with the feature that has the name of a command.
#[cfg(not(all(feature = "codegen", feature = "api")))]
pub(crate) fn with_feature(command: &str, args: &[String]) -> Result<(), String> {
    let again = ["run", "--quiet", "--locked", "--package", "xtask", "--features", command, "--", command];
    run(cargo(&again).args(args))
}

/// How many tests of a program run at a time.
const THREADS: &str = "RUST_TEST_THREADS";

/// All tests, a part of the conformance cases, and a part of the faults.
pub(crate) fn test(args: &[String]) -> Result<(), String> {
    needs::to_test()?;
    let mut tests = cargo(&["test", "--workspace", "--all-features", "--locked"]);
    if std::env::var_os(THREADS).is_none() {
        // Tests of programs wait for them most of the time.
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        tests.env(THREADS, (2 * processors).to_string());
    }
    run(tests.args(args))?;
    if std::env::var("TORTIE_SKIP_KERNEL_TESTS").is_ok_and(|skip| skip == "1") {
        println!("conformance cases and faults skipped: TORTIE_SKIP_KERNEL_TESTS=1");
        return Ok(());
    }
    if !args.is_empty() {
        // Somebody is after particular tests.
        return Ok(());
    }
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    run_conformance(&words("--shard 0/7 --backend nft"))?;
    run_conformance(&words("--shard 4/12 --backend legacy"))?;
    run_conformance(&words("--shard 7/18 --family dual --backend nft"))?;
    for (index, family) in [(2, "4"), (9, "6"), (17, "dual")] {
        run_conformance(&words(&format!("--shard {index}/24 --family {family} --backend ebpf")))?;
    }
    run_conformance(&words("--shard 5/24 --driven --backend nft"))?;
    run_conformance(&words("--shard 5/48 --driven --backend ebpf"))?;
    run_conformance(&words("--shard 11/48 --family dual --backend ebpf-rules"))?;
    // A third, other cases for each family.
    for (index, family) in [(1, "4"), (4, "6"), (7, "dual")] {
        run_conformance(&words(&format!("--shard {index}/9 --family {family} --backend nftables")))?;
    }
    run_conformance(&words("--shard 10/24 --family dual --backend nftables-fast"))?;
    run_conformance(&words("--shard 13/40 --family dual --backend nftables-fast --flows"))?;
    run_conformance(&words("--shard 7/40 --family dual --backend nft --nodes 3 --deadline 30"))?;
    run_conformance(&words("--shard 3/40 --family dual --backend nft --flows"))?;
    run_conformance(&words("--shard 23/40 --family dual --backend ebpf --flows"))?;
    for (index, source) in ["etcd", "kubernetes", "fanout", "typha"].into_iter().enumerate() {
        run_conformance(&words(&format!("--shard {index}/24 --source {source} --backend nft")))?;
    }
    run_faults(&words("--sample"))
}

/// The conformance cases on a real kernel.
pub(crate) fn conformance(args: &[String]) -> Result<(), String> {
    needs::to_test()?;
    run_conformance(args)
}

fn run_conformance(args: &[String]) -> Result<(), String> {
    run_with_agent("conformance", args)
}

/// Faults that happen to an agent on a real kernel while packets are sent.
pub(crate) fn faults(args: &[String]) -> Result<(), String> {
    needs::to_test()?;
    run_faults(args)
}

fn run_faults(args: &[String]) -> Result<(), String> {
    run_with_agent("faults", args)
}

/// Runs a program of the test kit with the agent that this workspace makes.
fn run_with_agent(program: &str, args: &[String]) -> Result<(), String> {
    let tortie = build_agent()?;
    run_of_testkit(program, &tortie, args.iter().cloned())
}

/// Runs a program of the test kit. All are built with the same features, so that none makes cargo build it again.
fn run_of_testkit(program: &str, agent: &Path, args: impl Iterator<Item = String>) -> Result<(), String> {
    run(cargo(&["run"]).args(of_testkit(program)).arg("--agent").arg(agent).args(args))
}

/// What cargo is told to run it.
fn of_testkit(program: &str) -> [&str; 8] {
    let features = if program == "packet-bench" { "--features=programs" } else { "--features=servers" };
    ["--quiet", "--locked", "--package", "tortie-testkit", features, "--bin", program, "--"]
}

/// Builds the agent and tells where it is.
pub(crate) fn build_agent() -> Result<PathBuf, String> {
    build_agent_with(&["--features=full"])
}

/// What shells complete commands by, and manual pages, laid out as below `/usr/share`.
pub(crate) fn manual(args: &[String]) -> Result<(), String> {
    let folder = match args {
        [] => root().join("target/manual"),
        [folder] => PathBuf::from(folder),
        _ => return Err("manual takes one directory".to_owned()),
    };
    needs::to_build()?;
    package::write_manual(&build_agent()?, &folder)?;
    println!("{}", folder.display());
    Ok(())
}

/// What is given away. Fails where a program is larger than it may be.
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
    let mut made = Vec::new();
    if default {
        let agent = build_dist(&[])?;
        made.push(("default features", Binary::split(&agent, &out, "tortie-default")?, Limit::DEFAULT));
    }
    if full {
        let agent = build_dist(&["--features", "full"])?;
        let sbom = out.join("tortie.cdx.json");
        let package = Package { agent, out, epoch: package::epoch(), compression: 9 };
        let Made { binary, debian, image } = package.make()?;
        let bill = package::write_sbom(&["--features", "full"], &host()?, &sbom)?;
        println!("{}\n{}\n{}", debian.display(), image.display(), bill.display());
        made.push(("all features (`full`)", binary, Limit::FULL));
    }
    let rows: Vec<_> = made.iter().map(|(name, binary, limit)| (*name, binary, *limit)).collect();
    print!("{}", package::table(&rows));
    made.iter().try_for_each(|(_, binary, limit)| binary.hold_to(*limit))
}

/// The target that packages are made for.
fn host() -> Result<String, String> {
    let version = output(std::process::Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not tell its host".to_owned())
}

/// Builds the agent for a release, with the list of its dependencies in the program (section `.dep-v0`), which scanners such as
/// `cargo audit bin` read. Where `cargo-auditable` cannot be installed, a line says that the list is missing.
fn build_dist(options: &[&str]) -> Result<PathBuf, String> {
    let mut build = match CARGO_AUDITABLE.installed() {
        Ok(program) => command(&program.display().to_string(), &["auditable"]),
        Err(error) => {
            println!("no list of dependencies in the program: cargo-auditable cannot be installed: {error}");
            cargo(&[])
        }
    };
    build.args(["rustc", "--locked", "--profile", "dist", "--package", "tortie-agent", "--bin", "tortie"]);
    // The linker of this target, since Rust 1.90, is one that can. Nothing compares addresses of functions.
    let fold: &[&str] = if cfg!(target_arch = "x86_64") { &["-Clink-arg=-Wl,--icf=all"] } else { &[] };
    let mut programs = built_with(build.args(options), fold)?;
    programs.remove("tortie").ok_or_else(|| "cargo did not tell where the agent is".to_owned())
}

fn build_agent_with(options: &[&str]) -> Result<PathBuf, String> {
    let mut programs = built(cargo(&["build", "--locked", "--package", "tortie-agent"]).args(options))?;
    programs.remove("tortie").ok_or_else(|| "cargo did not tell where the agent is".to_owned())
}

/// Every benchmark once, small.
pub(crate) fn bench_smoke() -> Result<(), String> {
    needs::to_build()?;
    let all =
        ["--package", "tortie-benches", "--package", "tortie-classes", "--package", "tortie-evaluate", "--benches"];
    // Not optimized, since what they share with the tests is built so already.
    run(cargo(&["bench", "--locked", "--profile", "dev"]).args(all).args(["--", "--test"]))?;
    needs::to_run()?;
    run(cargo(&["bench", "--profile", "dev"]).args(OF_NFTABLES).args(["--", "--test"]))?;
    let small = "--pods 3 --policies 6 --edits 2 --sets 6 --idle 1";
    let agent = build_agent()?;
    for backend in ["nft", "legacy"] {
        run_apply_bench(&agent, small.split(' ').chain(["--backend", backend]).map(str::to_owned))?;
    }
    let small = "--rules 10,300 --packets 200 --times 1";
    run_of_testkit("packet-bench", &agent, small.split(' ').map(str::to_owned))?;
    let small = "--clients 20 --endpoints 200 --rate 100 --seconds 1";
    run_load("dev", "fanout-bench", &agent, small.split(' '))?;
    let small = "--nodes 20 --pods 200 --policies 20 --rate 100 --seconds 1 --engines 2";
    run_load("dev", "scale", &agent, small.split(' '))
}

/// Cost of one object of a megabyte.
pub(crate) fn cost_bench(args: &[String]) -> Result<(), String> {
    needs::to_build()?;
    let bench = ["bench", "--quiet", "--locked", "--package", "tortie-benches", "--bench", "cost", "--"];
    run(cargo(&bench).args(args))
}

/// How long the agent takes to program a node.
pub(crate) fn apply_bench(args: &[String]) -> Result<(), String> {
    needs::to_run()?;
    let agent = build_agent_with(&["--release"])?;
    run_apply_bench(&agent, args.iter().cloned())
}

/// How long tables of nftables take, beside iptables-nft and bare `nft`.
pub(crate) fn nftables_bench(args: &[String]) -> Result<(), String> {
    needs::to_run()?;
    run(cargo(&["bench"]).args(OF_NFTABLES).arg("--").args(args))
}

/// The benchmark of tables of nftables.
const OF_NFTABLES: [&str; 6] = ["--quiet", "--locked", "--package", "tortie-rules", "--bench", "nftables"];

/// What a packet costs.
pub(crate) fn packet_bench(args: &[String]) -> Result<(), String> {
    needs::to_run()?;
    let agent = build_agent_with(&["--release"])?;
    // It compiles rules itself, and says how long that takes.
    run(cargo(&["run", "--release"]).args(of_testkit("packet-bench")).arg("--agent").arg(agent).args(args))
}

fn run_apply_bench(agent: &Path, args: impl Iterator<Item = String>) -> Result<(), String> {
    run_of_testkit("apply-bench", agent, args)
}

/// What the agent says of Felix's parameters, into the documentation.
pub(crate) fn parameters() -> Result<(), String> {
    needs::to_build()?;
    let table = output(std::process::Command::new(build_agent_with(&[])?).arg("parameters"))?;
    let path = root().join("docs/parameters.md");
    std::fs::write(&path, table).map_err(|error| format!("{}: {error}", path.display()))
}

/// Many clients of one server of the fan-out.
pub(crate) fn fanout_bench(args: &[String]) -> Result<(), String> {
    load("fanout-bench", args)
}

/// A large cluster: the fan-out in levels, engines, counted connections.
pub(crate) fn scale(args: &[String]) -> Result<(), String> {
    load("scale", args)
}

fn load(which: &str, args: &[String]) -> Result<(), String> {
    needs::to_build()?;
    if args.iter().any(|arg| arg == "--help") {
        // Nothing is measured.
        return run_load("dev", which, Path::new("."), args.iter().map(String::as_str));
    }
    let agent = build_agent_with(&["--release", "--features=fanout"])?;
    run_load("bench", which, &agent, args.iter().map(String::as_str))
}

fn run_load<'a>(profile: &str, which: &str, agent: &Path, args: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let bench = ["bench", "--quiet", "--locked", "--package", "tortie-fanout", "--bench", "load"];
    run(cargo(&bench).args(["--profile", profile, "--", which, "--agent"]).arg(agent).args(args))
}
