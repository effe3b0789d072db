//! The documentation as a site: the pages of `docs/book`, further documents of the repository, and
//! a reference generated from the program and its source.

mod links;
mod markdown;
mod messages;
mod pages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::files::{self, write};

use crate::needs;
use crate::programs::Programs;
use crate::shell::{output, root, run};
use crate::tools::Tool;

const MDBOOK: Tool = Tool { name: "mdbook", version: "0.5.4" };

/// Builds the site, and fails on a broken link.
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
    files::empty(&book)?;
    pages::collect(&book.join("src"))?;
    let folder = book.join("src/reference");
    match agent {
        Some(agent) => reference(&agent, &folder)?,
        None => reference(Programs::build()?.agent()?, &folder)?,
    }
    let settings = root().join("docs/book/book.toml");
    fs::copy(&settings, book.join("book.toml")).map_err(files::failed(&settings))?;
    files::empty(&out)?;
    run(Command::new(MDBOOK.installed()?).arg("build").arg("--dest-dir").arg(&out).arg(&book))?;
    let checked = links::check(&out)?;
    println!("{}: {checked} links within the site", out.display());
    Ok(())
}

/// Writes the pages that programs generate.
fn reference(agent: &Path, folder: &Path) -> Result<(), String> {
    write(&folder.join("parameters.md"), &output(Command::new(agent).arg("parameters"))?)?;
    for part in ["commands", "metrics"] {
        write(&folder.join(part).with_extension("md"), &output(Command::new(agent).args(["reference", part]))?)?;
    }
    let warnings = output(Command::new(agent).args(["reference", "warnings"]))?;
    write(&folder.join("messages.md"), &format!("{warnings}\n{}", messages::page()?))
}
