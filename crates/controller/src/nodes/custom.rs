//! Calico's custom resources, presented as entries of etcd, for clusters with Kubernetes as the
//! datastore.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tortie_net::with_causes;
use tortie_resources::custom::{AddressKind, from_custom, from_plain};
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};

use crate::Observed;
use crate::json::field;

/// Form of Calico's custom resources. IPAM objects have the same contents in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CustomForm {
    /// `crd.projectcalico.org/v1`: an annotation contains the metadata that users write.
    V1,
    /// `projectcalico.org/v3`: as users write it.
    V3,
}

/// Kind of Calico's custom resources that the controller watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CustomKind {
    /// IPAM objects, which etcd stores as text.
    Addresses(AddressKind),
    /// Objects that etcd stores as resources.
    Resources(ResourceKind),
}

impl CustomKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Addresses(AddressKind::Block),
        Self::Addresses(AddressKind::Affinity),
        Self::Addresses(AddressKind::Config),
        Self::Resources(ResourceKind::ClusterInformation),
        Self::Resources(ResourceKind::HostEndpoint),
        Self::Resources(ResourceKind::IpPool),
        Self::Resources(ResourceKind::IpReservation),
        Self::Resources(ResourceKind::KubeControllersConfiguration),
    ];

    /// Returns the plural as in API paths of `crd.projectcalico.org/v1`.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Addresses(kind) => kind.plural(),
            Self::Resources(kind) => kind.plural(),
        }
    }

    /// Reports whether the kind may be missing: older Calico releases do not have it.
    #[must_use]
    pub fn is_optional(self) -> bool {
        self == Self::Resources(ResourceKind::IpReservation)
    }
}

/// New text at a path; without a text, the entry is deleted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EntryChange {
    pub(super) path: String,
    pub(super) text: Option<(String, Revision)>,
}

/// Known custom resources. Each kind is listed separately and repeatedly. A list is compared with
/// the known objects, so that only changes remain.
#[derive(Debug, Default)]
pub(super) struct CustomResources {
    lists: BTreeMap<CustomKind, List>,
}

#[derive(Debug, Default)]
struct List {
    known: BTreeMap<Box<str>, KnownObject>,
    /// During a list: known objects that the list has not contained so far.
    unmentioned: Option<BTreeSet<Box<str>>>,
    /// An object has no usable name, so no object counts as missing.
    is_incomplete: bool,
    synced: bool,
}

#[derive(Debug, Default)]
struct KnownObject {
    /// Path in etcd; `None` if etcd would not have the object.
    path: Option<String>,
    revision: Revision,
    problem: Option<String>,
}

impl CustomResources {
    /// Records an event and returns the changed entries.
    pub(super) fn observe(&mut self, kind: CustomKind, form: CustomForm, observed: Observed<'_>) -> Vec<EntryChange> {
        self.lists.entry(kind).or_default().observe(kind, form, observed)
    }

    /// Records that the API server does not have the kind. For an optional kind this completes its
    /// list. Known objects do not count as deleted.
    pub(super) fn not_installed(&mut self, kind: CustomKind) {
        if kind.is_optional() {
            self.lists.entry(kind).or_default().synced = true;
        }
    }

    /// Reports whether each kind was listed completely once.
    pub(super) fn synced(&self) -> bool {
        CustomKind::ALL.iter().all(|kind| self.lists.get(kind).is_some_and(|list| list.synced))
    }

    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        self.lists.iter().flat_map(|(kind, list)| {
            let problems = list.known.iter().filter_map(|(name, known)| Some((name, known.problem.as_ref()?)));
            problems.map(|(name, problem)| format!("{}/{name}: {problem}", kind.plural()))
        })
    }
}

impl List {
    fn observe(&mut self, kind: CustomKind, form: CustomForm, observed: Observed<'_>) -> Vec<EntryChange> {
        match observed {
            Observed::ListBegins => {
                self.unmentioned = Some(self.known.keys().cloned().collect());
                self.is_incomplete = false;
                Vec::new()
            }
            Observed::Listed(json) | Observed::Changed(json) => self.set(kind, form, json),
            Observed::ListEnds => {
                self.synced = true;
                let gone = self.unmentioned.take().unwrap_or_default();
                if self.is_incomplete {
                    return Vec::new();
                }
                gone.iter().filter_map(|name| self.remove(name)).collect()
            }
            Observed::Deleted { name, .. } => self.remove(name).into_iter().collect(),
        }
    }

