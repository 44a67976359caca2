//! Tests of compressed bodies: what they decode to, when they pass bytes on, and when they let others run.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use proptest::prelude::*;

use super::*;

/// What a source does when it is polled.
#[derive(Clone, Debug)]
enum Event {
    Data(Vec<u8>),
    Pause,
    Trailers,
    Fail,
}

struct Source(VecDeque<Event>);

impl Frames for Source {
    fn poll_frame(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.0.pop_front() {
            None => Poll::Ready(None),
            Some(Event::Pause) => Poll::Pending,
            Some(Event::Data(data)) => Poll::Ready(Some(Ok(Frame::data(data.into())))),
            Some(Event::Trailers) => {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-end", http::HeaderValue::from_static("1"));
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Some(Event::Fail) => Poll::Ready(Some(Err("failed".into()))),
        }
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn body(
    budget: &Rc<Budget>,
    (encoding, level): (Encoding, Level),
    size: Option<u64>,
    events: Vec<Event>,
) -> CompressedBody<Source> {
    let permit = EncoderPermit::new(budget, CLIENT, encoding).expect("memory");
    CompressedBody::new(Source(events.into()), permit, level, size)
}

/// What a body gave: its bytes, the number of times that it paused, the trailers and whether it failed.
#[derive(Default)]
struct Given {
    data: Vec<u8>,
    pauses: usize,
    trailers: Option<HeaderMap>,
    has_failed: bool,
}

/// Polls a body until its end, with `pauses` times to wait at most.
fn read(body: &mut CompressedBody<Source>, pauses: usize) -> Given {
    let mut given = Given::default();
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        match body.poll_frame(&mut cx) {
            Poll::Pending => {
                given.pauses += 1;
                if given.pauses > pauses {
                    return given;
                }
            }
            Poll::Ready(None) => return given,
            Poll::Ready(Some(Err(_))) => given.has_failed = true,
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => {
                    assert!(!data.is_empty() && data.len() <= OUTPUT);
                    given.data.extend(data);
                }
                Err(frame) => given.trailers = frame.into_trailers().ok(),
            },
        }
    }
}

/// Decodes a stream as far as it goes. Returns the bytes and whether it is complete.
fn decode(encoding: Encoding, data: &[u8]) -> (Vec<u8>, bool) {
    let mut decoded = Vec::new();
    let is_complete = match encoding {
        Encoding::Gzip => {
            let mut decoder = flate2::Decompress::new_gzip(15);
            decoded.reserve(64 * 1024 * 1024);
            let flush = flate2::FlushDecompress::None;
            let status = decoder.decompress_vec(data, &mut decoded, flush).unwrap();
            let is_all = decoder.total_in() as usize == data.len();
            status == flate2::Status::StreamEnd && is_all
        }
        Encoding::Brotli => {
            let mut decoder = brotli::Decompressor::new(data, 4096);
            decoder.read_to_end(&mut decoded).is_ok()
        }
        Encoding::Zstd => {
            let mut decoder = zstd_safe::DCtx::create();
            let mut input = zstd_safe::InBuffer::around(data);
            loop {
                let mut part = vec![0; 64 * 1024];
                let mut output = zstd_safe::OutBuffer::around(&mut part[..]);
                let left = decoder.decompress_stream(&mut output, &mut input).unwrap();
                let written = output.pos();
                decoded.extend_from_slice(&part[..written]);
                if left == 0 || written == 0 {
                    break left == 0 && input.pos() == data.len();
                }
            }
        }
    };
    (decoded, is_complete)
}

const LEVELS: [Level; 3] = [Level::Fast, Level::Default, Level::Best];

fn all() -> impl Iterator<Item = (Encoding, Level)> {
    let encodings = Encoding::ALL.into_iter();
    encodings.flat_map(|encoding| LEVELS.map(|level| (encoding, level)))
}

/// Parts of a body: noise, text and repetitions of different lengths, with pauses between some.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let part = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..2_000).prop_map(Event::Data),
        ("[a-e ]{0,40}", 1..2_000_usize)
            .prop_map(|(text, times)| { Event::Data(text.repeat(times).into_bytes()) }),
        (any::<u8>(), 0..150_000_usize).prop_map(|(byte, times)| Event::Data(vec![byte; times])),
        Just(Event::Pause),
    ];
    proptest::collection::vec(part, 0..12)
}

fn bytes_of(events: &[Event]) -> Vec<u8> {
    let data = events.iter().filter_map(|event| match event {
        Event::Data(data) => Some(data.as_slice()),
        _ => None,
    });
    data.flatten().copied().collect()
}

