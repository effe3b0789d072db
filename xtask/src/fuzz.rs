//! Fuzzing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use crate::metadata::metadata;
use crate::needs;
use crate::programs::OF_TESTS;
use crate::shell::{self, built, cargo, output, root};

const PACKAGE: &str = "tortie-fuzz";

/// Compiler flags with which the stable compiler reports covered code and compared values to the
/// fuzzer.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
    "-Coverflow-checks",
    "--cfg=fuzzing",
];

/// Maximum length of an input in bytes: that of the largest object that Kubernetes stores.
const MAX_LEN: &str = "-max_len=1048576";
/// Limits of one input, in seconds and MB; an input beyond them is a finding.
const LIMITS: [&str; 2] = ["-timeout=2", "-rss_limit_mb=512"];

/// MiB needed for the programs of the smoke test and their artefacts, with a reserve.
const SMOKE_ROOM: u64 = 4096;

/// Fuzzes targets guided by coverage, and keeps the inputs that reach different code as their
/// corpus.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let (minutes, chosen) = parse(args)?;
    needs::to_fuzz()?;
    let all = targets()?;
    if let Some(unknown) = chosen.iter().find(|name| !all.contains(name)) {
        return Err(format!("there is no fuzz target `{unknown}`; there are {}", all.join(", ")));
    }
    let targets = if chosen.is_empty() { all } else { chosen };
    let programs = build_with_coverage()?;
    let workers = workers(&targets);
    let seconds = (minutes * 60.0 * workers as f64 / targets.len() as f64).ceil();
    println!("{} targets, {seconds} s each, {workers} at a time", targets.len());
    in_parallel(&targets, &programs, |target, program| fuzz(target, program, seconds))
}

fn workers(targets: &[String]) -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(targets.len())
}

/// Runs targets side by side, one on each processor. Fails with the problems of all targets.
fn in_parallel(
    targets: &[String],
    programs: &BTreeMap<String, PathBuf>,
    run: impl Fn(&str, &Path) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let waiting = Mutex::new(targets.iter());
    let next = || waiting.lock().ok().and_then(|mut targets| targets.next());
    let problems = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..workers(targets) {
            scope.spawn(|| {
                while let Some(target) = next() {
                    let program = programs.get(target).ok_or_else(|| format!("{target} has not been built"));
                    let result = program.and_then(|program| run(target, program));
                    match (result, problems.lock()) {
                        (Err(problem), Ok(mut problems)) => problems.push(problem),
                        _ => println!("{target}: no find"),
                    }
                }
            });
        }
    });
    let problems = problems.into_inner().unwrap_or_default();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

fn parse(args: &[String]) -> Result<(f64, Vec<String>), String> {
    let (mut minutes, mut targets) = (10.0, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--minutes" {
            let number: Option<f64> = args.next().and_then(|number| number.parse().ok());
            minutes = number.filter(|minutes| *minutes > 0.0).ok_or("--minutes takes a positive number")?;
        } else if arg.starts_with('-') {
            return Err(format!("unknown option {arg}; cargo xtask fuzz [--minutes N] [TARGET…]"));
        } else {
            targets.push(arg.clone());
        }
    }
    Ok((minutes, targets))
}

/// Returns the names of all targets.
fn targets() -> Result<Vec<String>, String> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array();
    let package = packages.into_iter().flatten().find(|package| package["name"] == PACKAGE);
    let targets = package.and_then(|package| package["targets"].as_array()).into_iter().flatten();
    let programs = targets.filter(|target| target["kind"][0] == "bin");
    let targets: Vec<String> = programs.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect();
    if targets.is_empty() { Err("fuzz/Cargo.toml names no target".into()) } else { Ok(targets) }
}

