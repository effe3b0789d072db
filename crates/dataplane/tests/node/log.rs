//! The log at level `debug`: each apply and each reconciler in it, with counters.

use std::io;
use std::sync::{Arc, Mutex};

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{ApplyReport, Dataplane, DataplaneStats};
use tortie_iptables::Backend;
use tortie_model::desired::DesiredUpdate;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::common::{dataplane, kernel, pod, policy, profile, set, up, workload};
use crate::nftables::by_nftables;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no test panics while it writes").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Returns the log lines of an apply, including the ends of spans.
    fn of_apply(dataplane: &mut Dataplane, kernel: &mut FakeKernel) -> (ApplyReport, Vec<String>) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).without_time().with_target(false);
        let subscriber = subscriber.with_max_level(tracing::Level::DEBUG).with_span_events(FmtSpan::CLOSE);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        let report = tracing::subscriber::with_default(subscriber, || dataplane.apply(kernel));
        let bytes = std::mem::take(&mut *log.0.lock().expect("no test panics while it writes"));
        let text = String::from_utf8(bytes).expect("the log is text");
        (report, text.lines().map(|line| line.trim().to_owned()).collect())
    }
}

fn updates() -> Vec<DesiredUpdate> {
    vec![
        set("s:clients", &["10.1.0.0/16", "fd01::/64"]),
        policy("a", "all()", Some("s:clients")),
        profile("kns.default"),
        workload("one", pod("cali1", 1), &["a"]),
    ]
}

/// Returns the sum of a counter in the lines that contain this text.
fn sum(lines: &[String], text: &str, field: &str) -> u64 {
    let fields = lines.iter().filter(|line| line.contains(text)).flat_map(|line| line.split(' '));
    let counts = fields.filter_map(|word| word.strip_prefix(field)?.strip_prefix('='));
    // The last field of a span is followed by its end.
    let counts = counts.map(|count| count.trim_end_matches(['}', ':']));
    counts.map(|count| count.parse::<u64>().expect("a number")).sum()
}

#[test]
fn an_apply_counts_its_problems() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = dataplane(Backend::Nft, updates(), [up("cali1", 1)]);
    for number in 0..3 {
        let (report, lines) = Log::of_apply(&mut dataplane, &mut kernel);
        let problems = report.problems.len();
        let span = format!("DEBUG apply{{number={number} problems={problems}}}: close");
        assert_eq!(lines.last(), Some(&span));
        match number {
            0 => assert_eq!(problems, 0),
            // The workload's policy is removed.
            _ => assert!(problems > 0, "{number}"),
        }
        dataplane.on_update(DesiredUpdate::PolicyRemove(crate::common::policy_id("a")));
    }
}

#[test]
fn writers_of_iptables_and_ip_sets_count_their_writes() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = dataplane(Backend::Nft, updates(), [up("cali1", 1)]);
    let (_, lines) = Log::of_apply(&mut dataplane, &mut kernel);
    let DataplaneStats { tables, ip_sets, .. } = dataplane.stats();
    for (family, table, stats) in tables {
        let span = format!("DEBUG apply{{number=0}}:iptables{{table={table} family={family}");
        let of_span: Vec<String> = lines.iter().filter(|line| line.starts_with(&span)).cloned().collect();
        assert_eq!(sum(&of_span, "}: writing the table ", "lines"), stats.lines_executed, "{lines:#?}");
        assert!(sum(&of_span, "}: close", "lines") >= stats.lines_executed, "{lines:#?}");
    }
    for (family, sets) in ip_sets {
        let span = format!("DEBUG apply{{number=0}}:ipsets{{family={family} sets=");
        let of_span: Vec<String> = lines.iter().filter(|line| line.starts_with(&span)).cloned().collect();
        assert_eq!(sum(&of_span, "writing IP sets", "sets"), sets as u64, "{lines:#?}");
        assert!(sum(&of_span, "writing IP sets", "bytes") > 0, "{lines:#?}");
    }
    let (_, lines) = Log::of_apply(&mut dataplane, &mut kernel);
    assert!(!lines.iter().any(|line| line.contains("writing")), "{lines:#?}");
}

#[test]
fn writers_of_nftables_count_lines_and_commands() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = Dataplane::new(by_nftables());
    updates().into_iter().for_each(|update| dataplane.on_update(update));
    dataplane.on_link(up("cali1", 1));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    let (_, lines) = Log::of_apply(&mut dataplane, &mut kernel);
    for (table, stats) in dataplane.stats().nftables {
        let span = format!("DEBUG apply{{number=0}}:nftables{{table={table} lines=");
        let of_span: Vec<String> = lines.iter().filter(|line| line.starts_with(&span)).cloned().collect();
        assert_eq!(sum(&of_span, "writing the table", "lines"), stats.lines, "{lines:#?}");
        assert!(sum(&of_span, "writing the table", "commands") >= stats.commits, "{lines:#?}");
    }
}
