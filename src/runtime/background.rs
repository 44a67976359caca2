//! Threads that are no workers. Each runs one task, and what that spawns.

use std::io;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, LocalOptions};

/// A running thread, which ends with its task.
pub struct Background {
    /// What it is, for messages.
    what: &'static str,
    thread: JoinHandle<()>,
}

impl Background {
    /// Starts a thread of this name that runs `task`. Logs why there is none.
    pub fn start<F: Future<Output = ()> + 'static>(
        name: &str,
        what: &'static str,
        task: impl FnOnce() -> F + Send + 'static,
    ) -> Option<Self> {
        let failed = move |error: &io::Error| tracing::error!("cannot start {what}: {error}");
        let run = move || {
            let runtime = Builder::new_current_thread()
                .enable_all()
                .build_local(LocalOptions::default());
            match runtime {
                Ok(runtime) => runtime.block_on(task()),
                Err(error) => failed(&error),
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = thread.inspect_err(failed).ok()?;
        Some(Self { what, thread })
    }

    /// Waits until the task has ended.
    pub fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!("{} panicked", self.what);
        }
    }
}
