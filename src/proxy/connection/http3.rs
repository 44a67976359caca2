//! HTTP/3 connections: their control streams, timeouts and GOAWAY. Each request stream runs in its own task.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::task::spawn_local;

use super::deadline::in_time;
use super::http2_shared::CANCELLATIONS;
use super::http3_shared::Shared;
use super::http3_stream;
use super::in_place::in_place;
use crate::http3::{self, Code, StreamEvent, StreamReader};
use crate::proxy::activity::Phase;
use crate::proxy::client::Client;
use crate::proxy::response::outbound::{Outbound, wire_code};
use crate::runtime::clock::Deadline;

/// The id in the first GOAWAY: that of no stream (RFC 9114, 5.2).
const NO_STREAM: u64 = (1 << 62) - 4;
/// Difference between the ids of two request streams in a row (RFC 9000, 2.1).
const NEXT: u64 = 4;
/// Minimum time between the two GOAWAYs, in which requests arrive that were on their way.
const GRACE: Duration = Duration::from_millis(100);
/// Maximum of that time: clients decide how late they acknowledge.
const MAX_GRACE: Duration = Duration::from_secs(3);

/// Serves HTTP/3 on a connection until it ends. It drains when the port is `closing`.
pub(super) async fn serve(quic: Connection, client: Rc<Client>, closing: Rc<Cell<bool>>) {
    let activity = client.activity(true);
    let shared = Shared::new(client, activity, quic.clone());
    let opened = in_time(quic.open_uni(), &shared.activity, &shared.client).await;
    let Some(Ok(control)) = opened else {
        return shared.close(Code::NoError, "");
    };
    let mut server = Server::new(shared, control, closing);
    loop {
        let event = {
            let mut requests = pin!(quic.accept_bi());
            let mut others = pin!(quic.accept_uni());
            poll_fn(|cx| {
                if let Poll::Ready(accepted) = requests.as_mut().poll(cx) {
                    return Poll::Ready(Event::of(accepted, Event::Request));
                }
                if let Poll::Ready(accepted) = others.as_mut().poll(cx) {
                    return Poll::Ready(Event::of(accepted, Event::Other));
                }
                server.poll(cx).map(|()| Event::End)
            })
            .await
        };
        match event {
            Event::Request((send, receive)) => server.accept(send, receive),
            Event::Other(stream) => {
                spawn_local(read_stream(server.shared.clone(), stream));
            }
            Event::End => return,
        }
    }
}

/// What happens on a connection.
enum Event {
    /// The client has opened a request stream.
    Request((SendStream, RecvStream)),
    /// The client has opened a unidirectional stream.
    Other(RecvStream),
    /// The connection has ended.
    End,
}

impl Event {
    fn of<T>(accepted: Result<T, ConnectionError>, event: impl FnOnce(T) -> Self) -> Self {
        accepted.map_or(Self::End, event)
    }
}

/// The GOAWAY that was sent.
enum GoAway {
    None,
    /// Streams that the client opens before it reads the GOAWAY are served, until this time.
    Graceful(Deadline),
    /// Further streams are rejected. The connection ends with this code after the last one.
    Final(Code),
}

/// Server side of a connection.
struct Server {
    shared: Rc<Shared>,
    control: Outbound,
    closing: Rc<Cell<bool>>,
    /// When it has its maximum age, if it has one.
    age: Option<Deadline>,
    /// Id of the first stream that is not served.
    next_stream: u64,
    goaway: GoAway,
}