    fn remove(&mut self, name: &str) -> Option<EntryChange> {
        let path = self.known.remove(name)?.path?;
        Some(EntryChange { path, text: None })
    }

    fn set(&mut self, kind: CustomKind, form: CustomForm, json: &str) -> Vec<EntryChange> {
        let object: Value = serde_json::from_str(json).unwrap_or_default();
        let Some(name) = field(&object, &["metadata", "name"]).as_str().filter(|name| !name.is_empty()) else {
            self.is_incomplete = true;
            return Vec::new();
        };
        let name: Box<str> = name.into();
        if let Some(unmentioned) = &mut self.unmentioned {
            unmentioned.remove(&name);
        }
        let known = self.known.entry(name.clone()).or_default();
        let version = field(&object, &["metadata", "resourceVersion"]).as_str();
        let Some(revision) = version.and_then(|version| version.parse::<Revision>().ok()) else {
            // The entry keeps its last text.
            known.problem = Some("metadata.resourceVersion: is no number".into());
            return Vec::new();
        };
        let (path, text, problem) = read(kind, form, &name, object);
        let is_known = known.path == path;
        if is_known && known.revision == revision {
            return Vec::new();
        }
        let before = known.path.take();
        // Versions decrease when a backup is restored; the known entry is then deleted first.
        let is_stale = !is_known || revision < known.revision;
        let mut changes: Vec<EntryChange> =
            before.filter(|_| is_stale).map(|path| EntryChange { path, text: None }).into_iter().collect();
        changes.extend(path.clone().map(|path| EntryChange { path, text: Some((text, revision)) }));
        *known = KnownObject { path, revision, problem };
        changes
    }
}

