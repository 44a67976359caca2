//! Headers of the PROXY protocol, versions 1 and 2, which tell the address of the client behind a load balancer
//! (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>). Must not know whom to believe.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Maximum length of a header of version 2 with its TLVs: that of nginx. Usual ones have less than 256 bytes.
const MAX: usize = 4096;
/// Maximum length of a header of version 1, with the line feed.
const MAX_TEXT: usize = 107;
/// What a header of version 1 begins with.
const TEXT: &[u8] = b"PROXY ";
/// What a header of version 2 begins with.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Length of the fixed part of a header of version 2.
const FIXED: usize = 16;

/// What is known after the first bytes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// They may become a header.
    Incomplete,
    /// They begin with a header.
    Complete(Header),
    /// They begin with something else.
    Absent,
    /// They begin like a header, and are none.
    Invalid,
}

/// A header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Its length.
    pub(super) length: usize,
    /// The client; `None` if it is the load balancer itself, or has no TCP address.
    pub(super) client: Option<SocketAddr>,
}

/// Parses the first bytes of a connection.
pub(super) fn parse(bytes: &[u8]) -> Status {
    if is_beginning(bytes, SIGNATURE) {
        return parse_binary(bytes);
    }
    if is_beginning(bytes, TEXT) {
        return parse_text(bytes);
    }
    Status::Absent
}

/// Reports whether bytes begin with a text, or are the beginning of it.
fn is_beginning(bytes: &[u8], text: &[u8]) -> bool {
    let length = bytes.len().min(text.len());
    bytes[..length] == text[..length]
}

fn parse_text(bytes: &[u8]) -> Status {
    let longest = &bytes[..bytes.len().min(MAX_TEXT)];
    let Some(end) = longest.windows(2).position(|pair| pair == b"\r\n") else {
        return match bytes.len() < MAX_TEXT {
            true => Status::Incomplete,
            false => Status::Invalid,
        };
    };
    // The prefix has no line end, so that it is complete here.
    let line = std::str::from_utf8(&bytes[TEXT.len()..end]);
    match line.ok().and_then(client_of_text) {
        Some(client) => Status::Complete(Header {
            length: end + 2,
            client,
        }),
        None => Status::Invalid,
    }
}

/// Returns the client that a header of version 1 tells; `None` if the header is malformed.
fn client_of_text(line: &str) -> Option<Option<SocketAddr>> {
    let (family, rest) = line.split_once(' ').unwrap_or((line, ""));
    match family {
        "UNKNOWN" => Some(None),
        "TCP4" => client_of_fields::<Ipv4Addr>(rest).map(Some),
        "TCP6" => client_of_fields::<Ipv6Addr>(rest).map(Some),
        _ => None,
    }
}

fn client_of_fields<A: FromStr + Into<IpAddr>>(fields: &str) -> Option<SocketAddr> {
    let mut fields = fields.split(' ');
    let mut next = || fields.next();
    let (source, destination) = (next()?, next()?);
    let (source_port, destination_port) = (next()?, next()?);
    let source: A = source.parse().ok()?;
    destination.parse::<A>().ok()?;
    port(destination_port)?;
    let client = SocketAddr::new(source.into(), port(source_port)?);
    fields.next().is_none().then_some(client)
}

/// Parses a port without sign or leading zeros.
fn port(text: &str) -> Option<u16> {
    let is_plain = text == "0" || text.starts_with(|first| matches!(first, '1'..='9'));
    text.parse().ok().filter(|_| is_plain)
}

fn parse_binary(bytes: &[u8]) -> Status {
    let Some(fixed) = bytes.first_chunk::<FIXED>() else {
        return Status::Incomplete;
    };
    let (version, command) = (fixed[12] >> 4, fixed[12] & 0xf);
    let (family, transport) = (fixed[13] >> 4, fixed[13] & 0xf);
    let length = FIXED + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    // Receivers must drop connections with values that the protocol does not assign.
    if version != 2 || command > 1 || family > 3 || transport > 2 || length > MAX {
        return Status::Invalid;
    }
    let Some(content) = bytes.get(FIXED..length) else {
        return Status::Incomplete;
    };
    let client = match (command, family, transport) {
        (1, 1, 1) => match client_of_bytes::<4>(content, 8) {
            Some((address, port)) => Some((IpAddr::from(address), port).into()),
            None => return Status::Invalid,
        },
        (1, 2, 1) => match client_of_bytes::<16>(content, 32) {
            Some((address, port)) => Some((IpAddr::from(address), port).into()),
            None => return Status::Invalid,
        },
        // LOCAL, or a client without a TCP address. The rest are TLVs.
        _ => None,
    };
    Status::Complete(Header { length, client })
}

