//! The endpoints that a picker chooses, and the headers with which it says so. Does no I/O.

use std::net::SocketAddr;

use super::headers;
use super::message::{HeaderMutation, Metadata, Struct, Value};
use crate::ir::picker::DESTINATION;

/// The field of metadata with the endpoint that responded.
const SERVED: &str = "x-gateway-destination-endpoint-served";
/// Where that and the choice, whose field has the name of the header, are in metadata.
const NAMESPACE: &str = "envoy.lb";
/// Maximum number of endpoints of one choice.
const MAX_ENDPOINTS: usize = 8;

/// Returns the endpoints of a choice, in order: those of the header as backends get it, or else those of the metadata. An entry
/// that is no address is skipped. A header without an entry says nothing.
pub(super) fn chosen(changes: &HeaderMutation, metadata: &Struct) -> Vec<SocketAddr> {
    let header = headers::value(changes, DESTINATION);
    let has_entries = |list: &&str| list.split(',').any(|entry| !entry.trim().is_empty());
    let in_metadata = || metadata.part(NAMESPACE)?.text(DESTINATION);
    let list = header.as_deref().filter(has_entries);
    let list = list.or_else(in_metadata).unwrap_or_default();
    let entries = list.split(',').take(MAX_ENDPOINTS);
    entries
        .filter_map(|entry| entry.trim().parse().ok())
        .collect()
}

/// Returns the metadata with the endpoint that responded.
pub(super) fn served(endpoint: SocketAddr) -> Metadata {
    let part = Struct {
        fields: [(SERVED.to_owned(), Value::text(endpoint.to_string()))].into(),
    };
    Metadata {
        filter_metadata: [(NAMESPACE.to_owned(), part)].into(),
    }
}

/// Metadata with the choice of a picker, for tests.
#[cfg(test)]
pub(super) fn metadata(list: &str) -> Struct {
    use super::message::Kind;

    let part = Struct {
        fields: [(DESTINATION.to_owned(), Value::text(list.to_owned()))].into(),
    };
    let part = Value {
        kind: Some(Kind::Struct(part)),
    };
    Struct {
        fields: [(NAMESPACE.to_owned(), part)].into(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::message::{Header, HeaderOption};
    use super::*;

    fn changes(list: &str) -> HeaderMutation {
        let header = Header {
            key: "X-Gateway-Destination-Endpoint".to_owned(),
            value: String::new(),
            raw_value: Bytes::copy_from_slice(list.as_bytes()),
        };
        let option = HeaderOption {
            header: Some(header),
            ..HeaderOption::default()
        };
        HeaderMutation {
            set_headers: vec![option],
            remove_headers: Vec::new(),
        }
    }

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|entry| entry.parse().unwrap()).collect()
    }

    #[test]
    fn choice_is_a_list_of_addresses() {
        let of = |list: &str| chosen(&changes(list), &Struct::default());
        assert_eq!(of("10.0.0.1:8000"), addresses(&["10.0.0.1:8000"]));
        let two = addresses(&["10.0.0.1:80", "[fd00::1]:8000"]);
        assert_eq!(of("10.0.0.1:80, [fd00::1]:8000"), two);
        for list in [
            "",
            ",",
            "10.0.0.1",
            "pod:8000",
            "10.0.0.1:99999",
            "10.0.0.1:80x",
        ] {
            assert!(of(list).is_empty(), "{list}");
        }
        assert_eq!(of("pod:1,10.0.0.2:80"), addresses(&["10.0.0.2:80"]));
        assert_eq!(of(&"10.0.0.1:80,".repeat(20)).len(), MAX_ENDPOINTS);
    }

    #[test]
    fn choice_is_in_metadata_unless_it_is_in_a_header() {
        let none = HeaderMutation::default();
        let other = metadata("10.0.0.2:80");
        assert_eq!(chosen(&none, &other), addresses(&["10.0.0.2:80"]));
        let both = chosen(&changes("10.0.0.1:80"), &other);
        assert_eq!(both, addresses(&["10.0.0.1:80"]));
        for list in ["", " ", ", ,"] {
            let found = chosen(&changes(list), &other);
            assert_eq!(found, addresses(&["10.0.0.2:80"]), "{list:?}");
        }
        assert!(chosen(&changes("pod:80"), &other).is_empty());
        assert!(chosen(&none, &Struct::default()).is_empty());
    }

    #[test]
    fn served_endpoint_is_in_the_metadata_of_the_protocol() {
        let metadata = served(([10, 0, 0, 1], 8000).into());
        let part = &metadata.filter_metadata["envoy.lb"];
        assert_eq!(part.text(SERVED), Some("10.0.0.1:8000"));
    }
}
