//! Destinations of log lines: standard error, a file, syslog, each from a separate severity on.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use regex::Regex;
use serde_json::{Map, Value};
use tortie_config::{LogSeverity, Resolved};
use tortie_resources::echoes_cut;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::file::LogFile;
use super::filter;
use super::syslog::Syslog;
use crate::escape;

/// Destinations of log lines, with their severities.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Least severity for standard error (`LogSeverityScreen`).
    pub screen: LogSeverity,
    /// A file, and its least severity (`LogFilePath`, `LogSeverityFile`).
    pub file: Option<(PathBuf, LogSeverity)>,
    /// Least severity for the syslog of this machine (`LogSeveritySys`).
    pub syslog: Option<LogSeverity>,
    /// Only source files with such names may log for debugging (`LogDebugFilenameRegex`).
    pub debug_files: Option<Regex>,
    /// Whether to wait for a file or syslog that takes no lines (`DebugDisableLogDropping`).
    pub keeps_all: bool,
}

impl LogSettings {
    /// Standard error alone.
    #[must_use]
    pub fn screen(severity: LogSeverity) -> Self {
        Self { screen: severity, file: None, syslog: None, debug_files: None, keeps_all: false }
    }

    /// Returns the destinations of a configuration. Felix also writes a file and to syslog by
    /// default; here a parameter must ask for them, since service managers keep standard error.
    #[must_use]
    pub fn of(resolved: &Resolved) -> Self {
        let config = &resolved.config;
        let is_set = |name: &str| resolved.raw.contains_key(name);
        let path = Some(&config.log_file_path).filter(|path| !path.is_empty());
        let file = path.filter(|_| is_set("LogFilePath") || is_set("LogSeverityFile"));
        Self {
            screen: config.log_severity_screen,
            file: file.zip(config.log_severity_file).map(|(path, severity)| (path.into(), severity)),
            syslog: config.log_severity_sys.filter(|_| is_set("LogSeveritySys")),
            debug_files: config.log_debug_filename_regex.clone(),
            keeps_all: config.debug_disable_log_dropping,
        }
    }

    /// The most verbose of all destinations.
    pub(super) fn most_verbose(&self) -> LevelFilter {
        let others = self.file.iter().map(|(_, severity)| *severity).chain(self.syslog);
        others.map(filter).fold(filter(self.screen), LevelFilter::max)
    }
}

/// The destinations of the process.
pub(super) static DESTINATIONS: Destinations = Destinations(Mutex::new(Open {
    screen: LevelFilter::OFF,
    file: None,
    syslog: None,
    debug_files: None,
    keeps_all: false,
}));

#[derive(Debug)]
pub(super) struct Destinations(Mutex<Open>);

#[derive(Debug)]
struct Open {
    screen: LevelFilter,
    file: Option<(LevelFilter, LogFile)>,
    syslog: Option<(LevelFilter, Syslog)>,
    debug_files: Option<Regex>,
    keeps_all: bool,
}

impl Destinations {
    /// Follows the settings. An unchanged destination stays open.
    ///
    /// # Errors
    /// Messages about destinations that cannot be opened; the others are used all the same.
    pub(super) fn follow(&self, settings: &LogSettings) -> Vec<String> {
        let mut problems = Vec::new();
        let mut open = self.lock();
        open.screen = filter(settings.screen);
        open.debug_files.clone_from(&settings.debug_files);
        open.keeps_all = settings.keeps_all;
        let before = open.file.take();
        open.file = settings.file.as_ref().and_then(|(path, severity)| {
            let same = before.map(|(_, file)| file).filter(|file| file.path() == path);
            let file = same.map_or_else(|| LogFile::open(path), Ok);
            let file = file.inspect_err(|error| problems.push(format!("LogFilePath: {}: {error}", path.display())));
            Some((filter(*severity), file.ok()?))
        });
        let before = open.syslog.take();
        open.syslog = settings.syslog.and_then(|severity| {
            let syslog = before.map_or_else(Syslog::open, |(_, syslog)| Ok(syslog));
            let syslog = syslog.inspect_err(|error| problems.push(format!("LogSeveritySys: syslog: {error}")));
            Some((filter(severity), syslog.ok()?))
        });
        problems
    }

