use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Once;

use serde_json::{Value, json};
use tortie_datastore::store::etcd::{EtcdConfig, EtcdStore, Password};

use super::Failure;
use tortie_telemetry::logging;

static WARNED: Once = Once::new();

/// Options for access to etcd. A flag takes precedence over Felix's parameters where there are any,
/// and these over the variables of Calico's other programs.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct EtcdArgs {
    /// CA certificates of the members, PEM; they enable TLS [FELIX_ETCDCAFILE, ETCD_CA_CERT_FILE]
    #[arg(long, value_name = "FILE")]
    etcd_ca_file: Option<PathBuf>,
    /// Client certificate, PEM [FELIX_ETCDCERTFILE, ETCD_CERT_FILE]
    #[arg(long, value_name = "FILE")]
    etcd_cert_file: Option<PathBuf>,
    /// Key of the client certificate, PEM [FELIX_ETCDKEYFILE, ETCD_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    etcd_key_file: Option<PathBuf>,
    /// A user of etcd; the password is in --etcd-password-file or ETCD_PASSWORD [ETCD_USERNAME]
    #[arg(long, value_name = "NAME")]
    etcd_user: Option<String>,
    /// A file with the user's password [ETCD_PASSWORD_FILE]
    #[arg(long, value_name = "FILE")]
    etcd_password_file: Option<PathBuf>,
}

pub(super) trait Surroundings {
    /// From its variables or its file; `None` if it is unset or empty.
    fn felix(&self, parameter: &str) -> Option<String>;

    /// Returns an environment variable; `None` if it is unset or empty.
    fn variable(&self, name: &str) -> Option<String>;

    /// The variable with the prefix `CALICO_` takes precedence
    /// (`libcalico-go/lib/apiconfig/load.go`).
    fn calico(&self, name: &str) -> Option<String> {
        self.variable(&format!("CALICO_{name}")).or_else(|| self.variable(name))
    }
}

struct Environment;

impl Surroundings for Environment {
    fn felix(&self, _: &str) -> Option<String> {
        None
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }
}

/// Without a URL, as with `etcd:`, the configuration has no endpoints, and [`EtcdArgs::config`]
/// takes those of the environment.
pub(super) fn parsed(url: Option<&str>) -> Result<EtcdConfig, Failure> {
    url.map_or_else(|| Ok(EtcdConfig::default()), |url| url.parse().map_err(Failure::usage_at("etcd")))
}

/// Returns also whether the endpoints require TLS. Felix's parameters override Calico's other
/// variables (`felix/config/config_params.go`, `DatastoreConfig`).
fn from_environment(around: &dyn Surroundings) -> Result<(EtcdConfig, bool), Failure> {
    let from_address = || {
        let scheme = around.felix("EtcdScheme").unwrap_or_else(|| "http".into());
        around.felix("EtcdAddr").map(|address| format!("{scheme}://{address}"))
    };
    let endpoints = around.felix("EtcdEndpoints").or_else(from_address).or_else(|| around.calico("ETCD_ENDPOINTS"));
    let mut needs_tls = false;
    let mut member = |endpoint: &str| {
        let endpoint = endpoint.trim().trim_end_matches('/');
        needs_tls |= endpoint.starts_with("https://");
        endpoint.trim_start_matches("https://").trim_start_matches("http://").to_owned()
    };
    let members: Vec<String> = endpoints.iter().flat_map(|list| list.split(',')).map(&mut member).collect();
    Ok((parsed(Some(&format!("etcd://{}", members.join(","))))?, needs_tls))
}

impl EtcdArgs {
    pub(super) fn config(&self, url: &EtcdConfig, around: &dyn Surroundings) -> Result<EtcdConfig, Failure> {
        let (url, needs_tls) = match url.endpoints.is_empty() {
            true => from_environment(around)?,
            false => (url.clone(), false),
        };
        let set = |flag: &Option<PathBuf>, parameter: &str, variable: &str| {
            let flag = flag.clone().filter(|path| !path.as_os_str().is_empty());
            flag.or_else(|| around.felix(parameter).or_else(|| around.calico(variable)).map(PathBuf::from))
        };
        let config = EtcdConfig {
            ca_file: set(&self.etcd_ca_file, "EtcdCaFile", "ETCD_CA_CERT_FILE"),
            cert_file: set(&self.etcd_cert_file, "EtcdCertFile", "ETCD_CERT_FILE"),
            key_file: set(&self.etcd_key_file, "EtcdKeyFile", "ETCD_KEY_FILE"),
            user: self.user(around)?,
            ..url
        };
        config.check().map_err(Failure::usage)?;
        if needs_tls && config.ca_file.is_none() {
            return Err(Failure::usage("etcd: https endpoints need ETCD_CA_CERT_FILE or --etcd-ca-file"));
        }
        if let Some(warning) = plain_password(&config) {
            // A command may ask for its configuration more than once.
            WARNED.call_once(|| match logging::is_on() {
                true => tracing::warn!(problem = %warning, "the password of etcd is sent without TLS"),
                false => eprintln!("tortie: {warning}"),
            });
        }
        Ok(config)
    }

