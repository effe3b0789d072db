//! Checks beyond those of the compiler.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use xtask::files::read;

use crate::shell::{cargo, output, root};
use crate::{cycles, log_events, packages, prose, shape, unused};

/// Allowed dependencies between our crates. Development dependencies are free.
const MAY_USE: &[(&str, &[&str])] = &[
    ("selector", &[]),
    ("net", &[]),
    ("model", &["net", "selector"]),
    ("parameters", &[]),
    ("resources", &["model", "parameters", "selector"]),
    ("labelindex", &["model", "selector"]),
    ("calc", &["model", "selector", "labelindex"]),
    ("dns", &["net"]),
    ("netfilter", &["net"]),
    ("iptables", &["net", "netfilter"]),
    ("nftables", &["net", "netfilter"]),
    ("ipsets", &["net", "netfilter"]),
    ("rules", &["model", "netfilter"]),
    ("evaluate", &["model"]),
    ("classes", &["model", "evaluate"]),
    ("ebpf", &["model", "classes"]),
    ("bpf", &[]),
    ("analysis", &["selector", "model", "calc", "evaluate", "classes"]),
    ("flows", &["model", "rules", "evaluate", "analysis"]),
    ("suggest", &["selector", "model", "resources", "calc", "evaluate", "analysis"]),
    ("dataplane", &["model", "dns", "rules", "iptables", "nftables", "ipsets", "netfilter"]),
    (
        "config",
        &["model", "parameters", "resources", "calc", "dns", "iptables", "rules", "evaluate", "ebpf", "dataplane"],
    ),
    ("linux", &["model", "iptables", "nftables", "rules", "evaluate", "ebpf", "bpf", "flows", "dataplane"]),
    ("revisions", &["model", "resources"]),
    ("datastore", &["model", "resources", "revisions"]),
    ("protocol", &["model", "selector"]),
    ("fanout", &["model", "resources", "datastore"]),
    ("telemetry", &["model", "resources", "config", "linux", "datastore"]),
    ("controller", &["net", "resources", "selector", "datastore", "telemetry"]),
    ("learner", &["model", "dns", "iptables", "nftables", "dataplane", "linux", "datastore", "telemetry"]),
    ("node", NODE),
    ("cli", ALL),
    ("agent", ALL),
    ("tortie", ALL),
    ("faults", &["bpf", "lab"]),
];

/// The libraries that a running node brings together.
const NODE: &[&str] = &[
    "selector",
    "model",
    "parameters",
    "resources",
    "calc",
    "iptables",
    "nftables",
    "rules",
    "evaluate",
    "analysis",
    "ebpf",
    "flows",
    "dataplane",
    "config",
    "linux",
    "revisions",
    "datastore",
    "protocol",
    "telemetry",
    "learner",
];

/// All crates but `agent` and `tortie`, each of which brings them together, and the unpublished
/// ones.
const ALL: &[&str] = &[
    "selector",
    "net",
    "model",
    "parameters",
    "resources",
    "labelindex",
    "calc",
    "dns",
    "netfilter",
    "iptables",
    "nftables",
    "ipsets",
    "rules",
    "evaluate",
    "classes",
    "ebpf",
    "bpf",
    "analysis",
    "flows",
    "suggest",
    "dataplane",
    "config",
    "linux",
    "revisions",
    "datastore",
    "protocol",
    "fanout",
    "telemetry",
    "learner",
    "controller",
    "node",
    "cli",
];

/// Crates that start programs, read clocks and files; the others must not.
const EFFECTS: &[&str] = &[
    "agent",
    "cli",
    "controller",
    "datastore",
    "fanout",
    "faults",
    "linux",
    "lab",
    "learner",
    "node",
    "revisions",
    "telemetry",
    "testkit",
];

/// The one library with unsafe code. SECURITY.md promises that there is no other.
const UNSAFE: &str = "bpf";

/// Prefixes of the paths that SECURITY.md names.
const FOLDERS: [&str; 4] = ["crates/", "deploy/", "fuzz/", "testdata/"];

/// Beginnings of unsafe code.
const UNSAFE_MARKS: [&str; 6] =
    ["unsafe {", "unsafe fn ", "unsafe impl", "unsafe trait ", "unsafe extern ", "#[unsafe("];

/// Maximum number of crates in a default build of the agent, including build dependencies and those
/// of the workspace.
const MAX_CRATES: usize = 137;

/// Maximum number of lines in a source file.
const MAX_LINES: usize = 800;

/// Maximum number of source lines in a crate, without tests and generated code.
const MAX_CRATE_LINES: usize = 16_000;

