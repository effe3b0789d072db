use std::str::FromStr;
use std::sync::Arc;

use serde_json::Value;
#[cfg(feature = "kubernetes")]
use serde_json::json;
#[cfg(feature = "kubernetes")]
use tortie_datastore::kubernetes::{Client, FixedConfig, KubeConfig, KubeConfigError, KubernetesStore};
use tortie_datastore::store::ResourceStore;
#[cfg(feature = "etcd")]
use tortie_datastore::store::etcd::{EtcdConfig, EtcdConfigError, EtcdStore};
#[cfg(feature = "kubernetes")]
use tortie_resources::stored::key_in_kubernetes;
#[cfg(feature = "etcd")]
use tortie_resources::stored::key_of;
use tortie_resources::stored::{ObjectError, ResourceKey, ResourceKind};

use super::Failure;
#[cfg(not(all(feature = "etcd", feature = "kubernetes")))]
use super::datastore_url::NotBuilt;
#[cfg(feature = "etcd")]
use super::etcd::EtcdArgs;
#[cfg(feature = "kubernetes")]
use super::exit::Cause;
#[cfg(feature = "kubernetes")]
use super::with_causes;

/// Datastore in which resources are written and read.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StoreArgs {
    /// Datastore of the resources: etcd://HOST[:PORT],HOST[:PORT] or kubernetes:[KUBECONFIG];
    /// `etcd:` alone takes ETCD_ENDPOINTS, or 127.0.0.1:2379.
    #[arg(long, value_name = "URL", env = "TORTIE_DATASTORE")]
    datastore: StoreUrl,
    #[cfg(feature = "etcd")]
    #[command(flatten)]
    etcd: EtcdArgs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StoreUrl {
    #[cfg(feature = "etcd")]
    Etcd(Box<EtcdConfig>),
    #[cfg(feature = "kubernetes")]
    Kubernetes(KubeConfig),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StoreUrlError {
    #[cfg(feature = "kubernetes")]
    #[error("`kubernetes:` takes the path of a kubeconfig, or nothing")]
    Kubeconfig,
    #[cfg(feature = "kubernetes")]
    #[error("kubernetes: {}", with_causes(.0))]
    Kubernetes(KubeConfigError),
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] EtcdConfigError),
    #[cfg(not(all(feature = "etcd", feature = "kubernetes")))]
    #[error(transparent)]
    NotBuilt(#[from] NotBuilt),
    #[cfg(not(feature = "etcd"))]
    #[error("must be kubernetes:[KUBECONFIG]")]
    Scheme,
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        #[cfg(feature = "kubernetes")]
        if let Some(place) = text.strip_prefix("kubernetes:") {
            if place.starts_with("//") {
                return Err(StoreUrlError::Kubeconfig);
            }
            return place.parse().map(Self::Kubernetes).map_err(StoreUrlError::Kubernetes);
        }
        #[cfg(not(feature = "kubernetes"))]
        if text.starts_with("kubernetes:") {
            return Err(NotBuilt::KUBERNETES.into());
        }
        #[cfg(feature = "etcd")]
        return Ok(Self::Etcd(Box::new(if text == "etcd:" { EtcdConfig::default() } else { text.parse()? })));
        #[cfg(not(feature = "etcd"))]
        Err(if text.starts_with("etcd:") { NotBuilt::ETCD.into() } else { StoreUrlError::Scheme })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredKinds {
    #[cfg(feature = "etcd")]
    Calico,
    #[cfg(feature = "kubernetes")]
    Kubernetes,
}

impl StoredKinds {
    pub(super) fn has_policies_of_kubernetes(self) -> bool {
        match self {
            #[cfg(feature = "etcd")]
            Self::Calico => false,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes => true,
        }
    }

    /// Returns the kinds that users write into this datastore.
    pub(super) fn for_people(self) -> Vec<ResourceKind> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Calico => ResourceKind::all().filter(|kind| kind.is_for_people()).collect(),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes => KubernetesStore::written_kinds().collect(),
        }
    }

    /// A namespaced object without a namespace belongs to the given one.
    pub(super) fn key_of(self, object: &Value, namespace: &str) -> Result<ResourceKey, ObjectError> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Calico => key_of(object, namespace),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes => key_in_kubernetes(object, namespace),
        }
    }
}

