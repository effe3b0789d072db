mod directory;

#[cfg(any(feature = "etcd", feature = "kubernetes"))]
use std::cell::Cell;

use clap::Subcommand;
use serde_json::{Value, json};
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
use tortie_datastore::store::apply::{Applied, ApplyError, apply, delete};
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
use tortie_datastore::store::{ResourceStore, StoreError};
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
use tortie_resources::Severity;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
use tortie_resources::stored::{KeyError, ResourceKey, ResourceKind, Revision};
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
use tortie_resources::to_v3::{self, Conversion};

use super::Failure;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
use super::confirming::ConfirmingArgs;
use super::datastore_url::DatastoreUrl;
use super::output::Output;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
use super::pending_write::PendingWrite;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
use super::store::{StoreArgs, StoreUrl, StoredKinds};

/// Put staged policies in force; see `tortie flows --staged` for effects.
///
/// Example: tortie staged commit shop/db --datastore etcd://127.0.0.1:2379
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(subcommand)]
    command: StagedCommand,
}

#[derive(Debug, Subcommand)]
enum StagedCommand {
    /// Put a staged policy in force
    ///
    /// In etcd and Kubernetes, the enforced policy of the same name is replaced by the staged one,
    /// or is deleted if the staged one has stagedAction: Delete; then the staged one is deleted.
    /// With --confirm both are restored unless `tortie confirm` comes in time. A
    /// StagedKubernetesNetworkPolicy in etcd becomes the policy knp.default.NAME, which represents
    /// the Kubernetes policy there. For a directory, prints the manifest that is to replace the
    /// staged one; with --write, replaces the file if it has no other objects.
    ///
    /// Examples: tortie staged commit shop/db --datastore etcd://127.0.0.1:2379 --confirm 60s
    ///           tortie staged commit shop/db --datastore kubernetes: --confirm 60s
    #[command(verbatim_doc_comment)]
    Commit(CommitArgs),
}

