//! Follows the controller over one current connection. At most one candidate connection to the leader replaces it after
//! catching up. Owns when to connect, what to publish and what to log.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::connect::Peer;
use super::objects::{GatewayObjects, Step, UpdateDecoder};
use super::session::{Failure, SILENCE, Session};
use super::settings::{StreamEvent, StreamSettings};
use crate::ir::ObjectRef;
use crate::key_requests::KeyRequests;
use crate::provider::Load;
use crate::runtime::backoff::Backoff;
use crate::runtime::optional::or_pending;
use crate::wire::{KeySetName, Serves, Update};

/// Maximum delay before reconnecting after a stream that worked. Spreads the reconnects of all pods when a controller
/// terminates.
const RECONNECT: Duration = Duration::from_millis(100);
/// Delays between failed connection attempts.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(5),
};
/// A stream that ends sooner counts as a failure, so that it is reconnected with back-off.
const SHORTEST_STREAM: Duration = Duration::from_secs(1);
/// Delay before the next attempt on the leader, after a failure or after a move to it. Without it, two controllers that
/// each name the other as leader would bounce pods between them.
const LEADER_RETRY: Duration = Duration::from_secs(5);
/// How long a state of another controller process waits that is behind the published one: its watches may be behind those of
/// the process before. In a cluster, a deleted policy stays in force for as long.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Minimum time between two requests for key sets: clients choose the keys that tokens name.
const ASK_PERIOD: Duration = Duration::from_secs(1);
/// Interval of log messages about the same failure, and maximum number of different failures in that interval.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
const MAX_LOGGED: usize = 8;

/// What is sent to the controller.
pub(super) struct Outgoing {
    /// The state in service that holds after a restart.
    pub(super) reports: watch::Receiver<Option<Serves>>,
    /// Key sets that tokens lack keys of.
    pub(super) key_requests: Arc<KeyRequests>,
}

/// Follows controllers.
pub(super) struct Follower<N> {
    settings: Arc<StreamSettings>,
    loads: watch::Sender<Arc<Load>>,
    outgoing: Outgoing,
    copies: watch::Sender<GatewayObjects>,
    notify: N,
    state: GatewayObjects,
    /// The state that was published last, or the copy of a previous container.
    published: GatewayObjects,
    /// Until when the state is not published, since it is behind the published one. `None` if it is published.
    late_until: Option<Instant>,
    /// Until when the state, the copy of a previous container, is not published: a controller may have a later one, with stricter
    /// policies. `None` if it is published.
    held_until: Option<Instant>,
    /// Whether to request the full state, as after a protocol error.
    needs_full_state: bool,
    current: Option<Connection>,
    candidate: Option<Connection>,
    /// Consecutive failures.
    failures: u32,
    /// Number of current connections that have ended.
    losses: u32,
    /// When to connect while there is no current connection.
    reconnect_at: Instant,
    /// Earliest time to connect to the leader while connected to another controller.
    move_at: Instant,
    /// Earliest time to ask for key sets.
    ask_at: Instant,
    /// Logged failures and their times.
    logged: BTreeMap<String, Instant>,
}

/// A connection and what was received on it.
struct Connection {
    session: Session,
    intake: UpdateDecoder,
    /// Address of the leader, if this connection was made to it.
    address: Option<String>,
    /// Address of the leader that this controller has named.
    leader: Option<String>,
    begun: Option<Instant>,
}

impl Connection {
    /// Returns address of the leader, if it is another controller.
    fn other_leader(&self) -> Option<&String> {
        let leader = self.leader.as_ref();
        leader.filter(|leader| self.address.as_ref() != Some(*leader))
    }
}

