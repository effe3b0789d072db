use std::str::FromStr;

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
    #[error("is more than one kind; run the command once for each")]
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
    let own = ResourceKind::all().filter(|kind| kind.is_for_people());
    let rows: Vec<Vec<String>> = own.chain(ResourceKind::of_kubernetes()).map(row).collect();
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
mod tests {
    use super::*;

    fn named(first: &str, names: &[&str]) -> Result<Vec<String>, Failure> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let keys = keys(&first.parse().map_err(Failure::usage)?, &names, "shop")?;
        Ok(keys.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn resources_are_named_as_kubectl_has_it() {
        assert_eq!(named("np", &["web", "db"]).unwrap(), ["NetworkPolicy/shop/web", "NetworkPolicy/shop/db"]);
        assert_eq!(named("np/web", &["tiers/x"]).unwrap(), ["NetworkPolicy/shop/web", "Tier/x"]);
        assert_eq!(named("networkpolicy.networking.k8s.io/web", &[]).unwrap(), ["KubernetesNetworkPolicy/shop/web"]);
        for (first, names, why) in [
            ("np/web", &["db"][..], "`db`: is not KIND/NAME, as the first one is"),
            ("np/web", &["foo/db"], "`foo/db`: `foo` is not a kind"),
            ("np/shop/web", &[], "the namespace is for -n"),
            ("np/", &[], "is neither"),
            ("np", &["a/b"], "`a/b` is not a name"),
        ] {
            let error = named(first, names).unwrap_err().to_string();
            assert!(error.contains(why), "{first}: {error}");
        }
    }

    #[test]
    fn unknown_kinds_are_distinguished_from_unsupported_ones() {
        insta::assert_snapshot!("foo".parse::<KindOrOne>().unwrap_err());
        let error_of = |word: &str| word.parse::<KindOrOne>().unwrap_err().to_string();
        assert_eq!(error_of("pods"), "is of Kubernetes alone: `kubectl get pods` shows it");
        assert_eq!(error_of("np,gnp"), "is more than one kind; run the command once for each");
        assert!(
            error_of("gnpp")
                .starts_with("`gnpp` is not a kind of resource that the datastore keeps; is `gnp` meant?\n")
        );
    }

    #[test]
    fn a_namespace_is_one_name() {
        assert_eq!(namespace("shop"), Ok("shop".into()));
        for text in ["a,b", "*", "", "a b", "a/b"] {
            assert!(namespace(text).is_err(), "{text}");
        }
    }
}
