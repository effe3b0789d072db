//! Objects of the API server, and their history.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::selector::Selector;

/// A kind that the server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServedKind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) kind: String,
    pub(super) namespaced: bool,
    /// Whether the kind is built into Kubernetes; the encoding of lists depends on it.
    pub(super) built_in: bool,
}

impl ServedKind {
    /// Reports whether the status is a subresource.
    fn has_status(&self) -> bool {
        self.plural == "kubecontrollersconfigurations"
    }

    /// Reports whether `metadata.generation` counts changes of the specification.
    fn has_generation(&self) -> bool {
        !self.built_in || self.plural == "networkpolicies"
    }

    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// Plural with group, such as `pods.` or `tiers.crd.projectcalico.org`.
pub(super) type Collection = String;

pub(super) fn collection(group: &str, plural: &str) -> Collection {
    format!("{plural}.{group}")
}

/// Namespace, which may be empty, and name.
type ObjectName = (String, String);

#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
}

/// An API error: code, reason and message of a `Status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

pub(super) fn refuse(code: u16, reason: &'static str, message: impl Into<String>) -> Refusal {
    Refusal { code, reason, message: message.into() }
}

/// One page of a list.
pub(super) struct Page {
    pub(super) version: u64,
    pub(super) items: Vec<Value>,
    pub(super) more: Option<String>,
    pub(super) remaining: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    pub(super) version: u64,
    /// Changes up to this version have been compacted.
    pub(super) compacted: u64,
    pub(super) kinds: Vec<ServedKind>,
    objects: BTreeMap<Collection, BTreeMap<ObjectName, Value>>,
    history: BTreeMap<Collection, Vec<Change>>,
    /// Remaining items of paged lists.
    pages: HashMap<String, (u64, Vec<Value>)>,
    uids: u64,
}

impl Store {
    pub(super) fn kind(&self, group: &str, version: &str, plural: &str) -> Option<&ServedKind> {
        self.kinds.iter().find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
    }

