//! DNS lookups from a name server of the test, over UDP.

#[path = "../harness/mod.rs"]
mod harness;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portcullis::dns::{Answer, Lookup, LookupError, SystemLookup};

use crate::harness::dns::{NameServer, Records};

async fn lookup(server: SocketAddr, name: &str) -> Result<Answer, LookupError> {
    SystemLookup::new(vec![server]).lookup(name).await
}

fn sorted(answer: Answer) -> Vec<String> {
    let mut addresses = answer.addresses;
    addresses.sort();
    addresses.iter().map(IpAddr::to_string).collect()
}

fn is_about(ttl: Duration, seconds: u64) -> bool {
    let most = Duration::from_secs(seconds);
    ttl <= most && ttl + Duration::from_secs(5) >= most
}

#[tokio::test]
async fn resolves_both_address_families() {
    let server = NameServer::start().await;
    server.set(
        "both.example",
        &["192.0.2.1", "192.0.2.2", "2001:db8::1"],
        90,
    );
    server.set("six.example", &["2001:db8::6"], 30);
    let answer = lookup(server.address, "both.example").await.unwrap();
    assert!(is_about(answer.ttl, 90), "{:?}", answer.ttl);
    let expected = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
    assert_eq!(sorted(answer), expected);
    let answer = lookup(server.address, "six.example").await.unwrap();
    assert!(is_about(answer.ttl, 30), "{:?}", answer.ttl);
    assert_eq!(sorted(answer), ["2001:db8::6"]);
}

#[tokio::test]
async fn follows_aliases_with_the_minimum_ttl() {
    let server = NameServer::start().await;
    server.put("a.example", Records::Alias("b.example".to_owned(), 20));
    server.put("b.example", Records::Alias("c.example".to_owned(), 200));
    server.set("c.example", &["192.0.2.3"], 100);
    let answer = lookup(server.address, "a.example").await.unwrap();
    assert!(is_about(answer.ttl, 20), "{:?}", answer.ttl);
    assert_eq!(sorted(answer), ["192.0.2.3"]);
}

#[tokio::test]
async fn distinguishes_missing_addresses_from_server_failures() {
    let server = NameServer::start().await;
    server.set("empty.example", &[], 30);
    server.put("broken.example", Records::Failure);
    for name in ["missing.example", "empty.example"] {
        let error = lookup(server.address, name).await.unwrap_err();
        assert_eq!(error, LookupError::NoAddress, "{name}");
    }
    let error = lookup(server.address, "broken.example").await.unwrap_err();
    assert!(matches!(error, LookupError::Failed(_)), "{error}");
}

#[tokio::test]
async fn neither_caches_nor_uses_search_domains() {
    let server = NameServer::start().await;
    server.set("xn--bcher-kva.example", &["192.0.2.1"], 300);
    let mut system = SystemLookup::new(vec![server.address]);
    for address in ["192.0.2.1", "192.0.2.2"] {
        server.set("xn--bcher-kva.example", &[address], 300);
        let answer = system.lookup("xn--bcher-kva.example").await.unwrap();
        assert_eq!(sorted(answer), [address]);
    }
    assert_eq!(server.queries("xn--bcher-kva.example"), 2);
    let error = system.lookup("missing.example").await.unwrap_err();
    assert_eq!(error, LookupError::NoAddress);
}
