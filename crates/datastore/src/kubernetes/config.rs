//! Address and credentials of the API server.

use std::env;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};

use tortie_model::Cause;

use super::error::{KubeConfigError, describe};

/// Source of the address and credentials of the API server. It only names files and contexts. They
/// are read when a connection is made, and again when the server refuses the credentials.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KubeConfig {
    origin: Origin,
    context: Option<String>,
    api_group: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
enum Origin {
    /// The default search order of `kubectl`.
    #[default]
    Usual,
    InCluster,
    /// One kubeconfig, or several that are merged.
    Files(Vec<PathBuf>),
}

/// A configuration that is independent of the environment, and the API server that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedConfig {
    /// Absolute paths of the files; none in a pod.
    pub files: Vec<PathBuf>,
    /// The context, if there is one.
    pub context: Option<String>,
    /// The URL of the API server.
    pub server: String,
    /// Group and version of Calico's kinds, if they are set.
    pub api_group: Option<String>,
}

impl FixedConfig {
    /// Returns the equivalent [`KubeConfig`].
    #[must_use]
    pub fn config(&self) -> KubeConfig {
        let origin = match &self.files[..] {
            [] => Origin::InCluster,
            files => Origin::Files(files.to_vec()),
        };
        KubeConfig { origin, context: self.context.clone(), api_group: self.api_group.clone() }
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl KubeConfig {
    /// Uses the default search order: the files of `$KUBECONFIG` if it is set; otherwise the
    /// in-cluster configuration, in a pod; otherwise `~/.kube/config`.
    #[must_use]
    pub fn usual() -> Self {
        Self::default()
    }

    /// Uses the in-cluster configuration: `$KUBERNETES_SERVICE_HOST`, `$KUBERNETES_SERVICE_PORT`,
    /// and the files of the service account.
    #[must_use]
    pub fn in_cluster() -> Self {
        Self { origin: Origin::InCluster, ..Self::default() }
    }

    /// Uses one kubeconfig.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { origin: Origin::Files(vec![path.into()]), ..Self::default() }
    }

    /// Selects a context other than the current one. Has no effect in a pod.
    #[must_use]
    pub fn with_context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Sets group and version of Calico's kinds, instead of `$CALICO_API_GROUP`.
    #[must_use]
    pub fn with_api_group(mut self, group_version: impl Into<String>) -> Self {
        self.api_group = Some(group_version.into());
        self
    }

    /// Returns group and version of Calico's kinds; `None` if the API server decides.
    pub(super) fn api_group(&self) -> Option<String> {
        self.api_group.clone().or_else(|| env::var("CALICO_API_GROUP").ok()).filter(|group| !group.is_empty())
    }

    /// Checks that the current configuration suffices for a connection, without connecting. Reads
    /// files.
    ///
    /// # Errors
    /// [`KubeConfigError`]: there is no configuration, or it cannot be used.
    pub fn check(&self) -> Result<(), KubeConfigError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| KubeConfigError::Runtime(Cause::new(error)))?;
        runtime.block_on(async { client(self.load().await?).map(drop) })
    }

    /// Returns the kubeconfig files; `None` in a pod.
    fn files(&self) -> Result<Option<Vec<PathBuf>>, KubeConfigError> {
        match &self.origin {
            Origin::InCluster => Ok(None),
            Origin::Files(files) => Ok(Some(files.clone())),
            Origin::Usual => match env::var_os("KUBECONFIG").filter(|files| !files.is_empty()) {
                Some(files) => Ok(Some(env::split_paths(&files).collect())),
                None if env::var_os("KUBERNETES_SERVICE_HOST").is_some() => Ok(None),
                None => match env::home_dir().map(|home| home.join(".kube/config")).filter(|path| path.exists()) {
                    Some(path) => Ok(Some(vec![path])),
                    None => Err(KubeConfigError::None),
                },
            },
        }
    }

    /// Describes the authorities from which the server's certificate must come.
    pub(super) fn authority(&self) -> String {
        match self.files() {
            Ok(Some(files)) => {
                let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
                format!("the `certificate-authority` of kubeconfig {}", files.join(", "))
            }
            _ => "the authority of the pod (/var/run/secrets/kubernetes.io/serviceaccount/ca.crt)".into(),
        }
    }

    /// Resolves the configuration for later use in another environment, where another context may
    /// be the current one. Reads files.
    ///
    /// # Errors
    /// [`KubeConfigError`]: there is no configuration, or it cannot be used.
    pub fn fixed(&self) -> Result<FixedConfig, KubeConfigError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| KubeConfigError::Runtime(Cause::new(error)))?;
        let server = runtime.block_on(self.load())?.cluster_url.to_string();
        let server = server.trim_end_matches('/').to_owned();
        let api_group = self.api_group();
        let Some(files) = self.files()? else {
            return Ok(FixedConfig { files: Vec::new(), context: None, server, api_group });
        };
        let whole = |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone());
        let mut context = self.context.clone();
        for file in &files {
            if context.is_none() && file.exists() {
                // The first file that sets it takes precedence.
                context = Kubeconfig::read_from(file).map_err(|error| refused(file, &error))?.current_context;
            }
        }
        Ok(FixedConfig { files: files.iter().map(whole).collect(), context, server, api_group })
    }

    /// Reads files: may block.
    pub(super) async fn load(&self) -> Result<kube::Config, KubeConfigError> {
        let mut config = match self.files()? {
            None => in_cluster()?,
            Some(files) => self.load_files(&files).await?,
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // The callers handle silence and retries, because they depend on the request.
        config.read_timeout = None;
        config.default_retry = false;
        Ok(config)
    }

    async fn load_files(&self, files: &[PathBuf]) -> Result<kube::Config, KubeConfigError> {
        let mut merged = Kubeconfig::default();
        // Missing files are skipped if there are several, as kubectl does.
        let there: Vec<&PathBuf> = files.iter().filter(|file| files.len() == 1 || file.exists()).collect();
        let first = there.first().map_or_else(PathBuf::new, |file| PathBuf::clone(file));
        for file in there {
            let read = Kubeconfig::read_from(file).map_err(|error| refused(file, &error))?;
            merged = merged.merge(read).map_err(|error| refused(file, &error))?;
        }
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let has_proxy = uses_proxy(&merged, self.context.as_deref());
        let mut config =
            kube::Config::from_custom_kubeconfig(merged, &options).await.map_err(|error| refused(&first, &error))?;
        if config.cluster_url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            // The client logs the URLs of its requests.
            let why = "a user or password does not belong into the server's URL, where others can see it".to_owned();
            return Err(KubeConfigError::File { file: first, why });
        }
        if !has_proxy {
            // A proxy from the environment is not meant for this connection.
            config.proxy_url = None;
        }
        Ok(config)
    }
}

