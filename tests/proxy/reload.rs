//! Changes of the folder: in service when their outcome is published, invalid changes keep the
//! previous configuration, ports open and close independently.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use portcullis::settings::Ports;

use crate::client::{Client, connect, get, read_all, refuses};
use crate::harness::ports::closed_address;
use crate::harness::tls::{self, Certificate};
use crate::harness::yaml;
use crate::lifecycle::Frames;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, https, prefix, publish, route, secret, to, write};
use crate::tls_route::{passthrough, tls_route};

#[tokio::test]
async fn edit_is_in_service_when_its_outcome_is_published() {
    let one = Origin::echo("one").await;
    let two = Origin::echo("two").await;
    let base = Objects::http()
        .service("one", &[one.address])
        .service("two", &[two.address]);
    let mut scene = Scene::start(&base.clone().route("route", &[to("one")]));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.name(), "one");
    scene
        .replace(&base.clone().route("route", &[to("two")]))
        .await;
    assert_eq!(client.get("a.com", "/").await.name(), "two");
    scene
        .replace(&base.clone().route("route", &[prefix("/new", "two")]))
        .await;
    assert_eq!(client.get("a.com", "/").await.name(), "404");
    assert_eq!(client.get("a.com", "/new").await.name(), "two");
    scene
        .replace(&base.with(route("route", &["b.com"], &[to("one")])))
        .await;
    assert_eq!(client.get("a.com", "/new").await.name(), "404");
    assert_eq!(client.get("b.com", "/").await.name(), "one");
    // Each of several files can be edited separately.
    scene
        .change(|folder| {
            write(
                folder,
                "more.yaml",
                &route("more", &["c.com"], &[to("two")]),
            )
        })
        .await;
    assert_eq!(client.get("c.com", "/").await.name(), "two");
    scene
        .change(|folder| std::fs::remove_file(folder.join("more.yaml")).expect("removed"))
        .await;
    assert_eq!(client.get("c.com", "/").await.name(), "404");
}

#[tokio::test]
async fn idle_workers_release_the_former_configuration() {
    let origin = Origin::echo("one").await;
    let objects = Objects::http()
        .service("echo", &[origin.address])
        .route("route", &[to("echo")]);
    let mut scene = Scene::with(&objects, |settings| settings.workers = 2);
    // Connections go to the worker with the fewest, so that both have served a request.
    let mut clients = [
        Client::http1(scene.at(80)).await,
        Client::http1(scene.at(80)).await,
    ];
    for client in &mut clients {
        assert_eq!(client.get("a.com", "/").await.name(), "one");
    }
    let former = Arc::downgrade(&scene.state().table.load_full());
    let more = route("more", &["b.com"], &[to("echo")]);
    scene.replace(&objects.with(more)).await;
    scene.until("the release of the former table", |_| {
        former.upgrade().is_none()
    });
    for client in &mut clients {
        assert_eq!(client.get("b.com", "/").await.name(), "one");
    }
}

#[tokio::test]
async fn follows_endpoint_changes() {
    let one = Origin::echo("one").await;
    let two = Origin::echo("two").await;
    let base = Objects::http().route("route", &[to("echo")]);
    let mut scene = Scene::start(&base.clone().service("echo", &[one.address]));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.name(), "one");
    scene
        .replace(&base.clone().service("echo", &[two.address]))
        .await;
    for _ in 0..20 {
        assert_eq!(client.get("a.com", "/").await.name(), "two");
    }
    scene.replace(&base.clone().service("echo", &[])).await;
    assert_eq!(client.get("a.com", "/").await.name(), "503");
    scene
        .replace(&base.service("echo", &[one.address, two.address]))
        .await;
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..100 {
        names.insert(client.get("a.com", "/").await.name());
    }
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["one", "two"]);
}

#[tokio::test]
async fn invalid_files_keep_the_previous_configuration() {
    let one = Origin::echo("one").await;
    let base = Objects::http().service("one", &[one.address]);
    let good = base.clone().route("route", &[to("one")]);
    let mut scene = Scene::start(&good.clone());
    let generation = scene.last().generation;
    for text in [
        format!("{}\n  not: [yaml", good.text()),
        "kind: Gateway\nmetadata: {name: gateway".to_owned(),
        "\u{0}\u{1}".to_owned(),
    ] {
        let outcome = scene
            .change(|folder| write(folder, "objects.yaml", &text))
            .await;
        assert_eq!(outcome.generation, generation, "{text}");
        assert!(!outcome.load.problems.is_empty(), "{text}");
        assert_eq!(get(scene.at(80), "a.com", "/").await.name(), "one");
    }
    // An invalid object keeps its previous version, while others change.
    let bad = yaml::route("route", "gateway", &["not a host!"], "[]");
    let fine = route("fine", &["fine.com"], &[to("one")]);
    let outcome = scene
        .change(|folder| {
            write(
                folder,
                "objects.yaml",
                &base.clone().with(bad).with(fine).text(),
            )
        })
        .await;
    assert!(!outcome.load.problems.is_empty());
    assert_eq!(get(scene.at(80), "a.com", "/").await.name(), "one");
    assert_eq!(get(scene.at(80), "fine.com", "/").await.name(), "one");
    // After the fix, everything is as written.
    let outcome = scene
        .replace(&base.route("route", &[prefix("/mended", "one")]))
        .await;
    assert_eq!(outcome.load.problems, []);
    assert_eq!(get(scene.at(80), "a.com", "/").await.name(), "404");
    assert_eq!(get(scene.at(80), "a.com", "/mended").await.name(), "one");
}

