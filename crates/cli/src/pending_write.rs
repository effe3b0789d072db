use std::error::Error;

use serde_json::Value;
use tortie_datastore::store::ResourceStore;
use tortie_datastore::store::apply::{Applied, ApplyError, edit};
use tortie_model::Cause;
use tortie_resources::stored::ResourceKey;

use super::manifests::new_errors;
use super::with_causes;

/// The function writes the resource and returns the outcome as one word. The place is for error
/// messages.
pub(super) struct PendingWrite<'w> {
    pub(super) place: String,
    pub(super) key: ResourceKey,
    pub(super) write: WriteOne<'w>,
}

type WriteOne<'w> = Box<dyn Fn(&dyn ResourceStore) -> Result<Option<&'static str>, ApplyError> + 'w>;

impl<'w> PendingWrite<'w> {
    /// The result may not have errors that the resource did not have before.
    pub(super) fn edit<E: Error>(
        key: &'w ResourceKey,
        word: &'static str,
        change: impl Fn(&mut Value) -> Result<(), E> + 'w,
    ) -> Self {
        let refused = |why: Cause| ApplyError::Refused { key: key.clone(), why };
        let changed = move |there: &Value| {
            let mut object = there.clone();
            change(&mut object).map_err(|error| refused(with_causes(&error).into()))?;
            let wrong: Vec<String> = new_errors(key, there, &object).iter().map(ToString::to_string).collect();
            if wrong.is_empty() { Ok(object) } else { Err(refused(wrong.join("; ").into())) }
        };
        let word = move |applied| if applied == Applied::Unchanged { "unchanged" } else { word };
        Self {
            place: "tortie".to_owned(),
            key: key.clone(),
            write: Box::new(move |store| edit(store, key, &changed).map(|applied| Some(word(applied)))),
        }
    }
}
