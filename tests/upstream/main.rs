//! Upstream connections as used by the proxy: attempts of `portcullis::upstream` on scripted
//! endpoints on loopback, without a data plane. One module per topic.

#[path = "../harness/mod.rs"]
mod harness;

mod raw;
mod scene;

mod health;
mod http1;
mod http2;
mod http2_malformed;
mod releases;
mod stale;
mod tls;

/// An attempt is part of each request's future, which is moved.
#[test]
fn attempt_is_small() {
    use portcullis::upstream::{Attempts, Outgoing, Semantics};
    use scene::{TestBody, TestRequest, Worker, block_on, http1};

    block_on(async {
        let (worker, backend, request) = (Worker::new(), http1(&[]), TestRequest::get());
        let outgoing = Outgoing {
            parts: &request.parts,
            semantics: Semantics::Safe,
            added: &[],
            upgrade: None,
            expect_continue: false,
            informational: None,
            try_timeout: None,
            keeps_body: false,
        };
        let mut attempts = Attempts::default();
        let body = TestBody::default();
        let body_size = size_of_val(&body);
        let attempt = worker
            .upstream
            .attempt(&backend, None, &mut attempts, &outgoing, body);
        let size = size_of_val(&attempt);
        assert!(size <= 128 + body_size, "{size}");
    });
}
