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

/// Installs signal handlers. The first SIGTERM or SIGINT starts a graceful shutdown, and a second
/// one forces it. SIGHUP requests a reload. Must be called within a runtime that lives until
/// shutdown is complete.
pub fn on_signals(trigger: Trigger, reload: mpsc::Sender<()>) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let hangup = signal(SignalKind::hangup())?;
    tokio::spawn(forward_reloads(hangup, reload));
    tokio::spawn(async move {
        let name = stop_signal(&mut terminate, &mut interrupt).await;
        info!(signal = name, drain = ?trigger.drain, "shutting down");
        tokio::select! {
            () = trigger.shut_down() => {}
            name = stop_signal(&mut terminate, &mut interrupt) => {
                info!(signal = name, "shutting down by force");
                trigger.force();
            }
        }
    });
    Ok(())
}

/// Calls `action` at each SIGUSR1, which otherwise would end the process. Must be called within a
/// runtime.
pub fn on_user_signal(action: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut user = signal(SignalKind::user_defined1())?;
    tokio::spawn(async move {
        while user.recv().await.is_some() {
            action();
        }
    });
    Ok(())
}

async fn stop_signal(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
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
