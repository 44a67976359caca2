//! The host that a request to the admin server names. A browser on the operator's machine reaches the server through a
//! port-forward. Under a name that an attacker's DNS server resolves to loopback (DNS rebinding), a web page of that name
//! could read the configuration.

use std::net::{IpAddr, Ipv6Addr};

use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;

/// Reports whether the request names a loopback address or `localhost`, on any port.
pub(super) fn is_loopback(request: &Parts) -> bool {
    let mut hosts = request.headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    let Ok(host) = Authority::try_from(host.as_bytes()) else {
        return false;
    };
    // RFC 9110, 7.2: a Host has no user information.
    if host.as_str().contains('@') {
        return false;
    }
    // RFC 9112, 3.2.2: the authority of an absolute target takes precedence.
    [Some(&host), request.uri.authority()]
        .into_iter()
        .flatten()
        .all(|authority| is_loopback_name(authority.host()))
}

fn is_loopback_name(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let literal = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let address = match literal {
        Some(literal) => literal.parse::<Ipv6Addr>().map(IpAddr::V6),
        None => name.parse().map(IpAddr::V4),
    };
    address.is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn accepts(hosts: &[&str], target: &str) -> bool {
        let mut request = Request::get(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        is_loopback(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn loopback_names_and_addresses_are_accepted_on_any_port() {
        for host in [
            "localhost",
            "LocalHost:19000",
            "localhost.:80",
            "127.0.0.1",
            "127.9.8.7:1",
            "[::1]",
            "[::1]:19000",
            "[0:0::1]:19000",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(accepts(&[host], "/config"), "{host}");
        }
        assert!(accepts(&["localhost"], "http://127.0.0.1:19000/config"));
    }

    #[test]
    fn other_names_are_refused() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "xlocalhost",
            "10.0.0.1",
            "[::2]",
            "[::]",
            "0.0.0.0",
            "::1",
            "",
            "127.1",
        ] {
            assert!(!accepts(&[host], "/config"), "{host}");
        }
        assert!(!accepts(&[], "/config"));
        assert!(!accepts(&["localhost", "evil.example"], "/config"));
        assert!(!accepts(&["localhost"], "http://evil.example/config"));
    }
}