/// Crates with lower limits: the agent and the oracles of tests must stay small.
const OTHER_CRATE_LINES: &[(&str, usize)] = &[("agent", 6_000), ("testkit", 5_000)];

/// Checks everything and lists the errors. With `--list`, only prints the places that break a rule
/// of the language.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    match args {
        [] => check(),
        [list] if list == "--list" => prose::print(None),
        [list, rule] if list == "--list" => prose::print(Some(rule)),
        _ => Err("tidy takes --list, or --list RULE".to_owned()),
    }
}

fn check() -> Result<(), String> {
    let mut wrong = Vec::new();
    dependencies(&mut wrong)?;
    crate_count(&mut wrong)?;
    crates_on_disk(&mut wrong)?;
    files(&mut wrong)?;
    named_in_security(&mut wrong)?;
    shape::check(&mut wrong)?;
    log_events::check(&mut wrong)?;
    prose::check(&mut wrong)?;
    if wrong.is_empty() {
        println!("tidy");
        return Ok(());
    }
    Err(format!("not tidy:\n  {}", wrong.join("\n  ")))
}

fn dependencies(wrong: &mut Vec<String>) -> Result<(), String> {
    let metadata = output(&mut cargo(&["metadata", "--locked", "--no-deps", "--format-version=1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    packages::check(packages, wrong)?;
    unused::check(packages, wrong)?;
    let manifests = packages.iter().filter_map(|package| package["manifest_path"].as_str());
    let manifests = manifests.map(|path| read(Path::new(path))).collect::<Result<Vec<_>, _>>()?;
    unused::check_shared(&read(&root().join("Cargo.toml"))?, &manifests, wrong);
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let short = name.strip_prefix("tortie-").unwrap_or(name);
        if short == "xtask" {
            continue;
        }
        let ours = package["dependencies"].as_array().into_iter().flatten().filter(|d| d["kind"] != "dev");
        let uses: BTreeSet<&str> =
            ours.filter_map(|d| d["name"].as_str().and_then(|name| name.strip_prefix("tortie-"))).collect();
        match allowed.get(short) {
            Some(allowed) => {
                for other in uses.iter().filter(|other| !allowed.contains(other)) {
                    wrong.push(format!("{short} must not depend on {other}"));
                }
            }
            None if matches!(short, "lab" | "testkit" | "benches" | "fuzz") => {}
            None => wrong.push(format!("{short} is not in the table of allowed dependencies")),
        }
    }
    Ok(())
}

fn crate_count(wrong: &mut Vec<String>) -> Result<(), String> {
    let tree = ["tree", "--locked", "--package", "tortie-agent", "--edges", "normal,build", "--prefix", "none"];
    let tree = output(&mut cargo(&tree))?;
    let crates: BTreeSet<&str> =
        tree.lines().filter_map(|line| line.split_whitespace().next()).filter(|name| !name.starts_with('[')).collect();
    if crates.len() > MAX_CRATES {
        wrong.push(format!("a default build has {} crates; the limit is {MAX_CRATES}", crates.len()));
    }
    for heavy in ["tokio", "kube", "k8s-openapi", "etcd-client", "rustls"] {
        if crates.contains(heavy) {
            wrong.push(format!("a default build contains {heavy}"));
        }
    }
    Ok(())
}

fn crates_on_disk(wrong: &mut Vec<String>) -> Result<(), String> {
    let architecture = read(&root().join("ARCHITECTURE.md"))?;
    table_of_crates(&architecture, wrong);
    for folder in list(&root().join("crates"))? {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !architecture.contains(&format!("`{name}`")) {
            wrong.push(format!("ARCHITECTURE.md does not name the crate `{name}`"));
        }
        let limit =
            OTHER_CRATE_LINES.iter().find(|(other, _)| *other == name).map_or(MAX_CRATE_LINES, |(_, limit)| *limit);
        let lines = source_lines(&folder.join("src"))?;
        if lines > limit {
            wrong.push(format!("crates/{name} has {lines} lines of source without tests; the limit is {limit}"));
        }
        cycles::check(&folder, &name, wrong)?;
        if matches!(name.as_str(), "faults" | "lab" | "testkit") {
            continue;
        }
        for file in ["README.md", "LICENSE"] {
            if !folder.join(file).is_file() {
                wrong.push(format!("crates/{name} has no {file}"));
            }
        }
        let lib = read(&folder.join("src/lib.rs"))?;
        if name != UNSAFE && !lib.contains("#![forbid(unsafe_code)]") {
            wrong.push(format!("crates/{name}/src/lib.rs does not forbid unsafe code"));
        }
        if !EFFECTS.contains(&name.as_str()) && lib.contains("clippy::disallowed_methods") {
            wrong.push(format!("crates/{name} gives itself leave to do I/O"));
        }
    }
    Ok(())
}

/// Compares the table of crates in ARCHITECTURE.md with [`MAY_USE`], but for the crates that may
/// use all.
fn table_of_crates(architecture: &str, wrong: &mut Vec<String>) {
    for (name, allowed) in MAY_USE.iter().filter(|(_, allowed)| *allowed != ALL) {
        let start = format!("| `{name}` | ");
        let row = architecture.lines().find_map(|line| line.strip_prefix(&start));
        let uses = row.and_then(|row| row.split(" | ").next()).unwrap_or_default();
        let uses: BTreeSet<&str> = uses.split('`').skip(1).step_by(2).collect();
        if uses != allowed.iter().copied().collect() {
            wrong.push(format!("ARCHITECTURE.md does not say that `{name}` may use {}", allowed.join(", ")));
        }
    }
}

/// Returns the number of source lines in a folder, without tests and generated code.
fn source_lines(folder: &Path) -> Result<usize, String> {
    let mut lines = 0;
    for path in list(folder)? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() && !matches!(name.as_str(), "tests" | "generated") {
            lines += source_lines(&path)?;
        } else if name.ends_with(".rs") && name != "tests.rs" {
            lines += read(&path)?.lines().count();
        }
    }
    Ok(lines)
}

fn files(wrong: &mut Vec<String>) -> Result<(), String> {
    let mut folders: Vec<PathBuf> =
        ["crates", "benches", "xtask", "fuzz", "examples"].map(|folder| root().join(folder)).into();
    while let Some(folder) = folders.pop() {
        for path in list(&folder)? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if path.is_dir() {
                if !matches!(
                    name.as_str(),
                    "target" | "generated" | "testdata" | "corpus" | "artifacts" | "regressions"
                ) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                file(&path, wrong)?;
            }
        }
    }
    Ok(())
}

