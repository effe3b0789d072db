use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tortie_config::validate_parameter;
use tortie_datastore::{Fallback, InputProblem};
use tortie_model::Interner;
use tortie_resources::manifest::{Format, Options, Outcome, ParameterCheck, Resource, read_written};
use tortie_resources::stored::{ObjectError, ResourceKey, ResourceKind};
use tortie_resources::{FieldProblem, Position, Severity};

use super::names;
use super::store::StoredKinds;
use super::{Failure, with_causes};

/// Files to read.
#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    /// Files, directories, or - for standard input.
    #[arg(short, long, value_name = "PATH", required = true, num_args = 1..)]
    filename: Vec<PathBuf>,
    #[command(flatten)]
    _recursive: RecursiveArg,
    /// The namespace of resources that do not say.
    #[arg(short, long, value_name = "NAME", default_value = "default", value_parser = names::namespace)]
    namespace: String,
}

/// Option of calicoctl and kubectl for the only behaviour here.
#[derive(Debug, clap::Args)]
pub(super) struct RecursiveArg {
    /// No effect: files in all directories below a given one are always read.
    #[arg(short = 'R', long = "recursive")]
    _is_given: bool,
}

impl FileArgs {
    /// Returns the resources in the files, tiers first, if all are valid.
    pub(super) fn read(&self, keeps: StoredKinds) -> Result<Vec<FileResource>, Failure> {
        let mut resources = read(&self.filename, &self.namespace, Validity::Valid, keeps)?;
        tiers_first(&mut resources);
        Ok(resources)
    }
}

pub(super) struct FileResource {
    file: PathBuf,
    position: Position,
    pub(super) key: ResourceKey,
    pub(super) object: Value,
}

impl fmt::Display for FileResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.position)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Validity {
    Valid,
    /// Its kind, namespace and name.
    Identified,
}

/// `-` is standard input. Prints problems and, if one is an error, that nothing has been changed.
pub(super) fn read(
    paths: &[PathBuf],
    namespace: &str,
    validity: Validity,
    keeps: StoredKinds,
) -> Result<Vec<FileResource>, Failure> {
    let all = read_all(paths, namespace, validity, keeps);
    if let Err(Failure::Reported(_)) = all {
        eprintln!("tortie: nothing has been changed");
    }
    all
}

pub(super) fn keys(paths: &[PathBuf], namespace: &str, keeps: StoredKinds) -> Result<Vec<ResourceKey>, Failure> {
    let mut keys: Vec<ResourceKey> = Vec::new();
    for written in read_all(paths, namespace, Validity::Identified, keeps)? {
        if !keys.contains(&written.key) {
            keys.push(written.key);
        }
    }
    Ok(keys)
}

fn read_all(
    paths: &[PathBuf],
    namespace: &str,
    validity: Validity,
    keeps: StoredKinds,
) -> Result<Vec<FileResource>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(Failure::io("standard input"))?;
            files.push((PathBuf::from("stdin"), text));
        } else {
            find(path, &mut files, true)?;
        }
    }
    let mut all = Vec::new();
    let mut errors = 0;
    for (file, text) in files {
        let (written, problems) = read_file(&file, &text, namespace, validity, keeps);
        for problem in &problems {
            let warning = problem.problem.severity == Severity::Warning;
            errors += usize::from(!warning);
            eprintln!("{problem}{}", if warning { " (warning)" } else { "" });
        }
        all.extend(written);
    }
    if errors > 0 {
        return Err(Failure::Reported(1));
    }
    if all.is_empty() {
        return Err(Failure::failed("the given files contain no resources"));
    }
    Ok(all)
}

/// In the order of names; hidden ones are left out.
fn find(path: &Path, files: &mut Vec<(PathBuf, String)>, named: bool) -> Result<(), Failure> {
    let failed = |error| Failure::io(path.display().to_string())(error);
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        let is_manifest = path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        if named || is_manifest {
            files.push((path.to_owned(), fs::read_to_string(path).map_err(failed)?));
        }
        return Ok(());
    }
    let entries = fs::read_dir(path).map_err(failed)?;
    let mut inside: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(failed)?;
    inside.retain(|path| path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b".")));
    inside.sort();
    inside.iter().try_for_each(|path| find(path, files, false))
}