#[tokio::test]
async fn opens_and_closes_ports_independently() {
    let one = Origin::echo("one").await;
    let objects = |listeners: &[String]| {
        Objects::gateway(listeners)
            .service("one", &[one.address])
            .route("route", &[to("one")])
    };
    let first = http("first", 80, "");
    let second = http("second", 81, "");
    let mut scene = Scene::start(&objects(std::slice::from_ref(&first)));
    let mut stays = Client::http1(scene.at(80)).await;
    let mut stream = Client::http2(scene.at(80)).await;
    assert_eq!(stays.get("a.com", "/").await.name(), "one");
    assert_eq!(stream.get("a.com", "/").await.name(), "one");
    let address = scene.at(80);

    scene.replace(&objects(&[first.clone(), second])).await;
    let opened = scene.at(81);
    let mut goes = Client::http1(opened).await;
    assert_eq!(goes.get("a.com", "/").await.name(), "one");
    let mut silent = connect(opened).await;

    scene.replace(&objects(&[first])).await;
    assert_eq!(scene.address(81), None);
    goes.ended().await;
    assert_eq!(read_all(&mut silent).await, b"");
    refuses(opened).await;
    assert_eq!(scene.at(80), address);
    assert_eq!(stays.get("a.com", "/").await.name(), "one");
    assert_eq!(stream.get("a.com", "/").await.name(), "one");
}

#[tokio::test]
async fn reports_and_retries_port_in_use() {
    let one = Origin::echo("one").await;
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = taken.local_addr().expect("an address").port();
    let addresses = "  addresses: [{type: IPAddress, value: 127.0.0.1}]\n";
    let objects = Objects::default()
        .with(yaml::gateway_with(
            "gateway",
            &[http("http", port, "")],
            addresses,
        ))
        .service("one", &[one.address])
        .route("route", &[to("one")]);
    let mut scene = Scene::prepared(
        |folder| write(folder, "objects.yaml", &objects.text()),
        |settings| settings.ports = Ports::AsDeclared,
    );
    let outcome = scene.last();
    assert!(
        outcome.binds.values().all(Result::is_err),
        "{:?}",
        outcome.binds
    );
    let problems: Vec<_> = outcome
        .report
        .problems()
        .map(|(_, message)| message)
        .collect();
    assert!(
        problems
            .iter()
            .any(|message| message.contains("another process uses the port")),
        "{problems:?}"
    );
    let readiness = async |scene: &Scene| {
        let answer = get(scene.admin_address(), "admin", "/readyz").await;
        (answer.status, answer.text().to_owned())
    };
    let (status, reason) = readiness(&scene).await;
    assert_eq!(status, 503, "{reason}");
    assert!(
        reason.contains(&format!("port {port} on 127.0.0.1 is not bound")),
        "{reason}"
    );
    assert!(reason.contains("address already in use"), "{reason}");
    let advice = problems
        .iter()
        .find(|message| message.contains("spec.addresses"));
    assert!(
        advice.is_some_and(|it| !it.contains("use addresses")),
        "{problems:?}"
    );
    drop(taken);
    let outcome = scene
        .outcome_with(|outcome| outcome.binds.values().all(Result::is_ok))
        .await;
    assert_eq!(outcome.report.problems().count(), 0);
    assert_eq!(readiness(&scene).await.0, 200);
    assert_eq!(get(scene.at(port), "a.com", "/").await.name(), "one");
}

