//! Build information for `tortie version`. Nothing here fails a build: an unknown value is empty.
#![allow(clippy::disallowed_methods, reason = "it runs when the program is built, and queries rustc and git")]

use std::env;
use std::process::Command;

/// Variable with the commit, for builds without git, such as in an archive or a container.
const COMMIT: &str = "TORTIE_COMMIT";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={COMMIT}");
    let env_var = |name: &str| env::var(name).unwrap_or_default();
    let commit = match env_var(COMMIT) {
        commit if !commit.is_empty() => commit,
        // In other profiles, each commit would cause a rebuild for developers.
        _ if env_var("PROFILE") == "release" => of_git(),
        _ => String::new(),
    };
    let rustc = output_of(Command::new(env_var("RUSTC")).arg("--version"));
    for (name, value) in [("COMMIT", commit), ("TARGET", env_var("TARGET")), ("RUSTC", rustc)] {
        println!("cargo:rustc-env=TORTIE_BUILT_{name}={value}");
    }
}

/// Returns the checked-out commit, with a `+` if files are changed. Returns an empty text if the
/// commit is unknown, or if this package is inside the repository of another project.
fn of_git() -> String {
    let git = |args: &[&str]| output_of(Command::new("git").args(args));
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

/// Returns the first line of a program's output; an empty text if it does not run, or fails.
fn output_of(program: &mut Command) -> String {
    let output = program.output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
