//! `tortie get`.

mod table;

use serde_json::{Value, json};
use tortie_resources::stored::{API_VERSION, DEFAULT_ALLOW_PROFILE, ResourceKey, ResourceKind, labelled};
use tortie_store::{ResourceStore, StoreError};

use super::Failure;
use super::output::Output;
use super::store::StoreArgs;

/// Show resources in etcd or Kubernetes, as calicoctl does.
///
/// One by its name, or all of a kind. What -o yaml and -o json print can be applied again: each resource whole as it is
/// kept, with the version that it is at.
///
/// Example: tortie get networkpolicies -A
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The kind, in any case, as a plural or as one of calicoctl's short names, such as np, gnp, hep.
    kind: ResourceKind,
    /// The name.
    name: Option<String>,
    /// The namespace.
    #[arg(short, long, value_name = "NAME", conflicts_with = "all_namespaces", default_value = "default")]
    namespace: String,
    /// In all namespaces.
    #[arg(short = 'A', long, conflicts_with = "name")]
    all_namespaces: bool,
    /// How to show them.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    store: StoreArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let store = args.store.open()?;
    let failed = |error: StoreError| Failure::Failed(error.to_string());
    let namespace = if args.kind.is_namespaced() { args.namespace.as_str() } else { "" };
    let mut unreadable = Vec::new();
    let (shown, objects) = match &args.name {
        Some(name) => {
            let key =
                ResourceKey::new(args.kind, namespace, name).map_err(|error| Failure::Usage(error.to_string()))?;
            let object = find(&*store, &key).map_err(failed)?;
            (object.clone(), vec![object])
        }
        None => {
            let namespace = Some(namespace).filter(|namespace| !(args.all_namespaces || namespace.is_empty()));
            let listing = store.list(args.kind, namespace).map_err(failed)?;
            unreadable = listing.unreadable;
            let mut items: Vec<Value> = listing.resources.into_iter().map(|resource| resource.object).collect();
            items.iter_mut().for_each(|item| labelled(args.kind, item));
            let list = json!({
                "apiVersion": args.kind.api_version(),
                "kind": format!("{}List", args.kind.written()),
                "metadata": {"resourceVersion": listing.revision.to_string()},
                "items": items.clone(),
            });
            (list, items)
        }
    };
    args.output.print(|| shown, || table::table(args.kind, &objects))?;
    for (key, why) in &unreadable {
        eprintln!("{key}: {why}");
    }
    if unreadable.is_empty() { Ok(()) } else { Err(Failure::Reported(1)) }
}

/// Finds one. The profile that allows everything is there without being kept.
fn find(store: &dyn ResourceStore, key: &ResourceKey) -> Result<Value, StoreError> {
    if key.kind() == ResourceKind::Profile && key.name() == DEFAULT_ALLOW_PROFILE {
        let allow = json!([{"action": "Allow", "source": {}, "destination": {}}]);
        return Ok(json!({
            "apiVersion": API_VERSION,
            "kind": "Profile",
            "metadata": {"name": DEFAULT_ALLOW_PROFILE, "resourceVersion": "1"},
            "spec": {"ingress": allow, "egress": allow},
        }));
    }
    let mut object = store.get(key)?.object;
    labelled(key.kind(), &mut object);
    Ok(object)
}
