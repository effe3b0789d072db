//! `tortie apply`.

use tortie_datastore::store::apply::{Applied, apply};

use super::Failure;
use super::write_args::WriteArgs;

/// Write resources into etcd or Kubernetes, as calicoctl does.
///
/// Validates everything first, and writes nothing if there is an error; each problem is printed on standard error as
/// `file:line:column: kind/name: field.path: what`. Then creates each resource, or replaces the one that is there. A
/// resource with a resourceVersion replaces that version only: if somebody else has changed or deleted it since, that is an
/// error. Tiers go first. Ends with exit code 1 if anything was not written. With --confirm the change is taken back unless
/// `tortie confirm` comes in time; --dry-run says what would be done.
///
/// In Kubernetes, Calico's resources are custom resources by the API that the server has; NetworkPolicy and the policies of
/// administrators of Kubernetes are written as well. Everything else, such as namespaces, is for kubectl.
///
/// Examples: tortie apply --datastore etcd://127.0.0.1:2379 -f policies/
///           tortie apply --datastore kubernetes: --confirm 60s -f policies/
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    write: WriteArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.write.run(true, |store, key, object| apply(store, key, object).map(word))
}

fn word(applied: Applied) -> &'static str {
    match applied {
        Applied::Created => "created",
        Applied::Updated => "updated",
        Applied::Unchanged => "unchanged",
    }
}
