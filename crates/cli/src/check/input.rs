use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tortie_config::{Config, settings};
use tortie_datastore::{
    DirAccess, DirSource, DirState, Everything, Fallback, FileContent, InputProblem, manifest_texts,
};
use tortie_model::{Key, Update};
use tortie_resources::manifest::{BlockSource, Options};
use tortie_resources::{FieldProblem, Position, Severity};

use super::super::cluster::ClusterArgs;
use super::super::origin::Origins;
use super::super::program::local_sources;
use super::Failure;

const STDIN: &str = "stdin";

#[derive(Debug)]
pub(super) struct Input {
    pub(super) options: Options,
    pub(super) texts: Vec<(PathBuf, String)>,
    pub(super) updates: Vec<Update>,
    pub(super) problems: Vec<InputProblem>,
    /// The datastore; `None` for manifests.
    pub(super) datastore: Option<String>,
    /// Versions of the objects in the datastore.
    versions: BTreeMap<Key, Arc<str>>,
}

impl Input {
    fn empty() -> Self {
        // IPAM blocks are parsed as for agents that calculate routes.
        let blocks = BlockSource::IpamBlocks;
        let options = Options { block_source: blocks, lints: true, ..settings::manifests(&Config::default()) };
        let (updates, problems) = (Vec::new(), Vec::new());
        Self { options, texts: Vec::new(), updates, problems, datastore: None, versions: BTreeMap::new() }
    }

    pub(super) fn of_datastore(cluster: &ClusterArgs) -> Result<Self, Failure> {
        if !cluster.datastore.is_read_here() {
            let why =
                "objects are validated in etcd, Kubernetes and manifests; servers for agents have valid ones only";
            return Err(Failure::usage(why));
        }
        let empty = Self::empty();
        let sources = local_sources(None)?;
        let read = cluster.read_everything(&sources, empty.options.clone(), true)?;
        let Everything { updates, problems, versions, .. } = read;
        Ok(Self { updates, problems, versions, datastore: Some(cluster.datastore.place()), ..empty })
    }

    /// Returns the place of all objects, for messages.
    pub(super) fn place(&self) -> &'static str {
        if self.datastore.is_some() { "in the datastore" } else { "among the manifests" }
    }

    pub(super) fn origins(&self) -> Origins {
        match self.datastore {
            None => Origins::of_texts(self.texts.clone(), &self.options),
            Some(_) => Origins::of_versions(self.versions.clone()),
        }
    }

    pub(super) fn read(paths: &[PathBuf], access: DirAccess) -> Result<Self, Failure> {
        let mut input = Self::empty();
        for path in paths {
            let (texts, problems) = (input.texts.len(), input.problems.len());
            if path.as_os_str() == "-" {
                input.take_stdin()?;
            } else {
                input.take_path(path, access)?;
            }
            let is_empty = input.texts.iter().skip(texts).all(|(_, text)| is_blank(text));
            if is_empty && input.problems.len() == problems {
                input.problems.push(nothing_in(path));
            }
        }
        Ok(input)
    }

    fn take_path(&mut self, path: &Path, access: DirAccess) -> Result<(), Failure> {
        let mut source = DirSource::new(path, self.options.clone()).read_within(access);
        self.updates.extend(source.read().map_err(Failure::failed)?);
        self.problems.extend(source.problems());
        // A path that cannot be read has no text to show; one of the problems reports it.
        self.texts.extend(manifest_texts(path, access).unwrap_or_default());
        Ok(())
    }

    fn take_stdin(&mut self) -> Result<(), Failure> {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map_err(Failure::io("standard input"))?;
        self.take_text(STDIN.into(), text);
        Ok(())
    }

    pub(super) fn take_text(&mut self, file: PathBuf, text: String) {
        let mut state = DirState::new(self.options.clone());
        state.set_file(&file, Some(FileContent::Text(&text)));
        self.updates.extend(state.snapshot());
        self.problems.extend(state.problems());
        self.texts.push((file, text));
    }
}

fn is_blank(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| line.is_empty() || line == "---" || line.starts_with('#'))
}

/// Returns the error for a path without objects: the path is wrong, or the program that writes it
/// has failed.
fn nothing_in(path: &Path) -> InputProblem {
    let (file, message) = match path.as_os_str() == "-" {
        true => (Path::new(STDIN), "there are no objects in it"),
        false if path.is_dir() => (path, "there are no objects in files below it that end in .yaml, .yml or .json"),
        false => (path, "there are no objects in it"),
    };
    let problem = FieldProblem::new(Severity::Error, Position::default(), "", message);
    InputProblem::new(String::new(), problem, Fallback::Nothing).in_file(file)
}
