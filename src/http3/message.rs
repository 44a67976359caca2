//! Requests and responses as field sections (RFC 9114, 4.2 to 4.4). The rules are those that h2 has for HTTP/2, where RFC 9113
//! has the same ones.

use h2::ext::Protocol;
use http::header::{COOKIE, HOST, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, uri};

use super::error::Error;
use super::frame;
use super::qpack::{self, Line};

/// Limits of a field section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum bytes of all lines, as RFC 9114, 4.2.2 counts them: with 32 for each.
    pub(crate) bytes: usize,
    /// Maximum number of lines, without pseudo-header fields and with one line for all cookies.
    pub(crate) lines: usize,
}

/// Decodes the head of a request. Cookies are one header. The protocol of an extended CONNECT (RFC 9220) is an extension of
/// the request, of the type that h2 has for it.
pub(crate) fn request(section: &[u8], limits: Limits) -> Result<Request<()>, Error> {
    let mut control = ControlData::default();
    let mut headers = Headers::new(limits);
    qpack::decode(section, limits.bytes, |line| match line.name {
        [b':', ..] if headers.map.is_empty() => control.set(line),
        [b':', ..] => Err(Error::malformed("a pseudo-header field after a field")),
        _ => headers.add(line),
    })?;
    control.into_request(headers.finish()?)
}

/// Decodes the trailers of a request.
pub(crate) fn trailers(section: &[u8], limits: Limits) -> Result<HeaderMap, Error> {
    let mut headers = Headers::new(limits);
    qpack::decode(section, limits.bytes, |line| match line.name {
        [b':', ..] => Err(Error::malformed("a pseudo-header field in trailers")),
        _ => headers.add(line),
    })?;
    headers.finish()
}

/// Writes a HEADERS frame with the head of a response, also of an informational one. Leaves out connection-specific fields.
pub(crate) fn write_response(status: StatusCode, headers: &HeaderMap, output: &mut Vec<u8>) {
    frame::write_headers(output, |output| {
        qpack::write(":status", status.as_str().as_bytes(), false, output);
        write_lines(headers, output);
    });
}

/// Writes a HEADERS frame with the trailers of a response.
pub(crate) fn write_trailers(trailers: &HeaderMap, output: &mut Vec<u8>) {
    frame::write_headers(output, |output| write_lines(trailers, output));
}

fn write_lines(headers: &HeaderMap, output: &mut Vec<u8>) {
    for (name, value) in headers {
        if !is_connection_specific(name) && *name != TE {
            let is_sensitive = value.is_sensitive();
            qpack::write(name.as_str(), value.as_bytes(), is_sensitive, output);
        }
    }
}

/// RFC 9114, 4.2.
fn is_connection_specific(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade"
    )
}

/// The headers of a section.
struct Headers {
    map: HeaderMap,
    /// Lines that may still follow.
    left: usize,
    /// All cookies, once there are several.
    cookies: Option<Vec<u8>>,
}

impl Headers {
    fn new(limits: Limits) -> Self {
        Self {
            map: HeaderMap::new(),
            left: limits.lines,
            cookies: None,
        }
    }

    fn add(&mut self, line: Line<'_>) -> Result<(), Error> {
        let name = HeaderName::from_lowercase(line.name)
            .map_err(|_| Error::malformed("a malformed field name"))?;
        if is_connection_specific(&name) {
            return Err(Error::malformed("a connection-specific field"));
        }
        if name == TE && line.value != b"trailers" {
            return Err(Error::malformed("TE other than trailers"));
        }
        if name == COOKIE && self.has_joined(line) {
            return Ok(());
        }
        self.left = self.left.checked_sub(1).ok_or(Error::TooLarge)?;
        let mut value = value(line.value)?;
        value.set_sensitive(line.is_sensitive);
        let appended = self.map.try_append(name, value);
        appended.map_err(|_| Error::TooLarge).map(|_| ())
    }

    /// Adds a cookie to others, if there are any (RFC 9114, 4.2.1).
    fn has_joined(&mut self, line: Line<'_>) -> bool {
        let Some(first) = self.map.get_mut(COOKIE) else {
            return false;
        };
        first.set_sensitive(first.is_sensitive() || line.is_sensitive);
        let cookies = self
            .cookies
            .get_or_insert_with(|| first.as_bytes().to_vec());
        if !cookies.is_empty() && !line.value.is_empty() {
            cookies.extend_from_slice(b"; ");
        }
        cookies.extend_from_slice(line.value);
        true
    }

