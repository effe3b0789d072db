//! Times of builds: a release, the demo, and a check after an edit of one crate.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Instant, SystemTime};

use crate::commands::build_of_demo;
use crate::needs;
use crate::shell::{cargo, command, output, require_room, root, run};

/// Room for the largest of the builds, in MiB.
const ROOM: u64 = 8 * 1024;

/// Crates whose edits are measured: one near the root of the dependencies, one near the leaves.
const EDITED: [&str; 2] = ["model", "node"];

/// Prints a table of wall time and processor time. Downloads precede the builds.
pub(crate) fn print(args: &[String]) -> Result<(), String> {
    if !args.is_empty() {
        return Err("build-times takes no argument".to_owned());
    }
    needs::to_run()?;
    run(&mut cargo(&["fetch", "--locked"]))?;
    let folder = root().join("target/build-times");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    require_room(&folder, ROOM)?;
    let agent = ["--locked", "--package", "tortie-agent", "--features", "full"];
    let check = || {
        let mut check = cargo(&["check", "--tests"]);
        check.args(agent);
        check
    };
    let mut rows = vec![
        ("release of the agent, clean".to_owned(), clean(&folder, cargo(&["build", "--release"]).args(agent))?),
        ("demo, clean".to_owned(), clean(&folder, &mut build_of_demo())?),
        ("check of the agent and its tests, clean".to_owned(), clean(&folder, &mut check())?),
    ];
    for name in EDITED {
        touch(&root().join("crates").join(name).join("src/lib.rs"))?;
        rows.push((format!("the same after an edit of `{name}`"), timed(&folder, &mut check())?));
    }
    println!("| build | wall, s | processor, s |\n|---|---|---|");
    rows.iter().for_each(|(name, [wall, processor])| println!("| {name} | {wall:.0} | {processor:.0} |"));
    fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Runs a build without earlier results.
fn clean(folder: &Path, build: &mut Command) -> Result<[f64; 2], String> {
    fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    timed(folder, build)
}

/// Runs a build; returns its seconds of wall time and of processor time.
fn timed(folder: &Path, build: &mut Command) -> Result<[f64; 2], String> {
    let (begin, before) = (Instant::now(), seconds_of_children()?);
    run(build.env("CARGO_TARGET_DIR", folder))?;
    Ok([begin.elapsed().as_secs_f64(), seconds_of_children()? - before])
}

fn seconds_of_children() -> Result<f64, String> {
    let per_second: f64 = parse(&output(&mut command("getconf", &["CLK_TCK"]))?)?;
    let stat = fs::read_to_string("/proc/self/stat").map_err(|error| format!("/proc/self/stat: {error}"))?;
    // `cutime` and `cstime`; the name, in parentheses, may contain spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(13).take(2);
    Ok(fields.map(parse).sum::<Result<f64, _>>()? / per_second)
}

fn parse(number: &str) -> Result<f64, String> {
    number.trim().parse().map_err(|error| format!("{number}: {error}"))
}

fn touch(file: &Path) -> Result<(), String> {
    let touched = File::options().append(true).open(file).and_then(|file| file.set_modified(SystemTime::now()));
    touched.map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_of_a_build_is_measured() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut busy = Command::new("sh");
        busy.args(["-c", "n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done"]);
        let [wall, processor] = timed(folder.path(), &mut busy).expect("timed");
        assert!(processor > 0.0 && wall > 0.0, "{wall} s, {processor} s");
    }
}
