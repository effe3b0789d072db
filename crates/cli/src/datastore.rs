//! Creation of a source from `--datastore`.

#[cfg(feature = "fanout")]
mod discovery;

use std::path::Path;
#[cfg(feature = "fanout")]
use std::{path::PathBuf, time::Duration};

use tortie_config::Sources;
#[cfg(feature = "etcd")]
use tortie_datastore::etcd::{EtcdConfig, EtcdSource};
#[cfg(feature = "kubernetes")]
use tortie_datastore::kubernetes::{Client, KubeConfig, KubernetesSource};
use tortie_datastore::{DirAccess, DirSource, Source};
#[cfg(feature = "fanout")]
use tortie_fanout::{
    client::{ClientConfig, FanoutSource},
    typha::{TyphaOptions, TyphaSource},
};
use tortie_model::Hostname;
use tortie_resources::manifest::{BlockSource, Options};

use super::Failure;
use super::datastore_url::DatastoreUrl;
#[cfg(feature = "fanout")]
use super::datastore_url::typha_servers;
use super::directory::{DirectoryArgs, ReachArgs};
#[cfg(feature = "etcd")]
use super::etcd::Surroundings;
use super::host_network::{HostNetworkPods, PodSource};
#[cfg(feature = "fanout")]
pub use discovery::Prepare;
#[cfg(feature = "fanout")]
use discovery::{TyphaServers, discovery};

/// Location of the cluster state, with the options for access to it.
///
/// Besides flags, Felix's parameters apply, from `FELIX_*` variables or `--config`, and the
/// variables of Calico's other programs (`libcalico-go/lib/apiconfig`, `felix/config`).
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Datastore")]
pub struct DatastoreArgs {
    /// Datastore with the cluster state: file:DIR, etcd://HOST[:PORT],..., kubernetes:[KUBECONFIG],
    /// fanout://HOST:PORT,... or typha://HOST[:PORT],...; `etcd:` alone takes FELIX_ETCDENDPOINTS,
    /// FELIX_ETCDADDR, ETCD_ENDPOINTS or 127.0.0.1:2379, `typha:` alone FELIX_TYPHAADDR, or the
    /// ready endpoints of the Service FELIX_TYPHAK8SSERVICENAME in FELIX_TYPHAK8SNAMESPACE
    #[arg(long, value_name = "URL", env = "TORTIE_DATASTORE")]
    datastore: DatastoreUrl,
    /// Derive the IPAM blocks, from which routes are calculated, from the pod networks of nodes
    /// instead of Calico's IPAM: for clusters that assign addresses with host-local
    #[arg(long, env = "USE_POD_CIDR")]
    use_pod_cidr: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// Options for access to a datastore.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AccessArgs {
    #[command(flatten)]
    reach: ReachArgs,
    #[cfg(feature = "etcd")]
    #[command(flatten)]
    etcd: super::etcd::EtcdArgs,
    #[cfg(feature = "fanout")]
    #[command(flatten)]
    fanout: FanoutFlags,
}

impl AccessArgs {
    /// Returns the limits of reading a directory.
    pub(crate) fn reach(&self) -> DirAccess {
        self.reach.into()
    }
}

/// TLS options for a fan-out server or Typha.
#[cfg(feature = "fanout")]
#[derive(Clone, Debug, Default, clap::Args)]
struct FanoutFlags {
    /// CA certificates (PEM) of the server; they enable TLS [FELIX_TYPHACAFILE]
    #[arg(long, value_name = "FILE")]
    fanout_ca_file: Option<PathBuf>,
    /// The client's certificate (PEM) [FELIX_TYPHACERTFILE]
    #[arg(long, value_name = "FILE")]
    fanout_cert_file: Option<PathBuf>,
    /// The key of the client's certificate (PEM) [FELIX_TYPHAKEYFILE]
    #[arg(long, value_name = "FILE")]
    fanout_key_file: Option<PathBuf>,
    /// The common name that the server's certificate must have [FELIX_TYPHACN]
    #[arg(long, value_name = "NAME")]
    fanout_cn: Option<String>,
    /// A URI that the server's certificate must have [FELIX_TYPHAURISAN]
    #[arg(long, value_name = "URI")]
    fanout_uri_san: Option<String>,
}

/// Uninhabited: this build connects to no servers.
#[cfg(not(feature = "fanout"))]
pub type Prepare = std::convert::Infallible;

