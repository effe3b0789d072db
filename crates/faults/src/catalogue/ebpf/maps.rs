//! Another process writes to maps.

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use tortie_bpf::{ArrayMap, NetfilterLink, Program};

use super::by_programs;
use crate::{
    catalogue::programs::admit,
    stage::{Stage, StageError, StageResult},
    world::BASE,
};

/// Maximum number of values written.
const VALUES: u64 = 256;
/// Maps whose values are one value to the kernel, with the bytes of each.
const JOINED: [(&str, u32); 5] = [("exact", 64), ("roots", 64), ("groups", 64), ("endpoints", 64), ("blocks", 1024)];
/// Maps are checked every second here; a busy machine needs longer.
const LOOKED_AT: Duration = Duration::from_secs(4);

/// The agent repairs any overwritten map; until then packets may be allowed or denied wrongly.
pub(super) fn tampered(stage: &mut Stage, map: &str) -> StageResult {
    by_programs(stage)?;
    for byte in ["0x00", "0xff"] {
        let before = generation(stage)?;
        stage.may_be_open(LOOKED_AT);
        stage.may_be_cut(LOOKED_AT);
        write(stage, map, byte)?;
        stage.until("other maps have replaced them", |stage| {
            stage.check()?;
            Ok(generation(stage)? > before)
        })?;
        stage.watch(LOOKED_AT)?;
        stage.confirm(&BASE)?;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    // Policy stays in force without the agent.
    stage.kill()?;
    stage.watch(Duration::from_millis(500))?;
    stage.confirm(&BASE)?;
    stage.start()
}

/// No wrong verdict is announced: overwritten counters must not affect packets.
pub(super) fn counted(stage: &mut Stage) -> StageResult {
    by_programs(stage)?;
    for byte in ["0x00", "0xff"] {
        write(stage, "counters", byte)?;
        stage.watch(Duration::from_secs(2))?;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    Ok(())
}

/// Returns the number of the attached generation.
fn generation(stage: &Stage) -> Result<u64, StageError> {
    let folders = stage.links().into_iter().filter_map(|link| link.parent()?.file_name()?.to_str()?.parse().ok());
    folders.max().ok_or_else(|| StageError::Unexpected("no program is attached".to_owned()))
}

/// Fills values of a map of the attached programs with this byte.
fn write(stage: &Stage, map: &str, byte: &str) -> StageResult {
    if let Some((_, bytes)) = JOINED.into_iter().find(|(joined, _)| *joined == map) {
        return write_joined(stage, map, byte, bytes);
    }
    let number = |found: &serde_json::Value| found.as_u64().unwrap_or_default();
    for link in stage.links() {
        // With attachment by rule, the pinned object is the program.
        let program = match NetfilterLink::open(&link) {
            Ok(link) => link.info()?.program,
            Err(_) => Program::open(&link)?.info()?.id,
        };
        let program = bpftool(stage, &format!("prog show id {program}"))?;
        for id in program["map_ids"].as_array().into_iter().flatten() {
            let found = bpftool(stage, &format!("map show id {id}"))?;
            let name = found["name"].as_str().unwrap_or_default();
            // The kernel truncates long names.
            if name.is_empty() || !format!("tortie_{map}").starts_with(name) {
                continue;
            }
            // Sets the values of all CPUs in a per-CPU map.
            let value = format!(" {byte}").repeat(usize::try_from(number(&found["bytes_value"])).unwrap_or(0));
            let mut lines = String::new();
            for index in 0..number(&found["max_entries"]).min(VALUES) {
                let [a, b, c, d] = u32::try_from(index).unwrap_or(0).to_ne_bytes();
                let _ = writeln!(lines, "map update id {id} key {a} {b} {c} {d} value{value}");
            }
            let file = stage.folder().join("updates");
            std::fs::write(&file, lines)?;
            bpftool(stage, &format!("batch file {}", file.display()))?;
            // All programs share the maps.
            return Ok(());
        }
    }
    Err(StageError::Unexpected(format!("no program that is attached has a map of {map}")))
}

/// As [`write()`], for a map that is pinned beside the links and written through memory.
fn write_joined(stage: &Stage, map: &str, byte: &str, bytes: u32) -> StageResult {
    let digits = byte.trim_start_matches("0x");
    let byte = u8::from_str_radix(digits, 16).map_err(|error| StageError::Unexpected(format!("{byte}: {error}")))?;
    let newest = generation(stage)?.to_string();
    let of_newest = |link: &PathBuf| link.parent().is_some_and(|folder| folder.ends_with(&newest));
    let link = stage.links().into_iter().find(of_newest);
    let path = link.ok_or_else(|| StageError::Unexpected("no program is attached".to_owned()))?;
    let array = ArrayMap::open_joined(&path.with_file_name(format!("map-{map}")), bytes)?;
    let value = byte.to_ne_bytes().repeat(bytes as usize);
    let few = u32::try_from(VALUES).unwrap_or(u32::MAX);
    (0..array.info().entries.min(few)).try_for_each(|index| array.write(index, &value)).map_err(StageError::Files)
}

/// Returns the JSON output of `bpftool`.
fn bpftool(stage: &Stage, arguments: &str) -> Result<serde_json::Value, StageError> {
    let output = stage.shell(&format!("bpftool -j {arguments}"))?;
    serde_json::from_str(output.trim())
        .map_err(|error| StageError::Unexpected(format!("bpftool {arguments}: {error}: {output}")))
}
