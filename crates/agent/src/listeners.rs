//! Health and metrics over HTTP, as configured.

use std::path::PathBuf;
use std::time::Duration;

use tortie_config::{Config, MetricsClientAuth};
use tortie_iptables::InterfaceName;

use tortie_cli::{Failure, with_causes};
use tortie_node::metrics::{self, SharedMetrics, wireguard};
use tortie_telemetry::health::{Condition, Health, Reporter};
use tortie_telemetry::http::{self, ClientCertificates, Response, Server, Tls};
use tortie_telemetry::logging;
use tortie_telemetry::process;

/// Health and metrics listeners, with the sources of their answers.
pub(super) struct Listeners {
    health: Health,
    metrics: SharedMetrics,
    health_at: Option<Listener>,
    metrics_at: Option<Listener>,
    /// Configuration with a listener that failed.
    failed: Option<Config>,
}

struct Listener {
    desired: DesiredListener,
    #[cfg_attr(not(test), expect(dead_code, reason = "held for its end"))]
    server: Server,
}

/// Configuration of a listener.
#[derive(PartialEq, Eq)]
struct DesiredListener {
    host: String,
    port: u16,
    tls: Option<Tls>,
    /// Whether metrics of the process are among the answers.
    process: bool,
    /// `WireGuard` devices whose metrics are among the answers.
    wireguard: Vec<InterfaceName>,
}

impl Listeners {
    pub(super) fn new(health: Health, metrics: SharedMetrics) -> Self {
        metrics::measure_process_starts();
        Self { health, metrics, health_at: None, metrics_at: None, failed: None }
    }

    /// Listens on the configured addresses only. A failure of one listener does not affect the
    /// other, and is part of the agent's status.
    pub(super) fn follow(&mut self, config: &Config) -> Result<(), Failure> {
        let placed = self.place_all(config);
        let failures: Vec<String> =
            placed.iter().filter_map(|one| one.as_ref().err()).map(ToString::to_string).collect();
        self.failed = (!failures.is_empty()).then(|| config.clone());
        if self.failed.is_some() {
            self.health.expect(Reporter::Listeners, Duration::ZERO);
        }
        // Policy is enforced without them.
        self.health.report(Reporter::Listeners, Condition { detail: failures.join("; "), ..Condition::good() });
        placed.into_iter().collect()
    }

    /// Tries again to open listeners that failed.
    pub(super) fn retry(&mut self) {
        if let Some(config) = self.failed.take()
            && self.follow(&config).is_ok()
        {
            tracing::info!("the listeners of health and metrics are open now");
        }
    }

    fn place_all(&mut self, config: &Config) -> [Result<(), Failure>; 2] {
        let desired = config.health_enabled.then(|| DesiredListener {
            host: config.health_host.clone(),
            port: config.health_port,
            tls: None,
            process: false,
            wireguard: Vec::new(),
        });
        let health = self.health.clone();
        let for_health = place(&mut self.health_at, "health", desired, move |path| health.answer(path));

        let host = match config.prometheus_metrics_host.as_str() {
            "" => "0.0.0.0",
            host => host,
        };
        let process = config.prometheus_process_metrics_enabled;
        let wireguard = wireguard_devices(config);
        let desired = config.prometheus_metrics_enabled.then(|| DesiredListener {
            host: host.to_owned(),
            port: config.prometheus_metrics_port,
            tls: metrics_tls(config),
            process,
            wireguard: wireguard.clone(),
        });
        let metrics = self.metrics.clone();
        let timeout = config.netlink_timeout;
        let for_metrics = place(&mut self.metrics_at, "metrics", desired, move |path| {
            {
                let mut metrics = metrics.lock();
                metrics.process.log_errors = logging::errors();
                metrics.process.logs_dropped = logging::dropped();
                metrics.process.process_starts = metrics::process_starts();
            }
            let mut answer = metrics.answer(path);
            if process && answer.status == 200 {
                answer.body += &process::expose();
            }
            if !wireguard.is_empty() && answer.status == 200 {
                let host = metrics.lock().host.clone();
                match wireguard::expose(&host, &wireguard, timeout) {
                    Ok(text) => answer.body += &text,
                    Err(error) => tracing::warn!(error = %with_causes(&error), "metrics of WireGuard are unavailable"),
                }
            }
            answer
        });
        [for_health, for_metrics]
    }
}

/// Returns the `WireGuard` devices with metrics.
fn wireguard_devices(config: &Config) -> Vec<InterfaceName> {
    let devices = [
        (config.wireguard_enabled, &config.wireguard_interface_name),
        (config.wireguard_enabled_v6, &config.wireguard_interface_name_v6),
    ];
    let desired = devices.into_iter().filter(|(enabled, _)| *enabled && config.prometheus_wireguard_metrics_enabled);
    desired.map(|(_, name)| *name).collect()
}

/// Returns the TLS settings of metrics; as in Felix, either file enables TLS.
fn metrics_tls(config: &Config) -> Option<Tls> {
    let path = |name: &String| (!name.is_empty()).then(|| PathBuf::from(name));
    let (certificate, key) = (path(&config.prometheus_metrics_cert_file), path(&config.prometheus_metrics_key_file));
    (certificate.is_some() || key.is_some()).then(|| Tls {
        certificate: certificate.unwrap_or_default(),
        key: key.unwrap_or_default(),
        authority: path(&config.prometheus_metrics_ca_file),
        clients: match config.prometheus_metrics_client_auth {
            MetricsClientAuth::Verified => ClientCertificates::Verified,
            MetricsClientAuth::Any => ClientCertificates::Any,
            MetricsClientAuth::VerifiedIfGiven => ClientCertificates::VerifiedIfGiven,
            MetricsClientAuth::NoClientCert => ClientCertificates::NotAsked,
        },
    })
}

fn place(
    listener: &mut Option<Listener>,
    name: &str,
    desired: Option<DesiredListener>,
    answer: impl Fn(&str) -> Response + Send + 'static,
) -> Result<(), Failure> {
    if listener.as_ref().map(|listener| &listener.desired) == desired.as_ref() {
        return Ok(());
    }
    // The old listener may have the address of the new one.
    *listener = None;
    if let Some(desired) = desired {
        let address = (desired.host.as_str(), desired.port);
        let options = http::Options { tls: desired.tls.clone(), ..http::Options::default() };
        let server = http::serve_with(options, address, name, answer)
            .map_err(Failure::io(format!("{name} on {}:{}", address.0, address.1)))?;
        *listener = Some(Listener { desired, server });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
