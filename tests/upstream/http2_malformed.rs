//! HTTP/2: responses that violate the protocol in ways that the h2 library accepts.

use http::Method;
use portcullis::table::UpstreamFault;
use portcullis::upstream::SendError;

use crate::raw::{DATA, HEADERS, Raw};
use crate::scene::{BROKEN_BODY, Endpoint, Outcome, TestRequest, Worker, block_on, h2c};

#[test]
fn rejects_a_content_length_that_is_not_a_number() {
    // Literal fields without indexing: `content-length` is entry 28 of the static table.
    let empty: &[u8] = &[0x88, 0x0f, 0x0d, 0x00];
    for (method, flags) in [(Method::GET, 4), (Method::GET, 5), (Method::HEAD, 5)] {
        let outcome = response_to(method, flags, empty, &[]);
        assert!(matches!(
            outcome,
            Err(SendError::Backend(UpstreamFault::Protocol, _))
        ));
    }
}

#[test]
fn drops_the_content_length_of_a_204() {
    // Entry 9 of the static table is `:status: 204`.
    let outcome = response_to(Method::GET, 5, b"\x89\x0f\x0d\x015", &[]);
    let outcome = outcome.expect("a response");
    assert_eq!(outcome.status, 204);
    assert!(!outcome.headers.contains_key("content-length"));
}

#[test]
fn response_without_content_may_end_after_its_head() {
    // Entries 9 and 11 of the static table are `:status: 204` and `:status: 304`.
    const HEADS: [&[u8]; 2] = [b"\x89\x0f\x0d\x015", b"\x8b\x0f\x0d\x015"];
    const END: &[Frame] = &[(DATA, 1, b"")];
    for (head, status) in HEADS.into_iter().zip([204, 304]) {
        let outcome = response_to(Method::GET, 4, head, END);
        let outcome = outcome.expect("a response");
        assert_eq!(outcome.status, status);
        assert!(outcome.body.is_empty());
    }
}

/// Type, flags and payload of a frame.
type Frame = (u8, u8, &'static [u8]);

#[test]
fn rejects_pseudo_headers_in_wrong_places() {
    // Entries of the static table: 8 is `:status: 200`, 4 is `:path: /`, 2 is `:method: GET`.
    const OK: &[u8] = &[0x88];
    const HEADS: [&[u8]; 3] = [&[0x88, 0x84], &[0x88, 0x82], b"\x88\x00\x07:scheme\x01a"];
    const BODY: Frame = (DATA, 0, b"ok");
    const END: &[Frame] = &[(DATA, 1, b"ok")];
    const WITH_PATH: &[Frame] = &[BODY, (HEADERS, 5, &[0x84])];
    const WITH_STATUS: &[Frame] = &[BODY, (HEADERS, 5, OK)];
    const WITH_FIELD: &[Frame] = &[BODY, (HEADERS, 5, b"\x00\x01a\x01b")];
    for head in HEADS {
        for flags in [4, 5] {
            let outcome = response_to(Method::GET, flags, head, END);
            assert!(matches!(
                outcome,
                Err(SendError::Backend(UpstreamFault::Protocol, _))
            ));
        }
    }
    for trailers in [WITH_PATH, WITH_STATUS] {
        let outcome = response_to(Method::GET, 4, OK, trailers);
        // If the trailers have arrived with the head, that fails already.
        assert!(matches!(
            outcome,
            Err(BROKEN_BODY | SendError::Backend(UpstreamFault::Protocol, _))
        ));
    }
    let outcome = response_to(Method::GET, 4, OK, WITH_FIELD);
    assert_eq!(outcome.expect("a response").body, "ok");
}

/// Sends a request to a backend whose response is this block of headers with these flags, and
/// these frames.
fn response_to(
    method: Method,
    flags: u8,
    headers: &'static [u8],
    frames: &'static [Frame],
) -> Result<Outcome, SendError> {
    block_on(async {
        let origin = Endpoint::start(move |socket, _| async move {
            let mut raw = Raw::accept(socket).await;
            while let Some(stream) = raw.request().await {
                raw.send(HEADERS, flags, stream, headers).await;
                for (kind, flags, payload) in frames {
                    raw.send(*kind, *flags, stream, payload).await;
                }
            }
        })
        .await;
        let (worker, backend) = (Worker::new(), h2c(&[origin.address]));
        worker.send(&backend, &TestRequest::new(method, "")).await
    })
}
