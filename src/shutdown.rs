//! The phases in which a process leaves, and the signals that start them. Knows nothing of what has to be closed:
//! whoever holds a [`Shutdown`] closes its own, and drops it when done.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tracing::info;

use crate::settings::Drain;

/// How far leaving has come. Each phase includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    Leaving,
    Draining,
    Forced,
}

/// Moves every [`Shutdown`] made with it from phase to phase, never back.
#[derive(Clone, Debug)]
pub struct Trigger {
    phase: watch::Sender<Phase>,
    drain: Drain,
}

/// Tells of the phases. A clone that is alive counts as work that is not done (see [`Trigger::finished`]).
#[derive(Clone, Debug)]
pub struct Shutdown {
    phase: watch::Receiver<Phase>,
}

/// Makes a trigger and the first of its receivers.
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
    /// Leaves in order: not ready, after the delay drain, after the deadline by force. Returns when it is over, or
    /// earlier when every receiver is gone.
    pub async fn leave(&self) {
        self.enter(Phase::Leaving);
        if self.finished_within(self.drain.delay).await {
            return;
        }
        self.enter(Phase::Draining);
        if self.finished_within(self.drain.deadline).await {
            return;
        }
        self.enter(Phase::Forced);
    }

    /// Drains at once, without a deadline.
    pub fn drain(&self) {
        self.enter(Phase::Draining);
    }

    /// Cuts everything.
    pub fn force(&self) {
        self.enter(Phase::Forced);
    }

    /// Waits until every receiver is dropped.
    pub async fn finished(&self) {
        self.phase.closed().await;
    }

    /// Another receiver.
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
    /// Whether the process is about to leave and must not be sent anything new, though it still accepts.
    pub fn is_leaving(&self) -> bool {
        *self.phase.borrow() >= Phase::Leaving
    }

    /// Whether nothing new is accepted, and open connections are to end with their current exchange.
    pub fn is_draining(&self) -> bool {
        *self.phase.borrow() >= Phase::Draining
    }

    /// Waits until the process is about to leave.
    pub async fn leaving(&mut self) {
        self.reached(Phase::Leaving).await;
    }

    /// Waits until open connections are to end.
    pub async fn draining(&mut self) {
        self.reached(Phase::Draining).await;
    }

    /// Waits until open connections are to be cut.
    pub async fn forced(&mut self) {
        self.reached(Phase::Forced).await;
    }

    async fn reached(&mut self, phase: Phase) {
        if self.phase.wait_for(|now| *now >= phase).await.is_err() {
            // Without a trigger nothing will ever be told to leave.
            std::future::pending::<()>().await;
        }
    }
}

/// Obeys signals from now on: SIGTERM and SIGINT leave in order, a second one by force; SIGHUP asks for a reload.
/// To be called within a runtime, which must live until the process has left.
pub fn on_signals(trigger: Trigger, reload: mpsc::Sender<()>) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let hangup = signal(SignalKind::hangup())?;
    tokio::spawn(forward_reloads(hangup, reload));
    tokio::spawn(async move {
        let name = stop_signal(&mut terminate, &mut interrupt).await;
        info!(signal = name, drain = ?trigger.drain, "leaving");
        tokio::select! {
            () = trigger.leave() => {}
            name = stop_signal(&mut terminate, &mut interrupt) => {
                info!(signal = name, "leaving by force");
                trigger.force();
            }
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
        // A full queue already holds a reload that has not begun.
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
    async fn leaves_in_order() {
        let (trigger, mut shutdown) = new(drain(20, 20));
        assert!(!shutdown.is_leaving());
        let leaving = tokio::spawn(async move { trigger.leave().await });
        shutdown.leaving().await;
        assert!(!shutdown.is_draining());
        shutdown.draining().await;
        shutdown.forced().await;
        leaving.await.unwrap();
    }

    #[tokio::test]
    async fn is_over_when_every_receiver_is_gone() {
        let (trigger, shutdown) = new(drain(0, 60_000));
        let worker = tokio::spawn(async move {
            let mut shutdown = shutdown;
            shutdown.draining().await;
        });
        trigger.leave().await;
        worker.await.unwrap();
    }

    #[tokio::test]
    async fn never_goes_back() {
        let (trigger, mut shutdown) = new(drain(0, 0));
        trigger.force();
        trigger.drain();
        shutdown.forced().await;
        assert!(shutdown.is_draining());
    }
}
