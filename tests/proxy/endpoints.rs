//! Endpoints of a Service that are near the data plane, and slow start of added endpoints.

use std::net::SocketAddr;

use portcullis::settings::location::Location;

use crate::client::Client;
use crate::harness::tls::{self, Certificate};
use crate::harness::yaml;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, https, secret, to};

const REQUESTS: usize = 1000;

/// Returns the objects around the Service `backend`.
fn objects(certificate: &Certificate, service: String) -> Objects {
    Objects::gateway(&[https("https", 443, "a.com", &["certificate"])])
        .with(secret("certificate", certificate))
        .with(service)
        .route("route", &[to("backend")])
}

async fn client(scene: &Scene) -> Client {
    Client::tls(scene.at(443), "a.com", &tls::client(&["h2"])).await
}

/// Returns the part of [`REQUESTS`] to which an origin responds.
async fn part(client: &mut Client, name: &str) -> f64 {
    let mut count = 0;
    for _ in 0..REQUESTS {
        count += usize::from(client.get("a.com", "/").await.name() == name);
    }
    count as f64 / REQUESTS as f64
}

/// Returns a Service whose endpoints have hints for these zones.
fn hinted(endpoints: &[(SocketAddr, &str)]) -> String {
    let addresses: Vec<_> = endpoints.iter().map(|(address, _)| *address).collect();
    let add = |text: String, (_, zone): &(SocketAddr, &str)| {
        let hints = format!("'], hints: {{forZones: [{{name: {zone}}}]}}}}]");
        text.replacen("']}]", &hints, 1)
    };
    let service = yaml::service("backend", &addresses);
    endpoints.iter().fold(service, add)
}

#[tokio::test]
async fn endpoints_hinted_for_the_zone_get_the_requests() {
    let near = Origin::echo("near").await;
    let far = Origin::echo("far").await;
    let certificate = Certificate::new(&["a.com"]);
    let service = hinted(&[(near.address, "a"), (far.address, "b")]);
    let mut scene = Scene::with(&objects(&certificate, service), |settings| {
        settings.location = Location::new("a", "");
    });
    let mut client = client(&scene).await;
    assert_eq!(part(&mut client, "near").await, 1.0);

    let service = hinted(&[(near.address, "c"), (far.address, "b")]);
    scene.replace(&objects(&certificate, service)).await;
    let both = part(&mut client, "near").await;
    assert!((0.4..0.6).contains(&both), "{both}");
}

fn slow(endpoints: &[SocketAddr]) -> String {
    let plain = "metadata: {name: backend}";
    let annotated = "metadata: {name: backend, annotations: {portcullis.dev/slow-start: 15m}}";
    yaml::service("backend", endpoints).replacen(plain, annotated, 1)
}

#[tokio::test]
async fn added_endpoint_starts_slowly_if_the_service_enables_it() {
    let old = Origin::echo("old").await;
    let added = Origin::echo("added").await;
    let certificate = Certificate::new(&["a.com"]);
    let mut scene = Scene::start(&objects(&certificate, slow(&[old.address])));
    let mut client = client(&scene).await;
    let both = [old.address, added.address];
    scene.replace(&objects(&certificate, slow(&both))).await;
    let first = part(&mut client, "added").await;
    assert!((0.01..0.2).contains(&first), "{first}");

    let service = yaml::service("backend", &both);
    scene.replace(&objects(&certificate, service)).await;
    let later = part(&mut client, "added").await;
    assert!((0.4..0.6).contains(&later), "{later}");
}
