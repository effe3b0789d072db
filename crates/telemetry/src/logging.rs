//! Log lines as text or JSON: on standard error, and in a file and in syslog if parameters
//! configure these.

#[cfg(feature = "fake")]
mod captured;
mod destinations;
mod file;
mod syslog;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, reload};

#[cfg(feature = "fake")]
pub use captured::{Captured, capture};
pub use destinations::LogSettings;
use destinations::{DESTINATIONS, Lines};
use tortie_config::LogSeverity;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

static FORMAT: OnceLock<LogFormat> = OnceLock::new();
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();
static ERRORS: AtomicU64 = AtomicU64::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Begins to log to standard error.
pub fn init(format: LogFormat, severity: LogSeverity) {
    begin(format);
    follow(&LogSettings::screen(severity));
}

/// Changes the logged severities and the destinations. A destination that cannot be opened is
/// logged, and the others are used.
pub fn follow(settings: &LogSettings) {
    let problems = DESTINATIONS.follow(settings);
    if let Some(handle) = LEVEL.get() {
        // The subscriber lives as long as the program.
        let _ = handle.modify(|level| *level = settings.most_verbose());
    }
    for problem in problems {
        tracing::error!(%problem, "a log destination cannot be opened");
    }
}

/// Waits for lines that are on their way to a file, though not long. No line goes there any more.
pub fn flush() {
    DESTINATIONS.flush();
}

fn begin(format: LogFormat) {
    let _ = FORMAT.set(format);
    let (level, handle) = reload::Layer::new(LevelFilter::OFF);
    if LEVEL.set(handle).is_err() {
        return;
    }
    let registry = tracing_subscriber::registry().with(level).with(filter_fn(is_ours)).with(CountErrors);
    let lines = fmt::layer().with_writer(Lines).with_ansi(false);
    // The embedding program may have set up a subscriber already; that one stays.
    let _ = match format {
        LogFormat::Text => registry.with(lines.with_target(false)).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
}

/// Whether this program logs.
pub fn is_on() -> bool {
    LEVEL.get().is_some()
}

/// Whether lines are JSON objects, those that end the program included.
pub fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Returns the number of logged errors.
pub fn errors() -> u64 {
    ERRORS.load(Ordering::Relaxed)
}

/// Returns the number of lines that a file or syslog did not take.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// The time as in log lines: RFC 3339, in UTC.
#[must_use]
pub fn timestamp() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

fn filter(severity: LogSeverity) -> LevelFilter {
    match severity {
        LogSeverity::Trace => LevelFilter::TRACE,
        LogSeverity::Debug => LevelFilter::DEBUG,
        LogSeverity::Info => LevelFilter::INFO,
        LogSeverity::Warning => LevelFilter::WARN,
        LogSeverity::Error | LogSeverity::Fatal => LevelFilter::ERROR,
    }
}

/// Whether an event is logged. The Kubernetes client logs each failed request as an error without
/// naming it; these are left out, since its caller logs the failure once.
fn is_ours(metadata: &tracing::Metadata<'_>) -> bool {
    *metadata.level() != Level::ERROR || !metadata.target().starts_with("kube_client::")
}

struct CountErrors;

impl<S: tracing::Subscriber> Layer<S> for CountErrors {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == Level::ERROR {
            ERRORS.fetch_add(1, Ordering::Relaxed);
        }
    }
}