fn read_file(
    file: &Path,
    text: &str,
    namespace: &str,
    validity: Validity,
    keeps: StoredKinds,
) -> (Vec<FileResource>, Vec<InputProblem>) {
    let (manifest, objects) = read_written(text, Format::of(file), &options(validity), &mut Interner::new());
    let input = |subject: String, problem| InputProblem::new(subject, problem, Fallback::Nothing).in_file(file);
    let error = |position, message: String| FieldProblem::new(Severity::Error, position, "", message);
    let mut problems: Vec<InputProblem> =
        manifest.unreadable.into_iter().map(|e| input(String::new(), error(e.position, e.message))).collect();
    let mut written = Vec::new();
    for (Resource { id, subject, position, outcome, problems: found }, object) in
        manifest.resources.into_iter().zip(objects)
    {
        match keeps.key_of(&object, namespace) {
            Ok(key) => {
                if is_validated(&key, &outcome) && validity == Validity::Valid {
                    problems.extend(found.into_iter().map(|problem| input(subject.clone(), problem)));
                }
                written.push(FileResource { file: file.to_owned(), position, key, object });
            }
            // The object is identified, or no other problem explains why it cannot be kept.
            Err(why) if id.is_some() || found.iter().all(|problem| problem.severity == Severity::Warning) => {
                problems.push(input(subject, error(position, with_causes(&why) + &keeps.where_it_belongs(&why))));
            }
            Err(_) => problems.extend(found.into_iter().map(|problem| input(subject.clone(), problem))),
        }
    }
    (written, problems)
}

fn options(validity: Validity) -> Options {
    match validity {
        Validity::Valid => {
            Options { for_writing: true, parameters: ParameterCheck(validate_parameter), ..Options::default() }
        }
        Validity::Identified => Options::default(),
    }
}

/// Resources that are stored for other programs only are not validated.
fn is_validated(key: &ResourceKey, outcome: &Outcome) -> bool {
    key.kind().is_of_kubernetes()
        || key.kind().understood().is_some_and(|kind| !kind.is_passthrough())
        || *outcome != Outcome::Unknown
}

pub(super) fn new_errors(key: &ResourceKey, before: &Value, after: &Value) -> Vec<FieldProblem> {
    let errors = |object: &Value| -> Vec<FieldProblem> {
        let options = options(Validity::Valid);
        let read = read_written(&object.to_string(), Format::Json, &options, &mut Interner::new());
        let validated = read.0.resources.into_iter().filter(|resource| is_validated(key, &resource.outcome));
        let problems = validated.flat_map(|resource| resource.problems);
        problems.filter(|problem| problem.severity == Severity::Error).collect()
    };
    let known = errors(before);
    let is_new = |problem: &FieldProblem| {
        !known.iter().any(|known| (&known.field, &known.message) == (&problem.field, &problem.message))
    };
    errors(after).into_iter().filter(is_new).collect()
}

impl StoredKinds {
    fn where_it_belongs(self, why: &ObjectError) -> String {
        let ObjectError::Kind { api_version, kind } = why else { return String::new() };
        if !is_of_kubernetes(api_version) {
            return String::new();
        }
        if self.has_policies_of_kubernetes() {
            return "; `kubectl apply` writes it".into();
        }
        let follows = match kind.as_str() {
            "NetworkPolicy" => "which keeps a policy knp.default.NAME here for it",
            "Namespace" | "ServiceAccount" => "which keeps a profile here for it",
            "Pod" => "which keeps the labels of its workload endpoint here",
            "Node" => "which keeps the labels of the Node of Calico here",
            _ => return "; it belongs in Kubernetes, by `kubectl apply`".into(),
        };
        format!("; it belongs in Kubernetes, by `kubectl apply`, and is followed by `tortie controller`, {follows}")
    }
}

fn is_of_kubernetes(api_version: &str) -> bool {
    match api_version.split_once('/') {
        None => api_version == "v1",
        Some((group, _)) => group.ends_with(".k8s.io") || matches!(group, "apps" | "batch" | "autoscaling"),
    }
}

/// Puts tiers before everything else, which may be in them.
pub(super) fn tiers_first(written: &mut [FileResource]) {
    written.sort_by_key(|written| written.key.kind() != ResourceKind::Tier);
}
