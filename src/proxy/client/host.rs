//! The host that a request names (RFC 9110, 7.2), parsed once per connection while it stays the same.

use std::rc::Rc;

use http::HeaderValue;

use crate::proxy::error::Error;

/// Host of a request: lower case, without port and without the trailing dot of an absolute name;
/// keeps the brackets of IPv6 literals.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// The whole `Host` header in lower case.
    header: Rc<str>,
    /// End of the host within the header.
    end: usize,
}

/// Cached `Host` of the connection's last request, since clients rarely change it.
#[derive(Debug, Default)]
pub(crate) struct LastHost(Option<HostHeader>);

/// A `Host` header and the host in it.
#[derive(Clone, Debug)]
pub(in crate::proxy) struct HostHeader {
    pub(in crate::proxy) host: Host,
    /// The header as sent. A copy: a part of the connection's read buffer would keep the buffer.
    pub(in crate::proxy) value: HeaderValue,
}

impl LastHost {
    pub(in crate::proxy) fn parse(&mut self, text: &[u8]) -> Result<HostHeader, Error> {
        if let Some(last) = &self.0
            && last.value.as_bytes() == text
        {
            return Ok(last.clone());
        }
        let parsed = HostHeader {
            host: parse_host(text)?,
            value: HeaderValue::from_bytes(text)
                .map_err(|_| Error::BadRequest("malformed Host"))?,
        };
        self.0 = Some(parsed.clone());
        Ok(parsed)
    }
}

impl Host {
    /// The host of a request that has none.
    pub(in crate::proxy) fn unknown() -> Self {
        Self {
            header: Rc::from(""),
            end: 0,
        }
    }

    /// The host as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.header[..self.end]
    }
}

/// Parses `uri-host [ ":" port ]` (RFC 9110, 7.2).
fn parse_host(text: &[u8]) -> Result<Host, Error> {
    const BAD: Error = Error::BadRequest("malformed Host");
    let end = if text.first() == Some(&b'[') {
        let end = text.iter().position(|byte| *byte == b']').ok_or(BAD)? + 1;
        let inside = text
            .get(1..end - 1)
            .and_then(|inside| std::str::from_utf8(inside).ok())
            .ok_or(BAD)?;
        inside.parse::<std::net::Ipv6Addr>().map_err(|_| BAD)?;
        end
    } else {
        text.iter()
            .position(|byte| *byte == b':')
            .unwrap_or(text.len())
    };
    let (host, port) = text.split_at(end);
    let is_name =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    if host.is_empty() || host.len() > 255 || (host[0] != b'[' && !host.iter().all(is_name)) {
        return Err(BAD);
    }
    // Some resolvers and frameworks skip empty labels, so that the name would be that of another host.
    if host[0] == b'.' || host.windows(2).any(|pair| pair == b"..") {
        return Err(BAD);
    }
    match port.split_first() {
        None => {}
        Some((b':', digits)) if digits.is_empty() || is_port(digits) => {}
        Some(_) => return Err(BAD),
    }
    let mut header = std::str::from_utf8(text).map_err(|_| BAD)?.to_owned();
    header.make_ascii_lowercase();
    // RFC 3986, 3.2.2: the trailing dot of an absolute name, which browsers send as typed.
    let end = match host.strip_suffix(b".") {
        Some(b"") => return Err(BAD),
        Some(name) => name.len(),
        None => end,
    };
    Ok(Host {
        header: header.into(),
        end,
    })
}

fn is_port(digits: &[u8]) -> bool {
    let number = std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse::<u16>().ok());
    digits[0] != b'+' && number.is_some_and(|port| port > 0)
}
