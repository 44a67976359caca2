//! The redirect of browsers to a page to sign in, instead of the response 401 of an authorization server. Does no I/O.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, LOCATION, SET_COOKIE};
use http::{HeaderValue, Method, Response, StatusCode, request};

use crate::filter::{LocalResponse, Scheme};
use crate::ir::auth_call::SignIn;
use crate::ir::hex;
use crate::proxy::request::negotiation::accepts;
use crate::proxy::request::original;

/// The media type of pages.
const PAGE: &str = "text/html";

/// Returns the response to a request that the server refuses with `denial`; `None` if that is the response. Cookies that
/// the server sets are kept: they may belong to the sign-in.
pub(super) fn redirect(
    sign_in: &SignIn,
    denial: &LocalResponse,
    (parts, scheme): (&request::Parts, Scheme),
) -> Option<LocalResponse> {
    let is_page =
        matches!(parts.method, Method::GET | Method::HEAD) && accepts(&parts.headers, PAGE);
    if denial.status() != StatusCode::UNAUTHORIZED || !is_page {
        return None;
    }
    let url = original::url(parts, scheme)?;
    let location = location(sign_in, &url);
    let location = HeaderValue::try_from(location).ok()?;
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::FOUND;
    let headers = response.headers_mut();
    headers.insert(LOCATION, location);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for cookie in denial.headers().get_all(SET_COOKIE) {
        headers.append(SET_COOKIE, cookie.clone());
    }
    Some(Box::new(response))
}

/// Returns the address of the page, with a URL to return to.
fn location(sign_in: &SignIn, url: &str) -> String {
    let SignIn { before, after } = sign_in;
    let mut location = before.to_string();
    if let Some(after) = after {
        for byte in url.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    location.push(char::from(byte));
                }
                _ => {
                    location.push('%');
                    let digits = hex::DIGITS[usize::from(byte)];
                    location.extend(digits.map(|digit| char::from(digit.to_ascii_uppercase())));
                }
            }
        }
        location.push_str(after);
    }
    location
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http::header::{ACCEPT, HOST};

    use super::*;

    fn sign_in(before: &str, after: Option<&str>) -> SignIn {
        SignIn {
            before: before.into(),
            after: after.map(Into::into),
        }
    }

    fn request(method: Method, accept: &'static str) -> request::Parts {
        let request = Request::builder()
            .method(method)
            .uri("/a?b=c&d=%20")
            .header(HOST, "a.example:8080")
            .header(ACCEPT, accept);
        request.body(()).unwrap().into_parts().0
    }

    fn denial(status: StatusCode) -> LocalResponse {
        let mut response = Response::new(Bytes::from_static(b"no"));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(SET_COOKIE, HeaderValue::from_static("csrf=1"));
        headers.insert("x-other", HeaderValue::from_static("1"));
        Box::new(response)
    }

    #[test]
    fn redirects_browsers_with_the_encoded_url() {
        let sign_in = sign_in("https://login.example/start?rd=", Some("&x=y"));
        let parts = request(Method::GET, "application/xml;q=0.9, Text/HTML;q=0.8");
        let denial = denial(StatusCode::UNAUTHORIZED);
        let response = redirect(&sign_in, &denial, (&parts, Scheme::Http)).unwrap();
        assert_eq!(response.status(), 302);
        assert_eq!(
            response.headers()[LOCATION],
            "https://login.example/start?rd=http%3A%2F%2Fa.example%3A8080%2Fa%3Fb%3Dc%26d%3D%2520&x=y"
        );
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        assert_eq!(response.headers()[SET_COOKIE], "csrf=1");
        assert!(!response.headers().contains_key("x-other"));
        assert!(response.body().is_empty());
    }

    #[test]
    fn others_get_the_response_of_the_server() {
        let sign_in = sign_in("/login", None);
        for (method, accept, status, expected) in [
            (Method::GET, "text/html", 401, true),
            (Method::HEAD, "text/html", 401, true),
            (Method::POST, "text/html", 401, false),
            (Method::GET, "*/*", 401, false),
            (Method::GET, "application/json", 401, false),
            (Method::GET, "text/html;q=0, */*", 401, false),
            (Method::GET, "text/html", 403, false),
            (Method::GET, "text/html", 302, false),
        ] {
            let denial = denial(StatusCode::from_u16(status).unwrap());
            let parts = request(method.clone(), accept);
            let redirected = redirect(&sign_in, &denial, (&parts, Scheme::Http)).is_some();
            assert_eq!(redirected, expected, "{method} {accept} {status}");
        }
    }

    #[test]
    fn host_that_is_no_host_gives_no_redirect() {
        let mut parts = request(Method::GET, "text/html");
        parts
            .headers
            .insert(HOST, HeaderValue::from_static("a.example@b.example"));
        let (sign_in, denial) = (sign_in("/login", None), denial(StatusCode::UNAUTHORIZED));
        assert!(redirect(&sign_in, &denial, (&parts, Scheme::Http)).is_none());
    }
}
