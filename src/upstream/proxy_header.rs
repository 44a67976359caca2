//! Headers of the PROXY protocol, versions 1 and 2, for connections to backends
//! (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>). Must not know when they are sent.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::ir::backend_policy::ProxyVersion;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, a connection of the proxy itself.
const LOCAL: u8 = 0x20;
/// Version 2, a connection of a client.
const PROXY: u8 = 0x21;

/// Returns the header of a connection. `client` has the addresses of a client and of the proxy, as the client sees it;
/// `None` if the connection is that of several clients, or of the proxy itself.
pub(super) fn header(version: ProxyVersion, client: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
    let client = client.map(|(source, target)| (canonical(source), canonical(target)));
    match version {
        ProxyVersion::V1 => text(client),
        ProxyVersion::V2 => binary(client),
    }
}

fn text(client: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let Some((source, target)) = client else {
        return b"PROXY UNKNOWN\r\n".to_vec();
    };
    let mut header = Vec::with_capacity(107);
    let (from, to) = (source.port(), target.port());
    // Writing to memory does not fail.
    let _ = match (source.ip(), target.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            write!(header, "PROXY TCP4 {source} {target} {from} {to}\r\n")
        }
        (source, target) => {
            let (source, target) = (as_v6(source), as_v6(target));
            write!(header, "PROXY TCP6 {source} {target} {from} {to}\r\n")
        }
    };
    header
}

fn binary(client: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    let Some((source, target)) = client else {
        header.extend([LOCAL, 0, 0, 0]);
        return header;
    };
    header.push(PROXY);
    match (source.ip(), target.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            // TCP over IPv4, and the length.
            header.extend([0x11, 0, 12]);
            header.extend(source.octets());
            header.extend(target.octets());
        }
        (source, target) => {
            header.extend([0x21, 0, 36]);
            header.extend(as_v6(source).octets());
            header.extend(as_v6(target).octets());
        }
    }
    header.extend(source.port().to_be_bytes());
    header.extend(target.port().to_be_bytes());
    header
}

/// Both addresses of a header have one family.
fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(version: ProxyVersion, source: &str, target: &str) -> Vec<u8> {
        let address = |text: &str| text.parse().unwrap();
        header(version, Some((address(source), address(target))))
    }

    #[test]
    fn headers_have_the_bytes_of_the_protocol() {
        let text = |source: &str, target: &str| {
            String::from_utf8(of(ProxyVersion::V1, source, target)).unwrap()
        };
        assert_eq!(
            text("192.0.2.1:1000", "[::ffff:192.0.2.2]:443"),
            "PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\r\n"
        );
        assert_eq!(
            text("[2001:db8::1]:1000", "[2001:db8::2]:443"),
            "PROXY TCP6 2001:db8::1 2001:db8::2 1000 443\r\n"
        );
        let binary = of(ProxyVersion::V2, "192.0.2.1:1000", "192.0.2.2:443");
        assert_eq!(&binary[..12], SIGNATURE);
        assert_eq!(binary[12..16], [0x21, 0x11, 0, 12]);
        assert_eq!(binary[16..], [192, 0, 2, 1, 192, 0, 2, 2, 3, 232, 1, 187]);
        let binary = of(ProxyVersion::V2, "[2001:db8::1]:1", "192.0.2.2:443");
        assert_eq!(
            (binary.len(), &binary[12..16]),
            (52, &[0x21, 0x21, 0, 36][..])
        );
        assert_eq!(header(ProxyVersion::V1, None), b"PROXY UNKNOWN\r\n");
        assert_eq!(header(ProxyVersion::V2, None)[12..], [0x20, 0, 0, 0]);
    }
}
