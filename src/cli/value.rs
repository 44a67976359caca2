//! Value parsers of the command line: durations, sizes, switches and addresses.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;

use crate::api::duration;
use crate::settings::is_name;
use crate::translate;

/// Parses an address to listen on.
pub fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse::<SocketAddr>().ok();
    address.ok_or_else(|| {
        format!("`{text}` is not an address; write one like 127.0.0.1:8080 or [::]:8080")
    })
}

/// Parses a range of addresses.
pub fn cidr(text: &str) -> Result<IpNet, String> {
    let range = text.parse::<IpNet>().ok();
    range.ok_or_else(|| {
        format!("`{text}` is not a CIDR; write one like 10.0.0.0/8, fd00::/8 or 192.0.2.1/32")
    })
}

/// Parses the address of a name server. The default port is 53.
pub fn dns_server(text: &str) -> Result<SocketAddr, String> {
    const PORT: u16 = 53;
    let address = text.parse::<SocketAddr>().ok();
    let address = address.or_else(|| Some(SocketAddr::new(text.parse().ok()?, PORT)));
    address.ok_or_else(|| {
        format!("`{text}` is not an address; write one like 192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:53")
    })
}

/// Parses the key of a supported kind of backend.
pub fn backend_kind(text: &str) -> Result<&'static str, String> {
    let known = || translate::backend_kinds();
    known().find(|gvk| *gvk == text).ok_or_else(|| {
        let known: Vec<_> = known().collect();
        format!(
            "`{text}` is not a supported kind of backend; supported are: {}",
            known.join(", ")
        )
    })
}

/// Parses the name of a namespace.
pub fn namespace(text: &str) -> Result<String, &'static str> {
    let is_one = is_name(text).then(|| text.to_owned());
    is_one.ok_or("must be the name of a namespace, in lower case")
}

/// A duration such as `500ms`, `10s`, `5m`, `1h` or `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        span.0
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = duration::parse_unlimited(text).map(Self);
        parsed.ok_or_else(|| {
            format!("`{text}` is not a duration; write one like 500ms, 10s, 5m or 1h30m")
        })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let whole = duration::UNITS
            .into_iter()
            .rev()
            .find(|(_, factor)| millis > 0 && millis.is_multiple_of(u128::from(*factor)));
        match whole {
            Some((unit, factor)) => write!(f, "{}{unit}", millis / u128::from(factor)),
            None => write!(f, "0s"),
        }
    }
}

/// A number of bytes such as `65536`, `64KiB` or `1MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

impl From<usize> for Size {
    fn from(bytes: usize) -> Self {
        Self(bytes)
    }
}

impl From<Size> for usize {
    fn from(size: Size) -> Self {
        size.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, factor) = match (text.strip_suffix("KiB"), text.strip_suffix("MiB")) {
            (Some(number), _) => (number, 1 << 10),
            (_, Some(number)) => (number, 1 << 20),
            _ => (text, 1),
        };
        number
            .parse::<usize>()
            .ok()
            .and_then(|number| number.checked_mul(factor))
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a size; write one like 65536, 64KiB or 1MiB"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes.is_multiple_of(1 << 20) => {
                write!(f, "{}MiB", bytes >> 20)
            }
            bytes if bytes > 0 && bytes.is_multiple_of(1 << 10) => {
                write!(f, "{}KiB", bytes >> 10)
            }
            bytes => bytes.fmt(f),
        }
    }
}

/// An address, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminAddress(pub Option<SocketAddr>);

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        text.parse()
            .map(|address| Self(Some(address)))
            .map_err(|_| {
                format!("`{text}` is neither an address such as 127.0.0.1:19000 nor `off`")
            })
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("off"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_trip() {
        for (text, millis) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0, Duration::from_millis(millis));
            assert_eq!(span.to_string(), text);
        }
        assert_eq!("1h30m".parse::<Span>().unwrap().to_string(), "90m");
        assert_eq!("0s".parse::<Span>().unwrap().to_string(), "0s");
        for text in [
            "",
            "10",
            "s",
            "-1s",
            "1.5s",
            "10 s",
            "1d",
            "99999999999999999999s",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_round_trip() {
        for (text, bytes) in [("64KiB", 65_536), ("2MiB", 2 << 20), ("100", 100), ("0", 0)] {
            let size: Size = text.parse().unwrap();
            assert_eq!(size.0, bytes);
            assert_eq!(size.to_string(), text);
        }
        assert!("64kb".parse::<Size>().is_err());
    }
}
