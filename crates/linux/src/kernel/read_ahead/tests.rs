use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use tortie_dataplane::{KernelError, Netfilter};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_model::Family;

use super::super::LinuxKernel;
use super::*;
use crate::stop::Stop;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a kernel that has read its tables ahead.
fn ahead(namespace: &Namespace) -> LinuxKernel {
    let tables = [Family::V4, Family::V6].map(TableId::calico);
    let kernel = namespace.run(|| LinuxKernel::new(TIMEOUT).reading_ahead(&tables)).unwrap();
    assert_eq!(kernel.read_ahead.threads.len(), 2);
    while kernel.read_ahead.threads.iter().any(|(_, thread)| !thread.is_finished()) {
        thread::sleep(Duration::from_millis(1));
    }
    kernel
}

kernel_test! {
    fn a_table_that_was_read_ahead_is_current() {
        let namespace = Namespace::new().unwrap();
        namespace.shell("nft add table ip calico; nft add chain ip calico a; nft add rule ip calico a accept").unwrap();
        let fresh = |table| namespace.run(|| LinuxKernel::new(TIMEOUT).read_nftables(table).unwrap()).unwrap();
        let (v4, v6) = (TableId::calico(Family::V4), TableId::calico(Family::V6));
        let mut kernel = ahead(&namespace);
        let mut read = |table| namespace.run(|| kernel.read_nftables(table).unwrap()).unwrap();
        assert_eq!((read(v4), read(v6)), (fresh(v4), None));
        // Each table is taken once.
        namespace.shell("nft add chain ip calico b; nft add table ip6 calico; nft add chain ip6 calico a").unwrap();
        assert_eq!((read(v4), read(v6)), (fresh(v4), fresh(v6)));
        let mut kernel = ahead(&namespace);
        let (generation, old) = kernel.read_ahead.take(v4, &Runner::default()).unwrap().unwrap();
        assert_eq!(old.unwrap().chains.len(), 2);
        assert_eq!(kernel.read_ahead.take(v4, &Runner::default()), Ok(None));
        let mut kernel = ahead(&namespace);
        namespace.shell("nft add chain ip calico c").unwrap();
        let mut read = |table| namespace.run(|| kernel.read_nftables(table).unwrap()).unwrap();
        assert_eq!(read(v4).unwrap().chains.len(), 3, "the ruleset has changed since generation {generation}");
        assert_eq!(read(v6), fresh(v6));
    }
    fn a_table_that_was_read_ahead_is_not_read_again() {
        let namespace = Namespace::new().unwrap();
        namespace.shell("nft add table ip calico; nft add chain ip calico a").unwrap();
        let v4 = TableId::calico(Family::V4);
        let mut kernel = LinuxKernel::new(TIMEOUT);
        let generation = namespace.run(|| kernel.ruleset_generation()).unwrap().unwrap();
        // Unlike the kernel, the thread has found no table.
        kernel.read_ahead.threads = vec![(v4, thread::spawn(move || Some((generation, None))))];
        let mut read = || namespace.run(|| kernel.read_nftables(v4).unwrap()).unwrap();
        assert_eq!(read(), None);
        assert_eq!(read().unwrap().chains.len(), 1, "the result counts once");
        kernel.read_ahead.threads = vec![(v4, thread::spawn(move || Some((generation.wrapping_sub(1), None))))];
        let read = namespace.run(|| kernel.read_nftables(v4).unwrap()).unwrap();
        assert!(read.is_some(), "the result is that of another generation");
    }
}

/// Returns a table whose thread ends with the sender.
fn endless() -> (ReadAhead, std::sync::mpsc::Sender<()>) {
    let (sender, end) = channel::<()>();
    let thread = thread::spawn(move || end.recv().ok().map(|()| (1, None)));
    (ReadAhead { threads: vec![(TableId::calico(Family::V4), thread)] }, sender)
}

#[test]
fn waiting_for_a_table_reports_progress() {
    let (mut ahead, end) = endless();
    let noted = AtomicUsize::new(0);
    let runner = Runner::default().with_progress(move || {
        // The thread ends after some reports.
        if noted.fetch_add(1, Ordering::Relaxed) == 3 {
            end.send(()).unwrap();
        }
    });
    assert_eq!(ahead.take(TableId::calico(Family::V4), &runner), Ok(Some((1, None))));
}

#[test]
fn a_stop_ends_the_wait_for_a_table() {
    let (ahead, end) = endless();
    let stop = Stop::new().unwrap();
    let setter = stop.clone();
    let runner = Runner::new(stop).with_progress(move || {
        setter.set();
    });
    let mut kernel = LinuxKernel { read_ahead: ahead, ..LinuxKernel::new(TIMEOUT).with_runner(runner) };
    let read = kernel.read_nftables(TableId::calico(Family::V4));
    let Err(KernelError::Failed(cause)) = read else { panic!("{read:?}") };
    assert_eq!(with_causes(&cause), "this program is ending");
    drop(end);
}