    pub(super) fn kind_of(&self, object: &Value) -> Option<ServedKind> {
        let (api_version, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
        self.kinds.iter().find(|served| served.kind == kind && served.api_version() == api_version).cloned()
    }

    pub(super) fn get(&self, kind: &ServedKind, namespace: &str, name: &str) -> Result<&Value, Refusal> {
        let key = (namespace.to_owned(), name.to_owned());
        self.objects
            .get(&collection(&kind.group, &kind.plural))
            .and_then(|objects| objects.get(&key))
            .ok_or_else(|| refuse(404, "NotFound", format!("{} \"{name}\" not found", kind.plural)))
    }

    /// Creates an object.
    pub(super) fn create(&mut self, kind: &ServedKind, namespace: &str, mut object: Value) -> Result<Value, Refusal> {
        let name = name_of(&object)?;
        if kind.has_status() {
            without(&mut object, "status");
        }
        if object["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
            // The real server gives no reason either.
            return Err(refuse(500, "", "resourceVersion should not be set on objects to be created"));
        }
        if self.get(kind, namespace, &name).is_ok() {
            return Err(refuse(409, "AlreadyExists", format!("{} \"{name}\" already exists", kind.plural)));
        }
        self.uids += 1;
        let uid = format!("00000000-0000-4000-8000-{:012x}", self.uids);
        fill_in(kind, &mut object);
        Ok(self.write(kind, namespace, &name, object, &uid))
    }

    /// Replaces an object, except a status that is a subresource.
    pub(super) fn replace(
        &mut self,
        kind: &ServedKind,
        namespace: &str,
        name: &str,
        mut object: Value,
    ) -> Result<Value, Refusal> {
        if kind.has_status() {
            match self.get(kind, namespace, name)?.get("status") {
                Some(status) => object["status"] = status.clone(),
                None => without(&mut object, "status"),
            }
        }
        self.replace_whole(kind, namespace, name, object)
    }

    /// Replaces the status of an object.
    pub(super) fn replace_status(
        &mut self,
        kind: &ServedKind,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Result<Value, Refusal> {
        let mut whole = self.get(kind, namespace, name)?.clone();
        whole["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
        whole["status"] = object["status"].clone();
        self.replace_whole(kind, namespace, name, whole)
    }

    fn replace_whole(
        &mut self,
        kind: &ServedKind,
        namespace: &str,
        name: &str,
        mut object: Value,
    ) -> Result<Value, Refusal> {
        fill_in(kind, &mut object);
        if name_of(&object)? != name {
            return Err(refuse(400, "BadRequest", "the name of the object does not match the name on the URL"));
        }
        let now = self.get(kind, namespace, name)?;
        let (uid, version) = (now["metadata"]["uid"].clone(), now["metadata"]["resourceVersion"].clone());
        match object["metadata"]["resourceVersion"].as_str() {
            Some(expected) if !expected.is_empty() && Some(expected) != version.as_str() => {
                return Err(conflict(kind, name));
            }
            Some(expected) if !expected.is_empty() => {}
            // Custom resources cannot be replaced without a version.
            _ if !kind.built_in => {
                return Err(refuse(422, "Invalid", "metadata.resourceVersion: must be specified for an update"));
            }
            _ => {}
        }
        if object["metadata"]["uid"].as_str().is_some_and(|given| Some(given) != uid.as_str()) {
            return Err(conflict(kind, name));
        }
        if same(now, &object) {
            return Ok(now.clone());
        }
        Ok(self.write(kind, namespace, name, object, uid.as_str().unwrap_or_default()))
    }

    /// Applies a merge patch (RFC 7396) to an object.
    pub(super) fn patch(
        &mut self,
        kind: &ServedKind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Value, Refusal> {
        let mut object = self.get(kind, namespace, name)?.clone();
        merge(&mut object, patch);
        self.replace(kind, namespace, name, object)
    }

    pub(super) fn delete(
        &mut self,
        kind: &ServedKind,
        namespace: &str,
        name: &str,
        options: &Value,
    ) -> Result<Value, Refusal> {
        let object = self.get(kind, namespace, name)?.clone();
        for field in ["resourceVersion", "uid"] {
            let expected = &options["preconditions"][field];
            if !expected.is_null() && *expected != object["metadata"][field] {
                return Err(conflict(kind, name));
            }
        }
        self.version += 1;
        let collection = collection(&kind.group, &kind.plural);
        let key = (namespace.to_owned(), name.to_owned());
        self.objects.entry(collection.clone()).or_default().remove(&key);
        // The deletion event carries the version of the deletion.
        let mut last = object.clone();
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let change = Change { version: self.version, before: Some(last), after: None };
        self.history.entry(collection).or_default().push(change);
        Ok(object)
    }

    fn write(&mut self, kind: &ServedKind, namespace: &str, name: &str, object: Value, uid: &str) -> Value {
        self.version += 1;
        let Value::Object(given) = object else { return Value::Null };
        let mut written = Map::new();
        written.insert("apiVersion".into(), json!(kind.api_version()));
        written.insert("kind".into(), json!(kind.kind));
        written.extend(given.into_iter().filter(|(field, _)| !matches!(field.as_str(), "apiVersion" | "kind")));
        let mut object = Value::Object(written);
        let key = (namespace.to_owned(), name.to_owned());
        let objects = self.objects.entry(collection(&kind.group, &kind.plural)).or_default();
        let before = objects.get(&key).cloned();
        let metadata = &mut object["metadata"];
        metadata["name"] = json!(name);
        if !namespace.is_empty() {
            metadata["namespace"] = json!(namespace);
        }
        metadata["uid"] = json!(uid);
        metadata["resourceVersion"] = json!(self.version.to_string());
        metadata["creationTimestamp"] = before
            .as_ref()
            .map_or_else(|| json!("2026-01-02T03:04:05Z"), |b| b["metadata"]["creationTimestamp"].clone());
        if kind.has_generation() {
            let was = before.as_ref().map_or(0, |before| before["metadata"]["generation"].as_u64().unwrap_or_default());
            let is_same = before.as_ref().is_some_and(|before| before["spec"] == object["spec"]);
            object["metadata"]["generation"] = json!(was + u64::from(!is_same));
        }
        objects.insert(key, object.clone());
        let change = Change { version: self.version, before, after: Some(object.clone()) };
        self.history.entry(collection(&kind.group, &kind.plural)).or_default().push(change);
        object
    }

    /// Returns the first page of a list, or the page of this token.
    pub(super) fn list(
        &mut self,
        kind: &ServedKind,
        namespace: &str,
        selector: &Selector,
        limit: usize,
        token: &str,
    ) -> Result<Page, Refusal> {
        let (version, mut items) = if token.is_empty() {
            let objects = self.objects.get(&collection(&kind.group, &kind.plural));
            let items = objects.into_iter().flatten().filter(|((of, _), _)| namespace.is_empty() || of == namespace);
            (self.version, items.map(|(_, object)| object).filter(|object| selector.matches(object)).cloned().collect())
        } else {
            self.pages.remove(token).ok_or_else(|| {
                refuse(
                    410,
                    "Expired",
                    "The provided continue parameter is too old to display a consistent list result.",
                )
            })?
        };
        if limit == 0 || items.len() <= limit {
            return Ok(Page { version, items, more: None, remaining: 0 });
        }
        let rest = items.split_off(limit);
        let remaining = rest.len();
        let more = format!("{}:{}:{remaining}", collection(&kind.group, &kind.plural), self.pages.len() + 1);
        self.pages.insert(more.clone(), (version, rest));
        Ok(Page { version, items, more: Some(more), remaining })
    }

    /// Returns the changes after a version. A version in the future gives no changes, as with the
    /// real server.
    pub(super) fn since(&self, kind: &ServedKind, version: u64) -> Result<Vec<Change>, Refusal> {
        if version < self.compacted {
            let message = format!("too old resource version: {version} ({})", self.compacted);
            return Err(refuse(410, "Expired", message));
        }
        let changes = self.history.get(&collection(&kind.group, &kind.plural));
        let changes = changes.map(Vec::as_slice).unwrap_or_default();
        let from = changes.partition_point(|change| change.version <= version);
        Ok(changes[from..].to_vec())
    }

    /// Deletes the history and the remaining items of paged lists.
    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
        self.history.clear();
        self.pages.clear();
    }

    /// Removes all objects of a kind without recording events.
    pub(super) fn remove_objects(&mut self, group: &str, plural: &str) {
        self.objects.remove(&collection(group, plural));
        self.history.remove(&collection(group, plural));
    }
}

fn without(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove(field);
    }
}

fn conflict(kind: &ServedKind, name: &str) -> Refusal {
    let message = format!(
        "Operation cannot be fulfilled on {} \"{name}\": the object has been modified; please apply your changes to the \
         latest version and try again",
        kind.plural
    );
    refuse(409, "Conflict", message)
}

fn name_of(object: &Value) -> Result<String, Refusal> {
    match object["metadata"]["name"].as_str() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(refuse(422, "Invalid", "metadata.name: Required value: name or generateName is required")),
    }
}

/// Sets defaults as the real server does: protocols and types of Kubernetes policies
/// (`pkg/apis/networking/v1/defaults.go` of Kubernetes), and the default action of tiers, as in
/// their definition (`crd.projectcalico.org_tiers.yaml` of Calico).
fn fill_in(kind: &ServedKind, object: &mut Value) {
    if !kind.built_in && kind.plural == "tiers" {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            spec.entry("defaultAction").or_insert_with(|| json!("Deny"));
        }
        return;
    }
    if !kind.built_in || kind.plural != "networkpolicies" {
        return;
    }
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for rules in ["ingress", "egress"] {
        let rules = spec.get_mut(rules).and_then(Value::as_array_mut).into_iter().flatten();
        for port in rules.filter_map(|rule| rule.get_mut("ports")?.as_array_mut()).flatten() {
            if let Some(port) = port.as_object_mut() {
                port.entry("protocol").or_insert_with(|| json!("TCP"));
            }
        }
    }
    if !spec.contains_key("policyTypes") {
        let has_egress = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
        let types = if has_egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        spec.insert("policyTypes".into(), types);
    }
}

/// Reports whether two versions are equal in all fields that a user can write.
fn same(now: &Value, object: &Value) -> bool {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        for field in ["uid", "resourceVersion", "creationTimestamp", "namespace", "generation"] {
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove(field);
            }
        }
        object
    };
    stripped(now) == stripped(object)
}

/// Applies a merge patch (RFC 7396).
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    let Some(fields) = object.as_object_mut() else { return };
    for (name, value) in patch {
        if value.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}
