//! Which page replaces a response with an error status, by what its client accepts, and what that changes in its head.
//! Must not know where responses come from.

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_LANGUAGE, ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING,
    CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    LAST_MODIFIED, TRAILER,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::list::{DIGESTS, add_vary, elements_of, parameters};
use crate::ir::error_page::{ErrorPage, PageContent, PageVariant, Responder};

/// Headers that describe the content of a response (RFC 9110, 8 and 14), which a page replaces.
const OF_CONTENT: [HeaderName; 10] = [
    ACCEPT_RANGES,
    CONTENT_DISPOSITION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_LOCATION,
    CONTENT_RANGE,
    ETAG,
    LAST_MODIFIED,
    TRAILER,
];

/// The `Accept` of a request. Allocates only if the request has one.
#[derive(Debug)]
pub struct Accept(Vec<HeaderValue>);

impl Accept {
    /// Returns that of a request with these headers.
    pub fn of(headers: &HeaderMap) -> Self {
        Self(headers.get_all(ACCEPT).into_iter().cloned().collect())
    }

    /// Returns the lines of the header.
    pub fn lines(&self) -> &[HeaderValue] {
        &self.0
    }

    /// Returns the weight of a media type in thousandths: that of the most specific range that contains it (RFC 9110,
    /// 12.5.1). Without ranges, every type is acceptable.
    fn weight(&self, media_type: &str) -> u16 {
        let mut is_empty = true;
        let mut best = (0, 0);
        for element in elements_of(self.0.iter()) {
            is_empty = false;
            let Some((range, weight)) = parameters(element) else {
                continue;
            };
            if let Some(precision) = precision(range, media_type) {
                best = best.max((precision, weight));
            }
        }
        if is_empty { 1000 } else { best.1 }
    }

    /// Returns the variant with the highest weight, and of several the first. `None` if the client accepts none.
    fn preferred<'a>(&self, variants: &'a [PageVariant]) -> Option<&'a PageVariant> {
        let mut best: Option<(&PageVariant, u16)> = None;
        for variant in variants {
            let weight = self.weight(variant.media_type());
            if weight > best.map_or(0, |(_, weight)| weight) {
                best = Some((variant, weight));
            }
        }
        best.map(|(variant, _)| variant)
    }
}

/// Returns how precisely a range names a media type; `None` if it does not contain it.
fn precision(range: &str, media_type: &str) -> Option<u8> {
    if range == "*/*" {
        return Some(1);
    }
    if range.eq_ignore_ascii_case(media_type) {
        return Some(3);
    }
    let kind = range.strip_suffix("/*")?;
    let (own, _) = media_type.split_once('/')?;
    own.eq_ignore_ascii_case(kind).then_some(2)
}

/// Returns the page for a response, if there is one.
pub fn find(
    pages: &[ErrorPage],
    (status, responder): (StatusCode, Responder),
) -> Option<&ErrorPage> {
    let mut pages = pages.iter();
    pages.find(|page| {
        page.source.covers(responder) && page.codes.binary_search(&status.as_u16()).is_ok()
    })
}

/// Returns the status and body of the page that replaces a response, and changes the headers to those of the page. A
/// response for which there is a page that the client does not accept, or that its server has not given, stays as it is,
/// apart from `Vary`.
pub fn replace(
    pages: &[ErrorPage],
    response: (StatusCode, Responder),
    accept: &Accept,
    headers: &mut HeaderMap,
) -> Option<(StatusCode, Bytes)> {
    let page = find(pages, response)?;
    add_vary(headers, &ACCEPT, HeaderValue::from_static("Accept"));
    let variant = match &page.content {
        PageContent::Variants(variants) => accept.preferred(variants)?,
        PageContent::Server(_) => {
            vary_by_language(headers);
            return None;
        }
    };
    remove_content(headers);
    headers.insert(CONTENT_TYPE, variant.content_type.clone());
    let status = match page.keeps_status {
        true => response.0,
        false => StatusCode::OK,
    };
    Some((status, variant.body.clone()))
}

/// Changes the headers of a response to those of the page that its server has given.
pub fn replace_by_fetched(headers: &mut HeaderMap, of_page: HeaderMap) {
    add_vary(headers, &ACCEPT, HeaderValue::from_static("Accept"));
    vary_by_language(headers);
    remove_content(headers);
    headers.extend(of_page);
}

fn vary_by_language(headers: &mut HeaderMap) {
    let value = HeaderValue::from_static("Accept-Language");
    add_vary(headers, &ACCEPT_LANGUAGE, value);
}

