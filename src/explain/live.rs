//! Text for the endpoints of a backend in service: addresses, health and requests in flight.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::explanation::nearest;
use crate::ir;
use crate::runtime::monotonic;
use crate::table::{Backend, Endpoint, Endpoints};

/// Counts the endpoints of a backend, and those that are ejected, and names their hostname or their releases.
pub(super) fn summary(ir: &ir::Backend, node: &Backend) -> String {
    let endpoints = node.endpoints();
    let ejected = endpoints.iter().filter(|it| it.health.is_avoided()).count();
    let mut text = match endpoints.len() {
        1 => "1 endpoint".to_owned(),
        count => format!("{count} endpoints"),
    };
    if ejected > 0 {
        text.push_str(&format!(", {ejected} ejected"));
    }
    match ir.endpoints.unready().len() {
        0 => {}
        unready => text.push_str(&format!(", {unready} only by the picker")),
    }
    if let Some(hostname) = ir.endpoints.hostname() {
        text.push_str(&format!(", resolved from {hostname}"));
    }
    if let Some(releases) = endpoints.releases() {
        let total: f64 = releases.iter().map(|release| release.weight as f64).sum();
        for release in releases.iter() {
            let percent = match release.weight {
                0 => 0.0,
                weight => weight as f64 * 100.0 / total,
            };
            let (name, count) = (&release.stats.name, release.endpoints.len());
            text.push_str(&format!("; release {name} {percent:.1} %: {count}"));
        }
    }
    text
}

/// Describes each endpoint, one per line: ejected ones first if there are many.
pub(super) fn endpoints(endpoints: &Endpoints) -> Vec<String> {
    let now = monotonic::now().get();
    nearest(
        endpoints.iter().collect(),
        |endpoint| distance(endpoint),
        |endpoint| describe(endpoint, now),
        "endpoints",
    )
}

fn distance(endpoint: &Arc<Endpoint>) -> usize {
    let health = &endpoint.health;
    match health.is_avoided() {
        true => 0,
        false if health.strikes.load(Relaxed) > 0 => 1,
        false => 2,
    }
}

/// Describes an endpoint at `now`, in milliseconds of [`monotonic`].
fn describe(endpoint: &Endpoint, now: u64) -> String {
    let health = &endpoint.health;
    let until = health.avoided_until.load(Relaxed);
    let failures = health.strikes.load(Relaxed);
    let state = match (until, failures) {
        _ if health.has_failed_checks() => "failed: its health checks fail".to_owned(),
        (0, 0) => "healthy".to_owned(),
        (0, failures) => format!("healthy, {failures} failed in succession"),
        (until, _) if until > now => {
            let left = Duration::from_millis(until - now);
            format!("ejected for {:.1} s more", left.as_secs_f64())
        }
        _ => "ejected until a probe succeeds".to_owned(),
    };
    let in_flight = endpoint.load.in_flight();
    format!("{}: {state}, {in_flight} in flight", endpoint.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::per_worker::WorkerId;
    use crate::table::Transport;

    fn ir(endpoints: u16) -> ir::Backend {
        ir::Backend::plain(
            (1..=endpoints)
                .map(|port| ([10, 0, 0, 1], port).into())
                .collect(),
        )
    }

    #[test]
    fn describes_health_and_requests_in_flight() {
        let ir = ir(4);
        let node = Backend::new(&ir, Transport::Plain, Arc::default());
        let all = node.endpoints();
        all[0].load.begin(WorkerId::ONLY);
        all[1].health.avoided_until.store(2_500, Relaxed);
        all[2].health.avoided_until.store(1_000, Relaxed);
        all[3].health.strikes.store(2, Relaxed);
        let described: Vec<_> = all
            .iter()
            .map(|endpoint| describe(endpoint, 1_000))
            .collect();
        assert_eq!(
            described,
            [
                "10.0.0.1:1: healthy, 1 in flight",
                "10.0.0.1:2: ejected for 1.5 s more, 0 in flight",
                "10.0.0.1:3: ejected until a probe succeeds, 0 in flight",
                "10.0.0.1:4: healthy, 2 failed in succession, 0 in flight",
            ]
        );
        assert_eq!(summary(&ir, &node), "4 endpoints, 2 ejected");
    }

    #[test]
    fn ejected_endpoints_are_among_the_listed() {
        let node = Backend::new(&ir(500), Transport::Plain, Arc::default());
        let all = node.endpoints();
        all[400].health.avoided_until.store(1, Relaxed);
        let lines = endpoints(&all);
        assert_eq!(lines.len(), 11);
        assert!(lines[0].starts_with("10.0.0.1:401: ejected"), "{lines:?}");
        assert_eq!(lines[10], "and 490 more endpoints");
    }
}
