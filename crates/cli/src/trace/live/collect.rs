//! Hearing of traced packets until there is enough to answer.

use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use tortie_linux::netlink::nftrace::Nftrace;
use tortie_linux::netlink::{NetlinkError, Nflog};
use tortie_linux::stop::{Stop, poll_for};

use super::legacy::LegacyStep;
use super::probe::ProbeAnswer;
use super::steps::{Packet, Recorder, Way};

/// How often it is looked whether there is enough.
const TICK: Duration = Duration::from_millis(20);
/// When nothing has come for so long, nothing more is on its way.
const QUIET: Duration = Duration::from_millis(150);
/// For how long an answer to the real flow is waited for.
const ANSWER: Duration = Duration::from_secs(1);
/// For how long packets of a connection that was there before are passed over, in case that another one is opened.
const ANOTHER: Duration = Duration::from_secs(3);

/// What is listened to.
pub(super) struct Listeners {
    pub(super) nftrace: Nftrace,
    /// For iptables-legacy, where that is in use.
    pub(super) nflog: Option<Nflog>,
}

/// What sends packets.
pub(super) enum Sender<'a> {
    /// A probe, whose answer comes here, and which ends when it is told to.
    Probe(&'a Receiver<io::Result<ProbeAnswer>>, &'a Stop),
    /// Somebody else, within this time.
    Others(Duration),
}

/// What was heard.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// What came back to the probe.
    pub(super) answer: Option<io::Result<ProbeAnswer>>,
    /// How many messages the kernel has dropped, as far as that is known.
    pub(super) lost: u64,
    /// How many were not understood.
    pub(super) unreadable: u64,
    /// Whether it ended because the program is to end.
    pub(super) is_interrupted: bool,
}

impl Listeners {
    /// Listens until there is enough.
    ///
    /// # Errors
    /// If the kernel cannot be listened to.
    pub(super) fn hear(
        &mut self,
        recorder: &mut Recorder,
        sender: &Sender<'_>,
        stop: &Stop,
    ) -> Result<Heard, NetlinkError> {
        let (begin, mut heard) = (Instant::now(), Heard::default());
        let (mut first, mut opened, mut answered, mut last) = (None, None, None::<Instant>, begin);
        loop {
            if stop.is_set() {
                heard.is_interrupted = true;
                return Ok(heard);
            }
            let before = recorder.told();
            self.read(recorder, &mut heard)?;
            if recorder.told() > before {
                last = Instant::now();
                first = first.or(Some(last));
                opened = opened.or(recorder.seen().any(Packet::opens).then_some(last));
            }
            let is_quiet = last.elapsed() >= QUIET;
            let is_over = |way: Way| recorder.seen().any(|packet| packet.way == way && packet.is_over());
            let is_dropped = || recorder.seen().any(|packet| packet.way == Way::Forth && is_dropped(packet));
            match sender {
                Sender::Probe(answers, cancel) => {
                    if heard.answer.is_none() {
                        match answers.try_recv() {
                            Ok(answer) => heard.answer = Some(answer),
                            Err(TryRecvError::Disconnected) => heard.answer = Some(Ok(ProbeAnswer::Silent)),
                            Err(TryRecvError::Empty) if is_dropped() => drop(cancel.set()),
                            Err(TryRecvError::Empty) => {}
                        }
                        if heard.answer.is_some() {
                            last = Instant::now();
                            answered = Some(last);
                        }
                    } else if is_quiet || answered.is_some_and(|at| at.elapsed() >= ANSWER) {
                        return Ok(heard);
                    }
                }
                Sender::Others(patience) => {
                    let is_answered = is_over(Way::Back) && is_over(Way::Forth);
                    match (first, opened) {
                        (_, Some(opened)) if opened.elapsed() >= ANSWER => return Ok(heard),
                        (_, Some(_)) if is_quiet && (is_answered || is_dropped()) => return Ok(heard),
                        (Some(first), None) if first.elapsed() >= ANOTHER => return Ok(heard),
                        (None, _) if begin.elapsed() >= *patience => return Ok(heard),
                        _ => {}
                    }
                }
            }
            self.wait(stop);
        }
    }

    fn read(&mut self, recorder: &mut Recorder, heard: &mut Heard) -> Result<(), NetlinkError> {
        let read = self.nftrace.read(|message| recorder.take(message))?;
        heard.lost += read.lost;
        heard.unreadable += read.unreadable;
        if let Some(nflog) = &mut self.nflog {
            let read = nflog.read(|logged| {
                if let Some(step) = LegacyStep::parse(&String::from_utf8_lossy(logged.prefix)) {
                    recorder.take_legacy(step, &logged.packet.tuple);
                }
            })?;
            heard.lost += read.lost;
            heard.unreadable += read.unreadable;
        }
        Ok(())
    }

    fn wait(&self, stop: &Stop) {
        let mut waited = vec![PollFd::from_borrowed_fd(self.nftrace.as_fd(), PollFlags::IN)];
        waited.extend(self.nflog.iter().map(|nflog| PollFd::from_borrowed_fd(nflog.as_fd(), PollFlags::IN)));
        waited.extend(stop.descriptor().map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
        // What cannot be waited for is looked at again all the same.
        if poll_for(&mut waited, TICK).is_err() {
            std::thread::sleep(TICK);
        }
    }
}

fn is_dropped(packet: &Packet) -> bool {
    packet.is_over() && packet.out.is_none()
}
