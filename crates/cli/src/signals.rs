//! What signals ask of a program.

use std::ffi::c_int;
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use tortie_linux::exec;
use tortie_linux::stop::Stop;

use super::Failure;

/// Time that an agent may take to end. An unresponsive driver takes 4 s, an iptables command 2 s.
pub const STOP_PATIENCE: Duration = Duration::from_secs(8);
/// How often the thread looks at the clock once the program is to end.
const TICK: Duration = Duration::from_millis(20);

/// What to do at which signal. None of it may wait for anybody: the thread must be there for the next signal.
pub struct Handlers {
    /// At the first SIGTERM or SIGINT, after it has been noted that the program is to end.
    pub stop: Box<dyn Fn() + Send>,
    /// At SIGHUP.
    pub reload: Box<dyn Fn() + Send>,
    /// How long the program may take to end by itself; if it does not, it is ended. For ever if `None`.
    pub patience: Option<Duration>,
}

impl Handlers {
    /// For a program that has nothing to read again.
    pub fn new(stop: impl Fn() + Send + 'static) -> Self {
        let reload = || tracing::info!("SIGHUP: nothing here is read again at a signal");
        Self { stop: Box::new(stop), reload: Box::new(reload), patience: None }
    }
}

/// Follows signals on a thread of its own. Whoever sends a second SIGTERM or SIGINT does not want to wait. Signals that
/// would kill a program which does not know them have no effect.
///
/// # Errors
/// If the thread or its pipe cannot be made.
pub fn follow(handlers: Handlers) -> Result<Stop, Failure> {
    let stop = Stop::new().map_err(Failure::io("a pipe"))?;
    follow_for(&stop, handlers)?;
    Ok(stop)
}

/// As [`follow`], for a program that `stop` ends already.
///
/// # Errors
/// If the thread or its pipe cannot be made.
pub fn follow_for(stop: &Stop, handlers: Handlers) -> Result<(), Failure> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE]).map_err(Failure::io("signals"))?;
    let follower = Follower { handlers, stop: stop.clone(), signals, asked: None };
    let thread = thread::Builder::new().name("signals".into());
    thread.spawn(|| follower.run()).map_err(Failure::io("the thread for signals"))?;
    Ok(())
}

struct Follower {
    handlers: Handlers,
    stop: Stop,
    signals: Signals,
    /// When the program was asked to end.
    asked: Option<Instant>,
}

impl Follower {
    fn run(mut self) {
        loop {
            let arrived: Vec<c_int> = if self.asked.is_none() {
                self.signals.wait().collect()
            } else {
                thread::sleep(TICK);
                self.signals.pending().collect()
            };
            arrived.into_iter().for_each(|signal| self.take(signal));
            let waited = self.asked.map(|asked| asked.elapsed());
            if waited.zip(self.handlers.patience).is_some_and(|(waited, patience)| waited >= patience) {
                // What hinders the program from ending may hinder a word about it, too.
                end(0);
            }
        }
    }

    fn take(&mut self, signal: c_int) {
        match signal {
            SIGTERM | SIGINT => {
                if self.stop.set() {
                    end(1);
                }
                self.asked = Some(Instant::now());
                (self.handlers.stop)();
            }
            SIGHUP => (self.handlers.reload)(),
            _ => tracing::debug!(signal, "a signal without effect"),
        }
    }
}

/// Ends the program with all that it has started.
fn end(code: i32) -> ! {
    exec::kill_all();
    std::process::exit(code)
}