impl<N: FnMut(StreamEvent<'_>)> Follower<N> {
    /// Creates a follower without a connection and without a state.
    pub(super) fn new(
        settings: Arc<StreamSettings>,
        loads: watch::Sender<Arc<Load>>,
        outgoing: Outgoing,
        copies: watch::Sender<GatewayObjects>,
        notify: N,
    ) -> Self {
        Self {
            settings,
            loads,
            outgoing,
            copies,
            notify,
            state: GatewayObjects::default(),
            published: GatewayObjects::default(),
            late_until: None,
            held_until: None,
            needs_full_state: false,
            current: None,
            candidate: None,
            failures: 0,
            losses: 0,
            reconnect_at: Instant::now(),
            move_at: Instant::now(),
            ask_at: Instant::now(),
            logged: BTreeMap::new(),
        }
    }

    /// Publishes the states that controllers send. Before, publishes the initial state, if any, once a controller has no
    /// later one, the first connection fails or the controller sends nothing. Ends when the receiver is dropped.
    pub(super) async fn run(mut self, initial: Option<GatewayObjects>) {
        if let Some(state) = initial {
            self.published = state.clone();
            self.state = state;
            self.held_until = Some(Instant::now() + SILENCE);
            if let Some(pods) = &self.state.pods {
                (self.notify)(StreamEvent::Pods(pods));
            }
        }
        self.wait("connecting");
        loop {
            tokio::select! {
                update = next(&mut self.current) => self.on_current(update),
                update = next(&mut self.candidate) => self.on_candidate(update),
                () = sleep_until(self.reconnect_at), if self.current.is_none() => {
                    self.current = Some(self.connection(None));
                }
                () = sleep_until(self.move_at), if self.leader_to_try().is_some() => {
                    self.candidate = self.leader_to_try().map(|leader| self.connection(Some(leader)));
                }
                key_sets = asked(&self.outgoing.key_requests, self.ask_at), if self.has_begun() => {
                    self.ask(key_sets);
                }
                () = or_pending(self.held_until.map(sleep_until)) => self.publish_copy(),
                () = or_pending(self.late_until.map(sleep_until)) => self.accept(),
                () = self.loads.closed() => return,
            }
        }
    }

    /// Reports whether a controller streams.
    fn has_begun(&self) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|current| current.begun.is_some())
    }

    /// Asks the controller for key sets.
    fn ask(&mut self, key_sets: Vec<KeySetName>) {
        self.ask_at = Instant::now() + ASK_PERIOD;
        if let Some(current) = &self.current {
            current.session.ask(key_sets);
        }
    }

    /// Connects to the Service, or to the leader.
    fn connection(&self, leader: Option<String>) -> Connection {
        let peer = match &leader {
            Some(address) => Peer::Leader(address.clone()),
            None => Peer::Service(self.losses),
        };
        let position = self.state.position.clone();
        let position = position.filter(|_| !self.needs_full_state);
        let (settings, reports) = (self.settings.clone(), self.outgoing.reports.clone());
        Connection {
            session: Session::start(settings, peer, position, reports),
            intake: UpdateDecoder::default(),
            address: leader,
            leader: None,
            begun: None,
        }
    }

    /// Returns the leader, if a connection to it is due.
    fn leader_to_try(&self) -> Option<String> {
        let leader = self.current.as_ref()?.other_leader();
        leader.filter(|_| self.candidate.is_none()).cloned()
    }

    fn on_current(&mut self, update: Result<Update, Failure>) {
        if update.is_ok() {
            self.held_until = self.held_until.map(|_| Instant::now() + SILENCE);
        }
        let Some(connection) = &mut self.current else {
            return;
        };
        match step(connection, update, &mut self.state) {
            Ok(Step::Begun { .. }) => self.connected(),
            Ok(Step::Staged) => {}
            Ok(Step::Committed) => self.committed(),
            Ok(Step::Pods) => self.pods_changed(),
            Ok(Step::Leader(leader)) => {
                let is_new = connection.leader != leader;
                connection.leader = leader;
                // The controller sends it after the first changes.
                self.publish_copy();
                (self.notify)(StreamEvent::CaughtUp);
                self.on_leader(is_new);
            }
            Err(failure) => self.lose_current(&failure),
        }
    }

    fn on_candidate(&mut self, update: Result<Update, Failure>) {
        let Some(connection) = &mut self.candidate else {
            return;
        };
        match step(connection, update, &mut self.state) {
            Ok(Step::Begun { is_caught_up: true }) => self.promote(),
            Ok(Step::Begun { .. } | Step::Staged) => {}
            Ok(Step::Pods) => self.pods_changed(),
            Ok(Step::Committed) => {
                self.promote();
                self.committed();
            }
            Ok(Step::Leader(leader)) => connection.leader = leader,
            Err(failure) => {
                let leader = self
                    .candidate
                    .take()
                    .and_then(|connection| connection.address);
                let leader = leader.unwrap_or_default();
                if self.should_log(&failure.reason) {
                    let reason = &failure.reason;
                    tracing::warn!("no stream from the leader {leader}: {reason}");
                }
                self.needs_full_state |= failure.is_protocol_error;
                self.move_at = Instant::now() + jittered(LEADER_RETRY);
            }
        }
    }

    /// Replaces the current connection with the candidate, which has caught up.
    fn promote(&mut self) {
        self.current = self.candidate.take();
        self.move_at = Instant::now() + jittered(LEADER_RETRY);
        self.connected();
        (self.notify)(StreamEvent::CaughtUp);
    }

    /// Handles a leader address from the current controller.
    fn on_leader(&mut self, is_new: bool) {
        let Some(current) = &self.current else {
            return;
        };
        let leader = current.other_leader();
        let is_other = |candidate: &Connection| candidate.address.as_ref() != leader;
        if self.candidate.as_ref().is_some_and(is_other) {
            self.candidate = None;
        }
        // The delay was for a different leader. After a move it still applies.
        if is_new && current.address.is_none() {
            self.move_at = Instant::now();
        }
    }

    fn connected(&mut self) {
        (self.notify)(StreamEvent::Connected);
        let Some(connection) = &self.current else {
            return;
        };
        let url = self.settings.authority();
        match &connection.address {
            Some(leader) => tracing::info!("receiving objects from the leader {leader}"),
            None => tracing::info!("receiving objects from the controller at https://{url}"),
        }
        self.logged.clear();
        self.wait("its first state is not complete");
    }

    fn committed(&mut self) {
        self.needs_full_state = false;
        if self.state.is_behind(&self.published) {
            let end = Instant::now() + CATCH_UP;
            self.late_until = self.late_until.or(Some(end));
        } else {
            self.accept();
        }
    }

    /// Publishes the state.
    fn accept(&mut self) {
        // In this order: no state is served, and reported, that the next copy may lack.
        self.copies.send_replace(self.state.clone());
        self.publish();
    }

    fn pods_changed(&mut self) {
        if let Some(pods) = &self.state.pods {
            (self.notify)(StreamEvent::Pods(pods));
        }
        if self.late_until.is_none() {
            self.copies.send_replace(self.state.clone());
        }
    }

    /// Publishes the copy of a previous container, unless a state is published already.
    fn publish_copy(&mut self) {
        // A state that is late has taken its place.
        if self.held_until.is_some() && self.late_until.is_none() {
            self.publish();
            tracing::info!("loaded the copy of a previous container");
        }
    }

    fn publish(&mut self) {
        (self.held_until, self.late_until) = (None, None);
        self.published = self.state.clone();
        if let Some(secret) = &self.state.session_secret {
            (self.notify)(StreamEvent::SessionSecret(secret));
        }
        self.loads.send_replace(Arc::new(self.state.load()));
        if let Some(position) = &self.state.position {
            (self.notify)(StreamEvent::Committed(position));
        }
    }

    /// Handles the end of the current connection. A connection to the leader continues.
    fn lose_current(&mut self, failure: &Failure) {
        self.publish_copy();
        self.needs_full_state |= failure.is_protocol_error;
        let now = Instant::now();
        let begun = self.current.take().and_then(|connection| connection.begun);
        let has_worked = !failure.is_protocol_error
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

    /// Publishes the reason for waiting while no state is published.
    fn wait(&mut self, reason: &str) {
        if self.held_until.is_some() || self.state.position.is_none() {
            let url = self.settings.authority();
            let text = format!("waiting for the controller at https://{url}: {reason}");
            (self.notify)(StreamEvent::Waiting(text));
        }
    }

    /// Logs why there is no stream.
    fn log(&mut self, reason: &str) {
        if !self.should_log(reason) {
            return;
        }
        let url = self.settings.authority();
        let consequence = match self.state.position {
            Some(_) => "the last state stays in service and may be out of date",
            None => "nothing is served",
        };
        tracing::warn!("no stream from the controller at https://{url}: {reason}; {consequence}");
    }

    /// Reports whether to log a failure. Logs each one once per interval. Remembers several, since different addresses
    /// of one name may fail in turn.
    fn should_log(&mut self, reason: &str) -> bool {
        self.logged.retain(|_, at| at.elapsed() < LOG_INTERVAL);
        let is_new = !self.logged.contains_key(reason) && self.logged.len() < MAX_LOGGED;
        if is_new {
            self.logged.insert(reason.to_owned(), Instant::now());
        }
        is_new
    }
}

