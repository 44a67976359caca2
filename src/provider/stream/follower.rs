//! Which controller is followed: one connection is current, at most one more leads to the leader and replaces it once it
//! has caught up. Owns when to connect, what is published and what the log says of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::connect::Target;
use super::objects::{Intake, State, Step};
use super::session::{Failure, Session};
use super::{StreamEvent, StreamSettings};
use crate::backoff::Backoff;
use crate::provider::Load;
use crate::stream::message::{Serves, Update};

/// The longest wait before connecting anew after a stream that worked: all pods of a controller that has ended come at once.
const RECONNECT: Duration = Duration::from_millis(100);
/// Waits while connections fail.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(5),
};
/// A stream that ends sooner has failed: what ends at once again and again must not be connected to without a wait.
const SHORTEST_STREAM: Duration = Duration::from_secs(1);
/// How long the leader is left alone after it could not be reached, and after a move to it: two controllers that take each
/// other for the leader must not pass pods to and fro.
const LEADER_RETRY: Duration = Duration::from_secs(5);
/// How long the log is silent about the same failure, and how many failures are told in that time.
const SILENCE: Duration = Duration::from_secs(60);
const MAX_LOGGED: usize = 8;

/// Follows controllers.
pub(super) struct Follower<N> {
    settings: Arc<StreamSettings>,
    loads: watch::Sender<Arc<Load>>,
    reports: watch::Receiver<Option<Serves>>,
    copies: watch::Sender<State>,
    notify: N,
    state: State,
    /// Whether everything is asked for anew: a controller has said what it must not.
    is_distrustful: bool,
    current: Option<Link>,
    candidate: Option<Link>,
    /// Failures in a row.
    failures: u32,
    /// Current connections that have ended.
    losses: u32,
    /// When to connect, while there is no current connection.
    reconnect_at: Instant,
    /// When to connect to the leader at the earliest, while the current connection is to another.
    move_at: Instant,
    /// Failures that are in the log already, and since when.
    logged: BTreeMap<String, Instant>,
}

/// A connection, and what has come on it.
struct Link {
    session: Session,
    intake: Intake,
    /// The leader's address, if that is where it leads to.
    address: Option<String>,
    /// The leader, as this controller says.
    leader: Option<String>,
    begun: Option<Instant>,
}

impl Link {
    /// The leader's address, if it is elsewhere.
    fn other_leader(&self) -> Option<&String> {
        let leader = self.leader.as_ref();
        leader.filter(|leader| self.address.as_ref() != Some(*leader))
    }
}