fn file(path: &Path, wrong: &mut Vec<String>) -> Result<(), String> {
    let text = read(path)?;
    let shown = path.strip_prefix(root()).unwrap_or(path).display().to_string();
    if text.lines().count() > MAX_LINES {
        wrong.push(format!("{shown} has {} lines; the limit is {MAX_LINES}", text.lines().count()));
    }
    if shown.starts_with("xtask/") {
        return Ok(());
    }
    for (number, line) in text.lines().enumerate() {
        let number = number + 1;
        if ["todo!(", "unimplemented!(", "FIXME", "XXX"].iter().any(|mark| line.contains(mark)) {
            wrong.push(format!("{shown}:{number}: unfinished"));
        }
        if line.trim_start().starts_with("pub type ") && line.contains("= String;") {
            wrong.push(format!("{shown}:{number}: a name needs a separate type"));
        }
        if line.trim_start().starts_with("#[ignore") && !line.contains("= \"") {
            wrong.push(format!("{shown}:{number}: a test is ignored without a reason"));
        }
        let is_unsafe = UNSAFE_MARKS.iter().any(|mark| line.contains(mark));
        // Tests may call the kernel in ways that no library does.
        if is_unsafe && !shown.contains("/tests/") && !shown.starts_with(&format!("crates/{UNSAFE}/src/")) {
            wrong.push(format!("{shown}:{number}: unsafe code belongs into crates/{UNSAFE}"));
        }
        if line.ends_with(' ') || line.ends_with('\t') {
            wrong.push(format!("{shown}:{number}: blank at the end of the line"));
        }
    }
    Ok(())
}

/// Checks that all files that SECURITY.md names exist. A test of the agent does the same for its
/// flags and parameters.
fn named_in_security(wrong: &mut Vec<String>) -> Result<(), String> {
    let text = read(&root().join("SECURITY.md"))?;
    for name in text.split('`').skip(1).step_by(2) {
        let is_path = FOLDERS.iter().any(|folder| name.starts_with(folder)) || name.ends_with(".toml");
        if is_path && !root().join(name).exists() {
            wrong.push(format!("SECURITY.md names {name}, which does not exist"));
        }
    }
    Ok(())
}

/// Returns the entries of a folder, in order.
pub(crate) fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.sort();
    Ok(paths)
}

/// Reports whether an item is compiled for tests only.
pub(crate) fn is_of_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_is_tidy() {
        super::check().unwrap();
    }
}
