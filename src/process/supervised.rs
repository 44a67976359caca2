//! The thread that does the work of a process, and the thread that waits for it: that one handles
//! signals, logs how far a long start is, and holds the deadlines of a shutdown, whatever blocks in
//! other threads.

use std::convert::Infallible;
use std::time::Duration;
use std::{io, thread};

use anyhow::Context;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::runtime::shutdown::{Signals, Trigger};

/// Maximum time from the forced phase of a shutdown to the end of the process.
const END_DEADLINE: Duration = Duration::from_secs(3);
/// Time after which a start is long, and minimum interval of the lines that say how far it is. The
/// interval grows with the time: a pod may wait for its controller for long.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
const PROGRESS_GROWTH: u32 = 4;

/// A thread whose end the process waits for.
pub(super) struct Supervised {
    thread: thread::JoinHandle<anyhow::Result<()>>,
    /// Closed when the thread ends, even by a panic.
    ended: oneshot::Receiver<Infallible>,
}

/// What the waiting thread does for the work.
pub(super) struct Tasks<U, P> {
    /// Requests a reload, at SIGHUP.
    pub(super) reload: mpsc::Sender<()>,
    /// Called at SIGUSR1.
    pub(super) on_user_signal: U,
    /// How far the start is; `None` once it is complete.
    pub(super) starting: P,
}

impl Supervised {
    /// Starts the thread.
    pub(super) fn spawn(
        name: &str,
        work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (alive, ended) = oneshot::channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _alive = alive;
                work()
            })?;
        Ok(Self { thread, ended })
    }

    /// Waits for the end of the thread.
    ///
    /// # Errors
    /// The error of the work. When the thread has panicked: the process does not follow changes any
    /// more and must be restarted.
    pub(super) fn join(self) -> anyhow::Result<()> {
        ended(self.thread.join())
    }

    /// Waits for the end of the thread, and handles signals meanwhile.
    ///
    /// # Errors
    /// Like [`join`](Self::join); also when the thread has not ended at the deadline of a shutdown.
    pub(super) fn supervise<U, P>(
        mut self,
        trigger: &Trigger,
        tasks: Tasks<U, P>,
    ) -> anyhow::Result<()>
    where
        U: Fn() + Send + 'static,
        P: Fn() -> Option<String>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let starting = tasks.starting;
        let has_ended = runtime.block_on(async {
            let signals = Signals::install(tasks.reload, tasks.on_user_signal)
                .context("cannot install signal handlers")?;
            tokio::select! {
                () = self.ended() => return anyhow::Ok(true),
                never = log_progress(&starting) => match never {},
                () = signals.shut_down(trigger, || starting().is_none()) => {}
            }
            Ok(timeout(END_DEADLINE, self.ended()).await.is_ok())
        })?;
        if has_ended {
            return self.join();
        }
        // A load cannot be interrupted, and nothing depends on its end.
        anyhow::ensure!(
            starting().is_some(),
            "some work did not end within {END_DEADLINE:?} after the deadline of the shutdown"
        );
        Ok(())
    }

    async fn ended(&mut self) {
        // The sender never sends a value: it is dropped when the thread ends.
        let _ = (&mut self.ended).await;
    }
}

/// Logs how far the start is, while it takes long.
async fn log_progress(starting: impl Fn() -> Option<String>) -> Infallible {
    let begin = Instant::now();
    loop {
        sleep(PROGRESS_INTERVAL.max(begin.elapsed() / PROGRESS_GROWTH)).await;
        let Some(progress) = starting() else {
            return std::future::pending().await;
        };
        let seconds = begin.elapsed().as_secs();
        tracing::info!("not ready after {seconds} s: {progress}");
    }
}

/// Converts a panic of a thread into an error.
fn ended(thread: thread::Result<anyhow::Result<()>>) -> anyhow::Result<()> {
    thread.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(anyhow::anyhow!(
            "the control thread panicked and no longer follows changes: {}",
            text.unwrap_or("see the log")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_panic_of_the_control_thread() {
        let spawned = |work: fn() -> anyhow::Result<()>| Supervised::spawn("test", work).unwrap();
        assert!(spawned(|| Ok(())).join().is_ok());
        let error = spawned(|| anyhow::bail!("no folder")).join().unwrap_err();
        assert_eq!(error.to_string(), "no folder");
        let panicked = |message: &'static str| ended(Err(Box::new(message)));
        let error = panicked("index out of bounds").unwrap_err().to_string();
        assert!(error.contains("index out of bounds"), "{error}");
        let error = ended(Err(Box::new("made".to_owned()))).unwrap_err();
        assert!(error.to_string().ends_with(": made"), "{error}");
        assert!(ended(Err(Box::new(7))).is_err());
    }
}
