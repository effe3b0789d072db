use tortie_datastore::store::apply::{Applied, apply};

use super::Failure;
use super::write_args::WriteArgs;

/// Write resources into etcd or Kubernetes, as calicoctl does.
///
/// Validates everything first, and writes nothing if there is an error. Each problem is printed on
/// standard error as `file:line:column: kind/name: field.path: message`. Then creates each
/// resource, or replaces the existing one. A resource with a resourceVersion replaces that version
/// only: a change or deletion since then is an error. Tiers are written first. Exits with 1 if
/// anything was not written. With --confirm the change is rolled back unless `tortie confirm` comes
/// in time; --dry-run shows the changes only.
///
/// In Kubernetes, Calico's resources are custom resources of the API that the server has.
/// Kubernetes' NetworkPolicy and cluster-wide policies of administrators are written as well. Use
/// kubectl for everything else, such as namespaces.
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
