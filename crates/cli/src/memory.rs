//! Memory that the allocator keeps after it was freed.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use tortie_linux::stop::Stop;

use super::Failure;

/// Interval between the allocations. The allocator returns nothing in the first second after it was
/// freed.
const INTERVAL: Duration = Duration::from_secs(1);
/// Size of these allocations in bytes: more than the allocator shares among objects, so that
/// freeing it frees pages.
const BLOCK: usize = 1 << 20;

/// Returns freed memory to the kernel, on a separate thread that ends with `stop`.
///
/// mimalloc returns pages once they have been free for a second, but only when some thread frees a
/// page after that. An agent in sync may free none for minutes, and would keep the buffers of its
/// start. Therefore the thread frees a page each second, which it never touches.
///
/// # Errors
/// If the thread cannot be started.
pub fn return_unused(stop: &Stop) -> Result<(), Failure> {
    let stop = stop.clone();
    let work = move || {
        while !stop.wait(INTERVAL) {
            drop(black_box(Vec::<u8>::with_capacity(BLOCK)));
        }
    };
    let thread = thread::Builder::new().name("memory".into());
    thread.spawn(work).map_err(Failure::io("the thread that returns memory"))?;
    Ok(())
}
