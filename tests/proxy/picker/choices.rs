//! Which endpoint a request gets, and what the picker receives of it.

use http::Method;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::message::Request;
use super::server::{Picker, Script};
use super::{DESTINATION, Outcome, clients, model, objects, pool, post, reference, rule, serve};
use crate::client::Client;
use crate::harness::yaml::service_of;
use crate::origin::{Origin, empty, full};
use crate::scene::Scene;

/// Counts the requests that a picker received.
fn asked(received: &[Request]) -> usize {
    let heads = received.iter().filter(|it| it.request_headers.is_some());
    heads.count()
}

#[tokio::test]
async fn only_chosen_endpoints_get_requests() {
    let models = [model("a").await, model("b").await];
    let addresses = [models[0].address, models[1].address];
    let picker = Picker::start(Script::choosing("")).await;
    let scene = serve(&picker, &addresses);
    for in_metadata in [false, true] {
        for (address, name) in addresses.iter().zip(["a", "b"]) {
            picker.follow(Script {
                in_metadata,
                ..Script::choosing(&address.to_string())
            });
            for mut client in clients(&scene).await {
                for _ in 0..10 {
                    let response = client.post("a.com", "/close", "body").await;
                    assert_eq!((response.status, response.header("x-model")), (200, name));
                }
            }
        }
    }
}

#[tokio::test]
async fn list_is_walked_past_endpoints_that_cannot_be_reached() {
    let live = model("live").await;
    let dead = [(); 7].map(|()| Origin::dead());
    let all = [&dead[..], &[live.address]].concat();
    let picker = Picker::start(Script::choosing("")).await;
    let scene = serve(&picker, &all);
    for count in 0..=dead.len() {
        let list = all[dead.len() - count..].iter();
        let list: Vec<_> = list.map(ToString::to_string).collect();
        picker.follow(Script::choosing(&list.join(",")));
        for mut client in clients(&scene).await {
            let response = client.post("a.com", "/close", "body").await;
            assert_eq!(response.status, 200, "{count} dead");
        }
    }
}

#[tokio::test]
async fn list_of_which_no_endpoint_can_be_reached_is_a_failure() {
    let live = model("live").await;
    let dead = [(); 4].map(|()| Origin::dead());
    let all = [&dead[..], &[live.address]].concat();
    let picker = Picker::start(Script::choosing("")).await;
    let scene = serve(&picker, &all);
    for count in 1..=dead.len() {
        let list: Vec<_> = dead[..count].iter().map(ToString::to_string).collect();
        picker.follow(Script::choosing(&list.join(",")));
        for mut client in clients(&scene).await {
            let close = post(&mut client, "/close", full("body")).await;
            assert_eq!(close, Outcome::Whole(503, String::new()), "{count} dead");
        }
    }
    for mut client in clients(&scene).await {
        let open = post(&mut client, "/open", full("body")).await;
        assert_eq!(open, Outcome::Whole(200, "body".to_owned()));
    }
    assert_eq!(live.requests(), 2);
}

#[tokio::test]
async fn foreign_address_is_no_choice() {
    let (own, foreign) = (model("own").await, model("foreign").await);
    let picker = Picker::start(Script::choosing("")).await;
    let scene = serve(&picker, &[own.address]);
    for list in [
        foreign.address.to_string(),
        String::new(),
        "127.0.0.1".to_owned(),
        "localhost:80".to_owned(),
    ] {
        picker.follow(Script::choosing(&list));
        for mut client in clients(&scene).await {
            let close = post(&mut client, "/close", full("body")).await;
            assert_eq!(close, Outcome::Whole(503, String::new()), "{list}");
            let open = post(&mut client, "/open", full("body")).await;
            assert_eq!(open, Outcome::Whole(200, "body".to_owned()), "{list}");
        }
    }
    picker.follow(Script::choosing(&format!(
        "{},{}",
        foreign.address, own.address
    )));
    let mut client = Client::http1(scene.at(80)).await;
    let response = client.post("a.com", "/close", "body").await;
    assert_eq!((response.status, response.header("x-model")), (200, "own"));
    assert_eq!(foreign.requests(), 0);
}

#[tokio::test]
async fn clients_cannot_choose() {
    let models = [model("a").await, model("b").await];
    let addresses = [models[0].address, models[1].address];
    let chosen = addresses[0].to_string();
    let mut picker = Picker::start(Script::choosing(&chosen)).await;
    let scene = serve(&picker, &addresses);
    let claimed = addresses[1].to_string();
    for mut client in clients(&scene).await {
        let claims = [
            (DESTINATION, &*claimed),
            ("x-gateway-destination-endpoint-subset", &*claimed),
            ("x-gateway-destination-endpoint-served", &*claimed),
        ];
        let response = client.get_with("a.com", "/close", &claims).await;
        assert_eq!(response.header("x-model"), "a");
        assert_eq!(response.header("x-destination"), chosen);
        let received = picker.received();
        let head = received[0].request_headers.as_ref().expect("a head");
        for (name, _) in claims {
            assert!(head.values(name).is_empty(), "{name}");
        }
    }
}

