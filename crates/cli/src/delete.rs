use std::path::PathBuf;

use clap::ArgAction;
use tortie_datastore::store::StoreError;
use tortie_datastore::store::apply::{ApplyError, delete};
use tortie_resources::stored::{ResourceKey, Revision, revision_of};

use super::Failure;
use super::confirming::ConfirmingArgs;
use super::manifests::{self, Validity};
use super::names::{self, KindOrOne};
use super::pending_write::PendingWrite;
use super::selected::SelectArgs;
use super::store::StoreArgs;

/// Delete resources from etcd or Kubernetes, as calicoctl does.
///
/// Deletes resources by kind and name, resources of a kind that --all or -l selects in the
/// namespace, or the resources in files. A resource with a resourceVersion is deleted at that
/// version only. Tiers are deleted last. A tier that contains policies is not deleted, and neither
/// are the resources that every cluster has. With --confirm the deleted resources are restored
/// unless `tortie confirm` comes in time.
///
/// Examples: tortie delete networkpolicy web -n shop
///           tortie delete networksets -A -l 'team=shop,stage!=prod' --dry-run
///           tortie delete -f policies/
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The kind, in any case, as a plural or by a short name, such as np, gnp, hep; or KIND/NAME.
    #[arg(required_unless_present = "filename", conflicts_with = "filename", hide_possible_values = true,
        value_parser = names::KindParser(str::parse::<KindOrOne>))]
    kind: Option<KindOrOne>,
    /// The names.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Files, directories, or - for standard input.
    #[arg(short, long, value_name = "PATH", num_args = 1..)]
    filename: Vec<PathBuf>,
    #[command(flatten)]
    _recursive: manifests::RecursiveArg,
    /// Namespace of resources that name none.
    #[arg(short, long, value_name = "NAME", default_value = "default", value_parser = names::namespace)]
    namespace: String,
    #[command(flatten)]
    select: SelectArgs,
    /// Ignore resources that do not exist.
    #[arg(long, visible_alias = "ignore-not-found", action = ArgAction::Set, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true)]
    skip_not_exists: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    confirming: ConfirmingArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.confirming.needs_datastore()?;
    let is_selected = args.select.is_given()?;
    let kind = args.kind.as_ref().filter(|_| is_selected);
    if is_selected && kind.is_none() {
        return Err(Failure::usage("--all and -l are for all resources of a kind, and files are given"));
    }
    // Errors in files are found before the datastore is opened.
    let (targets, opened) = match kind {
        Some(kind) => {
            names::kept(kind.kind, args.store.keeps())?;
            let opened = args.store.open()?;
            let found = args.select.find(kind, &args.names, &args.namespace, &*opened)?;
            let target = |(key, version)| ("tortie".to_owned(), key, Some(version));
            (found.into_iter().map(target).collect(), opened)
        }
        None => (targets(args)?, args.store.open()?),
    };
    let pending: Vec<PendingWrite<'_>> = targets
        .into_iter()
        .map(|(place, key, version)| PendingWrite {
            place,
            key: key.clone(),
            write: Box::new(move |store| match delete(store, &key, version) {
                Err(ApplyError::Store(StoreError::NotFound(_))) if args.skip_not_exists => Ok(None),
                deleted => deleted.map(|()| Some("deleted")),
            }),
        })
        .collect();
    args.confirming.write_to(&*opened, &args.store, &pending, false)
}

fn targets(args: &Args) -> Result<Vec<(String, ResourceKey, Option<Revision>)>, Failure> {
    if let Some(kind) = &args.kind {
        let keys = names::wanted(kind, &args.names, &args.namespace, args.store.keeps())?;
        return Ok(keys.into_iter().map(|key| ("tortie".to_owned(), key, None)).collect());
    }
    let mut resources = manifests::read(&args.filename, &args.namespace, Validity::Identified, args.store.keeps())?;
    manifests::tiers_first(&mut resources);
    resources.reverse();
    let target = |resource: &manifests::FileResource| {
        let place = resource.to_string();
        let version = revision_of(&resource.object).map_err(Failure::failed_at(&*place))?;
        Ok((place, resource.key.clone(), version))
    };
    resources.iter().map(target).collect()
}