    fn finish(mut self) -> Result<HeaderMap, Error> {
        if let Some(cookies) = self.cookies
            && let Some(first) = self.map.get_mut(COOKIE)
        {
            let is_sensitive = first.is_sensitive();
            *first = value(&cookies)?;
            first.set_sensitive(is_sensitive);
        }
        Ok(self.map)
    }
}

fn value(bytes: &[u8]) -> Result<HeaderValue, Error> {
    HeaderValue::from_bytes(bytes).map_err(|_| Error::malformed("a malformed field value"))
}

/// The pseudo-header fields of a request.
#[derive(Default)]
struct ControlData {
    method: Option<Method>,
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    path: Option<PathAndQuery>,
    protocol: Option<Protocol>,
}

impl ControlData {
    fn set(&mut self, line: Line<'_>) -> Result<(), Error> {
        let Ok(text) = str::from_utf8(line.value) else {
            return Err(Error::malformed("a pseudo-header field that is no text"));
        };
        match line.name {
            b":scheme" | b":path" if text.is_empty() => {
                Err(Error::malformed("an empty :scheme or :path"))
            }
            b":method" => set(&mut self.method, text.parse()),
            b":scheme" => set(&mut self.scheme, text.parse()),
            b":authority" => set(&mut self.authority, text.parse()),
            b":path" => set(&mut self.path, text.parse()),
            b":protocol" => set(&mut self.protocol, Ok::<_, ()>(Protocol::from(text))),
            _ => Err(Error::malformed("an unknown pseudo-header field")),
        }
    }

    fn into_request(self, headers: HeaderMap) -> Result<Request<()>, Error> {
        self.check_host(&headers)?;
        let Some(method) = self.method else {
            return Err(Error::malformed("no :method"));
        };
        let has_target = (self.scheme.is_some(), self.path.is_some());
        match (method == Method::CONNECT, &self.protocol, has_target) {
            (true, None, (false, false)) if self.authority.is_some() => {}
            (true, None, _) => return Err(Error::malformed("a CONNECT with a wrong target")),
            (false, Some(_), _) => return Err(Error::malformed(":protocol without CONNECT")),
            (_, _, (true, true)) => {}
            (_, _, _) => return Err(Error::malformed("no :scheme or no :path")),
        }
        let mut target = uri::Parts::default();
        // A target without an authority cannot have a scheme.
        target.scheme = self.scheme.filter(|_| self.authority.is_some());
        target.authority = self.authority;
        target.path_and_query = self.path;
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() =
            Uri::from_parts(target).map_err(|_| Error::malformed("a malformed target"))?;
        *request.version_mut() = Version::HTTP_3;
        *request.headers_mut() = headers;
        if let Some(protocol) = self.protocol {
            request.extensions_mut().insert(protocol);
        }
        Ok(request)
    }

    /// Checks that there is one host (RFC 9114, 4.3.1). [`Authority`] is not empty.
    fn check_host(&self, headers: &HeaderMap) -> Result<(), Error> {
        let is_mandatory = self.scheme.as_ref().is_some_and(|scheme| {
            let scheme = scheme.as_str();
            scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http")
        });
        let mut hosts = headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
        match &self.authority {
            Some(authority) => {
                let authority = authority.as_str().as_bytes();
                match hosts.all(|host| host.eq_ignore_ascii_case(authority)) {
                    true => Ok(()),
                    false => Err(Error::malformed("Host differs from :authority")),
                }
            }
            None if is_mandatory && !hosts.any(|host| !host.is_empty()) => {
                Err(Error::malformed("no :authority and no Host"))
            }
            None => Ok(()),
        }
    }
}

