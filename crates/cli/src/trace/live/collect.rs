use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use tortie_linux::netlink::nftrace::Nftrace;
use tortie_linux::netlink::{NetlinkError, Nflog};
use tortie_linux::probe::ProbeAnswer;
use tortie_linux::stop::{Stop, poll_for};

use super::legacy::LegacyStep;
use super::steps::{FlowDirection, Packet, Recorder};

const TICK: Duration = Duration::from_millis(20);
/// Silence after which no more messages are expected.
const QUIET: Duration = Duration::from_millis(150);
/// Time limit of the answer to the real flow.
const ANSWER: Duration = Duration::from_secs(1);
/// Time for which packets of an existing connection are ignored, as a new connection may follow.
const ANOTHER: Duration = Duration::from_secs(3);

pub(super) struct Listeners {
    pub(super) nftrace: Nftrace,
    pub(super) nflog: Option<Nflog>,
}

pub(super) enum Sender<'a> {
    Probe(&'a Receiver<io::Result<ProbeAnswer>>, &'a Stop),
    /// Another process, within this time.
    Others(Duration),
}

#[derive(Debug, Default)]
pub(super) struct TraceResult {
    pub(super) answer: Option<io::Result<ProbeAnswer>>,
    pub(super) lost: u64,
    pub(super) unreadable: u64,
    pub(super) is_interrupted: bool,
}

impl Listeners {
    pub(super) fn receive(
        &mut self,
        recorder: &mut Recorder,
        sender: &Sender<'_>,
        stop: &Stop,
    ) -> Result<TraceResult, NetlinkError> {
        let (begin, mut result) = (Instant::now(), TraceResult::default());
        let (mut first, mut opened, mut answered, mut last) = (None, None, None::<Instant>, begin);
        loop {
            if stop.is_set() {
                result.is_interrupted = true;
                return Ok(result);
            }
            let before = recorder.progress();
            self.read(recorder, &mut result)?;
            if recorder.progress() > before {
                last = Instant::now();
                first = first.or(Some(last));
                opened = opened.or(recorder.seen().any(Packet::opens).then_some(last));
            }
            let is_quiet = last.elapsed() >= QUIET;
            let is_over = |direction: FlowDirection| {
                recorder.seen().any(|packet| packet.direction == direction && packet.is_over())
            };
            let is_dropped =
                || recorder.seen().any(|packet| packet.direction == FlowDirection::Original && is_dropped(packet));
            match sender {
                Sender::Probe(answers, cancel) => {
                    if result.answer.is_none() {
                        match answers.try_recv() {
                            Ok(answer) => result.answer = Some(answer),
                            Err(TryRecvError::Disconnected) => result.answer = Some(Ok(ProbeAnswer::Silent)),
                            Err(TryRecvError::Empty) if is_dropped() => drop(cancel.set()),
                            Err(TryRecvError::Empty) => {}
                        }
                        if result.answer.is_some() {
                            last = Instant::now();
                            answered = Some(last);
                        }
                    } else if is_quiet || answered.is_some_and(|at| at.elapsed() >= ANSWER) {
                        return Ok(result);
                    }
                }
                Sender::Others(patience) => {
                    let is_answered = is_over(FlowDirection::Reply) && is_over(FlowDirection::Original);
                    match (first, opened) {
                        (_, Some(opened)) if opened.elapsed() >= ANSWER => return Ok(result),
                        (_, Some(_)) if is_quiet && (is_answered || is_dropped()) => return Ok(result),
                        (Some(first), None) if first.elapsed() >= ANOTHER => return Ok(result),
                        (None, _) if begin.elapsed() >= *patience => return Ok(result),
                        _ => {}
                    }
                }
            }
            self.wait(stop);
        }
    }

    fn read(&mut self, recorder: &mut Recorder, result: &mut TraceResult) -> Result<(), NetlinkError> {
        let read = self.nftrace.read(|message| recorder.take(message))?;
        result.lost += read.lost;
        result.unreadable += read.unreadable;
        if let Some(nflog) = &mut self.nflog {
            let read = nflog.read(|logged| {
                if let Some(step) = LegacyStep::parse(&String::from_utf8_lossy(logged.prefix)) {
                    recorder.take_legacy(step, &logged.packet.tuple);
                }
            })?;
            result.lost += read.lost;
            result.unreadable += read.unreadable;
        }
        Ok(())
    }

    fn wait(&self, stop: &Stop) {
        let mut waited = vec![PollFd::from_borrowed_fd(self.nftrace.as_fd(), PollFlags::IN)];
        waited.extend(self.nflog.iter().map(|nflog| PollFd::from_borrowed_fd(nflog.as_fd(), PollFlags::IN)));
        waited.extend(stop.descriptor().map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
        // If polling fails, the sockets are read again after a pause.
        if poll_for(&mut waited, TICK).is_err() {
            std::thread::sleep(TICK);
        }
    }
}

fn is_dropped(packet: &Packet) -> bool {
    packet.is_over() && packet.out.is_none()
}