/// Returns the path in etcd, the text, and the problem. An unreadable resource has an empty text.
fn read(kind: CustomKind, form: CustomForm, name: &str, object: Value) -> (Option<String>, String, Option<String>) {
    match kind {
        CustomKind::Addresses(kind) => match kind.path(&object) {
            Ok(path) => (path, field(&object, &["spec"]).to_string(), None),
            Err(error) => (None, String::new(), Some(with_causes(&error))),
        },
        CustomKind::Resources(kind) => {
            let Ok(key) = ResourceKey::new(kind, "", name) else {
                return (None, String::new(), Some("metadata.name: is no name".into()));
            };
            let read = match form {
                CustomForm::V1 => from_custom,
                CustomForm::V3 => from_plain,
            };
            match read(&key, object) {
                Ok(resource) => (Some(key.path()), resource.to_string(), None),
                Err(error) => (Some(key.path()), String::new(), Some(with_causes(&error))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BLOCKS: CustomKind = CustomKind::Addresses(AddressKind::Block);
    const ENDPOINTS: CustomKind = CustomKind::Resources(ResourceKind::HostEndpoint);
    const PATH: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26";

    fn block(version: &str, cidr: &str) -> String {
        json!({"metadata": {"name": "10-0-0-0-26", "resourceVersion": version}, "spec": {"cidr": cidr}}).to_string()
    }

    fn change(path: &str, text: Option<(&str, i64)>) -> EntryChange {
        let text = text.map(|(text, version)| (text.to_owned(), Revision(version)));
        EntryChange { path: path.into(), text }
    }

    #[test]
    fn lists_are_observed_as_changes() {
        let mut custom = CustomResources::default();
        let text = r#"{"cidr":"10.0.0.0/26"}"#;
        let mut list = |items: &[&str]| {
            let mut changes = custom.observe(BLOCKS, CustomForm::V1, Observed::ListBegins);
            for item in items {
                changes.extend(custom.observe(BLOCKS, CustomForm::V1, Observed::Listed(item)));
            }
            changes.extend(custom.observe(BLOCKS, CustomForm::V1, Observed::ListEnds));
            changes
        };
        let now = |version| change(PATH, Some((text, version)));
        assert_eq!(list(&[&block("5", "10.0.0.0/26")]), [now(5)]);
        assert_eq!(list(&[&block("5", "10.0.0.0/26")]), []);
        assert_eq!(list(&[&block("7", "10.0.0.0/26")]), [now(7)]);
        // A backup was restored.
        assert_eq!(list(&[&block("6", "10.0.0.0/26")]), [change(PATH, None), now(6)]);
        // An object without a name may be any object, so that none is deleted.
        assert_eq!(list(&["{}"]), []);
        assert_eq!(list(&[]), [change(PATH, None)]);
        assert_eq!(list(&[]), []);
        assert!(!custom.synced());
        for kind in CustomKind::ALL.into_iter().filter(|kind| !kind.is_optional()) {
            custom.not_installed(kind);
            assert!(!custom.synced());
            custom.observe(kind, CustomForm::V1, Observed::ListEnds);
        }
        custom.not_installed(CustomKind::Resources(ResourceKind::IpReservation));
        assert!(custom.synced());
    }

    #[test]
    fn either_form_is_read_as_the_same_resource() {
        let object = |metadata: &Value| {
            let (mut metadata, spec) = (metadata.clone(), json!({"node": "n1", "interfaceName": "*"}));
            metadata["name"] = "h".into();
            metadata["resourceVersion"] = "9".into();
            json!({"metadata": metadata, "spec": spec}).to_string()
        };
        let labels = json!({"labels": {"rack": "a"}});
        let kept = json!({"annotations": {"projectcalico.org/metadata": labels.to_string()}});
        let forms = [(CustomForm::V1, kept), (CustomForm::V3, labels)];
        let read = forms.map(|(form, metadata)| {
            CustomResources::default().observe(ENDPOINTS, form, Observed::Changed(&object(&metadata)))
        });
        let of =
            |changes: &[EntryChange]| -> Value { serde_json::from_str(&changes[0].text.as_ref().unwrap().0).unwrap() };
        assert_eq!(of(&read[0]), of(&read[1]));
        assert_eq!(of(&read[1])["metadata"]["labels"], json!({"rack": "a"}));
        // In v3, the UID is the object's own, and the annotation has no meaning.
        let metadata = json!({"uid": "30316465-6365-4463-ad63-3564622d3638",
            "annotations": {"projectcalico.org/metadata": "{"}});
        let changes =
            CustomResources::default().observe(ENDPOINTS, CustomForm::V3, Observed::Changed(&object(&metadata)));
        assert_eq!(of(&changes)["metadata"]["uid"], metadata["uid"]);
    }

    #[test]
    fn an_unreadable_object_is_a_problem() {
        let mut custom = CustomResources::default();
        custom.observe(BLOCKS, CustomForm::V1, Observed::Changed(&block("5", "10.0.0.0/26")));
        // The entry keeps its last text.
        assert_eq!(custom.observe(BLOCKS, CustomForm::V1, Observed::Changed(&block("x", "10.0.0.0/26"))), []);
        assert_eq!(custom.problems().count(), 1);
        // The name does not match the block, so the object has no entry.
        assert_eq!(
            custom.observe(BLOCKS, CustomForm::V1, Observed::Changed(&block("6", "10.0.0.64/26"))),
            [change(PATH, None)]
        );
        assert_eq!(
            custom.problems().collect::<Vec<_>>(),
            ["ipamblocks/10-0-0-0-26: metadata.name: is not `10-0-0-64-26`, as the object would be called"]
        );
        let endpoint = json!({"metadata": {"name": "h", "resourceVersion": "9",
            "annotations": {"projectcalico.org/metadata": "{"}}});
        let path = "/calico/resources/v3/projectcalico.org/hostendpoints/h";
        let unreadable = custom.observe(ENDPOINTS, CustomForm::V1, Observed::Changed(&endpoint.to_string()));
        assert_eq!(unreadable, [change(path, Some(("", 9)))]);
        assert_eq!(custom.problems().count(), 2);
        let deleted = custom.observe(ENDPOINTS, CustomForm::V1, Observed::Deleted { namespace: "", name: "h" });
        assert_eq!((deleted, custom.problems().count()), (vec![change(path, None)], 1));
    }
}