/// Sets a pseudo-header field, which there is once.
fn set<T, E>(field: &mut Option<T>, value: Result<T, E>) -> Result<(), Error> {
    if field.is_some() {
        return Err(Error::malformed(
            "a pseudo-header field that is there twice",
        ));
    }
    let malformed = Error::malformed("a malformed pseudo-header field");
    *field = Some(value.map_err(|_| malformed)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::{Code, RequestFrame, RequestReader};
    use super::*;

    const LIMITS: Limits = Limits {
        bytes: 1000,
        lines: 5,
    };
    /// Of a GET.
    const GET: [(&str, &str); 4] = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.com"),
        (":path", "/a?b"),
    ];

    fn section(lines: &[(&str, &str)]) -> Vec<u8> {
        let mut section = Vec::new();
        qpack::begin(&mut section);
        for (name, value) in lines {
            qpack::write(name, value.as_bytes(), false, &mut section);
        }
        section
    }

    fn read(lines: &[(&str, &str)]) -> Result<Request<()>, Error> {
        request(&section(lines), LIMITS)
    }

    fn is_malformed<T>(result: &Result<T, Error>) -> bool {
        matches!(result, Err(Error::Stream(Code::MessageError, _)))
    }

    #[test]
    fn heads_become_requests() {
        let request = read(&[&GET[..], &[("te", "trailers"), ("x", "1"), ("x", "")]].concat());
        let request = request.unwrap();
        assert_eq!(request.method(), Method::GET);
        assert_eq!(request.version(), Version::HTTP_3);
        assert_eq!(request.uri(), "https://a.com/a?b");
        assert_eq!(request.headers().len(), 3);
        assert_eq!(request.headers()["te"], "trailers");
        let values: Vec<_> = request.headers().get_all("x").iter().collect();
        assert_eq!(values, ["1", ""]);
    }

    #[test]
    fn targets_have_the_forms_that_they_have_with_http2() {
        let host = ("host", "a.com");
        for (lines, uri) in [
            (&[GET[0], GET[1], GET[3], host][..], "/a?b"),
            (&[GET[0], (":scheme", "x"), GET[3]], "/a?b"),
            (
                &[(":method", "OPTIONS"), GET[1], GET[2], (":path", "*")],
                "https://a.com*",
            ),
            (
                &[GET[2], GET[1], GET[3], GET[0], ("host", "A.com")],
                "https://a.com/a?b",
            ),
            (
                &[(":method", "CONNECT"), (":authority", "a.com:1")],
                "a.com:1",
            ),
        ] {
            assert_eq!(read(lines).unwrap().uri().to_string(), uri, "{lines:?}");
        }
    }

    #[test]
    fn extended_connect_has_a_protocol() {
        let connect = [(":method", "CONNECT"), (":protocol", "websocket")];
        let request = read(&[&connect[..], &GET[1..]].concat()).unwrap();
        assert_eq!(request.method(), Method::CONNECT);
        assert_eq!(request.uri(), "https://a.com/a?b");
        let protocol = request.extensions().get::<Protocol>().unwrap();
        assert_eq!(protocol.as_str(), "websocket");
        assert!(read(&GET).unwrap().extensions().get::<Protocol>().is_none());
    }

    #[test]
    fn malformed_requests_are_refused() {
        let host = ("host", "b.com");
        for lines in [
            // Pseudo-header fields that are missing, or that are there twice, late, unknown, of responses or malformed.
            &[][..],
            &[GET[1], GET[2], GET[3]],
            &[GET[0], GET[2], GET[3]],
            &[GET[0], GET[1], GET[2]],
            &[GET[0], GET[1], ("host", "a.com")],
            &[GET[0], GET[0], GET[1], GET[2], GET[3]],
            &[GET[0], GET[1], GET[2], GET[3], GET[3]],
            &[GET[0], GET[1], GET[2], ("x", "y"), GET[3]],
            &[GET[0], GET[1], GET[2], GET[3], (":x", "y")],
            &[GET[0], GET[1], GET[2], GET[3], (":", "")],
            &[GET[0], GET[1], GET[2], GET[3], (":status", "200")],
            &[GET[0], GET[1], GET[2], (":Path", "/")],
            &[(":method", ""), GET[1], GET[2], GET[3]],
            &[(":method", "G T"), GET[1], GET[2], GET[3]],
            &[GET[0], (":scheme", ""), GET[2], GET[3]],
            &[GET[0], (":scheme", "a b"), GET[2], GET[3]],
            &[GET[0], GET[1], (":authority", ""), GET[3]],
            &[GET[0], GET[1], (":authority", "a b"), GET[3]],
            &[GET[0], GET[1], GET[2], (":path", "")],
            &[GET[0], GET[1], GET[2], (":path", "/a b")],
            // Hosts.
            &[GET[0], GET[1], GET[3]],
            &[GET[0], GET[1], GET[3], ("host", "")],
            &[GET[0], GET[1], GET[2], GET[3], host],
            &[GET[0], GET[1], GET[2], GET[3], ("host", "")],
            // CONNECT.
            &[(":method", "CONNECT")],
            &[(":method", "CONNECT"), GET[1], GET[2], GET[3]],
            &[(":method", "CONNECT"), GET[2], GET[3]],
            &[(":method", "CONNECT"), (":protocol", "x"), GET[2]],
            &[(":method", "CONNECT"), (":protocol", "x"), GET[1], GET[2]],
            &[GET[0], (":protocol", "x"), GET[1], GET[2], GET[3]],
        ] {
            assert!(is_malformed(&read(lines)), "{lines:?}");
        }
    }

    #[test]
    fn malformed_fields_are_refused_in_heads_and_trailers() {
        for (name, value) in [
            ("", "x"),
            ("X", "y"),
            ("a b", "x"),
            ("a:", "x"),
            ("x", "a\nb"),
            ("x", "\0"),
            ("connection", "x"),
            ("connection", ""),
            ("keep-alive", "x"),
            ("proxy-connection", "x"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "x"),
            ("te", "gzip"),
            ("te", "trailers, gzip"),
            ("te", ""),
        ] {
            let line = (name, value);
            let head = [&GET[..], &[line]].concat();
            assert!(is_malformed(&read(&head)), "{line:?}");
            let trailers = trailers(&section(&[("x", "y"), line]), LIMITS);
            assert!(is_malformed(&trailers), "{line:?}");
        }
        for line in GET.into_iter().chain([(":status", "200"), (":x", "")]) {
            let trailers = trailers(&section(&[line]), LIMITS);
            assert!(is_malformed(&trailers), "{line:?}");
        }
        let map = trailers(&section(&[("a", "1"), ("b", "")]), LIMITS).unwrap();
        assert_eq!((map.len(), &map["a"]), (2, &HeaderValue::from_static("1")));
        assert!(trailers(&section(&[]), LIMITS).unwrap().is_empty());
    }

    #[test]
    fn cookies_are_one_header() {
        for (crumbs, joined) in [
            (&["a=1"][..], "a=1"),
            (&["a=1", "b=2", "c=3"], "a=1; b=2; c=3"),
            (&["", "a=1", "", "b=2", ""], "a=1; b=2"),
            (&["", ""], ""),
        ] {
            let crumbs = crumbs.iter().map(|crumb| ("cookie", *crumb));
            let lines: Vec<_> = GET.into_iter().chain(crumbs).chain([("x", "y")]).collect();
            let request = read(&lines).unwrap();
            let cookies: Vec<_> = request.headers().get_all(COOKIE).iter().collect();
            assert_eq!(cookies, [joined]);
            assert_eq!(request.headers().len(), 2);
        }
        let malformed = [&GET[..], &[("cookie", "a"), ("cookie", "\n")]].concat();
        assert!(is_malformed(&read(&malformed)));
        let mut sensitive = section(&[&GET[..], &[("cookie", "a")]].concat());
        qpack::write("cookie", b"b", true, &mut sensitive);
        let request = request(&sensitive, LIMITS).unwrap();
        assert!(request.headers()[COOKIE].is_sensitive());
    }

    #[test]
    fn sections_have_limits() {
        let line = ("x", "y");
        let cookie = ("cookie", "a");
        let at_limit = [&GET[..], &[line; 4], &[cookie; 5]].concat();
        assert_eq!(read(&at_limit).unwrap().headers().len(), 5);
        let above = [&GET[..], &[line; 6]].concat();
        assert_eq!(read(&above).unwrap_err(), Error::TooLarge);
        assert_eq!(trailers(&section(&[line; 6]), LIMITS), Err(Error::TooLarge));
        let long = "0".repeat(1000 - 33);
        assert!(trailers(&section(&[("x", &long)]), LIMITS).is_ok());
        let long = section(&[("xx", &long)]);
        assert_eq!(trailers(&long, LIMITS), Err(Error::TooLarge));
    }

    #[test]
    fn responses_are_written_without_connection_specific_fields() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("server", "x"),
            ("connection", "close"),
            ("transfer-encoding", "chunked"),
            ("content-type", "text/css"),
            ("upgrade", "x"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let mut output = Vec::new();
        write_response(StatusCode::OK, &headers, &mut output);
        let section = [0, 0, 0xd9, 0x5f, 0x4d, 0x01, b'x', 0xf3];
        assert_eq!(output, [&[1, 8][..], &section].concat());
        output.clear();
        write_trailers(&headers, &mut output);
        let mut reader = RequestReader::new(100);
        let frame = reader.read(&mut Bytes::from(output)).unwrap();
        let Some(RequestFrame::Head(section)) = frame else {
            panic!("{frame:?}");
        };
        let read = trailers(&section, LIMITS).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read["server"], "x");
    }
}
