//! `tortie staged`.

use std::cell::Cell;

use clap::Subcommand;
use serde_json::Value;
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};
use tortie_store::apply::{Applied, ApplyError, apply, delete};
use tortie_store::{ResourceStore, StoreError};

use super::Failure;
use super::confirming::{ConfirmingArgs, Wish};
use super::etcd::StoreArgs;

/// Staged policies: what they would do is shown by `tortie flows --staged`.
///
/// Example: tortie staged commit shop/db --datastore etcd://127.0.0.1:2379
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Put a staged policy in force
    ///
    /// The policy of the same name that is enforced becomes as the staged one is, or is deleted if the staged one says so
    /// (stagedAction: Delete); then the staged one is deleted. With --confirm both come back as they were unless `tortie
    /// confirm` comes in time.
    ///
    /// Example: tortie staged commit shop/db --datastore etcd://127.0.0.1:2379 --confirm 60s
    #[command(verbatim_doc_comment)]
    Commit {
        /// NAMESPACE/NAME of a StagedNetworkPolicy, or NAME of a StagedGlobalNetworkPolicy; the kind may be written before it.
        #[arg(value_name = "POLICY")]
        name: String,
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        confirming: ConfirmingArgs,
    },
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let What::Commit { name, store, confirming } = &args.what;
    let (staged, enforced) = keys(name).map_err(Failure::Usage)?;
    // The version that is in force then; the staged policy goes only after that, and only if it is still that one.
    let committed = Cell::new(None);
    let place = || "tortie".to_owned();
    let put = Wish {
        place: place(),
        key: enforced.clone(),
        write: Box::new(|store| {
            let (revision, word) = put_in_force(store, &staged, &enforced)?;
            committed.set(Some(revision));
            Ok(word)
        }),
    };
    let take = Wish {
        place: place(),
        key: staged.clone(),
        write: Box::new(|store| match committed.get() {
            Some(revision) => delete(store, &staged, Some(revision)).map(|()| Some("deleted")),
            None => Ok(None),
        }),
    };
    confirming.write(store, &[put, take], false)
}

/// The staged policy of this name, and the one that it becomes.
fn keys(name: &str) -> Result<(ResourceKey, ResourceKey), String> {
    let parts: Vec<&str> = name.split('/').collect();
    let (kind, namespace, name) = match parts[..] {
        [kind @ "StagedGlobalNetworkPolicy", name] => (kind, "", name),
        [kind @ "StagedNetworkPolicy", namespace, name] => (kind, namespace, name),
        ["StagedKubernetesNetworkPolicy", ..] => {
            return Err("a staged Kubernetes policy is put in force where Kubernetes keeps its policies".to_owned());
        }
        [namespace, name] => ("StagedNetworkPolicy", namespace, name),
        [name] => ("StagedGlobalNetworkPolicy", "", name),
        _ => return Err(format!("`{name}` is none of NAMESPACE/NAME and NAME")),
    };
    let (staged, enforced) = match kind {
        "StagedNetworkPolicy" => (ResourceKind::StagedNetworkPolicy, ResourceKind::NetworkPolicy),
        _ => (ResourceKind::StagedGlobalNetworkPolicy, ResourceKind::GlobalNetworkPolicy),
    };
    let key = |kind| ResourceKey::new(kind, namespace, name).map_err(|error| error.to_string());
    Ok((key(staged)?, key(enforced)?))
}

/// Does what the staged policy asks for; says which version of it that was, and in a word what was done.
fn put_in_force(
    store: &dyn ResourceStore,
    staged: &ResourceKey,
    enforced: &ResourceKey,
) -> Result<(Revision, Option<&'static str>), ApplyError> {
    let found = store.get(staged)?;
    let action = found.object.pointer("/spec/stagedAction").and_then(Value::as_str).unwrap_or("Set").to_owned();
    let word = match action.as_str() {
        "Set" => Some(match apply(store, enforced, &as_enforced(found.object, enforced))? {
            Applied::Created => "created",
            Applied::Updated => "updated",
            Applied::Unchanged => "unchanged",
        }),
        "Delete" => match delete(store, enforced, None) {
            Err(ApplyError::Store(StoreError::NotFound(_))) => None,
            deleted => deleted.map(|()| Some("deleted"))?,
        },
        other => {
            let why = format!("its stagedAction is {other}; only Set and Delete can be put in force");
            return Err(ApplyError::Refused { key: staged.clone(), why });
        }
    };
    Ok((found.revision, word))
}

/// The same policy as one that is enforced.
fn as_enforced(mut object: Value, enforced: &ResourceKey) -> Value {
    if let Some(map) = object.as_object_mut() {
        map.insert("kind".into(), enforced.kind().to_string().into());
    }
    if let Some(spec) = object.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.shift_remove("stagedAction");
    }
    if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        // What belongs to the staged one alone.
        for own in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
            metadata.shift_remove(own);
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_flows_and_policies_are_told_by() {
        let both = |name: &str| keys(name).map(|(staged, enforced)| format!("{staged} {enforced}"));
        let namespaced = "StagedNetworkPolicy/shop/db NetworkPolicy/shop/db";
        assert_eq!(both("shop/db").as_deref(), Ok(namespaced));
        assert_eq!(both("StagedNetworkPolicy/shop/db").as_deref(), Ok(namespaced));
        let global = "StagedGlobalNetworkPolicy/all GlobalNetworkPolicy/all";
        assert_eq!(both("all").as_deref(), Ok(global));
        assert_eq!(both("StagedGlobalNetworkPolicy/all").as_deref(), Ok(global));
        for wrong in ["StagedKubernetesNetworkPolicy/shop/db", "a/b/c", "a/b/c/d", "", "shop/"] {
            assert!(both(wrong).is_err(), "{wrong}");
        }
    }
}
