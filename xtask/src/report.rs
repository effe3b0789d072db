//! Measured tables of `benches/README.md`.

use std::fs;
use std::process::Stdio;

use crate::needs;
use crate::shell::{cargo, output, root, run};

/// Tables: the marker above each, its benchmark, and the benchmark's arguments.
const TABLES: [(&str, &str, &[&str]); 5] = [
    ("time", "engine", &["--table"]),
    ("memory", "memory", &[]),
    ("worst", "worst", &[]),
    ("worst-memory", "memory", &["--worst"]),
    ("cost", "cost", &["--table"]),
];
const END: &str = "<!-- end of bench-report -->";

/// Runs the benchmarks of the whole engine and writes their tables, with a description of the
/// machine. Fails at the end if a limit is exceeded.
pub(crate) fn bench_report(args: &[String]) -> Result<(), String> {
    let runs = match args {
        [] => None,
        [flag, runs] if flag == "--runs" && runs.parse::<u32>().is_ok_and(|runs| runs > 0) => Some(runs.as_str()),
        _ => return Err("cargo xtask bench-report [--runs N]".into()),
    };
    needs::to_build()?;
    run(&mut cargo(&["bench", "--locked", "--package", "tortie-benches", "--no-run"]))?;
    let before = load()?;
    let mut tables = Vec::new();
    let mut failed = Vec::new();
    for (marker, bench, options) in TABLES {
        println!("{marker}");
        let mut command =
            cargo(&["bench", "--quiet", "--locked", "--package", "tortie-benches", "--bench", bench, "--"]);
        command.args(options);
        if bench != "memory" && bench != "cost" {
            command.args(runs.iter().flat_map(|runs| ["--runs", runs]));
        }
        let done = command.stderr(Stdio::inherit()).output().map_err(|error| format!("{bench}: {error}"))?;
        let text = String::from_utf8(done.stdout).map_err(|_| format!("{bench}: its output is not UTF-8"))?;
        let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        println!("{}", table.join("\n"));
        tables.push((marker, table.join("\n")));
        failed.extend((!done.status.success()).then_some(marker));
    }
    tables.push(("machine", machine(&before, &load()?)?));
    let path = root().join("benches/README.md");
    let in_path = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut readme = fs::read_to_string(&path).map_err(in_path)?;
    for (marker, table) in &tables {
        readme = replaced(&readme, marker, table)?;
    }
    fs::write(&path, readme).map_err(in_path)?;
    if failed.is_empty() { Ok(()) } else { Err(format!("written, but these failed: {}", failed.join(", "))) }
}

/// Replaces the text between a marker and the next end.
fn replaced(text: &str, marker: &str, table: &str) -> Result<String, String> {
    let begin = format!("<!-- bench-report: {marker} -->\n");
    let (head, rest) = text.split_once(&begin).ok_or_else(|| format!("there is no line `{}`", begin.trim_end()))?;
    let (_, tail) = rest.split_once(END).ok_or_else(|| format!("`{}` has no end", begin.trim_end()))?;
    Ok(format!("{head}{begin}{table}\n{END}{tail}"))
}

/// Returns the load average of the last minute.
fn load() -> Result<String, String> {
    let load = fs::read_to_string("/proc/loadavg").map_err(|error| format!("/proc/loadavg: {error}"))?;
    Ok(load.split(' ').next().unwrap_or_default().to_owned())
}

fn machine(load_before: &str, load_after: &str) -> Result<String, String> {
    let cpus = fs::read_to_string("/proc/cpuinfo").map_err(|error| format!("/proc/cpuinfo: {error}"))?;
    let models = cpus.lines().filter_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = models.map(|(_, model)| model).next().unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rust = output(&mut crate::shell::command("rustc", &["--version"]))?;
    let rust = rust.split(' ').nth(1).unwrap_or_default();
    Ok(format!("{cores} × {model}, load {load_before} before and {load_after} after the runs, Rust {rust}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_between_the_markers_is_replaced() {
        let text = format!("a\n<!-- bench-report: time -->\nold\n{END}\nb\n<!-- bench-report: worst -->\n{END}\n");
        let new = replaced(&text, "time", "| new |").unwrap();
        let expected = text.replace("old", "| new |");
        assert_eq!(new, expected);
        assert_eq!(replaced(&new, "time", "| new |").unwrap(), expected);
        assert_eq!(replaced("text", "time", "").unwrap_err(), "there is no line `<!-- bench-report: time -->`");
        assert!(replaced("<!-- bench-report: time -->\n", "time", "").is_err());
    }

    #[test]
    fn the_document_has_markers_for_every_table() {
        let mut readme = fs::read_to_string(root().join("benches/README.md")).unwrap();
        for marker in TABLES.map(|(marker, ..)| marker).into_iter().chain(["machine"]) {
            readme = replaced(&readme, marker, "").unwrap();
        }
    }
}
