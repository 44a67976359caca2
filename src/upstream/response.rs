//! A backend's response: the head, and a body that holds the connection until its end and then
//! returns it to the pool if it can be reused.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::attempts::Attempts;
use super::connector::ConnectionKey;
use super::exchange::Exchange;
use super::exchange_error::ExchangeError;
use super::http2::READ_TOO_SLOWLY;
use super::in_flight::InFlight;
use super::outgoing::{BoxError, Replay};
use super::pool::Pool;
use super::response_head::Head;
use super::upgraded::{Carrier, Upgraded, UpgradedIo};
use crate::table::EndpointFault;

/// Maximum frames of a discarded response that are read so that its connection can be reused.
const MAX_DISCARDED_FRAMES: usize = 16;

/// The response to a request.
pub struct Response<B> {
    /// Status.
    pub status: StatusCode,
    /// End-to-end headers, and `Upgrade` of a 101 or 426.
    pub headers: HeaderMap,
    /// Body.
    pub body: ResponseBody<B>,
}

/// The body of a [`Response`]. Counts as a request in flight until dropped.
pub struct ResponseBody<B> {
    exchange: Exchange<B>,
    pool: Rc<Pool>,
    key: ConnectionKey,
    in_flight: InFlight,
}

impl<B: Replay> Response<B> {
    pub(super) fn new(
        head: Head,
        exchange: Exchange<B>,
        pool: Rc<Pool>,
        key: ConnectionKey,
        in_flight: InFlight,
    ) -> Self {
        let mut body = ResponseBody {
            exchange,
            pool,
            key,
            in_flight,
        };
        // A response without a body is complete: no later poll would return its connection.
        body.release();
        Self {
            status: head.status,
            headers: head.headers,
            body,
        }
    }
}

impl<B: Replay> Response<B> {
    /// Discards the response in favor of another attempt. That attempt avoids this endpoint if
    /// there is another one. Returns the request body at its first byte. Returns `None` and changes
    /// nothing if the body is not kept ([`Outgoing::keeps_body`](super::Outgoing::keeps_body)) or
    /// too long.
    pub fn discard(&mut self, attempts: &mut Attempts) -> Option<B> {
        let body = self.body.exchange.take_rewound()?;
        attempts.begin_retry(Some(self.body.in_flight.endpoint().id));
        self.body.drain();
        Some(body)
    }

    /// Releases the request body, if it was kept, because this response is forwarded.
    pub fn accept(&mut self) {
        self.body.exchange.forget_body();
    }
}

impl<B: Replay> ResponseBody<B> {
    /// Returns the endpoint that responded.
    pub fn endpoint(&self) -> SocketAddr {
        self.in_flight.endpoint().address
    }

    /// Returns the connection, or the stream of it, after a 101.
    pub fn into_upgraded(self) -> Option<Upgraded> {
        let (carrier, slot, first) = match self.exchange {
            Exchange::Http1(exchange) => {
                let (io, first) = exchange.into_upgraded()?.into_parts();
                (Carrier::Connection(Box::new(io)), None, first)
            }
            Exchange::Http2(exchange) => {
                let (tunnel, slot) = exchange.into_tunnel()?;
                let carrier = Carrier::Stream(Box::new(tunnel));
                (carrier, Some(slot), Bytes::new())
            }
        };
        Some(Upgraded {
            io: UpgradedIo(carrier),
            _slot: slot,
            first,
            in_flight: self.in_flight,
        })
    }

    /// Reads what has arrived of a body that nobody wants, so that its connection is reused if that is all.
    pub fn drain(&mut self) {
        // A no-op waker never waits.
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..MAX_DISCARDED_FRAMES {
            match Pin::new(&mut *self).poll_frame(&mut cx) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(None | Some(Err(_))) | Poll::Pending => break,
            }
        }
    }

    /// Sends as much of the rest of the request as possible while the response is not read. Nothing follows a whole response.
    ///
    /// # Errors
    /// The body of the request has failed. The response must not be read any more.
    pub fn send_rest(&mut self, cx: &mut Context<'_>) -> Result<(), BoxError> {
        match self.exchange.is_end_stream() {
            true => Ok(()),
            false => self.exchange.send_rest(cx).map_err(BoxError::from),
        }
    }

    /// Gives back what it can of the read buffer while nobody takes the body. Returns the bytes that stay allocated.
    pub fn compact(&mut self) -> usize {
        self.exchange.compact()
    }

    /// Counts a response that has broken off for its endpoint, if that is the cause.
    #[cold]
    fn count_fault(&self, error: ExchangeError) {
        if let Some(fault) = endpoint_fault(error) {
            self.in_flight.endpoint().faults.add(fault);
        }
    }

    /// Returns the connection to the pool once the exchange is complete.
    fn release(&mut self) {
        if let Exchange::Http1(exchange) = &mut self.exchange
            && exchange.is_end_stream()
            && let Some(connection) = exchange.take_idle()
        {
            self.pool.put(self.key, connection);
        }
    }
}

/// Classifies an error of a response body; `None` if the endpoint is not the cause.
fn endpoint_fault(error: ExchangeError) -> Option<EndpointFault> {
    match error {
        // The machine or the way to it is gone: see `peer_watch`.
        ExchangeError::Io(ErrorKind::TimedOut) => Some(EndpointFault::Unreachable),
        ExchangeError::Truncated | ExchangeError::Io(_) => Some(EndpointFault::Truncated),
        READ_TOO_SLOWLY => None,
        ExchangeError::Protocol(_) => Some(EndpointFault::Protocol),
        // A stream may be reset on purpose, and the others are those of requests.
        ExchangeError::Reset
        | ExchangeError::Refused
        | ExchangeError::NotProcessed
        | ExchangeError::RequestBody => None,
    }
}

impl<B: Replay> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = self.exchange.poll_frame(cx);
        if frame.is_ready() {
            self.release();
        }
        if let Poll::Ready(Some(Err(error))) = &frame {
            self.count_fault(*error);
        }
        frame.map_err(BoxError::from)
    }

    fn is_end_stream(&self) -> bool {
        self.exchange.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.exchange
            .remaining()
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_that_break_off_have_causes() {
        let io = |kind: ErrorKind| endpoint_fault(ExchangeError::Io(kind));
        assert_eq!(io(ErrorKind::TimedOut), Some(EndpointFault::Unreachable));
        let truncated = Some(EndpointFault::Truncated);
        assert_eq!(io(ErrorKind::ConnectionReset), truncated);
        assert_eq!(endpoint_fault(ExchangeError::Truncated), truncated);
        let malformed = ExchangeError::Protocol("malformed");
        assert_eq!(endpoint_fault(malformed), Some(EndpointFault::Protocol));
        assert_eq!(endpoint_fault(READ_TOO_SLOWLY), None);
        assert_eq!(endpoint_fault(ExchangeError::Reset), None);
    }
}
