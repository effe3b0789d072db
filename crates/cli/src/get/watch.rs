use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::time::Duration;

use serde_json::Value;
use tortie_datastore::store::{ResourceStore, ResourceWatch, StoreError, StoredResource, WatchEvent};
use tortie_resources::stored::{ResourceKey, ResourceKind, labelled};
use tortie_resources::to_yaml;

use super::super::Failure;
use super::super::selected::{namespace_of, nothing};
use super::table::Table;
use super::{Args, Output, add_built_in, layout, name};

/// Longest wait for one event.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub(super) struct WatchArgs {
    /// Show the resources, and then the row of each resource that is created, changed or deleted.
    #[arg(short, long, conflicts_with = "filename")]
    watch: bool,
    /// As --watch, without the resources that exist at the beginning.
    #[arg(long, conflicts_with = "filename")]
    watch_only: bool,
}

impl WatchArgs {
    pub(super) fn is_given(&self) -> bool {
        self.watch || self.watch_only
    }
}

/// Follows one kind until the reader of the output closes it.
pub(super) fn run(
    args: &Args,
    kinds: &[ResourceKind],
    keys: &[ResourceKey],
    store: &dyn ResourceStore,
) -> Result<(), Failure> {
    let [kind] = kinds else { return Err(Failure::usage("--watch is for one kind")) };
    // Names are in the given namespace.
    let namespace = namespace_of(*kind, &args.namespace, args.all_namespaces);
    if keys.iter().any(|key| key.kind() != *kind) {
        return Err(Failure::usage("--watch is for one kind"));
    }
    let mut watch = store.watch(*kind, namespace).map_err(Failure::failed)?;
    let table = Table::new(*kind, layout(args, false));
    let mut printer = Printer { args, kind: *kind, keys, shown: BTreeSet::new(), table };
    let mut objects = printer.first(&mut *watch)?;
    if args.watch.watch_only {
        objects.clear();
    } else if objects.is_empty() {
        eprintln!("tortie: {}", nothing(*kind, args.selector.is_some(), &args.namespace, args.all_namespaces));
    }
    let mut done = printer.print(&objects);
    loop {
        match done {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            done => done.map_err(Failure::io("standard output"))?,
        }
        done = watch.next(PATIENCE).map_or(Ok(()), |event| printer.take(event));
    }
}

struct Printer<'a> {
    args: &'a Args,
    kind: ResourceKind,
    /// The only resources to show; all if empty.
    keys: &'a [ResourceKey],
    /// Existing resources that have been shown.
    shown: BTreeSet<ResourceKey>,
    table: Table,
}

impl Printer<'_> {
    /// Returns the resources at the beginning. Fails if one that was named does not exist.
    fn first(&mut self, watch: &mut dyn ResourceWatch) -> Result<Vec<Value>, Failure> {
        let mut objects = BTreeMap::new();
        loop {
            match watch.next(PATIENCE) {
                Some(WatchEvent::Changed(mut resource)) => {
                    if self.is_wanted(&mut resource) {
                        objects.insert(resource.key, resource.object);
                    } else {
                        objects.remove(&resource.key);
                    }
                }
                Some(WatchEvent::Deleted(resource)) => drop(objects.remove(&resource.key)),
                Some(WatchEvent::Unavailable(why)) => {
                    return Err(Failure::failed_at("the datastore is not available")(why));
                }
                Some(WatchEvent::Complete) => break,
                Some(WatchEvent::Unreadable(key, why)) => eprintln!("tortie: {key}: {why}"),
                None => {}
            }
        }
        self.shown = objects.keys().cloned().collect();
        let mut objects: Vec<Value> = objects.into_values().collect();
        if let Some(missing) = self.keys.iter().find(|key| !self.shown.contains(key)) {
            return Err(Failure::failed(StoreError::NotFound(missing.clone())));
        }
        if self.keys.is_empty() && self.args.selector.is_none() {
            add_built_in(self.kind, &mut objects);
        }
        Ok(objects)
    }

    fn take(&mut self, event: WatchEvent) -> io::Result<()> {
        match event {
            WatchEvent::Changed(mut resource) => {
                let is_wanted = self.is_wanted(&mut resource);
                // Without the labels any more, it is shown once, as kubectl does.
                let was_shown = self.shown.remove(&resource.key);
                if is_wanted {
                    self.shown.insert(resource.key);
                }
                if is_wanted || was_shown { self.print(&[resource.object]) } else { Ok(()) }
            }
            WatchEvent::Deleted(mut resource) => {
                labelled(self.kind, &mut resource.object);
                if self.shown.remove(&resource.key) { self.print(&[resource.object]) } else { Ok(()) }
            }
            WatchEvent::Unreadable(key, why) => {
                eprintln!("tortie: {key}: {why}");
                Ok(())
            }
            WatchEvent::Unavailable(why) => {
                eprintln!("tortie: the datastore is not available, trying again: {why}");
                Ok(())
            }
            WatchEvent::Complete => Ok(()),
        }
    }

    fn is_wanted(&self, resource: &mut StoredResource) -> bool {
        labelled(self.kind, &mut resource.object);
        let has_labels = self.args.selector.as_ref().is_none_or(|query| query.matches(&resource.object));
        has_labels && (self.keys.is_empty() || self.keys.contains(&resource.key))
    }

    fn print(&mut self, objects: &[Value]) -> io::Result<()> {
        if objects.is_empty() {
            return Ok(());
        }
        let text = match self.args.output {
            Output::Table | Output::Wide => self.table.rows(objects.iter()),
            Output::Name => objects.iter().map(|object| name(self.kind, object)).collect(),
            Output::Json => objects.iter().map(|object| format!("{object:#}\n")).collect(),
            Output::Yaml => objects.iter().map(|object| format!("---\n{}", to_yaml(object))).collect(),
        };
        let mut out = super::super::terminal::stdout();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}
