use tortie_datastore::store::StoreError;
use tortie_datastore::store::apply::{Applied, ApplyError, create, replace};

use super::Failure;
use super::write_args::WriteArgs;

/// Write new resources into etcd or Kubernetes, as calicoctl does.
///
/// As `tortie apply`, but an existing resource is an error and stays unchanged. A resource with a
/// resourceVersion is an error as well, as new resources have none.
///
/// Example: tortie create --datastore etcd://127.0.0.1:2379 -f policies/
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Leave existing resources as they are, without an error.
    #[arg(long)]
    skip_exists: bool,
    #[command(flatten)]
    write: WriteArgs,
}

/// Replace resources in etcd or Kubernetes, as calicoctl does.
///
/// As `tortie apply`, but a missing resource is an error. A resource with a resourceVersion
/// replaces that version only.
///
/// Example: tortie get np web -n shop -o yaml | sed 's/order: 1/order: 2/' | tortie replace -f -
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct ReplaceArgs {
    #[command(flatten)]
    write: WriteArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.write.run(true, |store, key, object| match create(store, key, object) {
        Err(ApplyError::Store(StoreError::AlreadyExists(_))) if args.skip_exists => Ok("skipped"),
        created => created.map(|()| "created"),
    })
}

pub(super) fn run_replace(args: &ReplaceArgs) -> Result<(), Failure> {
    let word = |applied| if applied == Applied::Unchanged { "unchanged" } else { "replaced" };
    args.write.run(false, |store, key, object| replace(store, key, object).map(word))
}
