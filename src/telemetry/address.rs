//! Writes addresses as URIs have them, without the formatter: those of IPv4, which most are, from a table.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Appends an address with its port.
pub(super) fn write_address(line: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            let (mut text, mut end) = octets(ip);
            text[end] = b':';
            end += 1;
            let mut port = itoa::Buffer::new();
            let port = port.format(address.port()).as_bytes();
            text[end..end + port.len()].copy_from_slice(port);
            line.extend_from_slice(&text[..end + port.len()]);
        }
        // Writing to a Vec does not fail.
        IpAddr::V6(_) => drop(write!(line, "{address}")),
    }
}

/// Appends an address without port, and without brackets.
pub(super) fn write_ip(line: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(ip) => {
            let (text, end) = octets(ip);
            line.extend_from_slice(&text[..end]);
        }
        // Writing to a Vec does not fail.
        IpAddr::V6(_) => drop(write!(line, "{address}")),
    }
}

/// Returns an address, with room for a port behind it, and its length.
fn octets(ip: Ipv4Addr) -> ([u8; 21], usize) {
    let (mut text, mut end) = ([b'.'; 21], 0);
    for octet in ip.octets() {
        let (digits, length) = OCTETS[usize::from(octet)];
        text[end..end + 3].copy_from_slice(&digits);
        end += length;
        text[end] = b'.';
        end += 1;
    }
    (text, end - 1)
}

/// The decimal digits of each octet, and their number.
const OCTETS: [([u8; 3], usize); 256] = {
    let mut octets = [([b'0'; 3], 1); 256];
    let mut octet = 0;
    while octet < octets.len() {
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let length = 1 + (octet > 9) as usize + (octet > 99) as usize;
        let mut at = 0;
        while at < length {
            octets[octet].0[at] += digits[3 - length + at] as u8;
            at += 1;
        }
        octets[octet].1 = length;
        octet += 1;
    }
    octets
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_uris() {
        for text in [
            "1.20.255.0:65535",
            "255.255.255.255:1",
            "0.9.10.99:443",
            "100.199.200.254:80",
            "[2001:db8::1]:4000",
            "[::1]:80",
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let (mut line, mut ip) = (Vec::new(), Vec::new());
            write_address(&mut line, address);
            write_ip(&mut ip, address.ip());
            assert_eq!(String::from_utf8(line).unwrap(), text);
            assert_eq!(String::from_utf8(ip).unwrap(), address.ip().to_string());
        }
    }
}
