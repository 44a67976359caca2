//! The phases of shutdown and the signals of the process. Each part of the process that holds a
//! [`Shutdown`] closes its own connections and drops the `Shutdown` when done.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tracing::info;

use crate::settings::Drain;

/// Phase of shutdown. Each phase includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    Terminating,
    Draining,
    Forced,
}

/// Advances the phase for all [`Shutdown`] receivers. The phase never goes back.
#[derive(Clone, Debug)]
pub struct Trigger {
    phase: watch::Sender<Phase>,
    drain: Drain,
}

/// Receives the phase. Each live clone counts as unfinished work (see [`Trigger::finished`]).
#[derive(Clone, Debug)]
pub struct Shutdown {
    phase: watch::Receiver<Phase>,
}

/// Creates a trigger and its first receiver.
pub fn new(drain: Drain) -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(Phase::Running);
    (
        Trigger {
            phase: sender,
            drain,
        },
        Shutdown { phase: receiver },
    )
}

impl Trigger {
    /// Shuts down gracefully: readiness fails, connections drain after the delay, and are closed by
    /// force after the deadline. Returns when the forced phase begins, or when every receiver is
    /// dropped.
    pub async fn shut_down(&self) {
        self.enter(Phase::Terminating);
        if self.finished_within(self.drain.delay).await {
            return;
        }
        self.enter(Phase::Draining);
        if self.finished_within(self.drain.deadline).await {
            return;
        }
        self.enter(Phase::Forced);
    }

    /// Starts draining at once, without a deadline.
    pub fn drain(&self) {
        self.enter(Phase::Draining);
    }

    /// Closes all connections by force.
    pub fn force(&self) {
        self.enter(Phase::Forced);
    }

    /// Waits until every receiver is dropped.
    pub async fn finished(&self) {
        self.phase.closed().await;
    }

    /// Creates another receiver.
    pub fn subscribe(&self) -> Shutdown {
        Shutdown {
            phase: self.phase.subscribe(),
        }
    }

    async fn finished_within(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.finished()).await.is_ok()
    }

    fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let forward = *current < phase;
            *current = phase.max(*current);
            forward
        });
    }
}

impl Shutdown {
    /// Reports whether shutdown has begun: readiness fails, but listeners still accept.
    pub fn is_terminating(&self) -> bool {
        *self.phase.borrow() >= Phase::Terminating
    }

    /// Reports whether listeners are closed and connections end after their current exchange.
    pub fn is_draining(&self) -> bool {
        *self.phase.borrow() >= Phase::Draining
    }

    /// Waits until shutdown begins.
    pub async fn terminating(&mut self) {
        self.reached(Phase::Terminating).await;
    }

    /// Waits until draining begins.
    pub async fn draining(&mut self) {
        self.reached(Phase::Draining).await;
    }

    /// Waits until connections must be closed by force.
    pub async fn forced(&mut self) {
        self.reached(Phase::Forced).await;
    }

    async fn reached(&mut self, phase: Phase) {
        if self.phase.wait_for(|now| *now >= phase).await.is_err() {
            // The trigger is dropped: no later phase can follow.
            std::future::pending::<()>().await;
        }
    }
}

/// The signals that end the process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs handlers: SIGHUP requests a reload, and SIGUSR1, which otherwise would end the
    /// process, calls `on_user`. Must be called within a runtime that is polled until shutdown is
    /// complete.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn install(
        reload: mpsc::Sender<()>,
        on_user: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let signals = Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        let hangup = signal(SignalKind::hangup())?;
        let mut user = signal(SignalKind::user_defined1())?;
        tokio::spawn(forward_reloads(hangup, reload));
        tokio::spawn(async move {
            while user.recv().await.is_some() {
                on_user();
            }
        });
        Ok(signals)
    }

    /// Waits for SIGTERM or SIGINT and shuts down gracefully; a second one forces it. Returns when
    /// the forced phase has begun, or when every receiver is dropped. A process that is not serving
    /// yet has nothing to drain.
    pub async fn shut_down(mut self, trigger: &Trigger, is_serving: impl Fn() -> bool) {
        let name = self.next().await;
        if !is_serving() {
            info!(signal = name, "shutting down before anything is served");
            return trigger.force();
        }
        let Drain { delay, deadline } = trigger.drain;
        info!(
            signal = name,
            "shutting down: closing the listeners in {delay:?}, and connections at most {deadline:?} later"
        );
        let forced = tokio::select! {
            () = trigger.shut_down() => None,
            name = self.next() => Some(name),
        };
        if let Some(name) = forced {
            info!(signal = name, "shutting down by force");
            trigger.force();
        }
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

async fn forward_reloads(mut hangup: Signal, reload: mpsc::Sender<()>) {
    while hangup.recv().await.is_some() {
        info!(signal = "SIGHUP", "reload requested");
        // A full queue already holds a pending reload.
        let _ = reload.try_send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(delay: u64, deadline: u64) -> Drain {
        Drain {
            delay: Duration::from_millis(delay),
            deadline: Duration::from_millis(deadline),
        }
    }

    #[tokio::test]
    async fn graceful_shutdown_enters_phases_in_order() {
        let (trigger, mut shutdown) = new(drain(20, 20));
        assert!(!shutdown.is_terminating());
        let task = tokio::spawn(async move { trigger.shut_down().await });
        shutdown.terminating().await;
        assert!(!shutdown.is_draining());
        shutdown.draining().await;
        shutdown.forced().await;
        task.await.unwrap();
    }

    #[tokio::test]
    async fn finishes_when_every_receiver_is_dropped() {
        let (trigger, shutdown) = new(drain(0, 60_000));
        let worker = tokio::spawn(async move {
            let mut shutdown = shutdown;
            shutdown.draining().await;
        });
        trigger.shut_down().await;
        worker.await.unwrap();
    }

    #[tokio::test]
    async fn phase_never_goes_back() {
        let (trigger, mut shutdown) = new(drain(0, 0));
        trigger.force();
        trigger.drain();
        shutdown.forced().await;
        assert!(shutdown.is_draining());
    }
}
