//! When a connection from which nothing is read gets a PING, and when its peer counts as dead. A peer that is not asked for
//! anything may be quiet for as long as it likes: the host finds out whether it is there (`peer_watch.rs`).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Time without a response to what was sent before a PING.
pub(super) const PING_AFTER: Duration = Duration::from_secs(30);
/// Timeout of a PING response.
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two PINGs. gRPC servers end connections with more of them (gRPC proposal A8: `too_many_pings`).
const PING_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// What is known of a connection when its deadline has passed. Times are milliseconds.
pub(super) struct Silence {
    pub(super) awaits_pong: bool,
    pub(super) last_read: Rc<Cell<u64>>,
    pub(super) last_written: Rc<Cell<u64>>,
    /// Time before which no PING is sent.
    pub(super) next_ping: u64,
}

/// What follows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing for this time.
    Wait(Duration),
    /// A PING is sent.
    Ping,
    /// The peer is dead.
    Dead,
}

impl Silence {
    /// Judges the peer at `now`.
    pub(super) fn judge(&mut self, now: u64, has_streams: bool) -> Verdict {
        let read = self.last_read.get();
        let silent = Duration::from_millis(now.saturating_sub(read));
        // What was written in the same tick may be a response to what was read.
        let is_asked = self.last_written.get() >= read;
        if !has_streams || silent < PING_TIMEOUT {
            Verdict::Wait(PING_AFTER)
        } else if silent < PING_AFTER {
            Verdict::Wait(PING_AFTER - silent)
        } else if self.awaits_pong {
            Verdict::Dead
        } else if is_asked && now >= self.next_ping {
            self.awaits_pong = true;
            self.next_ping = now.saturating_add(PING_INTERVAL.as_millis() as u64);
            Verdict::Ping
        } else {
            Verdict::Wait(PING_AFTER)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1000;

    /// Simulates a connection with a stream for a time, as its driver does. `answers` tells whether the peer responds to PINGs, and
    /// `writes` at which seconds the proxy sends something. Returns the seconds of PINGs, and when the peer counts as dead.
    fn simulate(seconds: u64, answers: bool, writes: &[u64]) -> (Vec<u64>, Option<u64>) {
        let mut silence = Silence {
            awaits_pong: false,
            last_read: Rc::new(Cell::new(2 * SECOND)),
            last_written: Rc::new(Cell::new(SECOND)),
            next_ping: 0,
        };
        let mut due = PING_AFTER.as_secs();
        let mut pings = Vec::new();
        for second in 3..=seconds {
            let now = second * SECOND;
            if writes.contains(&second) {
                silence.last_written.set(now);
            }
            if second < due {
                continue;
            }
            match silence.judge(now, true) {
                Verdict::Wait(time) => due = second + time.as_secs(),
                Verdict::Dead => return (pings, Some(second)),
                Verdict::Ping => {
                    pings.push(second);
                    silence.last_written.set(now);
                    if answers {
                        silence.awaits_pong = false;
                        silence.last_read.set(now + 1);
                        due = second + PING_AFTER.as_secs();
                    } else {
                        due = second + PING_TIMEOUT.as_secs();
                    }
                }
            }
        }
        (pings, None)
    }

    #[test]
    fn quiet_stream_is_not_pinged() {
        assert_eq!(simulate(3600, true, &[]), (vec![], None));
        assert_eq!(simulate(3600, false, &[]), (vec![], None));
    }

    #[test]
    fn peer_that_does_not_respond_to_a_request_is_dead_after_a_ping() {
        let (pings, dead) = simulate(3600, false, &[5]);
        assert_eq!((pings.len(), dead), (1, Some(pings[0] + 10)));
        assert!(pings[0] <= 2 * PING_AFTER.as_secs());
    }

    #[test]
    fn streams_that_only_send_are_pinged_as_rarely_as_grpc_servers_demand() {
        let writes: Vec<_> = (3..3600).collect();
        let (pings, dead) = simulate(3600, true, &writes);
        assert_eq!(dead, None);
        assert!(pings.len() >= 10, "{pings:?}");
        assert!(pings.windows(2).all(|it| it[1] - it[0] >= 300), "{pings:?}");
    }
}
