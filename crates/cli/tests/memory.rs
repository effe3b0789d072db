//! Freed memory returns to the kernel although the program is idle.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "the test reads /proc and waits")]

use std::fs;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use tortie_cli::memory::return_unused;
use tortie_linux::stop::Stop;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PATIENCE: Duration = Duration::from_secs(60);
const OBJECT: usize = 1 << 10;
const OBJECTS: usize = 32 << 10;

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")).unwrap();
    kibibytes.parse::<usize>().unwrap() << 10
}

#[test]
fn freed_memory_returns_to_the_kernel() {
    let stop = Stop::new().unwrap();
    return_unused(&stop).unwrap();
    let objects: Vec<Box<[u8]>> = (0..OBJECTS).map(|_| black_box(vec![1; OBJECT].into_boxed_slice())).collect();
    let before = resident();
    assert!(before > OBJECT * OBJECTS, "{before}");
    drop(objects);
    let begin = Instant::now();
    while resident() > before - OBJECT * OBJECTS * 3 / 4 {
        assert!(begin.elapsed() < PATIENCE, "{before} bytes, and now {}", resident());
        thread::sleep(Duration::from_millis(100));
    }
    stop.set();
}