/// Returns the source of two addresses and two ports, which begin at `ports`.
fn client_of_bytes<const N: usize>(content: &[u8], ports: usize) -> Option<([u8; N], u16)> {
    let source = content.first_chunk::<N>()?;
    let ports = content.get(ports..ports + 4)?;
    Some((*source, u16::from_be_bytes([ports[0], ports[1]])))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of version 2 with this command, family and content.
    fn binary(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
        let length = (content.len() as u16).to_be_bytes();
        [SIGNATURE, &[0x20 | command, family], &length, content].concat()
    }

    /// 192.0.2.1:4660 to 10.0.0.1:80.
    const IPV4: [u8; 12] = [192, 0, 2, 1, 10, 0, 0, 1, 0x12, 0x34, 0, 80];

    fn client(bytes: &[u8]) -> Option<SocketAddr> {
        match parse(bytes) {
            Status::Complete(header) => {
                assert_eq!(header.length, bytes.len());
                header.client
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reads_clients_of_both_versions() {
        let expected: SocketAddr = "192.0.2.1:4660".parse().unwrap();
        let text = b"PROXY TCP4 192.0.2.1 10.0.0.1 4660 80\r\n";
        assert_eq!(client(text), Some(expected));
        assert_eq!(client(&binary(1, 0x11, &IPV4)), Some(expected));
        let tlvs = [&IPV4[..], &[3, 0, 4, 1, 2, 3, 4, 4, 0, 0]].concat();
        assert_eq!(client(&binary(1, 0x11, &tlvs)), Some(expected), "TLVs");
        let expected: SocketAddr = "[2001:db8::1]:4660".parse().unwrap();
        let text = b"PROXY TCP6 2001:db8::1 fd00::1 4660 80\r\n";
        assert_eq!(client(text), Some(expected));
        let mut content = [0; 36];
        content[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
        content[15] = 1;
        content[32..34].copy_from_slice(&[0x12, 0x34]);
        assert_eq!(client(&binary(1, 0x21, &content)), Some(expected));
    }

    #[test]
    fn load_balancers_and_clients_without_tcp_have_no_client() {
        for bytes in [
            b"PROXY UNKNOWN\r\n".to_vec(),
            b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n".to_vec(),
            binary(0, 0, &[]),
            binary(0, 0x11, &IPV4),
            binary(1, 0, &[1, 2, 3]),
            binary(1, 0x12, &IPV4),
            binary(1, 0x31, &[b'a'; 216]),
        ] {
            assert_eq!(client(&bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn every_beginning_is_incomplete_and_what_follows_does_not_matter() {
        let mut content = IPV4.to_vec();
        content.resize(MAX - FIXED, 7);
        for header in [
            b"PROXY TCP4 192.0.2.1 10.0.0.1 4660 80\r\n".to_vec(),
            binary(1, 0x11, &IPV4),
            binary(1, 0x11, &content),
        ] {
            for end in 0..header.len() {
                assert_eq!(parse(&header[..end]), Status::Incomplete, "{end}");
            }
            let whole = parse(&header);
            assert!(matches!(whole, Status::Complete(_)));
            let more = [&header[..], b"GET / HTTP/1.1\r\n\r\n"].concat();
            assert_eq!(parse(&more), whole);
        }
    }

    #[test]
    fn other_protocols_are_no_header() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\x16\x03\x01",
            b"\r\nGET /",
            b"\r\n\r\n\0\r\nQUIT\r\n",
            b"PRI * HTTP/2.0\r\n",
            b"PROXYTCP4",
            b"proxy TCP4 ",
        ] {
            assert_eq!(parse(bytes), Status::Absent, "{bytes:?}");
        }
    }

    #[test]
    fn malformed_headers_are_invalid() {
        let long = format!("PROXY UNKNOWN {}\r\n", "a".repeat(MAX_TEXT));
        for bytes in [
            &b"PROXY TCP4 192.0.2.1 10.0.0.1 4660\r\n"[..],
            b"PROXY TCP4 192.0.2.1 10.0.0.1 4660 80 1\r\n",
            b"PROXY TCP4  192.0.2.1 10.0.0.1 4660 80\r\n",
            b"PROXY TCP4 192.0.2.1 10.0.0.1 +4660 80\r\n",
            b"PROXY TCP4 192.0.2.1 10.0.0.1 04660 80\r\n",
            b"PROXY TCP4 192.0.2.1 10.0.0.1 65536 80\r\n",
            b"PROXY TCP4 192.0.2.1 10.0.0.1 4660 80\n\r\n",
            b"PROXY TCP4 192.0.2.01 10.0.0.1 4660 80\r\n",
            b"PROXY TCP4 2001:db8::1 fd00::1 4660 80\r\n",
            b"PROXY TCP6 192.0.2.1 10.0.0.1 4660 80\r\n",
            b"PROXY UDP4 192.0.2.1 10.0.0.1 4660 80\r\n",
            b"PROXY UNKNOWNS\r\n",
            b"PROXY \r\n",
            b"PROXY TCP4 \xff\r\n",
            long.as_bytes(),
        ] {
            assert_eq!(parse(bytes), Status::Invalid, "{bytes:?}");
        }
        let mut wrong_version = binary(1, 0x11, &IPV4);
        wrong_version[12] = 0x11;
        for bytes in [
            wrong_version,
            binary(2, 0x11, &IPV4),
            binary(1, 0x41, &IPV4),
            binary(1, 0x13, &IPV4),
            binary(1, 0x11, &IPV4[..11]),
            binary(1, 0x21, &IPV4),
            binary(1, 0x11, &[0; MAX]),
        ] {
            assert_eq!(parse(&bytes), Status::Invalid, "{bytes:?}");
        }
    }
}
