use serde_json::Value;
use tortie_datastore::store::ResourceStore;
use tortie_datastore::store::apply::ApplyError;
use tortie_resources::stored::ResourceKey;

use super::Failure;
use super::confirming::ConfirmingArgs;
use super::manifests::FileArgs;
use super::pending_write::PendingWrite;
use super::store::StoreArgs;

/// Resources in files, their datastore, and options of the write.
#[derive(Debug, clap::Args)]
pub(super) struct WriteArgs {
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    confirming: ConfirmingArgs,
}

impl WriteArgs {
    /// `write` returns its action as one word. If resources may be new, the objects of every
    /// cluster are written first.
    pub(super) fn run(
        &self,
        may_create: bool,
        write: impl Fn(&dyn ResourceStore, &ResourceKey, &Value) -> Result<&'static str, ApplyError> + Copy,
    ) -> Result<(), Failure> {
        let resources = self.files.read(self.store.keeps())?;
        if self.confirming.is_offline() {
            return self.confirming.report_valid(resources.iter().map(|resource| &resource.key));
        }
        let pending: Vec<PendingWrite<'_>> = resources
            .iter()
            .map(|resource| PendingWrite {
                place: resource.to_string(),
                key: resource.key.clone(),
                write: Box::new(move |store| write(store, &resource.key, &resource.object).map(Some)),
            })
            .collect();
        self.confirming.write(&self.store, &pending, may_create && self.store.needs_initialising())
    }
}
