use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tortie_datastore::{DirAccess, Fallback, InputProblem, manifest_texts};
use tortie_model::{Interner, Update};
use tortie_resources::manifest::{Format, Manifest, Options, Outcome, read as read_manifest};
use tortie_resources::{FieldProblem, Severity};

use super::super::Failure;
use super::super::origin::Origins;

/// Prints problems, and fails if one is an error.
pub(super) fn read(
    paths: &[PathBuf],
    access: DirAccess,
    options: &Options,
    delete: bool,
) -> Result<(Vec<Update>, Origins), Failure> {
    let mut texts = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(Failure::io("standard input"))?;
            texts.push((PathBuf::from("stdin"), text));
        } else {
            let found = manifest_texts(path, access).map_err(Failure::io(path.display().to_string()))?;
            if found.is_empty() {
                return Err(Failure::failed(format!("{}: there are no manifests", path.display())));
            }
            texts.extend(found);
        }
    }
    let (mut updates, mut errors) = (Vec::new(), 0);
    let mut labels = Interner::new();
    for (file, text) in &texts {
        let manifest = read_manifest(text, Format::of(file), options, &mut labels);
        for problem in problems(file, &manifest) {
            let is_warning = problem.problem.severity == Severity::Warning;
            errors += usize::from(!is_warning);
            eprintln!("{problem}{}", if is_warning { " (warning)" } else { "" });
        }
        updates.extend(manifest.resources.into_iter().flat_map(|resource| match resource.outcome {
            Outcome::Valid(updates) => updates,
            Outcome::Invalid { .. } | Outcome::Unknown => Vec::new(),
        }));
    }
    if errors > 0 {
        return Err(Failure::Reported(1));
    }
    if delete {
        updates = updates.iter().map(|update| Update::delete(update.key())).collect();
    }
    Ok((updates, Origins::of_texts(texts, options)))
}

fn problems(file: &Path, manifest: &Manifest) -> Vec<InputProblem> {
    let input = |subject: &str, problem| InputProblem::new(subject, problem, Fallback::Nothing).in_file(file);
    let unreadable = manifest
        .unreadable
        .iter()
        .map(|error| input("", FieldProblem::new(Severity::Error, error.position, "", error.message.clone())));
    let found = manifest
        .resources
        .iter()
        .flat_map(|resource| resource.problems.iter().map(|problem| input(&resource.subject, problem.clone())));
    unreadable.chain(found).collect()
}