#[tokio::test]
async fn picker_receives_the_request_and_the_endpoint_that_served_it() {
    let served = model("a").await;
    let address = served.address.to_string();
    let mut picker = Picker::start(Script::choosing(&address)).await;
    let scene = serve(&picker, &[served.address]);
    for mut client in clients(&scene).await {
        let response = client.post("a.com", "/close/chat?a=b", "body").await;
        assert_eq!(response.status, 200);
        let received = picker.received();
        let config = received[0].config.as_ref().expect("modes");
        assert_eq!(
            (config.request_body_mode, config.response_body_mode),
            (4, 4)
        );
        assert!(received[1..].iter().all(|it| it.config.is_none()));
        let head = received[0].request_headers.as_ref().expect("a head");
        for (name, value) in [
            (":method", "POST"),
            (":path", "/close/chat?a=b"),
            (":authority", "a.com"),
            (":scheme", "http"),
        ] {
            assert_eq!(head.values(name), [value], "{name}");
        }
        let head = received.iter().find(|it| it.response_headers.is_some());
        let head = head.expect("a response");
        assert_eq!(head.served(), Some(address.clone()));
        let status = head
            .response_headers
            .as_ref()
            .map(|it| it.values(":status"));
        assert_eq!(status, Some(vec!["200".to_owned()]));
        let last = received.iter().rfind(|it| it.response_body.is_some());
        let last = last.expect("a body");
        assert_eq!(last.served(), Some(address.clone()));
        assert!(
            last.response_body
                .as_ref()
                .is_some_and(|it| it.end_of_stream)
        );
    }
}

#[tokio::test]
async fn retry_of_a_route_goes_down_the_list_and_the_last_endpoint_is_reported() {
    let busy = Origin::new(|_| async {
        let response = http::Response::builder().status(503);
        response.body(empty()).expect("a response")
    })
    .await;
    let free = model("free").await;
    let list = format!("{},{}", busy.address, free.address);
    let mut picker = Picker::start(Script::choosing(&list)).await;
    let mut retried = rule("/", "close");
    retried["retry"] = json!({"attempts": 1, "codes": [503], "backoff": "1ms"});
    let models = [busy.address, free.address];
    let objects = objects(&[picker.origin.address])
        .with(pool("close", &models, "epp", "FailClose").to_string());
    let scene = Scene::start(&objects.route("route", &[retried]));
    for mut client in clients(&scene).await {
        let outcome = post(&mut client, "/", full("body")).await;
        assert_eq!(outcome, Outcome::Whole(200, "body".to_owned()));
        let received = picker.received();
        assert_eq!(asked(&received), 1);
        let served: Vec<_> = received.iter().filter_map(Request::served).collect();
        assert_eq!(served, [free.address.to_string(), free.address.to_string()]);
    }
    assert_eq!(busy.requests(), 2);
}

#[tokio::test]
async fn retry_sends_what_the_picker_returned_even_if_the_pool_has_lost_it_since() {
    let (begun, mut begins) = mpsc::unbounded_channel();
    let busy = Origin::new(move |_| {
        let begun = begun.clone();
        async move {
            let (end, ended) = oneshot::channel::<()>();
            begun.send(end).expect("the test runs");
            ended.await.expect("the test runs");
            let response = http::Response::builder().status(503);
            response.body(empty()).expect("a response")
        }
    })
    .await;
    let free = model("free").await;
    let list = format!("{},{}", busy.address, free.address);
    let picker = Picker::start(Script {
        rewrite: Some(("alias", "the-real-name")),
        ..Script::choosing(&list)
    })
    .await;
    let mut asking = pool("llm", &[busy.address, free.address], "epp", "FailClose");
    // Over HTTP/2, the length of the request is a header like others.
    asking["spec"]["appProtocol"] = super::H2C.into();
    let mut bare = asking.clone();
    let spec = bare["spec"].as_object_mut().expect("fields");
    spec.remove("endpointPickerRef").expect("a picker");
    let mut retried = rule("/", "llm");
    retried["retry"] = json!({"attempts": 1, "codes": [503], "backoff": "1ms"});
    let serving = |pool: &Value| {
        let objects = objects(&[picker.origin.address]).with(pool.to_string());
        objects.route("route", std::slice::from_ref(&retried))
    };
    let mut scene = Scene::start(&serving(&asking));
    let mut client = Client::http2(scene.at(80)).await;
    let lose_picker = async {
        let end = begins.recv().await.expect("a request");
        scene.replace(&serving(&bare)).await;
        end.send(()).expect("a server that waits");
    };
    let response = client.post("a.com", "/", "model: alias");
    let (response, ()) = tokio::join!(response, lose_picker);
    let got = (response.status, response.text());
    assert_eq!(got, (200, "model: the-real-name"));
    assert_eq!(response.header("x-length"), "");
    assert_eq!(response.header("x-destination"), list);
}

#[tokio::test]
async fn each_pool_of_a_rule_asks_its_own_picker() {
    let models = [model("a").await, model("b").await];
    let [first, second] = [&models[0], &models[1]].map(|it| it.address);
    let mut pickers = [
        Picker::start(Script::choosing(&first.to_string())).await,
        Picker::start(Script::choosing(&second.to_string())).await,
    ];
    let objects = objects(&[pickers[0].origin.address])
        .with(service_of(
            "other",
            &[pickers[1].origin.address],
            super::H2C,
        ))
        .with(pool("first", &[first], "epp", "FailClose").to_string())
        .with(pool("second", &[second], "other", "FailClose").to_string());
    let (mut nine, mut one) = (reference("first"), reference("second"));
    (nine["weight"], one["weight"]) = (json!(9), json!(1));
    let scene = Scene::start(&objects.route("route", &[json!({"backendRefs": [nine, one]})]));
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..200 {
        let request = client.request(Method::POST, "a.com", "/");
        let request = request.body(full("body")).expect("a request");
        assert_eq!(client.fetch(request).await.status, 200);
    }
    let counts = [models[0].requests(), models[1].requests()];
    assert_eq!(counts[0] + counts[1], 200);
    assert!(counts[1] > 0 && counts[0] > counts[1], "{counts:?}");
    for (picker, count) in pickers.iter_mut().zip(counts) {
        assert_eq!(asked(&picker.received()), count);
    }
}