fn check(events: &[Event], has_trailers: bool, is_known: bool) -> Result<(), TestCaseError> {
    let expected = bytes_of(events);
    for kind in all() {
        let budget = Budget::of_encoders(1);
        let mut events = events.to_vec();
        events.extend(has_trailers.then_some(Event::Trailers));
        let size = is_known.then_some(expected.len() as u64);
        let mut body = body(&budget, kind, size, events);
        let given = read(&mut body, usize::MAX);
        prop_assert!(!given.has_failed && body.is_ended());
        prop_assert_eq!(given.trailers.is_some(), has_trailers);
        let (decoded, is_complete) = decode(kind.0, &given.data);
        prop_assert!(is_complete, "{:?} is not complete", kind);
        prop_assert!(decoded == expected, "{:?} differs", kind);
        prop_assert_eq!(budget.held(), 0);
    }
    Ok(())
}

fn run(cases: u32) {
    let config = ProptestConfig {
        cases,
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let cases = (events(), any::<bool>(), any::<bool>());
    runner
        .run(&cases, |(events, has_trailers, is_known)| {
            check(&events, has_trailers, is_known)
        })
        .unwrap();
}

#[test]
fn decoded_body_is_that_of_the_source() {
    run(24);
}

#[test]
#[ignore = "takes longer: cargo test compressed_body -- --ignored"]
fn decoded_body_is_that_of_the_source_in_2_000_cases() {
    run(2_000);
}

#[test]
fn what_was_sent_is_passed_on_before_the_body_waits() {
    for kind in all() {
        let budget = Budget::of_encoders(1);
        let event = |text: &str| Event::Data(text.into());
        let events = vec![
            event("data: 1\n\n"),
            Event::Pause,
            Event::Pause,
            Event::Pause,
            event("data: 2\n\n"),
            Event::Pause,
            Event::Pause,
        ];
        let mut body = body(&budget, kind, None, events);
        let mut sent = read(&mut body, 0).data;
        assert_eq!(decode(kind.0, &sent), (b"data: 1\n\n".to_vec(), false));
        // Nothing is written again for nothing.
        assert_eq!(read(&mut body, 0).data, b"");
        sent.extend(read(&mut body, 0).data);
        let both = b"data: 1\n\ndata: 2\n\n".to_vec();
        assert_eq!(decode(kind.0, &sent), (both.clone(), false), "{kind:?}");
        sent.extend(read(&mut body, 0).data);
        assert_eq!(decode(kind.0, &sent), (both, true));
        assert_eq!(budget.held(), 0);
    }
}

#[test]
fn much_input_yields_the_worker() {
    let budget = Budget::of_encoders(1);
    for kind in all() {
        let piece = Event::Data(vec![b'a'; 200 * 1024]);
        let mut body = body(&budget, kind, None, vec![piece; 5]);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let mut pauses = 0;
        while !body.is_ended() {
            pauses += usize::from(body.poll_frame(&mut cx).is_pending());
        }
        assert!((15..=16).contains(&pauses), "{kind:?}: {pauses}");
        assert_eq!(wakes.0.load(Ordering::Relaxed), pauses);
    }
}

#[test]
fn failure_of_the_source_is_not_an_end() {
    for kind in all() {
        let budget = Budget::of_encoders(1);
        let events = vec![Event::Data(b"abc".to_vec()), Event::Fail];
        let mut body = body(&budget, kind, None, events);
        let given = read(&mut body, 0);
        assert!(given.has_failed && !decode(kind.0, &given.data).1);
        assert_eq!(budget.held(), 0);
    }
}

#[test]
fn encoder_exists_from_the_first_frame_until_the_body_is_dropped() {
    let budget = Budget::of_encoders(1);
    let kind = (Encoding::Gzip, Level::Default);
    let mut body = body(&budget, kind, None, vec![Event::Pause, Event::Pause]);
    read(&mut body, 0);
    assert!(matches!(body.encoder, EncoderState::New { .. }));
    assert_eq!(budget.held(), Encoder::memory(Encoding::Gzip));
    drop(body);
    assert_eq!(budget.held(), 0);
}

#[test]
fn encoders_of_an_address_are_bounded() {
    let budget = Budget::of_encoders(4);
    let take = |client| EncoderPermit::new(&budget, client, Encoding::Brotli);
    let all = |client| std::iter::from_fn(|| take(client)).collect::<Vec<_>>();
    // Half of 16 MiB, then half of what is left, and so on.
    let clients = [1, 2, 3, 4].map(|it| all(IpAddr::from([192, 0, 2, it])));
    assert_eq!(clients.each_ref().map(Vec::len), [8, 4, 2, 1]);
    drop(clients);
    assert_eq!(budget.held(), 0);
}
