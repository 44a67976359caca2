//! A pod without a network: what it does with the bytes of its connections, and with its copy. Follows the rules of the
//! follower: at most one candidate, which replaces the current connection when it has caught up.

use std::fs::{self, OpenOptions};

use tempfile::TempDir;

use super::copy::{self, Journal};
use super::lines::{Lines, parse};
use super::objects::{GatewayObjects, Step, UpdateDecoder};
use crate::api::Key;
use crate::provider::Load;
use crate::wire::Position;

/// A pod.
pub(crate) struct Pod {
    gateway: Key,
    dir: TempDir,
    journal: Journal,
    state: GatewayObjects,
    needs_full_state: bool,
    current: Option<Connection>,
    candidate: Option<Connection>,
}

/// What was received on a connection.
#[derive(Default)]
struct Connection {
    lines: Lines,
    intake: UpdateDecoder,
}

/// The place of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionRole {
    Current,
    Candidate,
}

/// What bytes have done.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The states that were published.
    pub(crate) loads: Vec<Load>,
    /// Whether the candidate has replaced the current connection.
    pub(crate) is_promoted: bool,
}

impl Pod {
    /// Creates a pod without a copy.
    pub(crate) fn new(gateway: Key) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            gateway,
            journal: Journal::new(dir.path().to_owned()),
            dir,
            state: GatewayObjects::default(),
            needs_full_state: false,
            current: None,
            candidate: None,
        }
    }

    /// Connects. Returns the position that the pod names.
    pub(crate) fn connect(&mut self, place: ConnectionRole) -> Option<Position> {
        *self.connection(place) = Some(Connection::default());
        let position = self.state.position.clone();
        position.filter(|_| !self.needs_full_state)
    }

    /// Ends a connection.
    pub(crate) fn disconnect(&mut self, place: ConnectionRole) {
        *self.connection(place) = None;
    }

    fn connection(&mut self, place: ConnectionRole) -> &mut Option<Connection> {
        match place {
            ConnectionRole::Current => &mut self.current,
            ConnectionRole::Candidate => &mut self.candidate,
        }
    }

    /// Receives bytes of a connection.
    ///
    /// # Errors
    /// When the controller violates the protocol. The connection has ended then.
    pub(crate) fn receive(
        &mut self,
        mut place: ConnectionRole,
        bytes: &[u8],
    ) -> Result<Received, String> {
        let mut received = Received::default();
        if let Some(connection) = self.connection(place) {
            connection.lines.push(bytes);
        }
        loop {
            let step = match self.next(place) {
                Ok(None) => return Ok(received),
                Ok(Some(step)) => step,
                Err(why) => {
                    self.needs_full_state = true;
                    self.disconnect(place);
                    return Err(why);
                }
            };
            let is_caught_up =
                step == Step::Committed || step == Step::Begun { is_caught_up: true };
            if is_caught_up && place == ConnectionRole::Candidate {
                self.current = self.candidate.take();
                place = ConnectionRole::Current;
                received.is_promoted = true;
            }
            if step == Step::Committed {
                self.needs_full_state = false;
                received.loads.push(self.state.load());
            }
        }
    }

    /// Takes the next line of a connection.
    fn next(&mut self, place: ConnectionRole) -> Result<Option<Step>, String> {
        let connection = match place {
            ConnectionRole::Current => &mut self.current,
            ConnectionRole::Candidate => &mut self.candidate,
        };
        let Some(connection) = connection else {
            return Ok(None);
        };
        while let Some(line) = connection.lines.next()? {
            if let Some(update) = parse(&line)? {
                return connection.intake.take(update, &mut self.state).map(Some);
            }
        }
        Ok(None)
    }

    /// Writes the copy.
    pub(crate) fn write_copy(&mut self) {
        if self.state.position.is_some() {
            self.journal.write(self.state.clone()).unwrap();
        }
    }

    /// Restarts the container, after a last write that lacks some bytes at its end. Returns what it
    /// publishes if no controller responds.
    pub(crate) fn restart(&mut self, torn: u64) -> Option<Load> {
        let file = self.dir.path().join(copy::FILE);
        if let Ok(metadata) = fs::metadata(&file) {
            let file = OpenOptions::new().write(true).open(&file).unwrap();
            file.set_len(metadata.len().saturating_sub(torn)).unwrap();
        }
        (self.current, self.candidate) = (None, None);
        self.needs_full_state = false;
        self.journal = Journal::new(self.dir.path().to_owned());
        let copy = copy::read(self.dir.path(), &self.gateway);
        self.state = copy.unwrap_or_default();
        self.state.position.is_some().then(|| self.state.load())
    }
}