#[tokio::test]
async fn address_change_keeps_covered_connections() {
    let one = Origin::echo("one").await;
    let address = closed_address();
    let port = address.port();
    let objects = |addresses: &[&str]| {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|address| format!("{{value: {address}}}"))
            .collect();
        let addresses = format!("  addresses: [{}]\n", addresses.join(", "));
        let listeners = [http("http", port, "")];
        Objects::default()
            .with(yaml::gateway_with("gateway", &listeners, &addresses))
            .service("one", &[one.address])
            .route("route", &[to("one")])
    };
    let mut scene = Scene::with(&objects(&["127.0.0.1"]), |settings| {
        settings.ports = Ports::AsDeclared;
    });
    let mut stays = Client::http1(address).await;
    let mut stream = Client::http2(address).await;
    for addresses in [
        &[][..],
        &["127.0.0.1"],
        &["0.0.0.0"],
        &["127.0.0.1", "127.0.0.2"],
    ] {
        // In the first outcome: nothing is retried.
        let outcome = scene.replace(&objects(addresses)).await;
        let report = outcome.binds;
        assert!(report.values().all(Result::is_ok), "{report:?}");
        assert_eq!(stays.get("a.com", "/").await.name(), "one");
        assert_eq!(stream.get("a.com", "/").await.name(), "one");
        assert_eq!(get(address, "a.com", "/").await.name(), "one");
    }
    scene.replace(&objects(&["127.0.0.2"])).await;
    stays.ended().await;
    stream.ended().await;
    refuses(address).await;
    let other = (Ipv4Addr::new(127, 0, 0, 2), port).into();
    assert_eq!(get(other, "a.com", "/").await.name(), "one");
}

#[tokio::test]
async fn protocol_change_closes_connections() {
    let one = Origin::echo("one").await;
    let objects = |listener: String| {
        Objects::gateway(&[listener, http("other", 81, "")])
            .with(secret("certificate", &Certificate::new(&["a.com"])))
            .service("one", &[one.address])
            .route("route", &[to("one")])
    };
    let mut scene = Scene::start(&objects(http("listener", 80, "")));
    let mut other = Client::http1(scene.at(81)).await;
    let mut plain = Client::http1(scene.at(80)).await;
    assert_eq!(plain.get("a.com", "/").await.name(), "one");
    assert_eq!(other.get("a.com", "/").await.name(), "one");
    scene
        .replace(&objects(https("listener", 80, "", &["certificate"])))
        .await;
    plain.ended().await;
    let config = tls::client(&["http/1.1"]);
    let mut secure = Client::tls(scene.at(80), "a.com", &config).await;
    assert_eq!(secure.get("a.com", "/").await.name(), "one");
    scene.replace(&objects(http("listener", 80, ""))).await;
    secure.ended().await;
    assert_eq!(other.get("a.com", "/").await.name(), "one");
}

/// A client of a port that has become one of TLS has proven nothing, also if it does not heed that its connection ends.
#[tokio::test]
async fn no_request_in_plain_text_is_served_once_a_port_has_tls() {
    // Indices of HPACK.
    const OK: u8 = 0x80 | 8;
    const NOT_FOUND: u8 = 0x80 | 13;
    let one = Origin::echo("one").await;
    let objects = |listener: String| {
        Objects::gateway(&[listener])
            .with(secret("certificate", &Certificate::new(&["a.com"])))
            .service("one", &[one.address])
            .route("route", &[to("one")])
    };
    let mut scene = Scene::start(&objects(http("listener", 80, "")));
    let mut before = Frames::open(scene.at(80)).await;
    assert_eq!(before.get().await, OK);
    let mut late = Frames::open(scene.at(80)).await;
    scene
        .replace(&objects(https("listener", 80, "", &["certificate"])))
        .await;
    assert_eq!(late.get().await, NOT_FOUND);
    assert_eq!(one.requests(), 1);
}

/// The backends of such a listener would get in plain text what clients have sent in TLS.
#[tokio::test]
async fn listener_that_has_come_to_forward_tls_serves_no_requests() {
    let one = Origin::echo("one").await;
    let objects = |listener: String| {
        Objects::gateway(&[listener])
            .with(secret("certificate", &Certificate::new(&["a.com"])))
            .service("one", &[one.address])
    };
    let before = objects(https("listener", 443, "a.com", &["certificate"]));
    let mut scene = Scene::start(&before.route("web", &[to("one")]));
    let config = tls::client(&["http/1.1"]);
    let mut client = Client::tls(scene.at(443), "a.com", &config).await;
    assert_eq!(client.get("a.com", "/").await.name(), "one");
    let after = objects(passthrough("listener", "a.com"));
    scene
        .replace(&after.with(tls_route("app", &["a.com"], "one")))
        .await;
    assert_eq!(client.get("a.com", "/").await.name(), "421");
    client.ended().await;
    assert_eq!(one.requests(), 1);
}

#[tokio::test]
async fn follows_symlink_swap_of_kubernetes_volumes() {
    let one = Origin::echo("one").await;
    let two = Origin::echo("two").await;
    let base = Objects::http()
        .service("one", &[one.address])
        .service("two", &[two.address]);
    let text = |service: &str| base.clone().route("route", &[to(service)]).text();
    let mut scene = Scene::prepared(|folder| publish(folder, "v1", &text("one")), |_| {});
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.name(), "one");
    for (version, name) in [("v2", "two"), ("v3", "one"), ("v4", "two")] {
        let before = scene.last().generation;
        publish(scene.folder(), version, &text(name));
        scene
            .outcome_with(|outcome| outcome.generation > before)
            .await;
        assert_eq!(client.get("a.com", "/").await.name(), name, "{version}");
    }
}
