use std::convert::Infallible;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde_json::Value;
use tortie_datastore::store::apply::merge_patch;
use tortie_resources::from_yaml;

use super::Failure;
use super::confirming::ConfirmingArgs;
use super::names::{self, KindOrOne};
use super::pending_write::PendingWrite;
use super::store::StoreArgs;

/// Change a part of resources in etcd or Kubernetes, as kubectl does.
///
/// The patch is YAML or JSON and is merged into each resource (RFC 7396): null removes a field,
/// mappings are merged, and everything else is replaced, lists as a whole. The result is validated.
/// With a resourceVersion in the metadata of the patch, only that version is changed. Strategic
/// merges, which Calico's kinds do not have in Kubernetes either, and JSON patches (RFC 6902) are
/// not supported.
///
/// Example: tortie patch np web -n shop -p '{spec: {order: 10}}'
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The kind, in any case, as a plural or by a short name, such as np, gnp, hep; or KIND/NAME.
    #[arg(value_parser = names::KindParser(str::parse::<KindOrOne>), hide_possible_values = true)]
    kind: KindOrOne,
    /// The names.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The namespace.
    #[arg(short, long, value_name = "NAME", default_value = "default", value_parser = names::namespace)]
    namespace: String,
    /// The patch.
    #[arg(
        short,
        long,
        required_unless_present = "patch_file",
        conflicts_with = "patch_file",
        allow_hyphen_values = true
    )]
    patch: Option<String>,
    /// File with the patch, or - for standard input.
    #[arg(long, value_name = "PATH")]
    patch_file: Option<PathBuf>,
    /// Type of the patch: merge.
    #[arg(long = "type", value_name = "TYPE", default_value = "merge")]
    _kind: PatchKind,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    confirming: ConfirmingArgs,
}

#[derive(Clone, Copy, Debug)]
enum PatchKind {
    Merge,
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
enum PatchKindError {
    #[error("there are no strategic merges; `merge` replaces lists as a whole")]
    Strategic,
    #[error("JSON patches are not understood; `merge` takes the fields that are to change")]
    Json,
    #[error("is not `merge`")]
    Unknown,
}

impl FromStr for PatchKind {
    type Err = PatchKindError;

    fn from_str(text: &str) -> Result<Self, PatchKindError> {
        match text {
            "merge" => Ok(Self::Merge),
            "strategic" => Err(PatchKindError::Strategic),
            "json" => Err(PatchKindError::Json),
            _ => Err(PatchKindError::Unknown),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let patch = patch(args)?;
    let keys = names::wanted(&args.kind, &args.names, &args.namespace, args.store.keeps())?;
    let merged = |object: &mut Value| {
        merge_patch(object, &patch);
        Ok::<_, Infallible>(())
    };
    let pending: Vec<PendingWrite<'_>> = keys.iter().map(|key| PendingWrite::edit(key, "patched", merged)).collect();
    args.confirming.write(&args.store, &pending, false)
}

fn patch(args: &Args) -> Result<Value, Failure> {
    let (place, text) = match (&args.patch, &args.patch_file) {
        (Some(text), _) => ("--patch".to_owned(), text.clone()),
        (None, Some(file)) if file == Path::new("-") => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(Failure::io("standard input"))?;
            ("stdin".to_owned(), text)
        }
        (None, Some(file)) => {
            let place = file.display().to_string();
            let text = fs::read_to_string(file).map_err(Failure::io(place.clone()))?;
            (place, text)
        }
        (None, None) => return Err(Failure::usage("there is no patch")),
    };
    match from_yaml(&text) {
        Ok(patch) if patch.is_object() => Ok(patch),
        Ok(_) => {
            Err(Failure::usage(format!("{place}: the patch must be a mapping, such as `{{spec: {{order: 10}}}}`")))
        }
        Err(error) => Err(Failure::usage_at(place)(error)),
    }
}
