//! The program's allocator, and when it gives memory back to the system. Knows nothing of what the memory is for.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How often free memory is given back.
const PERIOD: Duration = Duration::from_secs(2);

/// Gives memory back that has been free for a second, for as long as the program runs.
///
/// mimalloc does so by itself only while it is asked for more, which leaves a program that has just become idle with all
/// that its last reload or burst of connections used. It also does so when a thread that used it ends; that is all that
/// this relies on.
pub(crate) fn release_when_idle() {
    let release = || loop {
        thread::sleep(PERIOD);
        let ending = thread::Builder::new()
            .stack_size(64 * 1024)
            .spawn(|| drop(black_box(Box::new(0_u8))));
        // Without memory or threads to spare the next round tries again.
        let _ = ending.map(thread::JoinHandle::join);
    };
    let _ = thread::Builder::new()
        .name("memory".to_owned())
        .stack_size(64 * 1024)
        .spawn(release);
}
