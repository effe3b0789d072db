//! Where etcd is, on the command line.

use std::path::PathBuf;

use tortie_datastore::etcd::{EtcdConfig, EtcdStore};

use super::Failure;

/// How to be let into etcd. The variables are those of calicoctl.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct EtcdArgs {
    /// Certificates of who signs those of the members, PEM; with it TLS is spoken.
    #[arg(long, value_name = "FILE", env = "ETCD_CA_CERT_FILE")]
    etcd_ca_file: Option<PathBuf>,
    /// The certificate to show, PEM.
    #[arg(long, value_name = "FILE", env = "ETCD_CERT_FILE")]
    etcd_cert_file: Option<PathBuf>,
    /// The key of the certificate, PEM.
    #[arg(long, value_name = "FILE", env = "ETCD_KEY_FILE")]
    etcd_key_file: Option<PathBuf>,
    /// A user of etcd; the password is in ETCD_PASSWORD or --etcd-password-file.
    #[arg(long, value_name = "NAME", env = "ETCD_USERNAME")]
    etcd_user: Option<String>,
    /// A file with the user's password.
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
}

impl EtcdArgs {
    /// The whole configuration, with what the URL says.
    pub(super) fn config(&self, url: &EtcdConfig) -> Result<EtcdConfig, Failure> {
        self.config_or(url, &|_| None)
    }

    /// As [`EtcdArgs::config`], with what Felix's parameters say where neither a flag nor a variable does.
    pub(super) fn config_or(
        &self,
        url: &EtcdConfig,
        felix: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Result<EtcdConfig, Failure> {
        let set = |path: &Option<PathBuf>, parameter: &str| {
            path.clone().filter(|path| !path.as_os_str().is_empty()).or_else(|| felix(parameter))
        };
        let user = match self.etcd_user.as_deref().filter(|user| !user.is_empty()) {
            Some(user) => Some((user.to_owned(), self.password()?.into())),
            None => None,
        };
        let config = EtcdConfig {
            ca_file: set(&self.etcd_ca_file, "EtcdCaFile"),
            cert_file: set(&self.etcd_cert_file, "EtcdCertFile"),
            key_file: set(&self.etcd_key_file, "EtcdKeyFile"),
            user,
            ..url.clone()
        };
        config.check().map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(config)
    }

    fn password(&self) -> Result<String, Failure> {
        let Some(file) = &self.etcd_password_file else {
            let missing = |_| Failure::Usage("a user of etcd needs ETCD_PASSWORD or --etcd-password-file".into());
            return std::env::var("ETCD_PASSWORD").map_err(missing);
        };
        let text = std::fs::read_to_string(file).map_err(Failure::io(file.display().to_string()))?;
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}

/// Where resources are written to and read from.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StoreArgs {
    /// Where the resources are kept: etcd://HOST:PORT,HOST:PORT.
    #[arg(long, value_name = "URL", env = "TORTIE_DATASTORE")]
    datastore: EtcdConfig,
    #[command(flatten)]
    etcd: EtcdArgs,
}

impl StoreArgs {
    pub(super) fn config(&self) -> Result<EtcdConfig, Failure> {
        self.etcd.config(&self.datastore)
    }

    pub(super) fn open(&self) -> Result<EtcdStore, Failure> {
        EtcdStore::new(self.config()?).map_err(Failure::io("etcd"))
    }
}
