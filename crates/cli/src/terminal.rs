//! Standard output and error of commands. Both escape control sequences, so that no printer can
//! forget it.

use std::io::{self, Write};

use tortie_resources::echoes_cut;
use tortie_selector::{ParseError, Selector};

use tortie_telemetry::escape;

use super::Failure;

/// Maximum length in bytes of a selector that is shown with the place of its error.
const LINE: usize = 200;

#[cfg(any(feature = "etcd", feature = "kubernetes"))]
macro_rules! println {
    ($($arg:tt)*) => {
        $crate::terminal::print_line(&format!($($arg)*))
    };
}

macro_rules! eprintln {
    ($($arg:tt)*) => {
        $crate::terminal::print_message(&format!($($arg)*))
    };
}

macro_rules! eprint {
    ($($arg:tt)*) => {
        $crate::terminal::print_error(&format!($($arg)*))
    };
}

pub(super) fn stdout() -> Escaping<io::StdoutLock<'static>> {
    Escaping(io::stdout().lock())
}

/// Prints lines to standard output, escaped.
pub fn print_line(text: &str) {
    // Without a reader of the output, the error can be ignored.
    let _ = writeln!(io::stdout(), "{}", escape::text(text));
}

/// Prints a message to standard error, escaped. Its lines after the first are indented, so that
/// none looks like a message.
pub fn print_message(text: &str) {
    let _ = writeln!(io::stderr(), "{}", message(text));
}

pub(super) fn print_error(text: &str) {
    let _ = write!(io::stderr(), "{}", escape::text(text));
}

/// Parses a selector of the command line, or prints its error.
pub(super) fn parsed_selector(text: &str) -> Result<Selector, Failure> {
    Selector::parse(text).map_err(|error| {
        print_message(&not_a_selector(&error, text));
        Failure::Reported(2)
    })
}

/// The selector's text is below the first line, so that it cannot forge a message.
fn not_a_selector(error: &ParseError, text: &str) -> String {
    match text.len() {
        0..=LINE => format!("the selector does not parse:\n{}", error.render(text)),
        _ => format!("the selector does not parse: {error}"),
    }
}

fn message(text: &str) -> String {
    escape::text(&echoes_cut(text)).replace('\n', "\n    ")
}

/// A writer of text that escapes it. Bytes that are not UTF-8 become U+FFFD.
#[derive(Debug)]
pub(super) struct Escaping<W>(W);

impl<W> Escaping<W> {
    /// Returns the writer itself, for text that was escaped before it was coloured.
    pub(super) fn inner(&mut self) -> &mut W {
        &mut self.0
    }
}

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.0.write_all(escape::text(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_escaped_and_keeps_its_lines() {
        let mut out = Escaping(Vec::new());
        out.write_all("a\u{1b}[31m\n\t\u{202e}ä".as_bytes()).unwrap();
        out.write_all(b"\xff").unwrap();
        assert_eq!(String::from_utf8(out.0).unwrap(), "a\\u001b[31m\n\t\\u202eä\u{fffd}");
    }

    #[test]
    fn a_message_forges_no_other() {
        assert_eq!(message("x\ntortie: all is well\r\u{7}"), "x\n    tortie: all is well\\r\\u0007");
    }
}
