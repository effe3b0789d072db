//! Handling of signals.

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
/// Interval between looks at the clock once the program is to end.
const TICK: Duration = Duration::from_millis(20);

/// Handlers of signals. None of them may block, since the thread has to take the next signal.
pub struct Handlers {
    /// Handler of the first SIGTERM or SIGINT; called after the end of the program has been
    /// recorded.
    pub stop: Box<dyn Fn() + Send>,
    /// Handler of SIGHUP.
    pub reload: Box<dyn Fn() + Send>,
    /// Time that the program may take to end by itself, after which it is ended; `None` is
    /// unlimited.
    pub patience: Option<Duration>,
}

impl Handlers {
    /// Returns the handlers of a program that has nothing to read again.
    pub fn new(stop: impl Fn() + Send + 'static) -> Self {
        let reload = || tracing::info!("SIGHUP: nothing here is read again at a signal");
        Self { stop: Box::new(stop), reload: Box::new(reload), patience: None }
    }
}

/// Handles signals on a separate thread. A second SIGTERM or SIGINT ends the program at once.
/// SIGUSR1, SIGUSR2 and SIGPIPE, which kill a program by default, have no effect.
///
/// # Errors
/// If the thread or its pipe cannot be made.
pub fn follow(handlers: Handlers) -> Result<Stop, Failure> {
    let stop = Stop::new().map_err(Failure::io("a pipe"))?;
    follow_for(&stop, handlers)?;
    Ok(stop)
}

/// Handles signals as [`follow`] does, for a program with an existing `stop`.
///
/// # Errors
/// If the thread or its pipe cannot be made.
pub fn follow_for(stop: &Stop, handlers: Handlers) -> Result<(), Failure> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE]).map_err(Failure::io("signals"))?;
    let follower = Follower { handlers, stop: stop.clone(), signals, first_signal: None };
    let thread = thread::Builder::new().name("signals".into());
    thread.spawn(|| follower.run()).map_err(Failure::io("the thread for signals"))?;
    Ok(())
}

struct Follower {
    handlers: Handlers,
    stop: Stop,
    signals: Signals,
    /// Time of the first signal that ends the program.
    first_signal: Option<Instant>,
}

impl Follower {
    fn run(mut self) {
        loop {
            let arrived: Vec<c_int> = if self.first_signal.is_none() {
                self.signals.wait().collect()
            } else {
                thread::sleep(TICK);
                self.signals.pending().collect()
            };
            arrived.into_iter().for_each(|signal| self.take(signal));
            let waited = self.first_signal.map(|first_signal| first_signal.elapsed());
            if waited.zip(self.handlers.patience).is_some_and(|(waited, patience)| waited >= patience) {
                // The reason why the program does not end may block logging as well.
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
                self.first_signal = Some(Instant::now());
                (self.handlers.stop)();
            }
            SIGHUP => (self.handlers.reload)(),
            _ => tracing::debug!(signal, "a signal without effect"),
        }
    }
}

/// Ends the program with all its child processes.
fn end(code: i32) -> ! {
    exec::kill_all();
    std::process::exit(code)
}