impl<N: FnMut(StreamEvent<'_>)> Follower<N> {
    /// A follower that is not connected and has nothing.
    pub(super) fn new(
        settings: Arc<StreamSettings>,
        loads: watch::Sender<Arc<Load>>,
        reports: watch::Receiver<Option<Serves>>,
        copies: watch::Sender<State>,
        notify: N,
    ) -> Self {
        Self {
            settings,
            loads,
            reports,
            copies,
            notify,
            state: State::default(),
            is_distrustful: false,
            current: None,
            candidate: None,
            failures: 0,
            losses: 0,
            reconnect_at: Instant::now(),
            move_at: Instant::now(),
            logged: BTreeMap::new(),
        }
    }

    /// Publishes a state to begin with, if there is one, and then what controllers say, until no one listens.
    pub(super) async fn run(mut self, begun_with: Option<State>) {
        match begun_with {
            Some(state) => {
                self.state = state;
                self.publish();
                tracing::info!("begins with the copy of an earlier container");
            }
            None => self.wait("connecting"),
        }
        loop {
            tokio::select! {
                update = next(&mut self.current) => self.on_current(update),
                update = next(&mut self.candidate) => self.on_candidate(update),
                () = sleep_until(self.reconnect_at), if self.current.is_none() => {
                    self.current = Some(self.link(None));
                }
                () = sleep_until(self.move_at), if self.leader_to_try().is_some() => {
                    self.candidate = self.leader_to_try().map(|leader| self.link(Some(leader)));
                }
                () = self.loads.closed() => return,
            }
        }
    }

    /// Connects to the Service, or to the leader.
    fn link(&self, leader: Option<String>) -> Link {
        let target = match &leader {
            Some(address) => Target::Leader(address.clone()),
            None => Target::Service(self.losses),
        };
        let position = self.state.position.clone();
        let position = position.filter(|_| !self.is_distrustful);
        let (settings, reports) = (self.settings.clone(), self.reports.clone());
        Link {
            session: Session::start(settings, target, position, reports),
            intake: Intake::default(),
            address: leader,
            leader: None,
            begun: None,
        }
    }

    /// The leader, when it is to be connected to.
    fn leader_to_try(&self) -> Option<String> {
        let leader = self.current.as_ref()?.other_leader();
        leader.filter(|_| self.candidate.is_none()).cloned()
    }

    fn on_current(&mut self, update: Result<Update, Failure>) {
        let Some(link) = &mut self.current else {
            return;
        };
        match step(link, update, &mut self.state) {
            Ok(Step::Begun { .. }) => self.connected(),
            Ok(Step::Staged) => {}
            Ok(Step::Committed) => self.committed(),
            Ok(Step::Leader(leader)) => {
                let is_new = link.leader != leader;
                link.leader = leader;
                self.leader_told(is_new);
            }
            Err(failure) => self.lose_current(&failure),
        }
    }

    fn on_candidate(&mut self, update: Result<Update, Failure>) {
        let Some(link) = &mut self.candidate else {
            return;
        };
        match step(link, update, &mut self.state) {
            Ok(Step::Begun { is_caught_up: true }) => self.promote(),
            Ok(Step::Begun { .. } | Step::Staged) => {}
            Ok(Step::Committed) => {
                self.promote();
                self.committed();
            }
            Ok(Step::Leader(leader)) => link.leader = leader,
            Err(failure) => {
                let leader = self.candidate.take().and_then(|link| link.address);
                let leader = leader.unwrap_or_default();
                if self.is_new_to_log(&failure.reason) {
                    let reason = &failure.reason;
                    tracing::warn!("no stream from the leading controller {leader}: {reason}");
                }
                self.is_distrustful |= failure.is_fault;
                self.move_at = Instant::now() + jittered(LEADER_RETRY);
            }
        }
    }

    /// The candidate has what the current connection has, and takes its place.
    fn promote(&mut self) {
        self.current = self.candidate.take();
        self.move_at = Instant::now() + jittered(LEADER_RETRY);
        self.connected();
    }

    /// The current controller has said where the leader is.
    fn leader_told(&mut self, is_new: bool) {
        let Some(current) = &self.current else {
            return;
        };
        let leader = current.other_leader();
        let is_other = |candidate: &Link| candidate.address.as_ref() != leader;
        if self.candidate.as_ref().is_some_and(is_other) {
            self.candidate = None;
        }
        // The wait was for another leader. After a move, it goes on.
        if is_new && current.address.is_none() {
            self.move_at = Instant::now();
        }
    }

    fn connected(&mut self) {
        (self.notify)(StreamEvent::Connected);
        let Some(link) = &self.current else {
            return;
        };
        let url = self.settings.authority();
        match &link.address {
            Some(leader) => tracing::info!("the leading controller {leader} streams"),
            None => tracing::info!("the controller at https://{url} streams"),
        }
        self.logged.clear();
        self.wait("its first state is not complete");
    }

    fn committed(&mut self) {
        self.is_distrustful = false;
        self.publish();
        self.copies.send_replace(self.state.clone());
    }

    fn publish(&mut self) {
        self.loads.send_replace(Arc::new(self.state.load()));
        if let Some(position) = &self.state.position {
            (self.notify)(StreamEvent::Committed(position));
        }
    }

    /// The current connection has ended. One to the leader goes on meanwhile.
    fn lose_current(&mut self, failure: &Failure) {
        self.is_distrustful |= failure.is_fault;
        let now = Instant::now();
        let begun = self.current.take().and_then(|link| link.begun);
        let has_worked = !failure.is_fault
            && begun.is_some_and(|begun| now.duration_since(begun) >= SHORTEST_STREAM);
        let wait = if has_worked {
            self.failures = 0;
            RECONNECT.mul_f64(rand::rng().random_range(0.0..1.0))
        } else {
            let wait = jittered(BACKOFF.after(self.failures));
            self.failures = self.failures.saturating_add(1);
            wait
        };
        self.reconnect_at = now + wait;
        self.losses = self.losses.wrapping_add(1);
        (self.notify)(StreamEvent::Disconnected);
        self.log(&failure.reason);
        self.wait(&failure.reason);
    }

    /// Says what is waited for, while there is nothing to serve.
    fn wait(&mut self, reason: &str) {
        if self.state.position.is_none() {
            let url = self.settings.authority();
            let text = format!("waiting for the controller at https://{url}: {reason}");
            (self.notify)(StreamEvent::Waiting(text));
        }
    }

    /// Logs why there is no stream.
    fn log(&mut self, reason: &str) {
        if !self.is_new_to_log(reason) {
            return;
        }
        let url = self.settings.authority();
        let consequence = match self.state.position {
            Some(_) => "what is there is served on, and may be out of date",
            None => "nothing is served",
        };
        tracing::warn!("no stream from the controller at https://{url}: {reason}; {consequence}");
    }

    /// Whether the log is to tell of a failure: each is told once, and again after a while. Several are remembered, since
    /// a name may have several addresses that fail in turn.
    fn is_new_to_log(&mut self, reason: &str) -> bool {
        self.logged.retain(|_, at| at.elapsed() < SILENCE);
        let is_new = !self.logged.contains_key(reason) && self.logged.len() < MAX_LOGGED;
        if is_new {
            self.logged.insert(reason.to_owned(), Instant::now());
        }
        is_new
    }
}

/// The next that comes on a connection; never without one.
async fn next(link: &mut Option<Link>) -> Result<Update, Failure> {
    match link {
        Some(link) => link.session.next().await,
        None => std::future::pending().await,
    }
}

/// What follows from what came on a connection.
fn step(
    link: &mut Link,
    update: Result<Update, Failure>,
    state: &mut State,
) -> Result<Step, Failure> {
    let step = link.intake.take(update?, state).map_err(Failure::fault)?;
    match step {
        Step::Begun { .. } if link.begun.is_some() => Ok(Step::Staged),
        Step::Begun { .. } => {
            link.begun = Some(Instant::now());
            Ok(step)
        }
        _ => Ok(step),
    }
}

/// A wait of at least half of this.
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(rand::rng().random_range(0.5..1.0))
}
