//! A picker that ends its part at each phase of a request, in each way.

use http::{Method, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;

use super::framing::{Seen, observed_model};
use super::server::{Act, Phase, Picker, Script};
use super::steps::{Side, Step};
use super::{Outcome, PROTOCOLS, clients, model, objects, pool, post, rule, serve};
use crate::client::Client;
use crate::origin::{Origin, full, stream};
use crate::scene::Scene;

const BODY: &str = "a body of a request";

const PHASES: [Phase; 10] = [
    Phase::RequestHead,
    Phase::RequestEnd,
    Phase::HeadAnswered,
    Phase::PartReturned,
    Phase::RequestReturned,
    Phase::ResponseHead,
    Phase::ResponseHeadAnswered,
    Phase::ResponseEnd,
    Phase::ResponsePartReturned,
    Phase::ResponseReturned,
];

/// Returns the outcomes that are right.
fn expected(phase: Phase, act: Act, fails_open: bool) -> Vec<Outcome> {
    let whole = || vec![Outcome::Whole(200, BODY.to_owned())];
    let refused = |status| vec![Outcome::Whole(status, String::new())];
    let broken = || vec![Outcome::Broken(200)];
    match (act, phase) {
        // A reset may take with it what was said before and is not sent yet.
        (Act::Reset, Phase::ResponsePartReturned | Phase::ResponseReturned) if fails_open => {
            [whole(), broken()].concat()
        }
        (Act::Reset, Phase::ResponseReturned) => [whole(), broken(), refused(503)].concat(),
        (Act::Reset, phase) if phase >= Phase::ResponseHeadAnswered && !fails_open => {
            [broken(), refused(503)].concat()
        }
        (_, Phase::ResponseReturned) => whole(),
        (Act::Immediate, Phase::ResponseHeadAnswered)
        | (Act::Immediate, Phase::ResponseEnd | Phase::ResponsePartReturned) => {
            // Whether the client has the head by then is not known.
            [refused(429), broken()].concat()
        }
        (Act::Immediate, _) => refused(429),
        // The rest of the original cannot follow what was returned.
        (_, Phase::ResponsePartReturned) => broken(),
        // It has not chosen.
        (Act::Close, Phase::RequestHead | Phase::RequestEnd) if !fails_open => refused(503),
        (Act::Close, _) => whole(),
        _ if fails_open => whole(),
        (_, Phase::ResponseHeadAnswered | Phase::ResponseEnd) => broken(),
        _ => refused(503),
    }
}

fn stopping(list: &str, phase: Phase, act: Act) -> Script {
    Script {
        stop: Some((phase, act)),
        piece: 7,
        ..Script::choosing(list)
    }
}

#[tokio::test]
async fn every_request_has_the_right_outcome_wherever_the_picker_ends() {
    let (one, mut seen) = observed_model().await;
    let (other, mut seen_by_other) = observed_model().await;
    let addresses = [one.address, other.address];
    let list = addresses[0].to_string();
    let picker = Picker::start(Script::choosing(&list)).await;
    let scene = serve(&picker, &addresses);
    for act in [
        Act::Immediate,
        Act::Close,
        Act::Fail,
        Act::Reset,
        Act::Violate,
    ] {
        for phase in PHASES {
            picker.follow(stopping(&list, phase, act));
            for (prefix, _) in PROTOCOLS {
                for (path, fails_open) in [("/open", true), ("/close", false)] {
                    let path = format!("{prefix}{path}");
                    for mut client in clients(&scene).await {
                        let outcome = post(&mut client, &path, full(BODY)).await;
                        let right = expected(phase, act, fails_open);
                        assert!(
                            right.contains(&outcome),
                            "{act:?} {phase:?} {path}: {outcome:?}"
                        );
                        for seen in [&mut seen, &mut seen_by_other] {
                            assert_sound(seen);
                        }
                    }
                }
            }
        }
    }
}

/// Checks that requests at a model server have one framing and are whole or broken off.
fn assert_sound(seen: &mut UnboundedReceiver<Seen>) {
    while let Ok(Seen {
        path,
        is_sound,
        body,
    }) = seen.try_recv()
    {
        assert!(is_sound, "{path}");
        assert!(body.is_none_or(|body| body == BODY), "{path}");
    }
}

/// Starts a model server whose response begins before the request has ended, and ends after it.
async fn prompt() -> Origin {
    Origin::new(|request: http::Request<Incoming>| async move {
        let (sender, response) = stream();
        tokio::spawn(async move {
            // An error: the request has broken off.
            let _ = request.into_body().collect().await;
            drop(sender);
        });
        Response::new(response)
    })
    .await
}

#[tokio::test]
async fn picker_is_the_cause_if_a_request_breaks_off_after_its_response_has_begun() {
    let server = prompt().await;
    let list = server.address.to_string();
    let picker = Picker::start(Script::choosing(&list)).await;
    let scene = serve(&picker, &[server.address]);
    for (act, status) in [(Act::Immediate, 429), (Act::Close, 503), (Act::Fail, 503)] {
        picker.follow(Script::choosing(&list).with_steps(&[
            Step::ReadHead(Side::Request),
            Step::Answer(Side::Request),
            Step::Part(Side::Request, "a part"),
            Step::ReadHead(Side::Response),
            Step::Act(act),
        ]));
        for (prefix, _) in PROTOCOLS {
            for path in ["/open", "/close"] {
                let path = format!("{prefix}{path}");
                let mut client = Client::http2(scene.at(80)).await;
                // The request does not end.
                let (_sender, body) = stream();
                let outcome = post(&mut client, &path, body).await;
                let right = Outcome::Whole(status, String::new());
                assert_eq!(outcome, right, "{act:?} {path}");
            }
        }
    }
}

#[tokio::test]
async fn picker_that_ends_a_body_before_its_sender_has_failed() {
    let (server, mut seen) = observed_model().await;
    let list = server.address.to_string();
    let script = Script::choosing(&list).with_steps(&[
        Step::ReadHead(Side::Request),
        Step::Answer(Side::Request),
        Step::Part(Side::Request, "half"),
        Step::End(Side::Request),
    ]);
    let picker = Picker::start(script).await;
    let scene = serve(&picker, &[server.address]);
    for (prefix, _) in PROTOCOLS {
        // With FailOpen, the rest would follow.
        let path = format!("{prefix}/close");
        let mut client = Client::http2(scene.at(80)).await;
        // The request does not end.
        let (_sender, body) = stream();
        let outcome = post(&mut client, &path, body).await;
        assert_eq!(outcome, Outcome::Whole(503, String::new()), "{path}");
    }
    while let Ok(request) = seen.try_recv() {
        assert!(request.is_sound && request.body.is_none());
    }

    let server = Origin::new(|request: http::Request<Incoming>| async move {
        let _ = request.into_body().collect().await;
        let (sender, body) = stream();
        tokio::spawn(async move {
            let _ = sender.send(Frame::data("half".into())).await;
            // The response does not end.
            sender.closed().await;
        });
        Response::new(body)
    })
    .await;
    let list = server.address.to_string();
    picker.follow(Script::choosing(&list).with_steps(&[
        Step::Pass(Side::Request),
        Step::ReadHead(Side::Response),
        Step::Answer(Side::Response),
        Step::Part(Side::Response, "half"),
        Step::End(Side::Response),
    ]));
    let scene = serve(&picker, &[server.address]);
    for (prefix, _) in PROTOCOLS {
        for path in ["/open", "/close"] {
            let path = format!("{prefix}{path}");
            for mut client in clients(&scene).await {
                let outcome = post(&mut client, &path, full(BODY)).await;
                assert_eq!(outcome, Outcome::Broken(200), "{path}");
            }
        }
    }
}

#[tokio::test]
async fn late_answer_delays_only_its_own_request() {
    const LATE: [&[Step]; 4] = [
        &[
            Step::Read(Side::Request),
            Step::Await,
            Step::Pass(Side::Request),
            Step::Pass(Side::Response),
        ],
        &[
            Step::Read(Side::Request),
            Step::Answer(Side::Request),
            Step::Await,
            Step::Return(Side::Request, 7),
            Step::End(Side::Request),
            Step::Pass(Side::Response),
        ],
        &[
            Step::Pass(Side::Request),
            Step::Read(Side::Response),
            Step::Await,
            Step::Pass(Side::Response),
        ],
        &[
            Step::Pass(Side::Request),
            Step::Read(Side::Response),
            Step::Answer(Side::Response),
            Step::Await,
            Step::Return(Side::Response, 7),
            Step::End(Side::Response),
        ],
    ];
    let server = model("a").await;
    let prompt = Script::choosing(&server.address.to_string());
    let picker = Picker::start(prompt.clone()).await;
    let scene = serve(&picker, &[server.address]);
    let whole = Outcome::Whole(200, BODY.to_owned());
    for steps in LATE {
        for path in ["/open", "/h2c/close"] {
            for mut client in clients(&scene).await {
                picker.follow(prompt.clone().with_steps(steps));
                let count = picker.origin.requests() + 1;
                let others = async {
                    picker.origin.until_requests(count).await;
                    picker.follow(prompt.clone());
                    for mut other in clients(&scene).await {
                        let outcome = post(&mut other, path, full(BODY)).await;
                        assert_eq!(outcome, whole, "{path}");
                    }
                    prompt.gate.add_permits(1);
                };
                let late = post(&mut client, path, full(BODY));
                let (outcome, ()) = tokio::join!(late, others);
                assert_eq!(outcome, whole, "{path}");
            }
        }
    }
}

#[tokio::test]
async fn call_gets_the_status_that_the_picker_has_for_calls() {
    // immediate_response { status { code: 429 } body: "full" grpc_status { status: 9 } }
    const REFUSAL: &[u8] = b"\0\0\0\0\x11\x3a\x0f\x0a\x03\x08\xad\x03\x1a\x04full\x22\x02\x08\x09";
    let server = model("a").await;
    let script = Script::choosing(&server.address.to_string());
    let picker = Picker::start(script.clone()).await;
    let scene = serve(&picker, &[server.address]);
    let mut client = Client::http2(scene.at(80)).await;
    for side in [Side::Request, Side::Response] {
        let steps = match side {
            Side::Request => vec![Step::ReadHead(side), Step::Raw(REFUSAL)],
            Side::Response => vec![
                Step::Pass(Side::Request),
                Step::ReadHead(side),
                Step::Raw(REFUSAL),
            ],
        };
        picker.follow(script.clone().with_steps(&steps));
        let mut answers = Vec::new();
        for content in ["text/plain", "application/grpc", "application/grpc-web"] {
            let request = client.request(Method::POST, "a.com", "/h2c/close");
            let request = request.header("content-type", content);
            let request = request.body(full(BODY)).expect("a request");
            answers.push(client.fetch(request).await);
        }
        let [text, call, web] = &answers[..] else {
            panic!("three answers");
        };
        assert_eq!((text.status, text.text()), (429, "full"), "{side:?}");
        assert_eq!(text.header("grpc-status"), "");
        assert_eq!((call.status, call.text()), (200, ""), "{side:?}");
        assert_eq!(call.header("grpc-status"), "9");
        assert_eq!(call.header("grpc-message"), "full");
        assert_eq!(call.header("content-type"), "application/grpc");
        assert_eq!(web.status, 200, "{side:?}");
        let trailers = String::from_utf8_lossy(&web.body);
        assert!(trailers.contains("grpc-status: 9\r\n"), "{trailers}");
    }
}

#[tokio::test]
async fn request_without_a_body_has_the_right_outcome_too() {
    let models = [model("a").await];
    let addresses = [models[0].address];
    let list = addresses[0].to_string();
    let picker = Picker::start(Script::choosing(&list)).await;
    let scene = serve(&picker, &addresses);
    for (phase, act, open, close) in [
        (Phase::RequestHead, Act::Immediate, 429, 429),
        (Phase::RequestHead, Act::Close, 200, 503),
        (Phase::RequestHead, Act::Fail, 200, 503),
        (Phase::RequestReturned, Act::Close, 200, 200),
        (Phase::RequestReturned, Act::Fail, 200, 503),
        (Phase::ResponseHead, Act::Immediate, 429, 429),
        (Phase::ResponseHead, Act::Fail, 200, 503),
    ] {
        picker.follow(stopping(&list, phase, act));
        for mut client in clients(&scene).await {
            let statuses = [
                client.get("a.com", "/open").await.status,
                client.get("a.com", "/close").await.status,
            ];
            assert_eq!(statuses, [open, close], "{phase:?} {act:?}");
        }
    }
}

#[tokio::test]
async fn request_ends_with_its_timeout_if_the_picker_stalls() {
    let models = [model("a").await];
    let addresses = [models[0].address];
    let list = addresses[0].to_string();
    let picker = Picker::start(Script::choosing(&list)).await;
    let mut limited = rule("/", "open");
    limited["timeouts"] = json!({"request": "500ms"});
    let objects = objects(&[picker.origin.address])
        .with(pool("open", &addresses, "epp", "FailOpen").to_string());
    let scene = Scene::start(&objects.route("route", &[limited]));
    let late = Outcome::Whole(504, String::new());
    for (phase, right) in [
        (Phase::RequestHead, vec![late.clone()]),
        (Phase::HeadAnswered, vec![late.clone()]),
        (Phase::ResponseHead, vec![late.clone()]),
        // On a slow machine, the time is over before the head is there.
        (
            Phase::ResponsePartReturned,
            vec![Outcome::Broken(200), late],
        ),
    ] {
        picker.follow(stopping(&list, phase, Act::Stall));
        for mut client in clients(&scene).await {
            let outcome = post(&mut client, "/", full(BODY)).await;
            assert!(right.contains(&outcome), "{phase:?}: {outcome:?}");
        }
    }
}

#[tokio::test]
async fn picker_that_answers_nothing_has_failed_after_the_time_of_its_policy() {
    let models = [model("a").await];
    let addresses = [models[0].address];
    let list = addresses[0].to_string();
    let picker = Picker::start(Script::choosing(&list)).await;
    let policy = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "BackendPolicy",
        "metadata": {"name": "epp"},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": "epp"}],
            "connection": {"pickerTimeout": "100ms"},
        },
    });
    let objects = objects(&[picker.origin.address])
        .with(policy.to_string())
        .with(pool("open", &addresses, "epp", "FailOpen").to_string())
        .with(pool("close", &addresses, "epp", "FailClose").to_string());
    let rules = [rule("/open", "open"), rule("/close", "close")];
    let scene = Scene::start(&objects.route("route", &rules));
    for (phase, act) in [
        (Phase::RequestHead, Act::Stall),
        (Phase::RequestEnd, Act::Stall),
        (Phase::HeadAnswered, Act::Stall),
        (Phase::ResponseHead, Act::Stall),
        (Phase::RequestEnd, Act::Chatter),
        (Phase::HeadAnswered, Act::Chatter),
        (Phase::ResponseHead, Act::Chatter),
    ] {
        picker.follow(stopping(&list, phase, act));
        for mut client in clients(&scene).await {
            let open = post(&mut client, "/open", full(BODY)).await;
            let whole = Outcome::Whole(200, BODY.to_owned());
            assert_eq!(open, whole, "{phase:?} {act:?}");
            let close = post(&mut client, "/close", full(BODY)).await;
            let refused = Outcome::Whole(503, String::new());
            assert_eq!(close, refused, "{phase:?} {act:?}");
        }
    }
}

#[tokio::test]
async fn picker_that_cannot_be_reached_has_failed() {
    let models = [model("a").await];
    let addresses = [models[0].address];
    let picker = Picker::start(Script::choosing("")).await;
    let mut scene = serve(&picker, &addresses);
    drop(picker);
    for endpoints in [&[][..], &[Origin::dead()]] {
        let objects = objects(endpoints)
            .with(pool("open", &addresses, "epp", "FailOpen").to_string())
            .with(pool("close", &addresses, "epp", "FailClose").to_string());
        let rules = [rule("/open", "open"), rule("/close", "close")];
        scene.replace(&objects.route("route", &rules)).await;
        for mut client in clients(&scene).await {
            let open = post(&mut client, "/open", full(BODY)).await;
            assert_eq!(open, Outcome::Whole(200, BODY.to_owned()));
            let close = post(&mut client, "/close", full(BODY)).await;
            assert_eq!(close, Outcome::Whole(503, String::new()));
        }
    }
}