#[derive(Debug, clap::Args)]
struct CommitArgs {
    /// NAMESPACE/NAME of a StagedNetworkPolicy, or NAME of a StagedGlobalNetworkPolicy; the kind
    /// may be written before it, as it must be for a StagedKubernetesNetworkPolicy.
    #[arg(value_name = "POLICY")]
    name: StagedName,
    /// Datastore of the policies: etcd://HOST[:PORT],..., kubernetes:[KUBECONFIG] or file:DIR.
    #[arg(long, value_name = "URL", env = "TORTIE_DATASTORE")]
    datastore: DatastoreUrl,
    /// For a directory: replace the file of the staged policy with the manifest.
    #[arg(long)]
    write: bool,
    #[cfg(feature = "etcd")]
    #[command(flatten)]
    etcd: super::etcd::EtcdArgs,
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    #[command(flatten)]
    confirming: ConfirmingArgs,
    #[cfg(not(any(feature = "etcd", feature = "kubernetes")))]
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl CommitArgs {
    /// Returns the format of the answer for a directory.
    fn output(&self) -> Result<Output, Failure> {
        #[cfg(any(feature = "etcd", feature = "kubernetes"))]
        return self
            .confirming
            .output()
            .of_answer()
            .ok_or_else(|| Failure::usage("-o name is for policies in etcd or Kubernetes"));
        #[cfg(not(any(feature = "etcd", feature = "kubernetes")))]
        Ok(self.output)
    }

    fn is_to_be_confirmed(&self) -> bool {
        #[cfg(any(feature = "etcd", feature = "kubernetes"))]
        return self.confirming.is_asked_for();
        #[cfg(not(any(feature = "etcd", feature = "kubernetes")))]
        false
    }

    fn is_dry(&self) -> bool {
        #[cfg(any(feature = "etcd", feature = "kubernetes"))]
        return self.confirming.is_dry();
        #[cfg(not(any(feature = "etcd", feature = "kubernetes")))]
        false
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct StagedChange {
    object: String,
    word: &'static str,
}

impl StagedChange {
    fn new(object: &str, word: &'static str) -> Self {
        Self { object: object.to_owned(), word }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let StagedCommand::Commit(args) = &args.command;
    let is_directory = matches!(args.datastore, DatastoreUrl::Directory(_));
    if args.is_to_be_confirmed() && is_directory {
        return Err(Failure::usage("--confirm is for policies in etcd or Kubernetes"));
    }
    if args.is_dry() && is_directory {
        return Err(Failure::usage(
            "--dry-run is for policies in etcd or Kubernetes; without --write nothing is written",
        ));
    }
    if args.write && !is_directory {
        return Err(Failure::usage("--write is for a directory of manifests"));
    }
    match &args.datastore {
        DatastoreUrl::Directory(root) if args.write => {
            let output = args.output()?;
            let file = directory::write(root, &args.name)?;
            let done = [
                StagedChange::new(&args.name.enforced(), "written"),
                StagedChange::new(&args.name.staged(), "deleted"),
            ];
            print(output, &done, Some(&file.display().to_string()))
        }
        DatastoreUrl::Directory(root) => {
            let (file, text) = directory::manifest(root, &args.name)?;
            let whole = || json!({ "file": file.display().to_string(), "manifest": text });
            let output = args.output()?;
            if output == Output::Table {
                eprintln!("this belongs in {}, in place of {}", file.display(), args.name.staged());
            }
            output.print(whole, || text.clone())
        }
        #[cfg(feature = "kubernetes")]
        DatastoreUrl::Kubernetes(file) => {
            commit_in_store(args, StoreUrl::Kubernetes(super::datastore::kubeconfig(file.as_deref())?))
        }
        #[cfg(feature = "etcd")]
        DatastoreUrl::Etcd(url) => {
            commit_in_store(args, StoreUrl::Etcd(Box::new(super::etcd::parsed(url.as_deref())?)))
        }
        other => {
            let forms = "--datastore must be etcd://HOST[:PORT],..., kubernetes:[KUBECONFIG] or file:DIR";
            Err(Failure::usage(format!("policies cannot be written to {other}: {forms}")))
        }
    }
}

fn print(output: Output, done: &[StagedChange], file: Option<&str>) -> Result<(), Failure> {
    let whole = || {
        let resources = done.iter().map(|done| json!({ "resource": done.object, "outcome": done.word }));
        let mut whole = json!({ "resources": resources.collect::<Vec<_>>() });
        if let (Some(file), Some(whole)) = (file, whole.as_object_mut()) {
            whole.insert("file".to_owned(), file.into());
        }
        whole
    };
    output.print(whole, || done.iter().map(|done| format!("{} {}\n", done.object, done.word)).collect())
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct StagedName {
    kind: StagedKind,
    /// Empty for a global policy.
    namespace: String,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StagedKind {
    Calico,
    Global,
    Kubernetes,
}

impl StagedKind {
    fn names(self) -> (&'static str, &'static str, &'static str) {
        const CALICO: &str = "projectcalico.org/v3";
        match self {
            Self::Calico => ("StagedNetworkPolicy", CALICO, "NetworkPolicy"),
            Self::Global => ("StagedGlobalNetworkPolicy", CALICO, "GlobalNetworkPolicy"),
            Self::Kubernetes => ("StagedKubernetesNetworkPolicy", "networking.k8s.io/v1", "NetworkPolicy"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of NAMESPACE/NAME and NAME")]
struct NotAName(String);

impl std::str::FromStr for StagedName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, namespace, name) = match parts[..] {
            ["StagedGlobalNetworkPolicy", name] | [name] => (StagedKind::Global, "", name),
            ["StagedKubernetesNetworkPolicy", namespace, name] => (StagedKind::Kubernetes, namespace, name),
            ["StagedNetworkPolicy", namespace, name] | [namespace, name] => (StagedKind::Calico, namespace, name),
            _ => return Err(NotAName(text.to_owned())),
        };
        if name.is_empty() || kind != StagedKind::Global && namespace.is_empty() {
            return Err(NotAName(text.to_owned()));
        }
        Ok(Self { kind, namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl StagedName {
    fn with_kind(&self, kind: &str) -> String {
        match self.kind {
            StagedKind::Global => format!("{kind}/{}", self.name),
            StagedKind::Calico | StagedKind::Kubernetes => format!("{kind}/{}/{}", self.namespace, self.name),
        }
    }

    fn staged(&self) -> String {
        self.with_kind(self.kind.names().0)
    }

    fn enforced(&self) -> String {
        self.with_kind(self.kind.names().2)
    }

    fn is_of(&self, object: &Value, is_staged: bool) -> bool {
        let (staged, api_version, enforced) = self.kind.names();
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let group = |api_version: &str| api_version.split('/').next().unwrap_or_default().to_owned();
        let is_kind = match is_staged {
            true => text("/kind") == staged,
            false => text("/kind") == enforced && group(text("/apiVersion")) == group(api_version),
        };
        let namespace = match (self.kind, text("/metadata/namespace")) {
            (StagedKind::Global, _) => "",
            (_, "") => "default",
            (_, namespace) => namespace,
        };
        is_kind && text("/metadata/name") == self.name && namespace == self.namespace
    }
}

#[cfg(any(feature = "etcd", feature = "kubernetes"))]
fn commit_in_store(args: &CommitArgs, datastore: StoreUrl) -> Result<(), Failure> {
    let (name, confirming) = (&args.name, &args.confirming);
    let store = StoreArgs::at(
        datastore,
        #[cfg(feature = "etcd")]
        args.etcd.clone(),
    );
    let (staged, enforced) = keys(name, store.keeps()).map_err(Failure::usage)?;
    // The version that is put in force. The staged policy is deleted only after that, and only at
    // this version.
    let committed = Cell::new(None);
    let place = || "tortie".to_owned();
    let put = PendingWrite {
        place: place(),
        key: enforced.clone(),
        write: Box::new(|store| {
            let (revision, word) = put_in_force(store, name, &staged, &enforced)?;
            committed.set(Some(revision));
            Ok(word)
        }),
    };
    let take = PendingWrite {
        place: place(),
        key: staged.clone(),
        write: Box::new(|store| match committed.get() {
            Some(revision) => delete(store, &staged, Some(revision)).map(|()| Some("deleted")),
            None => Ok(None),
        }),
    };
    confirming.write(&store, &[put, take], false)?;
    if (name.kind, enforced.kind()) == (StagedKind::Kubernetes, ResourceKind::NetworkPolicy) {
        let command =
            "a policy controller copies policies from Kubernetes to this etcd: apply the policy in Kubernetes, too";
        eprintln!("tortie: {command}");
    }
    Ok(())
}

#[cfg(any(feature = "etcd", feature = "kubernetes"))]
fn keys(name: &StagedName, keeps: StoredKinds) -> Result<(ResourceKey, ResourceKey), KeyError> {
    let (staged, enforced) = match name.kind {
        StagedKind::Calico => (ResourceKind::StagedNetworkPolicy, ResourceKind::NetworkPolicy),
        StagedKind::Global => (ResourceKind::StagedGlobalNetworkPolicy, ResourceKind::GlobalNetworkPolicy),
        StagedKind::Kubernetes if keeps.has_policies_of_kubernetes() => {
            (ResourceKind::StagedKubernetesNetworkPolicy, ResourceKind::KubernetesNetworkPolicy)
        }
        // In etcd, a policy of Calico represents the one of Kubernetes.
        StagedKind::Kubernetes => (ResourceKind::StagedKubernetesNetworkPolicy, ResourceKind::NetworkPolicy),
    };
    let key = |kind, called: &str| ResourceKey::new(kind, &name.namespace, called);
    let is_stand_in = (name.kind, enforced) == (StagedKind::Kubernetes, ResourceKind::NetworkPolicy);
    let called = if is_stand_in { to_v3::policy_name(&name.name) } else { name.name.clone() };
    Ok((key(staged, &name.name)?, key(enforced, &called)?))
}

/// Returns the version of the staged policy, and the outcome as one word.
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
fn put_in_force(
    store: &dyn ResourceStore,
    name: &StagedName,
    staged: &ResourceKey,
    enforced: &ResourceKey,
) -> Result<(Revision, Option<&'static str>), ApplyError> {
    let found = store.get(staged)?;
    let action = found.object.pointer("/spec/stagedAction").and_then(Value::as_str).unwrap_or("Set").to_owned();
    let word = match action.as_str() {
        "Set" => Some(match apply(store, enforced, &policy_of(staged, enforced, found.object, name)?)? {
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
            return Err(ApplyError::Refused { key: staged.clone(), why: why.into() });
        }
    };
    Ok((found.revision, word))
}

/// Returns the enforced policy in the form in which the datastore keeps it.
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
fn policy_of(
    staged: &ResourceKey,
    enforced: &ResourceKey,
    object: Value,
    name: &StagedName,
) -> Result<Value, ApplyError> {
    let policy = as_enforced(object, name);
    if (name.kind, enforced.kind()) != (StagedKind::Kubernetes, ResourceKind::NetworkPolicy) {
        return Ok(policy);
    }
    let converted = to_v3::network_policy(&policy);
    // A conversion that leaves rules out would deny more than the flows of the staged policy show.
    let wrong = converted.problems.iter().find(|problem| problem.severity == Severity::Error);
    match (converted.outcome, wrong) {
        (Conversion::Resource(policy), None) => Ok(policy),
        (_, wrong) => {
            let why = wrong.map_or_else(|| "is no policy".to_owned(), ToString::to_string);
            Err(ApplyError::Refused { key: staged.clone(), why: why.into() })
        }
    }
}

fn as_enforced(mut object: Value, name: &StagedName) -> Value {
    let (_, api_version, kind) = name.kind.names();
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".into(), api_version.into());
        map.insert("kind".into(), kind.into());
    }
    if let Some(spec) = object.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.shift_remove("stagedAction");
    }
    if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        // These belong to the staged policy only.
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
    fn staged_names_are_accepted_in_the_form_of_flows_and_policies() {
        let both = |name: &str| name.parse::<StagedName>().map(|name| format!("{} {}", name.staged(), name.enforced()));
        let namespaced = "StagedNetworkPolicy/shop/db NetworkPolicy/shop/db";
        assert_eq!(both("shop/db").as_deref(), Ok(namespaced));
        assert_eq!(both("StagedNetworkPolicy/shop/db").as_deref(), Ok(namespaced));
        let global = "StagedGlobalNetworkPolicy/all GlobalNetworkPolicy/all";
        assert_eq!(both("all").as_deref(), Ok(global));
        assert_eq!(both("StagedGlobalNetworkPolicy/all").as_deref(), Ok(global));
        let kubernetes = "StagedKubernetesNetworkPolicy/shop/db NetworkPolicy/shop/db";
        assert_eq!(both("StagedKubernetesNetworkPolicy/shop/db").as_deref(), Ok(kubernetes));
        for wrong in ["StagedKubernetesNetworkPolicy/db/", "a/b/c", "a/b/c/d", "", "shop/"] {
            assert!(both(wrong).is_err(), "{wrong}");
        }
    }
}