impl FromStr for KubeConfig {
    type Err = KubeConfigError;

    /// Parses the part after `kubernetes:`. Empty: [`KubeConfig::usual`]; `in-cluster`; otherwise
    /// the path of a kubeconfig. `?context=NAME` may follow.
    ///
    /// ```
    /// use tortie_datastore::kubernetes::KubeConfig;
    ///
    /// let config = KubeConfig::file("/etc/kube/admin.conf").with_context("lab");
    /// assert_eq!("/etc/kube/admin.conf?context=lab".parse(), Ok(config));
    /// ```
    fn from_str(text: &str) -> Result<Self, KubeConfigError> {
        let (place, options) = text.split_once('?').map_or((text, None), |(place, options)| (place, Some(options)));
        let config = match place {
            "" => Self::usual(),
            "in-cluster" => Self::in_cluster(),
            path => Self::file(path),
        };
        match options {
            None => Ok(config),
            Some(option) => match option.strip_prefix("context=") {
                Some(context) if !context.is_empty() => Ok(config.with_context(context)),
                _ => Err(KubeConfigError::Option(option.into())),
            },
        }
    }
}

/// Returns a client, which has not connected yet.
pub(super) fn client(config: kube::Config) -> Result<kube::Client, KubeConfigError> {
    kube::Client::try_from(config).map_err(|error| KubeConfigError::Credentials(describe(&error)))
}

fn in_cluster() -> Result<kube::Config, KubeConfigError> {
    kube::Config::incluster().map_err(|error| KubeConfigError::InCluster(Cause::new(error)))
}

fn refused(file: &Path, error: &kube::config::KubeconfigError) -> KubeConfigError {
    use kube::config::KubeconfigError as E;
    let why = match error {
        // The parser quotes the text around the error, which may be a token.
        E::Parse(_) => "is not a kubeconfig".to_owned(),
        error => error.to_string(),
    };
    KubeConfigError::File { file: file.to_path_buf(), why }
}

fn uses_proxy(config: &Kubeconfig, context: Option<&str>) -> bool {
    let Some(name) = context.or(config.current_context.as_deref()) else { return false };
    let context = config.contexts.iter().find(|context| context.name == name).and_then(|named| named.context.as_ref());
    let Some(cluster) = context.map(|context| &context.cluster) else { return false };
    let cluster = config.clusters.iter().find(|named| named.name == *cluster).and_then(|named| named.cluster.as_ref());
    cluster.is_some_and(|cluster| cluster.proxy_url.as_ref().is_some_and(|url| !url.is_empty()))
}

#[cfg(test)]
mod tests;
