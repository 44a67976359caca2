//! The body of a request as its client sends it, and how much of it a backend has got through the picker: if that ends, the rest
//! follows.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};

use crate::proxy::body::request_body::RequestBody;
use crate::proxy::worker_state::budget::Share;
use crate::upstream::{BoxError, Replay};

/// Maximum bytes of a body that are kept, so that it can go on as it was if the picker ends.
pub(super) const MAX_REPLAY: usize = 1024 * 1024;

/// The body of a client.
pub(super) struct Original {
    pub(super) body: RequestBody,
    /// Bytes at its beginning that a backend may have, and does not get again.
    taken: usize,
    /// Whether the rest can follow, once it is to.
    has_rest: Option<bool>,
}

impl Original {
    /// Keeps the body as memory of a client. `share` is that of its connection.
    pub(super) fn new(mut body: RequestBody, share: &Rc<Share>) -> Self {
        body.keep_in(MAX_REPLAY, &share.of_picked());
        Self {
            body,
            taken: 0,
            has_rest: None,
        }
    }

    /// Notes a part that a backend gets. Returns false if it is not the next part of the body, or if that is not kept.
    pub(super) fn take(&mut self, part: &[u8]) -> bool {
        let is_next = self.body.has_kept_at(self.taken, part);
        if is_next {
            self.taken += part.len();
        }
        is_next
    }

    /// Begins the rest, unless it has begun. Returns false if the body is not kept.
    pub(super) fn begin_rest(&mut self) -> bool {
        let body = &mut self.body;
        *self.has_rest.get_or_insert_with(|| body.rewind())
    }

    /// Returns the next frame of the rest.
    pub(super) fn poll_rest(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                return Poll::Ready(None);
            };
            let data = match frame.map(Frame::into_data) {
                Ok(Ok(data)) => data,
                Ok(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            let taken = data.len().min(self.taken);
            self.taken -= taken;
            if taken == 0 || taken < data.len() {
                return Poll::Ready(Some(Ok(Frame::data(data.slice(taken..)))));
            }
        }
    }

    /// Returns the body at its first byte. `None` if that is not kept.
    pub(super) fn rewound(&mut self) -> Option<RequestBody> {
        let is_kept = self.body.rewind();
        is_kept.then(|| std::mem::take(&mut self.body))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::task::Waker;

    use http::HeaderMap;

    use super::*;
    use crate::proxy::worker_state::budget::Budget;

    /// A body with these parts, of which the last one is in trailers if it is `None`.
    struct Parts(Vec<Option<Bytes>>);

    impl Body for Parts {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            if self.0.is_empty() {
                return Poll::Ready(None);
            }
            let part = self.0.remove(0);
            let frame = part.map_or_else(|| Frame::trailers(HeaderMap::new()), Frame::data);
            Poll::Ready(Some(Ok(frame)))
        }
    }

    fn original(parts: Vec<Option<Bytes>>, share: &Rc<Share>) -> Original {
        let body = RequestBody::derived(Box::new(Parts(parts)), share);
        Original::new(body, share)
    }

    fn share(workers: usize) -> Rc<Share> {
        Budget::of_worker(workers).share(IpAddr::from([192, 0, 2, 1]))
    }

    /// Reads this number of frames, as those for the picker are.
    fn read(original: &mut Original, frames: usize) {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..frames {
            assert!(Pin::new(&mut original.body).poll_frame(&mut cx).is_ready());
        }
    }

    /// Returns the rest as text; trailers are a T.
    fn rest(original: &mut Original) -> String {
        let mut cx = Context::from_waker(Waker::noop());
        let mut text = String::new();
        while let Poll::Ready(Some(frame)) = original.poll_rest(&mut cx) {
            match frame.unwrap().into_data() {
                Ok(data) => text.push_str(std::str::from_utf8(&data).unwrap()),
                Err(_) => text.push('T'),
            }
        }
        text
    }

    fn abc() -> Vec<Option<Bytes>> {
        let parts = ["ab", "cd", "ef"].map(|part| Some(Bytes::from_static(part.as_bytes())));
        parts.into_iter().chain([None]).collect()
    }

    #[test]
    fn rest_follows_what_a_backend_has() {
        for (taken, expected) in [
            ("", "abcdefT"),
            ("a", "bcdefT"),
            ("ab", "cdefT"),
            ("a,bc", "defT"),
            ("abcd", "efT"),
        ] {
            let mut original = original(abc(), &share(1));
            read(&mut original, 2);
            let mut parts = taken.split(',');
            assert!(parts.all(|part| original.take(part.as_bytes())));
            assert!(original.begin_rest() && original.begin_rest());
            assert_eq!(rest(&mut original), expected, "{taken}");
        }
    }

    #[test]
    fn other_bytes_are_not_those_of_the_body() {
        let mut original = original(abc(), &share(1));
        read(&mut original, 1);
        assert!(!original.take(b"x") && original.take(b"a") && !original.take(b"a"));
        // It has not been read as far.
        assert!(!original.take(b"bc"));
        assert!(original.rewound().is_some());
    }

    #[test]
    fn a_mebibyte_is_kept_whatever_the_number_of_workers() {
        for workers in [1, 2, 4, 8, 64] {
            let parts = (0..64).map(|_| Some(Bytes::from(vec![b'a'; MAX_REPLAY / 64])));
            let mut original = original(parts.collect(), &share(workers));
            read(&mut original, 64);
            assert!(original.take(&[b'a'; 100]), "{workers} workers");
            assert!(original.begin_rest());
            assert_eq!(rest(&mut original).len(), MAX_REPLAY - 100);
        }
    }
}
