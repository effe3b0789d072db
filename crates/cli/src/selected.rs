use tortie_datastore::store::ResourceStore;
use tortie_resources::LabelQuery;
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision, labelled};

use super::Failure;
use super::names::KindOrOne;

/// Selection of resources of a kind other than by name.
#[derive(Debug, clap::Args)]
pub(super) struct SelectArgs {
    /// All resources of the kind in the namespace.
    #[arg(long)]
    all: bool,
    /// Resources with matching labels: `a=b,c!=d,e in (f,g),!h` as kubectl has it, or a selector of
    /// Calico.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "all", allow_hyphen_values = true)]
    selector: Option<LabelQuery>,
    /// With --all or -l: in all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
}

impl SelectArgs {
    /// Reports whether resources are selected other than by name.
    pub(super) fn is_given(&self) -> Result<bool, Failure> {
        let is_given = self.all || self.selector.is_some();
        if self.all_namespaces && !is_given {
            return Err(Failure::usage("-A is for --all and -l"));
        }
        // An unset variable of a script must not select everything.
        if self.selector.as_ref().is_some_and(LabelQuery::is_blank) {
            return Err(Failure::usage("-l: the selector is empty; --all means all"));
        }
        Ok(is_given)
    }

    /// Each with the version that was selected. Prints a message if there are none.
    pub(super) fn find(
        &self,
        kind: &KindOrOne,
        names: &[String],
        namespace: &str,
        store: &dyn ResourceStore,
    ) -> Result<Vec<(ResourceKey, Revision)>, Failure> {
        if kind.is_one() || !names.is_empty() {
            return Err(Failure::usage("--all and -l are for all resources of a kind, and names are given"));
        }
        let kind = kind.kind;
        let listing = store.list(kind, namespace_of(kind, namespace, self.all_namespaces));
        let listing = listing.map_err(Failure::failed)?;
        if !listing.unreadable.is_empty() {
            for (key, why) in &listing.unreadable {
                eprintln!("tortie: {key}: {why}");
            }
            // An unreadable resource may match, or not.
            let why = "nothing has been changed, as unreadable resources may match as well; select resources by name";
            return Err(Failure::failed(why));
        }
        let mut found = Vec::new();
        for mut resource in listing.resources {
            labelled(kind, &mut resource.object);
            if self.selector.as_ref().is_none_or(|query| query.matches(&resource.object)) {
                found.push((resource.key, resource.revision));
            }
        }
        if found.is_empty() {
            eprintln!("tortie: {}", nothing(kind, self.selector.is_some(), namespace, self.all_namespaces));
        }
        Ok(found)
    }
}

pub(super) fn namespace_of(kind: ResourceKind, namespace: &str, all_namespaces: bool) -> Option<&str> {
    Some(namespace).filter(|_| kind.is_namespaced() && !all_namespaces)
}

pub(super) fn nothing(kind: ResourceKind, has_selector: bool, namespace: &str, all_namespaces: bool) -> String {
    let such = if has_selector { " with such labels" } else { "" };
    match namespace_of(kind, namespace, all_namespaces) {
        Some(namespace) => {
            format!("there is no {kind}{such} in namespace {namespace}; -A shows those of all namespaces")
        }
        None => format!("there is no {kind}{such}"),
    }
}
