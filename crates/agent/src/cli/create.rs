//! `tortie create` and `tortie replace`.

use tortie_store::apply::{Applied, create, replace};

use super::Failure;
use super::confirming::ConfirmingArgs;
use super::store::StoreArgs;
use super::wish::Wish;
use super::written::FileArgs;

/// Write new resources into etcd or Kubernetes, as calicoctl does.
///
/// As `tortie apply`, but a resource that is there already is an error and stays as it is, and so is one with a resourceVersion,
/// as nothing new has one.
///
/// Example: tortie create --datastore etcd://127.0.0.1:2379 -f policies/
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    confirming: ConfirmingArgs,
}

/// Replace resources in etcd or Kubernetes, as calicoctl does.
///
/// As `tortie apply`, but a resource that is not there is an error. One with a resourceVersion replaces that version only.
///
/// Example: tortie get np web -n shop -o yaml | sed 's/order: 1/order: 2/' | tortie replace -f -
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct ReplaceArgs {
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    confirming: ConfirmingArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let resources = args.files.read(args.store.keeps())?;
    let wish = |resource| Wish::of(resource, |store, key, object| create(store, key, object).map(|()| "created"));
    let wishes: Vec<Wish<'_>> = resources.iter().map(wish).collect();
    args.confirming.write(&args.store, &wishes, args.store.needs_initialising())
}

pub(super) fn run_replace(args: &ReplaceArgs) -> Result<(), Failure> {
    let resources = args.files.read(args.store.keeps())?;
    let word = |applied| if applied == Applied::Unchanged { "unchanged" } else { "replaced" };
    let wish = |resource| Wish::of(resource, move |store, key, object| replace(store, key, object).map(word));
    let wishes: Vec<Wish<'_>> = resources.iter().map(wish).collect();
    args.confirming.write(&args.store, &wishes, false)
}
