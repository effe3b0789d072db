//! Settings of the collection of flows, from parameters.

use std::time::Duration;

#[cfg(feature = "goldmane")]
use tortie_config::Switch;
use tortie_config::settings::{self, SettingsError};
use tortie_config::{Config, PolicyEvaluationMode};

use super::{FlowFile, FlowSettings};
#[cfg(feature = "goldmane")]
use super::{Receiver, TlsFiles};

/// Socket on which a viewer of flows on this node listens, as with Calico
/// (`felix/collector/local/server.go`).
#[cfg(feature = "goldmane")]
const FLOW_SOCKET: &str = "/var/run/calico/flows/flows.sock";

impl FlowSettings {
    /// Returns the settings; `None` if no parameter asks for flows, and the kernel writes the lines
    /// of rules that log.
    ///
    /// # Errors
    /// [`SettingsError`] if parameters contradict each other.
    pub fn of(config: &Config) -> Result<Option<Self>, SettingsError> {
        let file = (!config.flow_logs_file.is_empty()).then(|| FlowFile {
            path: config.flow_logs_file.clone().into(),
            max_size: u64::from(config.flow_logs_file_max_size_mb) * 1024 * 1024,
            max_files: config.flow_logs_file_max_files,
        });
        let reports_flows = settings::collects_flows(config);
        if !reports_flows && !config.bpf_enabled {
            return Ok(None);
        }
        Ok(Some(Self {
            reports_flows,
            log_rules: config.bpf_enabled.then(|| settings::log(config)).transpose()?,
            // No more often than Felix does.
            flush_interval: config.flow_logs_flush_interval.max(Duration::from_secs(1)),
            previews: config.flow_logs_policy_evaluation_mode == PolicyEvaluationMode::Continuous,
            evaluation: settings::evaluation(&settings::rules(config)?),
            file,
            #[cfg(feature = "goldmane")]
            receivers: receivers(config),
            netlink_timeout: config.netlink_timeout,
        }))
    }
}

#[cfg(feature = "goldmane")]
fn receivers(config: &Config) -> Vec<Receiver> {
    let tls = TlsFiles {
        authority: config.typha_ca_file.clone().into(),
        certificate: config.typha_cert_file.clone().into(),
        key: config.typha_key_file.clone().into(),
    };
    let is_none = [&tls.authority, &tls.certificate, &tls.key].iter().all(|file| file.as_os_str().is_empty());
    let tls = (!is_none).then_some(tls);
    let server = config.flow_logs_goldmane_server.as_ref().map(|server| Receiver::new(server, tls));
    let socket = (config.flow_logs_local_reporter == Switch::Enabled).then(|| Receiver::Socket(FLOW_SOCKET.into()));
    server.into_iter().chain(socket).collect()
}

#[cfg(test)]
mod tests;
