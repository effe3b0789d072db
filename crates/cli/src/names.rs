use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use tortie_resources::stored::{ResourceKey, ResourceKind, UnknownKind};

use super::Failure;
use super::columns::aligned;
use super::store::StoredKinds;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KindOrOne {
    pub(super) kind: ResourceKind,
    name: Option<String>,
}

impl KindOrOne {
    pub(super) fn is_one(&self) -> bool {
        self.name.is_some()
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum KindError {
    #[error("is neither KIND nor KIND/NAME; the namespace is for -n")]
    Form,
    #[error("is more than one kind; only `tortie get` takes several")]
    Several,
    #[error("is of Kubernetes alone: `kubectl get {0}` shows it")]
    OfKubectl(String),
    #[error("{0}\n\nThe kinds and their other names:\n{kinds}", kinds = kinds())]
    Unknown(UnknownKind),
}

impl FromStr for KindOrOne {
    type Err = KindError;

    fn from_str(text: &str) -> Result<Self, KindError> {
        let (kind, name) = match text.split_once('/') {
            Some((kind, name)) => (kind, Some(name)),
            None => (text, None),
        };
        if name.is_some_and(|name| name.is_empty() || name.contains('/')) {
            return Err(KindError::Form);
        }
        Ok(Self { kind: kind.parse().map_err(|error| unknown(kind, error))?, name: name.map(str::to_owned) })
    }
}

/// Kinds of which `get` shows all resources, or one kind and perhaps a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShownKinds {
    One(KindOrOne),
    Several(Vec<ResourceKind>),
    All,
}

impl FromStr for ShownKinds {
    type Err = KindError;

    /// Reads `KIND`, `KIND/NAME`, `KIND,KIND` or `all`.
    fn from_str(text: &str) -> Result<Self, KindError> {
        if text == "all" {
            return Ok(Self::All);
        }
        if !text.contains(',') || text.contains('/') {
            return text.parse().map(Self::One);
        }
        let kind = |word: &str| word.parse().map_err(|error| unknown(word, error));
        text.split(',').map(kind).collect::<Result<_, _>>().map(Self::Several)
    }
}

/// Parser of an argument that begins with a kind; shells complete the plurals.
#[derive(Clone)]
pub(super) struct KindParser<T>(pub(super) fn(&str) -> Result<T, KindError>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for KindParser<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let parse = self.0;
        StringValueParser::new().try_map(move |text| parse(&text)).parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(kinds_for_people().map(|kind| PossibleValue::new(kind.plural()))))
    }
}

/// Returns the kinds that users write, those of Kubernetes last.
fn kinds_for_people() -> impl Iterator<Item = ResourceKind> {
    ResourceKind::all().filter(|kind| kind.is_for_people()).chain(ResourceKind::of_kubernetes())
}

const OF_KUBECTL: [&str; 20] = [
    "pod",
    "pods",
    "po",
    "namespace",
    "namespaces",
    "ns",
    "service",
    "services",
    "svc",
    "serviceaccount",
    "serviceaccounts",
    "sa",
    "endpointslice",
    "endpointslices",
    "deployment",
    "deployments",
    "configmap",
    "configmaps",
    "secret",
    "secrets",
];

fn unknown(word: &str, error: UnknownKind) -> KindError {
    match word {
        _ if word.contains(',') => KindError::Several,
        _ if OF_KUBECTL.contains(&&*word.to_ascii_lowercase()) => KindError::OfKubectl(word.to_owned()),
        _ => KindError::Unknown(error),
    }
}

fn kinds() -> String {
    let row = |kind: ResourceKind| {
        let names = std::iter::once(kind.plural()).chain(kind.short_names().iter().copied());
        let of_kubernetes = if kind.is_of_kubernetes() { "  (in Kubernetes)" } else { "" };
        vec![format!("  {kind}"), format!("{}{of_kubernetes}", names.collect::<Vec<_>>().join(", "))]
    };
    let rows: Vec<Vec<String>> = kinds_for_people().map(row).collect();
    aligned(&rows).trim_end().to_owned()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NamespaceError {
    #[error("a namespace is one name; `tortie get KIND -A` shows those of all")]
    Several,
    #[error("is not the name of a namespace")]
    Form,
}

pub(super) fn namespace(text: &str) -> Result<String, NamespaceError> {
    if text.contains([',', '*']) {
        return Err(NamespaceError::Several);
    }
    if text.is_empty() || text.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
        return Err(NamespaceError::Form);
    }
    Ok(text.to_owned())
}

pub(super) fn keys(first: &KindOrOne, names: &[String], namespace: &str) -> Result<Vec<ResourceKey>, Failure> {
    let key = |kind: ResourceKind, name: &str| {
        let namespace = if kind.is_namespaced() { namespace } else { "" };
        ResourceKey::new(kind, namespace, name).map_err(Failure::usage)
    };
    let Some(name) = &first.name else { return names.iter().map(|name| key(first.kind, name)).collect() };
    let mut keys = vec![key(first.kind, name)?];
    for text in names {
        if !text.contains('/') {
            return Err(Failure::usage(format!("`{text}`: is not KIND/NAME, as the first one is")));
        }
        let KindOrOne { kind, name } = text.parse().map_err(Failure::usage_at(format!("`{text}`")))?;
        keys.push(key(kind, &name.unwrap_or_default())?);
    }
    Ok(keys)
}

/// Fails if there are none, or if the datastore does not keep their kinds.
pub(super) fn wanted(
    first: &KindOrOne,
    names: &[String],
    namespace: &str,
    keeps: StoredKinds,
) -> Result<Vec<ResourceKey>, Failure> {
    let keys = keys(first, names, namespace)?;
    if keys.is_empty() {
        return Err(Failure::usage(format!("which {}? Give its name", first.kind)));
    }
    keys.iter().try_for_each(|key| kept(key.kind(), keeps))?;
    Ok(keys)
}

pub(super) fn kept(kind: ResourceKind, keeps: StoredKinds) -> Result<(), Failure> {
    if !kind.is_of_kubernetes() || keeps.has_policies_of_kubernetes() {
        return Ok(());
    }
    let why = "exists in Kubernetes only; `tortie controller` converts it to the NetworkPolicy knp.default.NAME \
               of this datastore";
    Err(Failure::failed(format!("{kind} {why}")))
}

#[cfg(test)]
mod tests;
