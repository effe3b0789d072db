//! The documentation as a site: the pages of `docs/book`, those of the repository that belong there, and a reference that the program
//! and its source tell.

mod links;
mod markdown;
mod messages;
mod pages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{output, root, run};
use crate::tools::Tool;
use crate::{commands, needs};

const MDBOOK: Tool = Tool { name: "mdbook", version: "0.5.4" };

/// Builds the site, and fails if a link in it leads nowhere.
pub(crate) fn build(args: &[String]) -> Result<(), String> {
    let (mut out, mut agent) = (root().join("target/site"), None);
    for argument in args.chunks(2) {
        match argument {
            [flag, folder] if flag == "--out" => {
                out = std::path::absolute(folder).map_err(|error| format!("{folder}: {error}"))?;
            }
            [flag, program] if flag == "--agent" => agent = Some(PathBuf::from(program)),
            _ => return Err("site takes --out DIR, and --agent PROGRAM for one built with all features".to_owned()),
        }
    }
    needs::to_build()?;
    let book = root().join("target/book");
    remove(&book)?;
    pages::collect(&book.join("src"))?;
    let agent = agent.map_or_else(commands::build_agent, Ok)?;
    reference(&agent, &book.join("src/reference"))?;
    let settings = root().join("docs/book/book.toml");
    fs::copy(&settings, book.join("book.toml")).map_err(|error| format!("{}: {error}", settings.display()))?;
    remove(&out)?;
    run(Command::new(MDBOOK.installed()?).arg("build").arg("--dest-dir").arg(&out).arg(&book))?;
    let checked = links::check(&out)?;
    println!("{}: {checked} links within the site", out.display());
    Ok(())
}

/// Pages that are written by nobody.
fn reference(agent: &Path, folder: &Path) -> Result<(), String> {
    write(&folder.join("parameters.md"), &output(Command::new(agent).arg("parameters"))?)?;
    for part in ["commands", "metrics"] {
        write(&folder.join(part).with_extension("md"), &output(Command::new(agent).args(["reference", part]))?)?;
    }
    let warnings = output(Command::new(agent).args(["reference", "warnings"]))?;
    write(&folder.join("messages.md"), &format!("{warnings}\n{}", messages::page()?))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(failed)?;
    fs::write(path, text).map_err(failed)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn remove(folder: &PathBuf) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {error}", folder.display())),
        _ => Ok(()),
    }
}

/// All files below a folder, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    found.sort();
    Ok(found)
}