/// Builds all targets with instrumentation for coverage.
fn build_with_coverage() -> Result<BTreeMap<String, PathBuf>, String> {
    let version = output(&mut shell::command("rustc", &["-vV"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc did not print its host")?;
    // With an explicit target, programs that run in the compiler are built without these flags.
    let mut build = cargo(&["build", "--package", PACKAGE, "--locked", "--bins", "--release", "--target", host]);
    build.env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    built(build.env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\x1f")))
}

/// Fuzzes one target and replaces its corpus.
fn fuzz(target: &str, program: &Path, seconds: f64) -> Result<(), String> {
    let corpus = root().join("fuzz/corpus").join(target);
    let artifacts = root().join("fuzz/artifacts").join(target);
    let work = std::env::temp_dir().join(format!("tortie-fuzz-{target}-{}", std::process::id()));
    let (found, merged) = (work.join("found"), work.join("merged"));
    for folder in [&corpus, &artifacts, &found, &merged] {
        fs::create_dir_all(folder).map_err(in_path(folder))?;
    }
    let regressions = root().join("fuzz/regressions").join(target);
    let log = work.join("log");
    let mut command = Command::new(program);
    command.args(LIMITS).args([
        MAX_LEN,
        "-len_control=20",
        "-print_final_stats=1",
        &format!("-max_total_time={seconds}"),
    ]);
    command.arg(format!("-artifact_prefix={}/", artifacts.display())).args([&found, &corpus]);
    command.args(Some(regressions).filter(|folder| folder.is_dir()));
    let fuzzed = quietly(&mut command, &log);
    let text = fs::read(&log).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default();
    let stat = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim().to_owned();
    println!("{target}: {} inputs", stat("stat::number_of_executed_units:"));
    if let Err(error) = fuzzed {
        let find = text.lines().find_map(|line| line.split("Test unit written to ").nth(1));
        let panic = text.lines().find(|line| line.contains("panicked at")).unwrap_or_default();
        return Err(match find {
            Some(path) => format!("{target}: {} {panic}", path.trim()),
            None => format!("{target}: {error}; see {}", log.display()),
        });
    }
    let mut merge = Command::new(program);
    // Covered code counts, not its frequency: otherwise the corpus would have thousands of files.
    merge.args(LIMITS).args([MAX_LEN, "-set_cover_merge=1", "-use_counters=0"]).args([&merged, &corpus, &found]);
    quietly(&mut merge, &log).map_err(|error| format!("{target}: {error}; see {}", log.display()))?;
    fs::remove_dir_all(&corpus).map_err(in_path(&corpus))?;
    fs::create_dir_all(&corpus).map_err(in_path(&corpus))?;
    for entry in fs::read_dir(&merged).map_err(in_path(&merged))? {
        let path = entry.map_err(in_path(&merged))?.path();
        if let Some(name) = path.file_name() {
            fs::copy(&path, corpus.join(name)).map_err(in_path(&path))?;
        }
    }
    fs::remove_dir_all(&work).map_err(in_path(&work))
}

/// Runs a fuzzer with its verbose output in a file.
fn quietly(command: &mut Command, log: &Path) -> Result<(), String> {
    let file = fs::File::create(log).map_err(in_path(log))?;
    let status = command.stdout(file.try_clone().map_err(in_path(log))?).stderr(file).status();
    let status = status.map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

fn in_path<E: std::fmt::Display>(path: &Path) -> impl Fn(E) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Runs every target for a few seconds, from its committed inputs. Without coverage this finds
/// little, but it detects a target that no longer builds, or fails on an earlier input.
pub(crate) fn smoke(args: &[String]) -> Result<(), String> {
    needs::to_fuzz()?;
    let seconds = args.first().map_or("5", String::as_str);
    shell::require_room(&root(), SMOKE_ROOM)?;
    // With the features of tests, whose build contains most of the code.
    let programs = built(cargo(&["test", "--no-run", "--test", "targets"]).args(OF_TESTS))?;
    let targets = targets()?;
    println!("{} targets, {seconds} s each", targets.len());
    in_parallel(&targets, &programs, |target, program| {
        // The fuzzer writes new and failing inputs here.
        let found = std::env::temp_dir().join(format!("tortie-fuzz-{target}-{}", std::process::id()));
        fs::create_dir_all(&found).map_err(in_path(&found))?;
        let mut fuzz = Command::new(program);
        fuzz.args([MAX_LEN, &format!("-max_total_time={seconds}"), "-verbosity=0"]);
        fuzz.arg(format!("-artifact_prefix={}/", found.display())).arg(&found);
        let committed = ["corpus", "regressions"].map(|kind| root().join("fuzz").join(kind).join(target));
        fuzz.args(committed.iter().filter(|folder| folder.is_dir()));
        shell::collect(&mut fuzz)?;
        fs::remove_dir_all(&found).map_err(in_path(&found))
    })
}
