//! The global allocator, and the schedule on which it returns free memory to the system.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Interval between purges.
const PERIOD: Duration = Duration::from_secs(2);

/// Returns memory to the system that has been free for a second. Runs until the program ends.
///
/// mimalloc purges only during allocations: an idle program would keep all memory of its last
/// reload or burst of connections. It also purges when a thread that has used it ends. This
/// function relies on that alone.
pub(crate) fn release_when_idle() {
    let release = || loop {
        thread::sleep(PERIOD);
        let ending = thread::Builder::new()
            .stack_size(64 * 1024)
            .spawn(|| drop(black_box(Box::new(0_u8))));
        // Ignores a failure to spawn or join (no memory, no threads): the next round retries.
        let _ = ending.map(thread::JoinHandle::join);
    };
    let _ = thread::Builder::new()
        .name("memory".to_owned())
        .stack_size(64 * 1024)
        .spawn(release);
}