/// Returns the key sets that tokens lack keys of, but not before `at`. Cancel safe.
async fn asked(requests: &KeyRequests, at: Instant) -> Vec<KeySetName> {
    sleep_until(at).await;
    let asked = poll_fn(|cx| requests.poll_take(cx)).await;
    let name = |key_set: &ObjectRef| KeySetName {
        namespace: key_set.namespace.to_string(),
        name: key_set.name.to_string(),
    };
    asked.iter().map(name).collect()
}

/// Returns the next update of a connection. Pending forever without a connection.
async fn next(connection: &mut Option<Connection>) -> Result<Update, Failure> {
    or_pending(connection.as_mut().map(|it| it.session.next())).await
}

/// Applies an update and returns the next step.
fn step(
    connection: &mut Connection,
    update: Result<Update, Failure>,
    state: &mut GatewayObjects,
) -> Result<Step, Failure> {
    let step = connection
        .intake
        .take(update?, state)
        .map_err(Failure::protocol_error)?;
    match step {
        Step::Begun { .. } if connection.begun.is_some() => Ok(Step::Staged),
        Step::Begun { .. } => {
            connection.begun = Some(Instant::now());
            Ok(step)
        }
        _ => Ok(step),
    }
}

/// Returns a random delay between half and all of `wait`.
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(rand::rng().random_range(0.5..1.0))
}

#[cfg(test)]
mod tests;
