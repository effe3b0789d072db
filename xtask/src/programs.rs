//! Programs that tests and benchmarks start: the agent, and those of laboratories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{built, cargo, collect, root, run};

/// Packages and features of tests. Other choices change the features of dependencies, and nearly
/// everything is compiled again.
pub(crate) const OF_TESTS: [&str; 3] = ["--workspace", "--all-features", "--locked"];

/// Paths of programs of the workspace, compiled with the features of tests, by name.
pub(crate) struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    /// Builds the agent and the programs of laboratories.
    pub(crate) fn build() -> Result<Self, String> {
        Self::build_with(&[])
    }

    /// Builds these benchmarks as well.
    pub(crate) fn build_with(benchmarks: &[&str]) -> Result<Self, String> {
        // Cargo builds the programs of a package together with a test of it: here of the agent, the
        // laboratories and the faults.
        let mut build = cargo(&["test", "--no-run", "--test", "history", "--test", "hooks", "--test", "catalogue"]);
        Ok(Self(built(build.args(OF_TESTS).args(benchmarks.iter().flat_map(|name| ["--bench", name])))?))
    }

    pub(crate) fn agent(&self) -> Result<&Path, String> {
        self.path("tortie")
    }

    /// Runs a program with these arguments.
    pub(crate) fn run<'a>(&self, name: &str, args: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
        run(self.command(name)?.args(args))
    }

    /// As [`Programs::run`], with the agent's path as an additional argument.
    pub(crate) fn run_with_agent<'a>(&self, name: &str, args: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
        run(self.command(name)?.args(args).arg("--agent").arg(self.agent()?))
    }

    /// As [`Programs::run_with_agent`], but prints the output at the end, for programs beside which
    /// others print.
    pub(crate) fn collect_with_agent<'a>(
        &self,
        name: &str,
        args: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), String> {
        collect(self.command(name)?.args(args).arg("--agent").arg(self.agent()?))
    }

    fn command(&self, name: &str) -> Result<Command, String> {
        let mut command = Command::new(self.path(name)?);
        command.current_dir(root());
        Ok(command)
    }

    fn path(&self, name: &str) -> Result<&Path, String> {
        self.0.get(name).map(PathBuf::as_path).ok_or_else(|| format!("cargo did not say where {name} is"))
    }
}
