//! Memory of the heads of HTTP/2 requests. Of each connection, a little does not count. Further heads are copied out of the
//! buffers that they were read into, and count as memory of the connection until their responses begin.

use std::cell::Cell;

use http::{Request, Uri};

use crate::header_memory;

/// Bytes of a connection that do not count: the largest head by default, or the usual heads of some dozen requests.
const FREE: usize = 64 * 1024;

/// The heads of the open requests of one connection.
#[derive(Default)]
pub(super) struct RequestHeads {
    /// Bytes of those that do not count.
    free: Cell<usize>,
    /// Bytes before the heads that were read together.
    read: Cell<usize>,
}

/// The memory of the head of one request.
pub(super) enum HeadMemory {
    /// These bytes are of those that do not count.
    Free(usize),
    /// These bytes count.
    Counted(usize),
}

impl RequestHeads {
    /// Takes the head of a request after this many new bytes, 0 for another one of them. Any of the heads may keep all of these
    /// allocated.
    pub(super) fn take<B>(&self, request: &mut Request<B>, received: usize) -> HeadMemory {
        if received > 0 {
            self.read.set(received);
        }
        let (size, received) = (size(request), self.read.get());
        let free = self.free.get() + size + received;
        if free <= FREE {
            self.free.set(free);
            return HeadMemory::Free(size + received);
        }
        detach(request);
        HeadMemory::Counted(size)
    }

    /// Forgets the head of a request that has ended.
    pub(super) fn release(&self, head: &HeadMemory) {
        if let HeadMemory::Free(bytes) = head {
            self.free.set(self.free.get() - bytes);
        }
    }
}

/// Returns the bytes of a head without its buffer.
fn size<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    request.method().as_str().len()
        + uri.authority().map_or(0, |it| it.as_str().len())
        + uri.path_and_query().map_or(0, |it| it.as_str().len())
        + header_memory::size(request.headers())
}

/// Copies a head out of its buffer.
fn detach<B>(request: &mut Request<B>) {
    header_memory::detach(request.headers_mut());
    let mut parts = request.uri().clone().into_parts();
    if let Some(authority) = &mut parts.authority
        && let Ok(copy) = authority.as_str().parse()
    {
        *authority = copy;
    }
    if let Some(target) = &mut parts.path_and_query
        && let Ok(copy) = target.as_str().parse()
    {
        *target = copy;
    }
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderValue;
    use http::uri::{self, PathAndQuery};

    use super::*;

    /// A request whose head is in one buffer, as h2 reads it.
    fn request(path: &str, value: usize) -> Request<()> {
        let buffer = Bytes::from([path, &"x".repeat(value)].concat());
        let target = buffer.slice(..path.len());
        let mut uri = uri::Parts::default();
        uri.path_and_query = Some(PathAndQuery::from_maybe_shared(target).unwrap());
        let value = HeaderValue::from_maybe_shared(buffer.slice(path.len()..)).unwrap();
        let mut request = Request::new(());
        *request.uri_mut() = Uri::from_parts(uri).unwrap();
        request.headers_mut().insert("field", value);
        request
    }

    #[test]
    fn heads_count_beyond_what_is_free() {
        let heads = RequestHeads::default();
        let take = |size, received| heads.take(&mut request("/", size), received);
        let first = take(1000, FREE / 2);
        assert!(matches!(first, HeadMemory::Free(bytes) if bytes > FREE / 2 + 1000));
        let of_same_read = take(1, 0);
        assert!(matches!(of_same_read, HeadMemory::Counted(bytes) if bytes < 1000));
        let large = take(FREE / 2, 1);
        assert!(matches!(large, HeadMemory::Counted(bytes) if bytes < FREE / 2 + 1000));
        let after_much = take(1, FREE);
        assert!(matches!(after_much, HeadMemory::Counted(bytes) if bytes < 1000));
        let second = take(1, 1);
        assert!(matches!(second, HeadMemory::Free(_)));
        for head in [first, of_same_read, large, after_much, second] {
            heads.release(&head);
        }
        assert_eq!(heads.free.get(), 0);
    }

    #[test]
    fn every_part_of_a_head_counts() {
        let long = "x".repeat(1000);
        let requests = [
            Request::builder().method(long.as_str()),
            Request::builder().uri(format!("http://{long}/")),
            Request::builder().uri(format!("/{long}")),
            Request::builder().header("field", &long),
        ];
        for request in requests.map(|it| it.body(()).unwrap()) {
            assert!(size(&request) >= 1000, "{request:?}");
        }
    }

    #[test]
    fn counted_head_leaves_its_buffer() {
        for path in ["/a?b", "*", "/"] {
            let [mut free, mut counted] = [0, FREE].map(|received| {
                let mut request = request(path, 100);
                let addresses = [
                    request.uri().path().as_ptr(),
                    request.headers()["field"].as_bytes().as_ptr(),
                ];
                RequestHeads::default().take(&mut request, received);
                (request, addresses)
            });
            let stays = |(request, addresses): &mut (Request<()>, [*const u8; 2])| {
                let field = &request.headers()["field"];
                assert_eq!(field.len(), 100);
                let target = request.uri().path_and_query();
                assert_eq!(target.map(PathAndQuery::as_str), Some(path));
                let now = [request.uri().path().as_ptr(), field.as_bytes().as_ptr()];
                [now[0] == addresses[0], now[1] == addresses[1]]
            };
            assert_eq!(stays(&mut free), [true; 2]);
            assert_eq!(stays(&mut counted), [false; 2], "{path}");
        }
    }
}
