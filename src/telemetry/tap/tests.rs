//! Tests of taps: filters, rates, and what a tap shows.

use std::sync::LazyLock;
use std::task::Waker;
use std::time::Duration;

use http::Request;

use super::*;
use crate::telemetry::access_log::AccessLog;

fn line(method: &str, host: &str, path: &str) -> Box<Line> {
    let request = Request::builder().method(method).uri(path);
    let (parts, ()) = request.body(()).unwrap().into_parts();
    assert!(AccessLog::disabled().worker().is_none());
    let mut line = Line::without_log("127.0.0.1:4000", &parts, Instant::now());
    line.host(host);
    line
}

static ROUTE: LazyLock<ObjectRef> =
    LazyLock::new(|| ObjectRef::gateway_api("HTTPRoute", "shop", "web"));

fn end(status: u16) -> Completion<'static> {
    Completion {
        status,
        duration: Duration::from_micros(1500),
        bytes_received: 0,
        bytes_sent: 0,
        rule: Some((&ROUTE, 1)),
        upstream: Some("10.0.0.1:80".parse().unwrap()),
        attempts: 1,
        response_time: None,
        picker: None,
        picked: None,
        release: None,
        error: None,
        trace_id: None,
    }
}

fn taken(reader: &TapReader) -> Batch {
    let mut cx = Context::from_waker(Waker::noop());
    match reader.poll_take(&mut cx) {
        Poll::Ready(batch) => batch,
        Poll::Pending => Batch::default(),
    }
}

fn lines(reader: &TapReader) -> Vec<serde_json::Value> {
    let lines = String::from_utf8(taken(reader).lines).unwrap();
    let lines = lines.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

fn show(taps: &Taps, line: &Line, end: &Completion<'_>) {
    taps.show(line, end, &|| Some("Service shop/web:80".to_owned()));
}

#[test]
fn a_tap_shows_a_request_without_its_query() {
    let taps = Arc::<Taps>::default();
    assert!(!taps.is_open());
    let reader = taps.open(TapFilter::default(), 10).unwrap();
    assert!(taps.is_open());
    let failed = Completion {
        error: Some("the backend failed"),
        ..end(502)
    };
    show(&taps, &line("PUT", "a.com", "/b?token=secret"), &failed);
    let mut shown = lines(&reader);
    let time = shown[0].as_object_mut().unwrap().remove("time").unwrap();
    assert!(time.as_str().unwrap().starts_with("20"), "{time}");
    let expected = serde_json::json!({
        "method": "PUT", "host": "a.com", "path": "/b", "status": 502, "durationMs": 1.5,
        "route": "HTTPRoute shop/web", "rule": 1, "backend": "Service shop/web:80",
        "endpoint": "10.0.0.1:80", "reason": "the backend failed",
    });
    assert_eq!(shown, [expected]);
    drop(reader);
    assert!(!taps.is_open());
}

/// A filter of members and their values.
fn filter(members: &[(&str, &str)]) -> TapFilter {
    let mut filter = TapFilter::default();
    for (member, value) in members {
        let text = Some((*value).to_owned());
        match *member {
            "route" => filter.route = text,
            "host" => filter.host = text,
            "method" => filter.method = text,
            "path" => filter.path = text,
            "status" => filter.status = StatusFilter::parse(value),
            _ => filter.min_duration = value.parse().ok().map(Duration::from_millis),
        }
    }
    filter
}

#[test]
fn filters_admit_what_meets_all_of_them() {
    let line = line("GET", "www.shop.com", "/cart/items");
    for (members, is_shown) in [
        (&[("route", "shop/web")][..], true),
        (&[("route", "HTTPRoute shop/web")], true),
        (&[("route", "hop/web")], false),
        (&[("route", "shop/we")], false),
        (&[("route", "web")], false),
        (&[("route", "GRPCRoute shop/web")], false),
        (&[("host", "www.shop.com")], true),
        (&[("host", "*.shop.com")], true),
        (&[("host", "*.www.shop.com")], false),
        (&[("host", "shop.com")], false),
        (&[("method", "GET")], true),
        (&[("method", "POST")], false),
        (&[("path", "/cart")], true),
        (&[("path", "/items")], false),
        (&[("status", "503")], true),
        (&[("status", "5xx")], true),
        (&[("status", "4xx")], false),
        (&[("milliseconds", "1")], true),
        (&[("milliseconds", "2")], false),
        (&[("method", "GET"), ("path", "/cart")], true),
        (&[("method", "GET"), ("path", "/other")], false),
    ] {
        let taps = Arc::<Taps>::default();
        let reader = taps.open(filter(members), 10).unwrap();
        show(&taps, &line, &end(503));
        assert_eq!(lines(&reader).len(), usize::from(is_shown), "{members:?}");
    }
    for text in ["", "xx", "6xx", "0xx", "99", "600", "5x", "abc"] {
        assert_eq!(StatusFilter::parse(text), None, "{text}");
    }
}

#[test]
fn requests_of_other_routes_need_no_line() {
    let taps = Arc::<Taps>::default();
    let other = ObjectRef::gateway_api("HTTPRoute", "shop", "other");
    let needs = || {
        (
            taps.show_all_routes(),
            taps.show_route(&ROUTE),
            taps.show_route(&other),
        )
    };
    assert_eq!(needs(), (false, false, false));
    let of_route = taps.open(filter(&[("route", "shop/web")]), 10).unwrap();
    assert_eq!(needs(), (false, true, false));
    let of_all = taps.open(filter(&[("status", "5xx")]), 10).unwrap();
    assert_eq!(needs(), (true, true, true));
    drop((of_route, of_all));
    assert_eq!(needs(), (false, false, false));
}

#[test]
fn requests_above_the_rate_are_skipped_and_counted() {
    let queue = Queue::new(3);
    let now = Instant::now();
    let admitted = |at| (0..10).filter(|_| queue.may_add(at)).count();
    assert_eq!(admitted(now), 3);
    assert_eq!(admitted(now + Duration::from_secs(2)), 3);
    // Workers read the clock apart from each other.
    assert_eq!(admitted(now + Duration::from_secs(1)), 0);
    let mut cx = Context::from_waker(Waker::noop());
    let expected = Batch {
        skipped: 24,
        ..Batch::default()
    };
    assert_eq!(queue.poll_take(&mut cx), Poll::Ready(expected));
    assert_eq!(queue.poll_take(&mut cx), Poll::Pending);
}

#[test]
fn lines_that_a_slow_reader_has_no_room_for_are_dropped_and_counted() {
    let queue = Queue::new(MAX_RATE);
    for _ in 0..300 {
        queue.add(&[b'x'; 1024]);
    }
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(batch) = queue.poll_take(&mut cx) else {
        panic!("no lines");
    };
    assert_eq!((batch.lines.len(), batch.dropped), (256 * 1024, 44));
}

#[test]
fn number_of_taps_is_bounded() {
    let taps = Arc::<Taps>::default();
    let open = || taps.open(TapFilter::default(), 10);
    let mut readers: Vec<_> = (0..MAX_TAPS).map(|_| open().unwrap()).collect();
    assert!(open().is_none());
    readers.pop();
    assert!(open().is_some());
}
