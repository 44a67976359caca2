//! Copies of request bodies for mirrors: complete if the mirror keeps up, aborted otherwise.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::AsyncReadExt;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::timeout;

use crate::client::{Client, connect, read_all, read_until, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::harness::yaml::service_of;
use crate::mirror::{mirror, until_mirrored, with_filters};
use crate::origin::{Origin, empty, full, stream};
use crate::scene::{Objects, Scene};

#[tokio::test]
async fn copies_are_streamed_with_trailers_during_the_request() {
    const PIECE: usize = 64 * 1024;
    for protocol in ["http", "kubernetes.io/h2c"] {
        // Both report how much they have received, so that the client never runs ahead of one of
        // them.
        let (progress, seen) = mpsc::unbounded_channel();
        let origin = |name: &'static str,
                      progress: mpsc::UnboundedSender<(&'static str, usize)>| {
            Origin::new(move |request: Request<Incoming>| {
                let progress = progress.clone();
                async move {
                    let (mut body, mut bytes) = (request.into_body(), 0);
                    let mut trailer = String::new();
                    while let Some(Ok(frame)) = body.frame().await {
                        bytes += frame.data_ref().map_or(0, Bytes::len);
                        if let Some(trailers) = frame.trailers_ref() {
                            trailer = trailers["x-end"].to_str().expect("text").to_owned();
                        }
                        let _ = progress.send((name, bytes));
                    }
                    Response::new(full(format!("{name} {bytes} {trailer}")))
                }
            })
        };
        let (app, copy) = (
            origin("app", progress.clone()).await,
            origin("copy", progress).await,
        );
        let objects = Objects::http()
            .with(service_of("app", &[app.address], protocol))
            .with(service_of("copy", &[copy.address], protocol));
        let rules = [with_filters("/", "app", &[mirror("copy")])];
        let scene = Scene::start(&objects.route("route", &rules));
        let seen = Arc::new(Mutex::new(seen));
        for (number, mut client) in Client::both(scene.at(80)).await.into_iter().enumerate() {
            let (sender, body) = stream();
            let seen = seen.clone();
            let sending = tokio::spawn(async move {
                let mut seen = seen.lock().await;
                for pieces in 1..=64 {
                    let piece = Frame::data(vec![b'x'; PIECE].into());
                    sender.send(piece).await.expect("taken");
                    let mut counts = [0, 0];
                    while counts != [pieces * PIECE; 2] {
                        let next = timeout(TEST_TIMEOUT, seen.recv()).await.expect("in time");
                        let (name, bytes) = next.expect("an origin");
                        counts[usize::from(name == "copy")] = bytes;
                    }
                }
                let mut trailers = HeaderMap::new();
                trailers.insert("x-end", HeaderValue::from_static("end"));
                sender.send(Frame::trailers(trailers)).await.expect("taken");
                drop(sender);
                let mut names = Vec::new();
                while names.len() < 2 {
                    let next = timeout(TEST_TIMEOUT, seen.recv()).await.expect("in time");
                    names.push(next.expect("an origin"));
                }
                names.sort();
                assert_eq!(names, [("app", 64 * PIECE), ("copy", 64 * PIECE)]);
            });
            let request = client
                .request(Method::POST, "a.com", "/")
                .header("trailer", "x-end");
            let answer = client.fetch(request.body(body).expect("a request")).await;
            assert_eq!(answer.text(), format!("app {} end", 64 * PIECE));
            sending.await.expect("both have the whole body");
            until_mirrored(&scene, "copy", "completed", (number + 1) as f64).await;
        }
    }
}

#[tokio::test]
async fn copy_to_a_mirror_that_does_not_read_is_dropped() {
    const LARGE: usize = 32 << 20;
    let echo = Origin::echo("echo").await;
    let (ended, mut ends) = mpsc::unbounded_channel();
    let resumes = Arc::new(Semaphore::new(0));
    let reads = resumes.clone();
    let stuck = Origin::raw(move |mut stream| {
        let (ended, reads) = (ended.clone(), reads.clone());
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            reads.acquire().await.expect("open").forget();
            let copied = read_all(&mut stream).await.len();
            let _ = ended.send(copied);
        }
    })
    .await;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .service("stuck", &[stuck.address]);
    let scene =
        Scene::start(&objects.route("route", &[with_filters("/", "echo", &[mirror("stuck")])]));
    for (number, mut client) in Client::both(scene.at(80)).await.into_iter().enumerate() {
        let request = client.request(Method::POST, "a.com", "/");
        let body = full(vec![b'x'; LARGE]);
        let answer = client.fetch(request.body(body).expect("a request")).await;
        assert_eq!(answer.received()["received"], LARGE);
        until_mirrored(&scene, "stuck", "dropped", (number + 1) as f64).await;
        resumes.add_permits(1);
        let copied = timeout(TEST_TIMEOUT, ends.recv()).await;
        let copied = copied.expect("the copy's connection ends").expect("an end");
        assert!(copied < LARGE, "the mirror got everything");
    }
}

#[tokio::test]
async fn copy_of_an_incomplete_request_is_aborted() {
    let (heard, mut hears) = mpsc::unbounded_channel();
    let copy = Origin::raw(move |mut stream| {
        let heard = heard.clone();
        async move {
            let head = read_until(&mut stream, "\r\n\r\n").await;
            read_until(&mut stream, "first").await;
            let _ = heard.send(head);
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            let _ = heard.send(String::from_utf8(rest).expect("text"));
        }
    })
    .await;
    let app = Origin::new(|request: Request<Incoming>| async move {
        let _ = request.into_body().collect().await;
        Response::new(empty())
    })
    .await;
    let objects = Objects::http()
        .service("app", &[app.address])
        .service("copy", &[copy.address]);
    let scene =
        Scene::start(&objects.route("route", &[with_filters("/", "app", &[mirror("copy")])]));
    let mut client = connect(scene.at(80)).await;
    write_text(
        &mut client,
        "POST / HTTP/1.1\r\nHost: a.com\r\nContent-Length: 10\r\n\r\nfirst",
    )
    .await;
    let mut next = async || timeout(TEST_TIMEOUT, hears.recv()).await.expect("in time");
    let head = next().await.expect("a head");
    assert!(
        head.to_lowercase().contains("\r\ncontent-length: 10\r\n"),
        "{head}"
    );
    // The connection is reset, so that the proxy notices at once.
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .expect("set");
    drop(client);
    assert_eq!(next().await.expect("an end"), "");
    until_mirrored(&scene, "copy", "aborted", 1.0).await;
}