/// Requirements of a command on a datastore.
pub struct SourceSpec {
    /// Options with which objects are parsed.
    pub options: Options,
    /// Whether IPAM blocks are needed, from which routes are calculated.
    pub blocks: bool,
    /// The node whose part is needed; `None` for the whole cluster.
    pub node: Option<Hostname>,
    /// Options for a directory, if the datastore is one.
    pub directory: DirectoryArgs,
    /// Preparation of the node before it connects to servers, if it programs this node.
    pub prepare: Option<Prepare>,
    /// Whether the source reports the version of each policy, where it is known.
    pub versions: bool,
}

impl DatastoreArgs {
    /// The environment adds to these access options.
    pub(crate) fn at(datastore: DatastoreUrl, access: AccessArgs) -> Self {
        Self { datastore, use_pod_cidr: false, access }
    }

    /// Returns the URL of the datastore, without secrets.
    #[must_use]
    pub fn place(&self) -> String {
        self.datastore.to_string()
    }

    /// Reports whether objects are validated while they are read, parameters included.
    #[must_use]
    pub fn reports_parameters(&self) -> bool {
        self.is_read_here()
    }

    /// Reports whether this process reads the datastore itself. Fan-out servers and Typha provide
    /// it for Felix only.
    #[must_use]
    pub fn is_read_here(&self) -> bool {
        !matches!(self.datastore, DatastoreUrl::Fanout(_) | DatastoreUrl::Typha(_))
    }