/// Removes the headers that describe the content of a response, except for its type.
pub fn remove_content(headers: &mut HeaderMap) {
    for name in OF_CONTENT.iter().chain(&DIGESTS) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::error_page::PageSource;

    fn variant(content_type: &'static str) -> PageVariant {
        PageVariant {
            content_type: HeaderValue::from_static(content_type),
            body: Bytes::from_static(content_type.as_bytes()),
        }
    }

    fn page(codes: &[u16], source: PageSource, types: &[&'static str]) -> ErrorPage {
        ErrorPage {
            codes: codes.to_vec(),
            source,
            content: PageContent::Variants(types.iter().copied().map(variant).collect()),
            keeps_status: true,
        }
    }

    fn accept(lines: &[&'static str]) -> Accept {
        Accept(
            lines
                .iter()
                .copied()
                .map(HeaderValue::from_static)
                .collect(),
        )
    }

    #[test]
    fn page_is_the_variant_that_the_client_prefers() {
        let html = "text/html; charset=utf-8";
        let pages = [page(&[404], PageSource::Any, &[html, "application/json"])];
        for (lines, expected) in [
            (&[][..], Some(html)),
            (&["*/*"], Some(html)),
            (&[""], Some(html)),
            (&["application/json"], Some("application/json")),
            (&["APPLICATION/JSON;q=0.5"], Some("application/json")),
            (&["text/*;q=0.5, */*;q=0.9"], Some("application/json")),
            (&["text/html;q=0", "*/*"], Some("application/json")),
            (&["text/*;q=0.1, text/html, */*;q=0.5"], Some(html)),
            (
                &["application/*, text/html;q=0.9"],
                Some("application/json"),
            ),
            (&["text/html;level=1"], Some(html)),
            (&["image/png"], None),
            (&["*/*;q=0"], None),
            (&["text/html;q=2"], None),
        ] {
            let mut headers = HeaderMap::new();
            let response = (StatusCode::NOT_FOUND, Responder::Gateway);
            let found = replace(&pages, response, &accept(lines), &mut headers);
            let found = found.as_ref().map(|(_, body)| &body[..]);
            assert_eq!(found, expected.map(str::as_bytes), "{lines:?}");
            assert_eq!(headers["vary"], "Accept");
        }
    }

    #[test]
    fn first_page_for_status_and_responder_wins() {
        let pages = [
            page(&[404, 410], PageSource::Gateway, &["text/a"]),
            page(&[404], PageSource::Any, &["text/b"]),
            page(&[404, 503], PageSource::Backend, &["text/c"]),
        ];
        for (status, responder, expected) in [
            (404, Responder::Gateway, Some("text/a")),
            (404, Responder::Backend, Some("text/b")),
            (410, Responder::Backend, None),
            (503, Responder::Gateway, None),
            (503, Responder::Backend, Some("text/c")),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let mut headers = HeaderMap::new();
            let found = replace(&pages, (status, responder), &accept(&[]), &mut headers);
            let found = found.as_ref().map(|(_, body)| &body[..]);
            assert_eq!(found, expected.map(str::as_bytes), "{status} {responder:?}");
            assert_eq!(headers.contains_key("vary"), expected.is_some());
        }
    }

    #[test]
    fn headers_about_the_replaced_content_are_removed_and_others_stay() {
        let mut pages = [page(&[401], PageSource::Backend, &["text/a"])];
        pages[0].keeps_status = false;
        let mut headers = HeaderMap::new();
        let fields = [
            ("content-type", "text/plain"),
            ("content-length", "7"),
            ("content-encoding", "gzip"),
            ("etag", "\"a\""),
            ("repr-digest", "sha-256=:a:"),
            ("www-authenticate", "Basic"),
            ("cache-control", "no-store"),
            ("vary", "Origin"),
        ];
        for (name, value) in fields {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let response = (StatusCode::UNAUTHORIZED, Responder::Backend);
        let replaced = replace(&pages, response, &accept(&[]), &mut headers);
        assert_eq!(replaced.map(|(status, _)| status), Some(StatusCode::OK));
        assert_eq!(headers["content-type"], "text/a");
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = ["cache-control", "content-type", "vary", "www-authenticate"];
        assert_eq!(names, expected);
        let vary: Vec<_> = headers.get_all("vary").into_iter().collect();
        assert_eq!(vary, ["Origin", "Accept"]);
    }
}
