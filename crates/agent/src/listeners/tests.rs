use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use super::*;

impl Listeners {
    fn addresses(&self) -> [Option<SocketAddr>; 2] {
        [&self.health_at, &self.metrics_at].map(|at| at.as_ref().map(|listener| listener.server.address()))
    }
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Waits, as a process that another test starts may hold this one's sockets for a moment.
fn soon(mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !so() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn config() -> Config {
    Config {
        health_host: "127.0.0.1".into(),
        health_port: 0,
        prometheus_metrics_host: "127.0.0.1".into(),
        prometheus_metrics_port: 0,
        ..Config::default()
    }
}

#[test]
fn listeners_follow_the_configuration() {
    let health = Health::default();
    health.expect(Reporter::Dataplane, Duration::from_secs(60));
    let mut listeners = Listeners::new(health, SharedMetrics::default());
    listeners.follow(&config()).unwrap();
    assert_eq!(listeners.addresses(), [None, None]);

    let both = Config { health_enabled: true, prometheus_metrics_enabled: true, ..config() };
    listeners.follow(&both).unwrap();
    let [Some(health), Some(metrics)] = listeners.addresses() else { panic!("both must listen") };
    assert!(get(health, "/liveness").starts_with("HTTP/1.1 200"));
    assert!(get(health, "/readiness").starts_with("HTTP/1.1 503"));
    assert!(get(metrics, "/metrics").contains("\nprocess_resident_memory_bytes "));
    listeners.follow(&both).unwrap();
    assert_eq!(listeners.addresses(), [Some(health), Some(metrics)]);

    listeners.follow(&Config { prometheus_process_metrics_enabled: false, ..both.clone() }).unwrap();
    let [Some(same), Some(metrics)] = listeners.addresses() else { panic!("both must listen") };
    assert_eq!(same, health);
    let answer = get(metrics, "/metrics");
    assert!(answer.contains("felix_log_errors") && !answer.contains("process_"), "{answer}");

    listeners.follow(&config()).unwrap();
    soon(|| TcpStream::connect(health).is_err() && TcpStream::connect(metrics).is_err());
}

#[test]
fn one_that_cannot_listen_is_named_and_does_not_stop_the_other() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let health = Health::default();
    let mut listeners = Listeners::new(health.clone(), SharedMetrics::default());
    let config = Config { health_enabled: true, health_port: port, prometheus_metrics_enabled: true, ..config() };
    let failure = listeners.follow(&config).unwrap_err();
    assert!(failure.to_string().starts_with(&format!("health on 127.0.0.1:{port}: ")), "{failure}");
    assert!(matches!(listeners.addresses(), [None, Some(_)]));
    let detail = || match &health.conditions()[..] {
        [(Reporter::Listeners, condition)] if condition.live && condition.ready => condition.detail.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(detail(), failure.to_string());
    drop(taken);
    soon(|| {
        listeners.retry();
        detail().is_empty()
    });
    assert!(matches!(listeners.addresses(), [Some(_), Some(_)]));
}

#[cfg(feature = "tls")]
#[test]
fn metrics_are_answered_over_tls_alone_if_a_certificate_is_named() {
    let folder = tempfile::TempDir::new().unwrap();
    let issued = tortie_lab::certificates::Authority::new().unwrap().issue(folder.path(), "m", "m", None).unwrap();
    let plain = Config { prometheus_metrics_enabled: true, ..config() };
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let tls = Config {
        prometheus_metrics_cert_file: text(&issued.certificate),
        prometheus_metrics_key_file: text(&issued.key),
        ..plain.clone()
    };
    let mut listeners = Listeners::new(Health::default(), SharedMetrics::default());
    listeners.follow(&plain).unwrap();
    listeners.follow(&tls).unwrap();
    let [None, Some(metrics)] = listeners.addresses() else { panic!("metrics must listen") };
    let mut stream = TcpStream::connect(metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "answered without TLS");
    // Clients must be verified, but no authority is configured.
    let strict = Config { prometheus_metrics_client_auth: MetricsClientAuth::Verified, ..tls };
    assert!(listeners.follow(&strict).is_err());
    assert_eq!(listeners.addresses(), [None, None]);
}

#[test]
fn wireguard_has_metrics_where_it_is_enabled() {
    let devices = |config: &Config| {
        let names = wireguard_devices(config);
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let both = Config { wireguard_enabled: true, wireguard_enabled_v6: true, ..config() };
    assert_eq!(devices(&config()), [] as [String; 0]);
    assert_eq!(devices(&both), ["wireguard.cali", "wg-v6.cali"]);
    assert_eq!(devices(&Config { wireguard_enabled: false, ..both.clone() }), ["wg-v6.cali"]);
    assert_eq!(devices(&Config { prometheus_wireguard_metrics_enabled: false, ..both }), [] as [String; 0]);
}