    /// Reports whether the datastore is a directory of manifests, whose problems the user of the
    /// program can correct.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.directory().is_some()
    }

    /// The pods are read at the first question about one.
    pub(crate) fn host_network_pods(&self) -> Result<HostNetworkPods, Failure> {
        let place = match &self.datastore {
            DatastoreUrl::Directory(root) => PodSource::Directory(root.clone(), self.reach()),
            #[cfg(feature = "kubernetes")]
            DatastoreUrl::Kubernetes(file) => {
                let client = Client::new(kubeconfig(file.as_deref())?);
                PodSource::Kubernetes(client.map_err(Failure::io("the thread of the Kubernetes client"))?)
            }
            _ => PodSource::Nowhere,
        };
        Ok(HostNetworkPods::at(place))
    }

    /// Returns the limits of reading a directory.
    #[must_use]
    pub fn reach(&self) -> DirAccess {
        self.access.reach()
    }

    /// Returns the directory or file of manifests, if it is one.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        match &self.datastore {
            DatastoreUrl::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// Returns the configuration of etcd, if the datastore is etcd.
    ///
    /// # Errors
    /// If the settings do not go together.
    #[cfg(feature = "etcd")]
    pub fn etcd(&self, local: &Sources) -> Result<Option<EtcdConfig>, Failure> {
        if matches!(self.datastore, DatastoreUrl::Etcd(_)) { self.status(local) } else { Ok(None) }
    }

    /// Returns the configuration of the etcd to which Felix writes status; `None` if it writes
    /// none.
    ///
    /// # Errors
    /// If the settings do not go together.
    #[cfg(feature = "etcd")]
    pub fn status(&self, local: &Sources) -> Result<Option<EtcdConfig>, Failure> {
        let url = match &self.datastore {
            DatastoreUrl::Etcd(url) => url.as_deref(),
            _ if self.is_behind(local, "etcdv3") => None,
            _ => return Ok(None),
        };
        Settings::of(local).etcd(url, &self.access.etcd).map(Some)
    }

    /// Returns the configuration of the API server with the datastore's nodes; `None` if there is
    /// none.
    ///
    /// # Errors
    /// If the settings make no sense.
    #[cfg(feature = "kubernetes")]
    pub fn nodes(&self, local: &Sources) -> Result<Option<KubeConfig>, Failure> {
        match &self.datastore {
            DatastoreUrl::Kubernetes(file) => kubeconfig(file.as_deref()).map(Some),
            _ if self.is_behind(local, "kubernetes") => Ok(Some(KubeConfig::usual())),
            _ => Ok(None),
        }
    }

    /// Reports whether the source is a fan-out server or Typha in front of this kind of datastore.
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    fn is_behind(&self, local: &Sources, datastore: &str) -> bool {
        matches!(self.datastore, DatastoreUrl::Fanout(_) | DatastoreUrl::Typha(_))
            && local.local("DatastoreType").is_some_and(|kind| kind.eq_ignore_ascii_case(datastore))
    }

    /// Returns a source that has not read anything yet. `local` is Felix's parameters as the node
    /// itself sets them.
    ///
    /// # Errors
    /// If the settings do not go together.
    #[cfg_attr(
        not(any(feature = "etcd", feature = "fanout")),
        expect(unused_variables, reason = "a directory needs no settings")
    )]
    pub fn source(&self, local: &Sources, mut spec: SourceSpec) -> Result<Box<dyn Source>, Failure> {
        spec.options.block_source = match spec.blocks {
            true if self.use_pod_cidr => BlockSource::PodCidrs,
            true => BlockSource::IpamBlocks,
            false => BlockSource::Omitted,
        };
        match &self.datastore {
            DatastoreUrl::Directory(directory) => {
                let source = DirSource::new(directory, spec.options).read_within(self.reach());
                Ok(Box::new(spec.directory.source(source, spec.node.as_ref())))
            }
            #[cfg(feature = "etcd")]
            DatastoreUrl::Etcd(url) => self.etcd_source(url.as_deref(), local, spec),
            #[cfg(feature = "fanout")]
            DatastoreUrl::Fanout(servers) => self.fanout_source(servers, local, spec),
            #[cfg(feature = "fanout")]
            DatastoreUrl::Typha(servers) => self.typha_source(servers.as_ref(), local, spec),
            #[cfg(feature = "kubernetes")]
            DatastoreUrl::Kubernetes(file) => kubernetes_source(file.as_deref(), spec),
            // The parser of URLs accepts only datastores that are part of this build.
            #[cfg(not(all(feature = "etcd", feature = "kubernetes", feature = "fanout")))]
            other => Err(Failure::usage(format!("{other} is not part of this build"))),
        }
    }

    #[cfg(feature = "etcd")]
    fn etcd_source(&self, url: Option<&str>, local: &Sources, spec: SourceSpec) -> Result<Box<dyn Source>, Failure> {
        let config = Settings::of(local).etcd(url, &self.access.etcd)?;
        let source = EtcdSource::new(config, spec.options);
        let source = if spec.versions { source.with_versions() } else { source };
        let source = spec.directory.etcd_source(source, spec.node.as_ref());
        Ok(match spec.node {
            Some(node) => Box::new(source.of_node(node)),
            None => Box::new(source),
        })
    }

    #[cfg(feature = "fanout")]
    fn fanout_source(&self, servers: &[String], local: &Sources, spec: SourceSpec) -> Result<Box<dyn Source>, Failure> {
        let SourceSpec { blocks, node, prepare, .. } = spec;
        let tls = Settings::of(local).fanout_tls(&self.access.fanout)?;
        let of_node = (node.clone(), prepare);
        let config = ClientConfig { tls, blocks, ..ClientConfig::new(servers.to_vec(), node) };
        let source = FanoutSource::new(config).map_err(Failure::failed)?;
        Ok(Box::new(match discovery(self, local, &TyphaServers::Addresses(servers.to_vec()), of_node)? {
            Some(discovery) => source.with_discovery(discovery),
            None => source,
        }))
    }

    #[cfg(feature = "fanout")]
    fn typha_source(
        &self,
        servers: Option<&Vec<String>>,
        local: &Sources,
        spec: SourceSpec,
    ) -> Result<Box<dyn Source>, Failure> {
        let SourceSpec { blocks, node, prepare, versions, .. } = spec;
        let settings = Settings::of(local);
        let tls = settings.fanout_tls(&self.access.fanout)?;
        let servers = settings.typha(servers)?;
        let discovery = discovery(self, local, &servers, (node.clone(), prepare))?;
        let servers = match servers {
            TyphaServers::Addresses(servers) => servers,
            TyphaServers::Service { .. } => Vec::new(),
        };
        let defaults = TyphaOptions::new(servers, node.as_ref().map(Hostname::as_str).unwrap_or_default());
        let typha = TyphaOptions {
            tls,
            blocks,
            read_timeout: settings.seconds("TyphaReadTimeout")?.unwrap_or(defaults.read_timeout),
            write_timeout: settings.seconds("TyphaWriteTimeout")?.unwrap_or(defaults.write_timeout),
            ..defaults
        };
        let source = TyphaSource::new(typha).map_err(Failure::failed)?;
        let source = if versions { source.with_versions() } else { source };
        Ok(Box::new(match discovery {
            Some(discovery) => source.with_discovery(discovery),
            None => source,
        }))
    }
}