impl StoreArgs {
    pub(super) fn at(datastore: StoreUrl, #[cfg(feature = "etcd")] etcd: EtcdArgs) -> Self {
        Self {
            datastore,
            #[cfg(feature = "etcd")]
            etcd,
        }
    }

    pub(super) fn keeps(&self) -> StoredKinds {
        match self.datastore {
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd(_) => StoredKinds::Calico,
            #[cfg(feature = "kubernetes")]
            StoreUrl::Kubernetes(_) => StoredKinds::Kubernetes,
        }
    }

    /// Whether objects of every cluster must be written first. In Kubernetes, the installation of
    /// the kinds does it.
    pub(super) fn needs_initialising(&self) -> bool {
        match self.datastore {
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd(_) => true,
            #[cfg(feature = "kubernetes")]
            StoreUrl::Kubernetes(_) => false,
        }
    }

    pub(super) fn open(&self) -> Result<Arc<dyn ResourceStore>, Failure> {
        self.open_own().map(OpenStore::shared)
    }

    pub(super) fn open_own(&self) -> Result<OpenStore, Failure> {
        match &self.datastore {
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd(url) => {
                let store = EtcdStore::new(self.etcd.program_config(url)?).map_err(Failure::io("etcd"))?;
                Ok(OpenStore::Etcd(Box::new(store)))
            }
            #[cfg(feature = "kubernetes")]
            StoreUrl::Kubernetes(config) => open_kubernetes(config),
        }
    }

    /// Without secrets. [`open_reference`] takes it, in another process at another time.
    pub(super) fn reference(&self) -> Result<Value, Failure> {
        match &self.datastore {
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd(url) => self.etcd.reference(url),
            #[cfg(feature = "kubernetes")]
            StoreUrl::Kubernetes(config) => {
                let FixedConfig { files, context, server, api_group } = config.fixed().map_err(unusable)?;
                Ok(json!({ "kubeconfig": files, "context": context, "server": server, "api_group": api_group }))
            }
        }
    }
}

/// The store of a datastore, with the further methods of its kind.
pub(super) enum OpenStore {
    #[cfg(feature = "etcd")]
    Etcd(Box<EtcdStore>),
    #[cfg(feature = "kubernetes")]
    Kubernetes(KubernetesStore, Client),
}

impl OpenStore {
    fn shared(self) -> Arc<dyn ResourceStore> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(store) => Arc::<EtcdStore>::from(store),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store, _) => Arc::new(store),
        }
    }
}

#[cfg(feature = "kubernetes")]
fn open_kubernetes(config: &KubeConfig) -> Result<OpenStore, Failure> {
    config.check().map_err(unusable)?;
    let client = Client::new(config.clone()).map_err(Failure::io("the API server's thread"))?;
    let store = KubernetesStore::discover(client.clone()).map_err(unusable)?;
    Ok(OpenStore::Kubernetes(store, client))
}

#[cfg(feature = "kubernetes")]
fn unusable(error: impl Into<Cause>) -> Failure {
    Failure::failed_at("Kubernetes")(error)
}

pub(super) fn open_reference(reference: &Value) -> Result<Arc<dyn ResourceStore>, Failure> {
    #[cfg(feature = "kubernetes")]
    if let Some(server) = reference.get("server").and_then(Value::as_str) {
        let files = reference.get("kubeconfig").and_then(Value::as_array).into_iter().flatten();
        let files = files.filter_map(|file| file.as_str().map(Into::into)).collect();
        let text = |name| reference.get(name).and_then(Value::as_str).map(str::to_owned);
        let (context, api_group) = (text("context"), text("api_group"));
        let config = FixedConfig { files, context, server: server.to_owned(), api_group }.config();
        let found = config.fixed().map_err(unusable)?.server;
        if found != server {
            let why = format!("the change was made at {server}, and the kubeconfig leads to {found} now");
            return Err(unusable(why));
        }
        return open_kubernetes(&config).map(OpenStore::shared);
    }
    #[cfg(not(feature = "kubernetes"))]
    if reference.get("server").is_some() {
        return Err(Failure::failed(NotBuilt::KUBERNETES));
    }
    #[cfg(feature = "etcd")]
    return super::etcd::open_reference(reference).map(|store| Arc::new(store) as Arc<dyn ResourceStore>);
    #[cfg(not(feature = "etcd"))]
    Err(Failure::failed(NotBuilt::ETCD))
}