    /// Waits for lines that are on their way to the file, though not long.
    pub(super) fn flush(&self) {
        let file = self.lock().file.take();
        drop(file);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the lines of one event.
#[derive(Debug)]
pub(super) struct Line {
    level: Level,
    /// No destination takes it.
    is_dropped: bool,
}

impl Write for Line {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.is_dropped {
            return Ok(text.len());
        }
        let line = one_line(text);
        let mut open = DESTINATIONS.lock();
        let keeps_all = open.keeps_all;
        if let Some((_, file)) = open.file.as_mut().filter(|(filter, _)| self.level <= *filter) {
            file.write(line.as_bytes(), keeps_all);
        }
        if let Some((_, syslog)) = open.syslog.as_mut().filter(|(filter, _)| self.level <= *filter) {
            syslog.write(self.level, line.as_bytes(), keeps_all);
        }
        let to_screen = self.level <= open.screen;
        drop(open);
        if to_screen { io::stderr().write_all(line.as_bytes()).map(|()| text.len()) } else { Ok(text.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the text of an event, which comes in one piece, as one line without terminal control
/// characters and without long echoes.
fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    escape::line(&cut(text)).into_owned() + "\n"
}

/// Cuts echoes; those of a JSON object in its fields, so that it stays one.
fn cut(line: &str) -> Cow<'_, str> {
    let Ok(mut fields) = serde_json::from_str::<Map<String, Value>>(line) else { return echoes_cut(line) };
    let mut is_cut = false;
    for field in fields.values_mut() {
        if let Value::String(text) = field
            && let Cow::Owned(shorter) = echoes_cut(text)
        {
            *text = shorter;
            is_cut = true;
        }
    }
    // The fields of a line that stays as it is keep their order.
    if is_cut { Value::Object(fields).to_string().into() } else { line.into() }
}

/// Makes a [`Line`] for each event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines;

impl<'w> MakeWriter<'w> for Lines {
    type Writer = Line;

    fn make_writer(&'w self) -> Line {
        Line { level: Level::ERROR, is_dropped: false }
    }

    fn make_writer_for(&'w self, metadata: &Metadata<'_>) -> Line {
        let level = *metadata.level();
        let open = DESTINATIONS.lock();
        let is_wanted = |files: &Regex| metadata.file().is_some_and(|file| files.is_match(file_name(file)));
        let is_dropped = level == Level::DEBUG && open.debug_files.as_ref().is_some_and(|files| !is_wanted(files));
        Line { level, is_dropped }
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use tortie_config::{Raw, Sources};
    use tortie_model::desired::ConfigSource;

    use super::*;

    #[test]
    fn the_most_verbose_destination_sets_the_level() {
        let settings = |screen, file: Option<LogSeverity>, syslog| LogSettings {
            file: file.map(|severity| ("/tmp/felix.log".into(), severity)),
            syslog,
            ..LogSettings::screen(screen)
        };
        use LogSeverity::{Debug, Error, Info, Trace, Warning};
        assert_eq!(settings(Info, None, None).most_verbose(), LevelFilter::INFO);
        assert_eq!(settings(Error, Some(Debug), Some(Info)).most_verbose(), LevelFilter::DEBUG);
        assert_eq!(settings(Error, Some(Warning), Some(Trace)).most_verbose(), LevelFilter::TRACE);
    }

    /// Takes the lines of events as [`Line`] does, into memory.
    #[derive(Clone, Default)]
    struct MemoryWriter(std::sync::Arc<Mutex<String>>);

    impl Write for MemoryWriter {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().push_str(&one_line(text));
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let hostile = "a == 'x' &&\n2026-01-01T00:00:00Z  INFO forged\r\u{1b}[31m\u{7f}\u{9b}\u{202e}\u{2066}\u{2028}";
        for is_json in [false, true] {
            let memory = MemoryWriter::default();
            let writer = memory.clone();
            let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
            let log = || tracing::error!(selector = hostile, shown = %hostile, debug = ?hostile, "{hostile}");
            if is_json {
                tracing::subscriber::with_default(lines.json().flatten_event(true).finish(), log);
            } else {
                tracing::subscriber::with_default(lines.finish(), log);
            }
            let text = memory.0.lock().unwrap().clone();
            let line = text.strip_suffix('\n').unwrap();
            assert!(line.contains("forged") && line == escape::line(line), "{line:?}");
            if is_json {
                let fields: Value = serde_json::from_str(line).unwrap();
                assert_eq!(fields["message"], hostile, "JSON is read as it was meant");
            }
        }
    }

    #[test]
    fn a_long_text_of_a_user_is_cut() {
        let long = format!("the value `\"{}\"` is no port", "ä\n".repeat(5_000));
        let text = one_line(format!("2026-01-01T00:00:00Z WARN {long}\n").as_bytes());
        assert!(text.chars().count() < 3_000, "{}", text.len());
        let json = one_line(format!("{}\n", serde_json::json!({"level": "WARN", "message": long, "n": 1})).as_bytes());
        let fields: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((fields["level"].as_str(), fields["n"].as_u64()), (Some("WARN"), Some(1)));
        let message = fields["message"].as_str().unwrap();
        assert!(message.starts_with("the value") && message.chars().count() < 2_100, "{}", message.len());
        let short = "2026-01-01T00:00:00Z WARN the value `x` is no port\n";
        assert_eq!(one_line(short.as_bytes()), short);
    }

    #[test]
    fn a_source_file_has_the_name_that_it_has_in_its_directory() {
        assert_eq!(file_name("crates/node/src/engine/session.rs"), "session.rs");
        assert_eq!(file_name("main.rs"), "main.rs");
    }

    #[test]
    fn a_file_and_syslog_are_used_once_configured() {
        let log = |pairs: &[(&str, &str)]| {
            let mut sources = Sources::default();
            let raw: Raw = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            sources.set(ConfigSource::Environment, raw);
            let LogSettings { file, syslog, .. } = LogSettings::of(&sources.resolve().unwrap());
            (file.map(|(path, severity)| (path.display().to_string(), severity)), syslog)
        };
        let info = LogSeverity::Info;
        let usual = || "/var/log/calico/felix.log".to_owned();
        assert_eq!(log(&[]), (None, None));
        assert_eq!(log(&[("LogFilePath", "/x")]), (Some(("/x".into(), info)), None));
        assert_eq!(log(&[("LogSeverityFile", "debug")]), (Some((usual(), LogSeverity::Debug)), None));
        assert_eq!(log(&[("LogSeverityFile", "loud")]), (Some((usual(), info)), None));
        for off in [&[("LogFilePath", "none")], &[("LogSeverityFile", "none")], &[("LogSeveritySys", "none")]] {
            assert_eq!(log(off), (None, None), "{off:?}");
        }
        assert_eq!(log(&[("LogSeveritySys", "ERROR")]), (None, Some(LogSeverity::Error)));
    }
}
