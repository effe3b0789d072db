use std::sync::{Arc, Mutex};

use super::*;

#[derive(Clone, Default)]
struct Terminal(Arc<Mutex<Vec<u8>>>);

impl Write for Terminal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Terminal {
    fn shown(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[test]
fn progress_is_shown_after_a_delay_and_cleared_at_the_end() {
    let terminal = Terminal::default();
    let short = Duration::from_millis(1);
    let progress = Progress::on(terminal.clone(), "reading", short, short);
    let until = Instant::now() + Duration::from_secs(60);
    for step in ["reading", "judging"] {
        progress.step(step);
        while !terminal.shown().contains(&format!("\r\x1b[K{step}, 0 s")) {
            assert!(Instant::now() < until, "{}", terminal.shown());
            thread::sleep(short);
        }
    }
    progress.end();
    assert!(terminal.shown().ends_with("s\r\x1b[K"), "{:?}", terminal.shown());

    let quick = Terminal::default();
    Progress::on(quick.clone(), "reading", Duration::from_secs(3_600), short).end();
    assert_eq!(quick.shown(), "");
}
