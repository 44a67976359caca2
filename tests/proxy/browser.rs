//! A browser with cookies, as far as sign-ins need it.

use std::net::SocketAddr;

use http::Method;

use crate::client::{Answer, Client};
use crate::origin::empty;
use crate::provider::Provider;

/// A cookie of a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cookie {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) path: String,
}

/// A browser, which sends the cookies that it has got.
pub(crate) struct Browser {
    pub(crate) client: Client,
    pub(crate) cookies: Vec<Cookie>,
    host: String,
}

impl Browser {
    pub(crate) async fn new(address: SocketAddr, host: &str) -> Self {
        Self {
            client: Client::http1(address).await,
            cookies: Vec::new(),
            host: host.to_owned(),
        }
    }

    /// Asks for a page, as if its user had typed the URL.
    pub(crate) async fn get(&mut self, target: &str) -> Answer {
        let page = [
            ("accept", "text/html,application/xhtml+xml;q=0.9"),
            ("sec-fetch-site", "none"),
            ("sec-fetch-dest", "document"),
        ];
        self.send(Method::GET, target, &page).await
    }

    /// Sends a request with its cookies, and keeps those of the response.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Answer {
        let path = target.split('?').next().unwrap_or_default();
        let fits = |it: &&Cookie| path.starts_with(&it.path);
        let cookies = self.cookies.iter().filter(fits);
        let cookies = cookies.map(|it| format!("{}={}", it.name, it.value));
        let cookies = cookies.collect::<Vec<_>>().join("; ");
        let mut request = self.client.request(method, &self.host, target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !cookies.is_empty() {
            request = request.header("cookie", cookies);
        }
        let request = request.body(empty()).expect("a request");
        let answer = self.client.fetch(request).await;
        for value in answer.headers.get_all("set-cookie") {
            self.keep(value.to_str().expect("text"));
        }
        answer
    }

    fn keep(&mut self, text: &str) {
        let mut parts = text.split("; ");
        let pair = parts.next().and_then(|it| it.split_once('='));
        let (name, value) = pair.expect("a pair");
        let attributes: Vec<_> = parts.collect();
        let path = attributes.iter().find_map(|it| it.strip_prefix("Path="));
        let cookie = Cookie {
            name: name.to_owned(),
            value: value.to_owned(),
            path: path.expect("a path").to_owned(),
        };
        assert!(attributes.contains(&"HttpOnly"), "{text}");
        if name.starts_with("__Host-") {
            // Browsers accept no others with such a name (RFC 6265bis, 4.1.3.2).
            let is_of_host = text.contains("; Path=/; ") && text.ends_with("; Secure");
            assert!(is_of_host && !text.contains("; Domain="), "{text}");
        }
        self.cookies
            .retain(|it| (&it.name, &it.path) != (&cookie.name, &cookie.path));
        if !attributes.contains(&"Max-Age=0") {
            self.cookies.push(cookie);
        }
    }

    /// Begins a sign-in: returns where the browser is sent to.
    pub(crate) async fn begin(&mut self, target: &str) -> String {
        let answer = self.get(target).await;
        assert_eq!(answer.status, 302, "{answer:?}");
        answer.header("location").to_owned()
    }

    /// Signs in: returns where the browser is sent to at the end.
    pub(crate) async fn sign_in(&mut self, provider: &Provider, target: &str) -> String {
        let location = self.begin(target).await;
        let answer = self.get(&provider.authorize(&location)).await;
        assert_eq!(answer.status, 302, "{answer:?}");
        answer.header("location").to_owned()
    }

    /// Gives its cookies the names of those of another browser: both have begun one sign-in, as if with the same identifier.
    pub(crate) fn take_names_of(&mut self, other: &Self) {
        for (cookie, other) in self.cookies.iter_mut().zip(&other.cookies) {
            cookie.name.clone_from(&other.name);
        }
    }

    /// Returns the cookie of its session, if it has one.
    pub(crate) fn session(&self) -> Option<&Cookie> {
        let names = ["-login-", "-logout", "-browser-"];
        let mut cookies = self.cookies.iter();
        cookies.find(|it| !names.iter().any(|name| it.name.contains(name)))
    }
}