    pub(super) fn program_config(&self, url: &EtcdConfig) -> Result<EtcdConfig, Failure> {
        self.config(url, &Environment)
    }

    fn user(&self, around: &dyn Surroundings) -> Result<Option<(String, Password)>, Failure> {
        let flag = self.etcd_user.clone().filter(|user| !user.is_empty());
        let Some(user) = flag.or_else(|| around.calico("ETCD_USERNAME")) else {
            return match self.etcd_password_file {
                Some(_) => Err(Failure::usage("--etcd-password-file needs --etcd-user or ETCD_USERNAME")),
                None => Ok(None),
            };
        };
        let password = match self.password_file(around) {
            Some(file) => {
                fs::read_to_string(&file).map_err(Failure::io(file.display().to_string()))?;
                Password::file(file)
            }
            None => Password::from(around.calico("ETCD_PASSWORD").ok_or_else(|| {
                Failure::usage("a user of etcd needs ETCD_PASSWORD, ETCD_PASSWORD_FILE or --etcd-password-file")
            })?),
        };
        Ok(Some((user, password)))
    }

    fn password_file(&self, around: &dyn Surroundings) -> Option<PathBuf> {
        let named = || around.calico("ETCD_PASSWORD_FILE").map(PathBuf::from);
        self.etcd_password_file.clone().or_else(named)
    }
}

fn plain_password(config: &EtcdConfig) -> Option<String> {
    let is_loopback = |endpoint: &String| {
        let host = endpoint.rsplit_once(':').map_or(endpoint.as_str(), |(host, _)| host).trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    let (user, _) = config.user.as_ref()?;
    let endpoint = config.endpoints.iter().find(|endpoint| !is_loopback(endpoint))?;
    config.ca_file.is_none().then(|| {
        format!(
            "the password of etcd user {user} is sent to {endpoint} without TLS, readable on the network; set --etcd-ca-file or \
             ETCD_CA_CERT_FILE"
        )
    })
}

impl EtcdArgs {
    /// Without secrets. [`open_reference`] takes it, in another process at another time.
    pub(super) fn reference(&self, url: &EtcdConfig) -> Result<Value, Failure> {
        let config = self.program_config(url)?;
        let password_file = match &config.user {
            None => None,
            Some(_) => Some(self.password_file(&Environment).ok_or_else(|| {
                let why = "a change that may be rolled back needs the password in a file (--etcd-password-file): a rollback \
                           after a restart has to read it again";
                Failure::usage(why)
            })?),
        };
        let path = |file: Option<PathBuf>| {
            let whole = file.map(|file| std::path::absolute(&file).map_err(Failure::io(file.display().to_string())));
            whole.transpose()
        };
        Ok(json!({
            "url": format!("etcd://{}{}", config.endpoints.join(","), config.key_prefix),
            "ca_file": path(config.ca_file)?,
            "cert_file": path(config.cert_file)?,
            "key_file": path(config.key_file)?,
            "user": config.user.map(|(user, _)| user),
            "password_file": path(password_file)?,
        }))
    }
}

pub(super) fn open_reference(reference: &Value) -> Result<EtcdStore, Failure> {
    let text = |name: &str| reference.get(name).and_then(Value::as_str);
    let file = |name: &str| text(name).map(PathBuf::from);
    let url: EtcdConfig = text("url").unwrap_or_default().parse().map_err(Failure::failed_at("etcd"))?;
    let user = match (text("user"), file("password_file")) {
        (Some(user), Some(file)) => Some((user.to_owned(), Password::file(file))),
        _ => None,
    };
    let (ca_file, cert_file, key_file) = (file("ca_file"), file("cert_file"), file("key_file"));
    EtcdStore::new(EtcdConfig { ca_file, cert_file, key_file, user, ..url }).map_err(Failure::io("etcd"))
}

#[cfg(test)]
mod tests;