#[cfg(feature = "kubernetes")]
fn kubernetes_source(file: Option<&Path>, spec: SourceSpec) -> Result<Box<dyn Source>, Failure> {
    let source = KubernetesSource::new(kubeconfig(file)?, spec.options);
    let source = if spec.versions { source.with_versions() } else { source };
    let source = spec.directory.kubernetes_source(source, spec.node.as_ref());
    Ok(match spec.node {
        Some(node) => Box::new(source.for_node(node)),
        None => Box::new(source),
    })
}

#[cfg(feature = "kubernetes")]
pub(crate) fn kubeconfig(file: Option<&Path>) -> Result<KubeConfig, Failure> {
    let place = file.unwrap_or("".as_ref()).to_string_lossy();
    place.parse().map_err(Failure::usage_at("kubernetes"))
}

#[cfg(any(feature = "etcd", feature = "fanout"))]
struct Settings<'s> {
    local: &'s Sources,
    #[cfg_attr(
        not(feature = "etcd"),
        expect(dead_code, reason = "only etcd is found by other variables than Felix's")
    )]
    environment: &'s dyn Fn(&str) -> Option<String>,
}

#[cfg(any(feature = "etcd", feature = "fanout"))]
impl<'s> Settings<'s> {
    fn of(local: &'s Sources) -> Self {
        Self { local, environment: &|name| std::env::var(name).ok() }
    }

    /// An empty value counts as unset.
    fn felix(&self, parameter: &str) -> Option<String> {
        self.local.local(parameter).map(str::to_owned).filter(|value| !value.is_empty())
    }

    #[cfg(feature = "etcd")]
    fn etcd(&self, url: Option<&str>, args: &super::etcd::EtcdArgs) -> Result<EtcdConfig, Failure> {
        args.config(&super::etcd::parsed(url)?, self)
    }

    /// An address takes precedence over a Service (`felix/daemon`, `typha/pkg/discovery`).
    #[cfg(feature = "fanout")]
    fn typha(&self, url: Option<&Vec<String>>) -> Result<TyphaServers, Failure> {
        if let Some(servers) = url {
            return Ok(TyphaServers::Addresses(servers.clone()));
        }
        if let Some(list) = self.felix("TyphaAddr") {
            let servers = typha_servers(&list).map_err(Failure::usage_at("FELIX_TYPHAADDR"))?;
            return Ok(TyphaServers::Addresses(servers));
        }
        let Some(name) = self.felix("TyphaK8sServiceName") else {
            let missing = "`typha:` needs FELIX_TYPHAADDR or FELIX_TYPHAK8SSERVICENAME; or give typha://HOST:PORT";
            return Err(Failure::usage(missing));
        };
        let namespace = self.felix("TyphaK8sNamespace").unwrap_or_else(|| "kube-system".to_owned());
        Ok(TyphaServers::Service { namespace, name })
    }

    #[cfg(feature = "fanout")]
    fn seconds(&self, parameter: &str) -> Result<Option<Duration>, Failure> {
        let Some(text) = self.felix(parameter) else { return Ok(None) };
        match text.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            Some(time) if !time.is_zero() => Ok(Some(time)),
            _ => Err(Failure::usage(format!("{parameter}: `{text}` is not a number of seconds above 0"))),
        }
    }

    #[cfg(feature = "fanout")]
    fn fanout_tls(&self, flags: &FanoutFlags) -> Result<Option<tortie_fanout::tls::TlsSettings>, Failure> {
        let file = |flag: &Option<PathBuf>, felix| flag.clone().or_else(|| self.felix(felix).map(PathBuf::from));
        let name = |flag: &Option<String>, felix| flag.clone().or_else(|| self.felix(felix));
        tortie_fanout::tls::TlsSettings::from_parts(
            file(&flags.fanout_ca_file, "TyphaCAFile"),
            file(&flags.fanout_cert_file, "TyphaCertFile"),
            file(&flags.fanout_key_file, "TyphaKeyFile"),
            name(&flags.fanout_cn, "TyphaCN"),
            name(&flags.fanout_uri_san, "TyphaURISAN"),
        )
        .map_err(Failure::usage)
    }
}

#[cfg(feature = "etcd")]
impl Surroundings for Settings<'_> {
    fn felix(&self, parameter: &str) -> Option<String> {
        Settings::felix(self, parameter)
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name).filter(|value| !value.is_empty())
    }
}

#[cfg(all(test, feature = "etcd", feature = "fanout"))]
mod tests;
