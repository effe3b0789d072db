mod table;

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use tortie_datastore::store::{ResourceStore, StoreError};
use tortie_resources::stored::{DEFAULT_ALLOW_PROFILE, ResourceKey, ResourceKind, built_in_profile, labelled};
use tortie_resources::to_yaml;

use super::label_query::LabelQuery;
use super::manifests;
use super::names::{self, KindOrOne};
use super::selected::{namespace_of, nothing};
use super::store::StoreArgs;
use super::{Failure, with_causes};

/// Show resources in etcd or Kubernetes, as calicoctl and kubectl do.
///
/// Shows resources by name, all of a kind, or the resources in files, as the datastore has them.
/// The output of -o yaml and -o json can be applied again: it has each resource in full, with its
/// resourceVersion.
///
/// Examples: tortie get networkpolicies -A
///           tortie get np -l 'team=shop,stage!=test' -o wide
///           tortie get -f policies/ -o yaml
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The kind, in any case, as a plural or by a short name, such as np, gnp, hep; or KIND/NAME.
    #[arg(required_unless_present = "filename", conflicts_with = "filename")]
    kind: Option<KindOrOne>,
    /// The names.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Files, directories, or - for standard input, with the resources to show.
    #[arg(short, long, value_name = "PATH", num_args = 1.., conflicts_with_all = ["all_namespaces", "selector"])]
    filename: Vec<PathBuf>,
    /// The namespace; for files, the namespace of resources that name none.
    #[arg(short, long, value_name = "NAME", conflicts_with = "all_namespaces", default_value = "default", value_parser = names::namespace)]
    namespace: String,
    /// In all namespaces.
    #[arg(short = 'A', long, conflicts_with = "names")]
    all_namespaces: bool,
    /// Only resources with matching labels: `a=b,c!=d,e in (f,g),!h` as kubectl has it, or a
    /// selector of Calico.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names", allow_hyphen_values = true)]
    selector: Option<LabelQuery>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    store: StoreArgs,
}

/// Output format of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// A table.
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    /// KIND/NAME of each, as arguments for other commands.
    Name,
    /// JSON, everything.
    Json,
    /// YAML, everything.
    Yaml,
}

struct Shown {
    objects: Vec<(ResourceKind, Value)>,
    whole: Value,
    errors: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let keeps = args.store.keeps();
    let keys = match &args.kind {
        Some(kind) => names::keys(kind, &args.names, &args.namespace)?,
        None => manifests::keys(&args.filename, &args.namespace, keeps)?,
    };
    if !keys.is_empty() && (args.all_namespaces || args.selector.is_some()) {
        return Err(Failure::usage("-A and -l are for all resources of a kind, and names are given"));
    }
    let kind = args.kind.as_ref().map(|kind| kind.kind);
    for kind in keys.iter().map(ResourceKey::kind).chain(kind) {
        names::kept(kind, keeps)?;
    }
    let store = args.store.open()?;
    let shown = match kind {
        Some(kind) if keys.is_empty() => list(kind, args, &*store)?,
        _ => find_each(&keys, &*store)?,
    };
    for error in &shown.errors {
        eprintln!("tortie: {error}");
    }
    print(args, &shown)?;
    if shown.errors.is_empty() { Ok(()) } else { Err(Failure::Reported(1)) }
}

fn find_each(keys: &[ResourceKey], store: &dyn ResourceStore) -> Result<Shown, Failure> {
    let (mut objects, mut errors) = (Vec::new(), Vec::new());
    for key in keys {
        match find(store, key) {
            Ok(object) => objects.push((key.kind(), object)),
            // The next request would wait as long, and fail as well.
            Err(error @ StoreError::Unavailable(_)) => return Err(Failure::failed(error)),
            Err(error) => errors.push(with_causes(&error)),
        }
    }
    let whole = match &objects[..] {
        [(_, one)] if keys.len() == 1 => one.clone(),
        several => {
            let items: Vec<&Value> = several.iter().map(|(_, object)| object).collect();
            json!({"apiVersion": "v1", "kind": "List", "items": items})
        }
    };
    Ok(Shown { objects, whole, errors })
}

/// The profile that allows everything is built in, and not stored.
fn find(store: &dyn ResourceStore, key: &ResourceKey) -> Result<Value, StoreError> {
    if let Some(profile) = built_in_profile(key.kind()).filter(|_| key.name() == DEFAULT_ALLOW_PROFILE) {
        return Ok(profile);
    }
    let mut object = store.get(key)?.object;
    labelled(key.kind(), &mut object);
    Ok(object)
}

fn list(kind: ResourceKind, args: &Args, store: &dyn ResourceStore) -> Result<Shown, Failure> {
    let namespace = namespace_of(kind, &args.namespace, args.all_namespaces);
    let listing = store.list(kind, namespace).map_err(Failure::failed)?;
    let mut objects: Vec<Value> = listing.resources.into_iter().map(|resource| resource.object).collect();
    let name_of =
        |object: &Value| object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(profile) = built_in_profile(kind) {
        let place = objects.partition_point(|object| name_of(object) < name_of(&profile));
        objects.insert(place, profile);
    }
    objects.iter_mut().for_each(|object| labelled(kind, object));
    objects.retain(|object| args.selector.as_ref().is_none_or(|query| query.matches(object)));
    let whole = json!({
        "apiVersion": kind.api_version(),
        "kind": format!("{}List", kind.written()),
        "metadata": {"resourceVersion": listing.revision.to_string()},
        "items": objects,
    });
    let errors = listing.unreadable.iter().map(|(key, why)| format!("{key}: {why}")).collect();
    Ok(Shown { objects: objects.into_iter().map(|object| (kind, object)).collect(), whole, errors })
}

fn print(args: &Args, shown: &Shown) -> Result<(), Failure> {
    let is_for_programs = matches!(args.output, Output::Json | Output::Yaml);
    if shown.objects.is_empty() && !is_for_programs {
        if let (Some(kind), true) = (&args.kind, shown.errors.is_empty()) {
            let nothing = nothing(kind.kind, args.selector.is_some(), &args.namespace, args.all_namespaces);
            eprintln!("tortie: {nothing}");
        }
        return Ok(());
    }
    let text = match args.output {
        Output::Table => tables(&shown.objects, false),
        Output::Wide => tables(&shown.objects, true),
        Output::Name => shown.objects.iter().map(|(kind, object)| name(*kind, object)).collect(),
        Output::Json => format!("{:#}\n", shown.whole),
        Output::Yaml => to_yaml(&shown.whole),
    };
    super::terminal::stdout().write_all(text.as_bytes()).map_err(Failure::io("standard output"))
}

fn tables(objects: &[(ResourceKind, Value)], is_wide: bool) -> String {
    let of_one_kind = objects.chunk_by(|one, next| one.0 == next.0);
    let tables = of_one_kind.map(|objects| {
        let kind =
            objects.first().map(|(kind, _)| table::table(*kind, objects.iter().map(|(_, object)| object), is_wide));
        kind.unwrap_or_default()
    });
    tables.collect::<Vec<_>>().join("\n")
}

fn name(kind: ResourceKind, object: &Value) -> String {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    format!("{}/{name}\n", kind.qualified())
}