impl Server {
    fn new(shared: Rc<Shared>, control: SendStream, closing: Rc<Cell<bool>>) -> Self {
        let control = Outbound::new(control, &shared.bodies);
        let mut first = Vec::new();
        http3::write_control_stream(shared.client.limits.max_header_bytes, &mut first);
        control.push(&first);
        let clock = &shared.client.worker.clock;
        Self {
            age: shared.client.age_left().map(|left| {
                let deadline = clock.deadline();
                deadline.set(left);
                deadline
            }),
            shared,
            control,
            closing,
            next_stream: 0,
            goaway: GoAway::None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.set_task(cx);
        // Fails only with the connection.
        let _ = self.control.poll_flush(cx);
        if self.limit_cancellations().is_ready() {
            self.shared
                .close(Code::ExcessiveLoad, "too many cancelled streams");
            return Poll::Ready(());
        }
        if matches!(self.goaway, GoAway::None) && self.has_to_end(cx) {
            self.begin_graceful_end();
        }
        if let GoAway::Graceful(until) = &self.goaway
            && until.poll_due(cx).is_ready()
        {
            self.end_accepting(Code::NoError);
        }
        match self.goaway {
            GoAway::None => self.poll_due(cx),
            GoAway::Final(code) if self.shared.streams() == 0 => {
                self.shared.close(code, "");
                Poll::Ready(())
            }
            GoAway::Graceful(_) | GoAway::Final(_) => {
                // Sends what was added meanwhile.
                let _ = self.control.poll_flush(cx);
                self.poll_due(cx)
            }
        }
    }

    /// Reports whether the connection drains or has its maximum age. Until then, registers its task to be woken at that time.
    fn has_to_end(&self, cx: &Context<'_>) -> bool {
        let age = self.age.as_ref();
        self.closing.get()
            || self.shared.client.is_draining()
            || age.is_some_and(|age| age.poll_due(cx).is_ready())
    }

    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let activity = &self.shared.activity;
        match activity.poll_due(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Phase::Idle) if matches!(self.goaway, GoAway::None) => {
                self.begin_graceful_end();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            // It ends with its last stream, or for a new client.
            Poll::Ready(Phase::Idle) => {
                activity.await_eviction();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            // The client sends its request again, on another connection, if one is on its way.
            Poll::Ready(phase @ (Phase::Evicted | Phase::Head)) => {
                self.shared.client.timed_out(phase);
                self.shared.close(Code::NoError, "");
                Poll::Ready(())
            }
            // Each stream has timeouts of its own.
            Poll::Ready(_) => {
                activity.extend();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    /// Announces the end of the connection to the client.
    fn begin_graceful_end(&mut self) {
        self.push_goaway(NO_STREAM);
        let until = self.shared.client.worker.clock.deadline();
        until.set(grace(self.shared.quic.rtt()));
        self.goaway = GoAway::Graceful(until);
    }

    /// Tells the client which requests are served.
    fn end_accepting(&mut self, code: Code) {
        self.push_goaway(self.next_stream);
        self.goaway = GoAway::Final(code);
    }

    fn push_goaway(&self, stream: u64) {
        let mut frame = Vec::new();
        http3::write_goaway(stream, &mut frame);
        self.control.push(&frame);
    }

    /// Accepts no further streams when the client has cancelled too many. Becomes ready if it continues nevertheless.
    fn limit_cancellations(&mut self) -> Poll<()> {
        let excess = self.shared.cancelled.excess();
        if excess > CANCELLATIONS {
            return Poll::Ready(());
        }
        if excess > 0 && !matches!(self.goaway, GoAway::Final(_)) {
            self.end_accepting(Code::ExcessiveLoad);
        }
        Poll::Pending
    }

    fn accept(&mut self, mut send: SendStream, mut receive: RecvStream) {
        // QUIC does not tell how many bytes have come.
        self.shared.activity.on_read(0);
        if self.shared.ends_by_move() {
            return;
        }
        if let GoAway::Final(_) = self.goaway {
            self.shared.count_cancelled();
            // Fails only if the stream has ended.
            let _ = send.reset(wire_code(Code::RequestRejected));
            let _ = receive.stop(wire_code(Code::RequestRejected));
            return;
        }
        self.next_stream = self.next_stream.max(u64::from(send.id()) + NEXT);
        let (shared, connection) = (self.shared.clone(), self.shared.clone());
        let mut stream = in_place(|| http3_stream::serve(shared, send, receive));
        spawn_local(poll_fn(move |cx| match connection.ends_by_move() {
            true => Poll::Ready(()),
            false => Pin::new(&mut stream).poll(cx),
        }));
    }
}

/// Returns the time between the two GOAWAYs on a connection with this round-trip time.
fn grace(round_trip: Duration) -> Duration {
    round_trip.saturating_mul(2).clamp(GRACE, MAX_GRACE)
}

/// Reads a unidirectional stream of the client. Closes the connection if the client violates the protocol on it, or opens too
/// many that have no use.
async fn read_stream(shared: Rc<Shared>, mut stream: RecvStream) {
    let (code, description) = match read_events(&shared, &mut stream).await {
        // It has cost time, as a request that is cancelled.
        Ok(()) => return shared.count_cancelled(),
        Err(http3::Error::Connection(code, description)) => (code, description),
        // Not on these streams.
        Err(http3::Error::Stream(..) | http3::Error::TooLarge) => (Code::GeneralProtocolError, ""),
    };
    shared.close(code, description);
}

async fn read_events(shared: &Shared, stream: &mut RecvStream) -> Result<(), http3::Error> {
    let mut reader = StreamReader::default();
    loop {
        let mut input = match stream.read_chunk(usize::MAX, true).await {
            Ok(Some(chunk)) => chunk.bytes,
            Err(quinn::ReadError::ConnectionLost(_)) => return Ok(()),
            Ok(None) | Err(_) => return reader.finish(),
        };
        loop {
            let event = reader.read(&mut shared.types.borrow_mut(), &mut input)?;
            match event {
                None => break,
                // Responses are not limited by the settings, which are advice (RFC 9114, 4.2.2). A client that announces its
                // end opens no more streams.
                Some(StreamEvent::Control(_)) => {}
                Some(StreamEvent::Unknown) => {
                    // Fails only if the stream has ended.
                    let _ = stream.stop(wire_code(Code::StreamCreationError));
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_acknowledgments_delay_no_end_of_a_connection() {
        for (round_trip, expected) in [
            (Duration::ZERO, GRACE),
            (Duration::from_millis(200), Duration::from_millis(400)),
            (Duration::from_secs(20), MAX_GRACE),
            (Duration::MAX, MAX_GRACE),
        ] {
            assert_eq!(grace(round_trip), expected);
        }
    }
}
