use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tortie_datastore::store::apply::{Applied, ApplyError, apply, delete};
use tortie_datastore::store::{ResourceStore, StoreError, StoredResource};
use tortie_model::Interner;
use tortie_resources::manifest::{Format, Options, read_written};
use tortie_resources::stored::{ResourceKey, ResourceKind, built_in_tier};
use tortie_revisions::history::{FileRollback, History, resource_path, resource_text};

use super::{RollbackArgs, is_to_be_made};
use crate::Failure;
use crate::confirming::ConfirmingArgs;
use crate::output::Output;
use crate::pending_write::PendingWrite;
use crate::store::{StoreArgs, StoredKinds};

type Present = BTreeMap<String, (StoredResource, String)>;

pub(super) fn roll_back(args: &RollbackArgs, history: &History, access: &StoreArgs) -> Result<(), Failure> {
    let store = access.open()?;
    let present = present(&*store, kinds(access.keeps())).map_err(Failure::failed)?;
    let text = |path: &str| Ok(present.get(path).map(|(_, text)| text.clone()));
    let mut plan = history.rollback_plan_from(args.state, text).map_err(Failure::failed)?;
    let is_gone = |file: &&FileRollback| file.text.is_none();
    let is_built_in =
        |file: &&FileRollback| present.get(&file.path).is_some_and(|(resource, _)| is_built_in(&resource.key));
    let stays: BTreeSet<String> =
        plan.files.iter().filter(is_gone).filter(is_built_in).map(|file| file.path.clone()).collect();
    plan.files.retain(|file| !stays.contains(&file.path));
    plan.conflicts.retain(|(path, _)| !stays.contains(path));
    if !is_to_be_made(args, history, &plan)? {
        return Ok(());
    }
    let keeps = access.keeps();
    let mut steps = plan.files.iter().map(|file| step(file, &present, keeps)).collect::<Result<Vec<_>, _>>()?;
    steps.sort_by_key(Step::turn);
    let pending: Vec<PendingWrite<'_>> = steps
        .iter()
        .map(|step| PendingWrite {
            place: "tortie".to_owned(),
            key: step.key.clone(),
            write: Box::new(|store| step.write(store)),
        })
        .collect();
    let confirming = ConfirmingArgs::new(args.confirm, args.place.state_dir.clone(), args.output);
    let has_changed = confirming.write_whole(&*store, access.reference()?, &pending, false)?;
    if !has_changed && args.output == Output::Table {
        println!("everything is as in state {}", args.state);
    }
    Ok(())
}

/// Reports whether every cluster has the resource, so that it cannot be removed.
fn is_built_in(key: &ResourceKey) -> bool {
    key.kind() == ResourceKind::Tier && built_in_tier(key.name()).is_some()
}

fn kinds(keeps: StoredKinds) -> Vec<ResourceKind> {
    match keeps {
        #[cfg(feature = "etcd")]
        StoredKinds::Calico => tortie_revisions::history::recorded_kinds().collect(),
        #[cfg(feature = "kubernetes")]
        StoredKinds::Kubernetes => tortie_datastore::kubernetes::KubernetesStore::written_kinds().collect(),
    }
}

fn present(store: &dyn ResourceStore, kinds: Vec<ResourceKind>) -> Result<Present, StoreError> {
    let mut present = Present::new();
    for kind in kinds {
        let listing = store.list(kind, None)?;
        for (key, why) in listing.unreadable {
            eprintln!("{key}: {why}");
        }
        for resource in listing.resources {
            // Kinds that controllers write, such as nodes, have no history.
            let Some(path) = resource_path(&resource.key) else { continue };
            if let Ok(Some(text)) = resource_text(&resource.key, resource.object.clone()) {
                present.insert(path, (resource, text));
            }
        }
    }
    Ok(present)
}

struct Step<'p> {
    key: ResourceKey,
    present: Option<&'p StoredResource>,
    wanted: Option<Value>,
}

fn step<'p>(file: &FileRollback, present: &'p Present, keeps: StoredKinds) -> Result<Step<'p>, Failure> {
    let present = present.get(&file.path).map(|(resource, _)| resource);
    let wanted = file.text.as_deref().and_then(|text| {
        let (_, objects) = read_written(text, Format::Yaml, &Options::default(), &mut Interner::new());
        objects.into_iter().next()
    });
    let key = match (present, &wanted) {
        (Some(present), _) => present.key.clone(),
        (None, Some(wanted)) => keeps.key_of(wanted, "").map_err(Failure::failed_at(&*file.path))?,
        (None, None) => return Err(Failure::failed(format!("{}: its recorded text cannot be read", file.path))),
    };
    if wanted.is_none() && file.text.is_some() {
        return Err(Failure::failed(format!("{key}: its recorded text cannot be read")));
    }
    Ok(Step { key, present, wanted })
}

impl Step<'_> {
    /// Tiers and BGP filters, to which others refer, come first and go last. A pool is removed
    /// before another one is created that may overlap with it.
    fn turn(&self) -> u8 {
        match (self.key.kind(), self.wanted.is_some()) {
            (ResourceKind::IpPool, false) => 0,
            (ResourceKind::Tier | ResourceKind::BgpFilter, true) => 1,
            (_, true) => 2,
            (ResourceKind::Tier | ResourceKind::BgpFilter, false) => 4,
            (_, false) => 3,
        }
    }

    /// Writes only if the resource is unchanged since it was read. Returns the outcome; `None` if
    /// nothing changed.
    fn write(&self, store: &dyn ResourceStore) -> Result<Option<&'static str>, ApplyError> {
        let key = &self.key;
        let Some(wanted) = &self.wanted else {
            delete(store, key, self.present.map(|present| present.revision))?;
            return Ok(Some("removed"));
        };
        let mut object = wanted.clone();
        match self.present {
            Some(present) => {
                if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
                    metadata.insert("resourceVersion".into(), json!(present.revision.to_string()));
                }
                // Controllers write the status; it is not rolled back.
                if let (Some(whole), Some(status)) = (object.as_object_mut(), present.object.get("status")) {
                    whole.insert("status".into(), status.clone());
                }
            }
            None => match store.get(key) {
                Err(StoreError::NotFound(_)) => {}
                Ok(_) => return Err(StoreError::AlreadyExists(key.clone()).into()),
                Err(error) => return Err(error.into()),
            },
        }
        Ok(match apply(store, key, &object)? {
            Applied::Unchanged => None,
            Applied::Created | Applied::Updated => Some("restored"),
        })
    }
}
