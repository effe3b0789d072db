//! What `tortie version` tells of a build. Nothing here fails a build: what is not known is told as such.
#![allow(clippy::disallowed_methods, reason = "it runs when the program is built, and asks rustc and git who they are")]

use std::env;
use std::process::Command;

/// Names the commit where there is no git to ask, such as in an archive or a container.
const COMMIT: &str = "TORTIE_COMMIT";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={COMMIT}");
    let told = |name: &str| env::var(name).unwrap_or_default();
    let commit = match told(COMMIT) {
        told if !told.is_empty() => told,
        // Whoever works on the program would build it again at each commit.
        _ if told("PROFILE") == "release" => of_git(),
        _ => String::new(),
    };
    let rustc = said(Command::new(told("RUSTC")).arg("--version"));
    for (name, value) in [("COMMIT", commit), ("TARGET", told("TARGET")), ("RUSTC", rustc)] {
        println!("cargo:rustc-env=TORTIE_BUILT_{name}={value}");
    }
}

/// The commit that is checked out, with a `+` if something is changed; nothing if that is not known, also where this package is
/// inside somebody else's repository.
fn of_git() -> String {
    let git = |args: &[&str]| said(Command::new("git").args(args));
    let commit = git(&["rev-parse", "HEAD"]);
    if commit.is_empty() || git(&["ls-files", "build.rs"]) != "build.rs" {
        return String::new();
    }
    for file in ["HEAD", "index"] {
        let path = git(&["rev-parse", "--git-path", file]);
        if !path.is_empty() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let is_changed = !git(&["status", "--porcelain", "--untracked-files=no"]).is_empty();
    format!("{commit}{}", if is_changed { "+" } else { "" })
}

/// The first line of what a program says; nothing if it does not run, or fails.
fn said(program: &mut Command) -> String {
    let output = program.output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
