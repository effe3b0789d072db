//! Policy cases with their expected reachability (`testdata/oracle/`).
//!
//! A case is a cluster and a sequence of steps. A step is a complete list of policies and the
//! verdict for every pair of pods and port. The files are IPv4; [`Case::readdressed`] derives the
//! same case for IPv6 or both families.

mod addressing;
mod case_directory;
mod cluster;
mod compact;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
};

use serde_json::Value;

pub use addressing::Addressing;
pub use case_directory::CaseDirectory;
pub use cluster::{Cluster, ClusterPod, ContainerPort, LabelledNamespace, Labels};
pub use compact::ContentError;

use crate::pods::Flow;

/// Error of reading a case file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A line is not a case.
    #[error("{}, line {line}: {source}", path.display())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// A case is inconsistent.
    #[error("{}, line {line}: {source}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The inconsistency.
        source: ContentError,
    },
}

/// Verdict of the policies at both ends of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowVerdict {
    /// Whether the policies of the destination allow ingress.
    pub ingress: bool,
    /// Whether the policies of the source allow egress.
    pub egress: bool,
}

impl FlowVerdict {
    /// Reports whether both ends allow the flow.
    #[must_use]
    pub fn allowed(self) -> bool {
        self.ingress && self.egress
    }
}

/// A complete state with its expected verdicts.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Changes since the previous step, as text.
    pub actions: Vec<String>,
    /// Pods and namespaces of this step.
    pub cluster: Cluster,
    /// All policies in force, as Kubernetes objects.
    pub policies: Vec<Value>,
    /// Expected verdict of every flow.
    pub expected: Vec<(Flow, FlowVerdict)>,
    /// Flows whose verdict differs between implementations.
    pub contested: BTreeSet<Flow>,
}

/// A cluster and the changes to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Short unique name, usable as a file name.
    pub file: String,
    /// Description.
    pub name: String,
    /// Topics of the case.
    pub tags: Vec<String>,
    /// Successive states.
    pub steps: Vec<Step>,
}

/// Returns the case file of cluster-wide admin policies, which needs a source that supports their
/// kinds.
#[must_use]
pub fn bundled_admin() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/oracle/admin_cases.jsonl.gz")
}

/// Returns the case files of the workspace that every source supports.
#[must_use]
pub fn bundled() -> [PathBuf; 2] {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/oracle");
    ["k8s_cases.jsonl.gz", "k8s_e2e_cases.jsonl.gz"].map(|name| folder.join(name))
}

/// Returns one of `parts` equal parts of the cases, chosen by the number of the change in
/// `TORTIE_CHANGE`, which `cargo xtask test` sets; the first part without it, and all cases with
/// `TORTIE_CHANGE=all`.
///
/// # Panics
/// If the variable is neither a number nor `all`.
#[must_use]
pub fn of_change(cases: Vec<Case>, parts: usize) -> Vec<Case> {
    part(cases, parts, std::env::var_os("TORTIE_CHANGE").as_deref())
}

fn part(cases: Vec<Case>, parts: usize, change: Option<&OsStr>) -> Vec<Case> {
    let change = match change.map(OsStr::to_string_lossy).as_deref() {
        Some("all") => return cases,
        Some(number) => number.parse::<usize>().unwrap_or_else(|error| panic!("TORTIE_CHANGE={number}: {error}")),
        None => 0,
    };
    cases.into_iter().skip(change % parts).step_by(parts).collect()
}

/// Reads a file of cases, one per line; gzip if the name ends in `.gz`.
///
/// # Errors
/// The first line that is not a consistent case.
pub fn read(path: &Path) -> Result<Vec<Case>, CaseError> {
    let failed = |source| CaseError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let reader: Box<dyn BufRead> = if path.extension().is_some_and(|extension| extension == "gz") {
        Box::new(BufReader::new(flate2::read::GzDecoder::new(file)))
    } else {
        Box::new(BufReader::new(file))
    };
    let mut cases = Vec::new();
    for (index, line) in reader.lines().enumerate() {
        let (line, number) = (line.map_err(failed)?, index + 1);
        if line.trim().is_empty() {
            continue;
        }
        let case: compact::Case = serde_json::from_str(&line).map_err(|source| CaseError::Json {
            path: path.to_owned(),
            line: number,
            source,
        })?;
        let content = |source| CaseError::Content { path: path.to_owned(), line: number, source };
        cases.push(case.expand().map_err(content)?);
    }
    Ok(cases)
}

#[cfg(test)]
mod tests;
