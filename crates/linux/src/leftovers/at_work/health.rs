//! Felix as the program that answers at its health port, also from another container on the node.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Felix's default port, which an older configuration of it may still use.
const DEFAULT_PORT: u16 = 9099;
/// Time for one address.
const PATIENCE: Duration = Duration::from_millis(250);
/// Maximum length of an answer; a report has a line for each of about ten components.
const LONGEST_ANSWER: usize = 64 << 10;
/// The first component that Felix reports (`felix/daemon/daemon.go`); Typha has none of that name.
const FELIX: &str = "FelixStartup";

/// Returns a description of the port at which Felix answers.
pub(super) fn find(host: &str, port: u16) -> Option<String> {
    let address = match host.parse() {
        Ok(address) if !IpAddr::is_unspecified(&address) => address,
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    let default = (port != DEFAULT_PORT).then_some(DEFAULT_PORT);
    let mut addresses = [port].into_iter().chain(default).map(|port| SocketAddr::new(address, port));
    let felix = addresses.find(|address| ask(*address).is_some_and(|answer| is_report_of_felix(&answer)))?;
    Some(format!("it answers at its health port, {felix}"))
}

/// Whether this is Felix's report, a bordered table with the columns of
/// `libcalico-go/lib/health/health.go`. The report of Tortie has the same names of components in
/// other columns, and no borders.
fn is_report_of_felix(answer: &str) -> bool {
    let mut rows = answer.lines().filter_map(|line| {
        let cells = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        Some(cells.split('|').map(str::trim).collect::<Vec<_>>())
    });
    let has_columns = rows
        .next()
        .is_some_and(|head| ["COMPONENT", "LIVENESS", "READINESS"].iter().all(|column| head.contains(column)));
    has_columns && rows.any(|row| row.first() == Some(&FELIX))
}

/// Returns the answer to a request for the readiness; `None` unless all of it arrives in time.
fn ask(address: SocketAddr) -> Option<String> {
    let end = Instant::now() + PATIENCE;
    let left = || Some(end.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero());
    let mut stream = TcpStream::connect_timeout(&address, left()?).ok()?;
    stream.set_write_timeout(left()).ok()?;
    // With this version, the server ends the answer by closing the connection.
    stream.write_all(b"GET /readiness HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left()?)).ok()?;
        match stream.read(&mut chunk).ok()? {
            0 => return Some(String::from_utf8_lossy(&answer).into_owned()),
            length => answer.extend_from_slice(chunk.get(..length)?),
        }
        if answer.len() > LONGEST_ANSWER {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answer of Felix 3.33 (Go's HTTP server, go-pretty's table), while it is not ready.
    const OF_FELIX: &str = "HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
        +---------------------------+---------+----------------+---------------------+--------+\n\
        | COMPONENT                 | TIMEOUT | LIVENESS       | READINESS           | DETAIL |\n\
        +---------------------------+---------+----------------+---------------------+--------+\n\
        | CalculationGraph          | 30s     | reporting live | reporting non-ready |        |\n\
        | FelixStartup              | -       | reporting live | reporting ready     |        |\n\
        | InternalDataplaneMainLoop | 1m30s   | reporting live | reporting non-ready |        |\n\
        +---------------------------+---------+----------------+---------------------+--------+";

    /// Serves one client at a port of this host.
    fn serve(answer: String) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 256];
            let length = stream.read(&mut request).unwrap();
            assert!(request[..length].starts_with(b"GET /readiness "));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        port
    }

    fn answered(answer: &str) -> bool {
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), serve(answer.into()));
        ask(address).is_some_and(|answer| is_report_of_felix(&answer))
    }

    #[test]
    fn felix_is_recognised_by_its_report() {
        for host in ["localhost", "", "0.0.0.0", "127.0.0.1"] {
            let port = serve(OF_FELIX.into());
            let found = find(host, port);
            assert_eq!(found, Some(format!("it answers at its health port, 127.0.0.1:{port}")), "{host}");
        }
    }

    #[test]
    fn other_reports_are_not_of_felix() {
        assert!(answered(OF_FELIX));
        assert!(!answered(&OF_FELIX.replace("FelixStartup", "SyncServer")), "Typha");
        let of_tortie = OF_FELIX.replace('|', " ").replace("LIVENESS", "LIVE").replace("READINESS", "READY");
        assert!(!answered(&of_tortie));
        assert!(!answered("HTTP/1.0 404 Not Found\r\n\r\nFelixStartup\n"));
        assert!(!answered(""));
    }

    #[test]
    fn a_closed_port_is_not_of_felix() {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        assert_eq!(ask(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)), None);
    }

    #[test]
    fn a_port_without_an_answer_costs_bounded_time() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let begin = Instant::now();
        assert_eq!(ask(listener.local_addr().unwrap()), None);
        assert!(begin.elapsed() < PATIENCE * 4, "{:?}", begin.elapsed());
    }
}
