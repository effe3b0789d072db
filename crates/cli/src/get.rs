mod table;
mod watch;

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use tortie_datastore::store::{ResourceStore, StoreError};
use tortie_resources::stored::{DEFAULT_ALLOW_PROFILE, ResourceKey, ResourceKind, built_in_profile, labelled};
use tortie_resources::{LabelQuery, to_yaml};

use super::manifests;
use super::names::{self, ShownKinds};
use super::selected::{namespace_of, nothing};
use super::store::StoreArgs;
use super::{Failure, with_causes};
use table::{Layout, Table};

/// Show resources in etcd or Kubernetes, as calicoctl and kubectl do.
///
/// Shows resources by name, all of a kind, or the resources in files, as the datastore has them.
/// The output of -o yaml and -o json can be applied again: it has each resource in full, with its
/// resourceVersion. Several kinds are given as np,gnp; `all` means every kind that users write.
///
/// Examples: tortie get networkpolicies -A
///           tortie get np -l 'team=shop,stage!=test' -o wide
///           tortie get -f policies/ -o yaml
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The kind, in any case, as a plural or by a short name, such as np, gnp, hep; or KIND/NAME,
    /// several kinds with commas between, or all.
    #[arg(required_unless_present = "filename", conflicts_with = "filename", hide_possible_values = true,
        value_parser = names::KindParser(str::parse::<ShownKinds>))]
    kind: Option<ShownKinds>,
    /// The names.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Files, directories, or - for standard input, with the resources to show.
    #[arg(short, long, value_name = "PATH", num_args = 1.., conflicts_with_all = ["all_namespaces", "selector"])]
    filename: Vec<PathBuf>,
    #[command(flatten)]
    _recursive: manifests::RecursiveArg,
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
    /// In tables: a column with all labels.
    #[arg(long)]
    show_labels: bool,
    /// In tables: no line with titles.
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    watch: watch::WatchArgs,
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
    /// Kinds that the datastore does not have.
    missing: Vec<ResourceKind>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let keeps = args.store.keeps();
    let (keys, kinds) = match &args.kind {
        Some(ShownKinds::One(kind)) => (names::keys(kind, &args.names, &args.namespace)?, vec![kind.kind]),
        Some(_) if !args.names.is_empty() => {
            return Err(Failure::usage("names are for one kind; with several kinds, write KIND/NAME KIND/NAME"));
        }
        Some(ShownKinds::Several(kinds)) => (Vec::new(), kinds.clone()),
        Some(ShownKinds::All) => (Vec::new(), keeps.for_people()),
        None => (manifests::keys(&args.filename, &args.namespace, keeps)?, Vec::new()),
    };
    if !keys.is_empty() && (args.all_namespaces || args.selector.is_some()) {
        return Err(Failure::usage("-A and -l are for all resources of a kind, and names are given"));
    }
    for kind in keys.iter().map(ResourceKey::kind).chain(kinds.iter().copied()) {
        names::kept(kind, keeps)?;
    }
    let store = args.store.open()?;
    if args.watch.is_given() {
        return watch::run(args, &kinds, &keys, &*store);
    }
    let shown = match &kinds[..] {
        [kind] if keys.is_empty() => list(*kind, args, &*store).map_err(Failure::failed)?,
        kinds if keys.is_empty() && args.kind.is_some() => list_each(kinds, args, &*store)?,
        _ => find_each(&keys, &*store)?,
    };
    for error in &shown.errors {
        eprintln!("tortie: {error}");
    }
    print(args, &shown, &kinds)?;
    if shown.errors.is_empty() { Ok(()) } else { Err(Failure::Reported(1)) }
}

/// Shows the other kinds if one of them cannot be listed. Fails if no kind is installed.
fn list_each(kinds: &[ResourceKind], args: &Args, store: &dyn ResourceStore) -> Result<Shown, Failure> {
    let mut all = Shown { objects: Vec::new(), whole: Value::Null, errors: Vec::new(), missing: Vec::new() };
    for kind in kinds {
        match list(*kind, args, store) {
            Ok(shown) => {
                all.objects.extend(shown.objects);
                all.errors.extend(shown.errors);
            }
            Err(error @ StoreError::NoKind(_)) if all.missing.len() + 1 == kinds.len() => {
                return Err(Failure::failed(error));
            }
            Err(error @ StoreError::NoKind(_)) => {
                if args.kind != Some(ShownKinds::All) {
                    eprintln!("tortie: {error}");
                }
                all.missing.push(*kind);
            }
            // The next request would wait as long, and fail as well.
            Err(error @ StoreError::Unavailable(_)) if all.objects.is_empty() => return Err(Failure::failed(error)),
            Err(error) => all.errors.push(with_causes(&error)),
        }
    }
    all.whole = several(&all.objects);
    Ok(all)
}

fn several(objects: &[(ResourceKind, Value)]) -> Value {
    let items: Vec<&Value> = objects.iter().map(|(_, object)| object).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
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
        objects => several(objects),
    };
    Ok(Shown { objects, whole, errors, missing: Vec::new() })
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

fn list(kind: ResourceKind, args: &Args, store: &dyn ResourceStore) -> Result<Shown, StoreError> {
    let namespace = namespace_of(kind, &args.namespace, args.all_namespaces);
    let listing = store.list(kind, namespace)?;
    let mut objects: Vec<Value> = listing.resources.into_iter().map(|resource| resource.object).collect();
    add_built_in(kind, &mut objects);
    objects.iter_mut().for_each(|object| labelled(kind, object));
    objects.retain(|object| args.selector.as_ref().is_none_or(|query| query.matches(object)));
    let whole = json!({
        "apiVersion": kind.api_version(),
        "kind": format!("{}List", kind.written()),
        "metadata": {"resourceVersion": listing.revision.to_string()},
        "items": objects,
    });
    let errors = listing.unreadable.iter().map(|(key, why)| format!("{key}: {why}")).collect();
    let objects = objects.into_iter().map(|object| (kind, object)).collect();
    Ok(Shown { objects, whole, errors, missing: Vec::new() })
}

fn add_built_in(kind: ResourceKind, objects: &mut Vec<Value>) {
    let name_of = |object: &Value| object.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
    if let Some(profile) = built_in_profile(kind) {
        let place = objects.partition_point(|object| name_of(object) < name_of(&profile));
        objects.insert(place, profile);
    }
}

fn layout(args: &Args, names_kinds: bool) -> Layout {
    Layout {
        is_wide: args.output == Output::Wide,
        has_labels: args.show_labels,
        has_titles: !args.no_headers,
        names_kinds,
    }
}

fn print(args: &Args, shown: &Shown, kinds: &[ResourceKind]) -> Result<(), Failure> {
    let is_for_programs = matches!(args.output, Output::Json | Output::Yaml);
    if shown.objects.is_empty() && !is_for_programs {
        for kind in kinds.iter().filter(|kind| shown.errors.is_empty() && !shown.missing.contains(kind)) {
            let nothing = nothing(*kind, args.selector.is_some(), &args.namespace, args.all_namespaces);
            eprintln!("tortie: {nothing}");
        }
        return Ok(());
    }
    let text = match args.output {
        Output::Table | Output::Wide => tables(&shown.objects, layout(args, kinds.len() > 1)),
        Output::Name => shown.objects.iter().map(|(kind, object)| name(*kind, object)).collect(),
        Output::Json => format!("{:#}\n", shown.whole),
        Output::Yaml => to_yaml(&shown.whole),
    };
    super::terminal::stdout().write_all(text.as_bytes()).map_err(Failure::io("standard output"))
}

fn tables(objects: &[(ResourceKind, Value)], layout: Layout) -> String {
    let of_one_kind = objects.chunk_by(|one, next| one.0 == next.0);
    let tables = of_one_kind.map(|objects| {
        let kind = objects.first().map(|(kind, _)| *kind);
        let objects = objects.iter().map(|(_, object)| object);
        kind.map(|kind| Table::new(kind, layout).rows(objects)).unwrap_or_default()
    });
    tables.collect::<Vec<_>>().join(if layout.has_titles { "\n" } else { "" })
}

fn name(kind: ResourceKind, object: &Value) -> String {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    format!("{}/{name}\n", kind.qualified())
}
