//! Cookies that browsers get for a sign-in and for sessions: their attributes, and how a session is split over several. Must not
//! know what is in them.

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};

use crate::filter::session_cookies::{
    PART, PARTS, SIGN_INS, browser_name, login_name, logout_name, part_name, sign_ins,
};
use crate::ir::cookie;
use crate::ir::oidc::{CookieSettings, Oidc, SIGN_IN_LIFETIME, SameSite};

/// For how long a sign-in may take, in seconds.
pub(super) const MAX_AGE: u64 = SIGN_IN_LIFETIME;
/// Length of the identifier of a browser.
const BROWSER: usize = 24;
/// Number of sign-ins that a response removes, so that its headers stay small.
const REMOVED: usize = 8;

/// The cookies of a policy.
pub(super) struct Cookies<'a> {
    oidc: &'a Oidc,
    /// Name of those of sessions.
    pub(super) name: &'a str,
    /// Whether browsers send them over HTTPS only.
    is_secure: bool,
}

impl<'a> Cookies<'a> {
    pub(super) fn new(oidc: &'a Oidc, name: &'a str, is_secure: bool) -> Self {
        Self {
            oidc,
            name,
            is_secure,
        }
    }

    fn settings(&self) -> &'a CookieSettings {
        &self.oidc.cookie
    }

    /// Returns the cookies of a sealed session, in place of those that a request has; `None` if it is too large.
    pub(super) fn set_session(&self, text: &str, request: &HeaderMap) -> Option<Vec<HeaderValue>> {
        let parts = text.as_bytes().chunks(PART);
        let count = parts.len();
        if !(1..=PARTS).contains(&count) {
            return None;
        }
        let name = self.name;
        let mut cookies = Vec::with_capacity(count);
        for (index, part) in parts.enumerate() {
            let part = std::str::from_utf8(part).ok()?;
            let cookie = match index {
                0 => format!("{name}={count}.{part}"),
                _ => format!("{}={part}", part_name(name, index)),
            };
            cookies.push(self.with_attributes(&cookie)?);
        }
        cookies.extend(self.expired_parts(request, count));
        Some(cookies)
    }

    /// Returns what removes the session that a request has from its browser.
    pub(super) fn end_session(&self, request: &HeaderMap) -> Vec<HeaderValue> {
        self.expired_parts(request, 0).collect()
    }

    fn expired_parts(&self, request: &HeaderMap, from: usize) -> impl Iterator<Item = HeaderValue> {
        let names = (from..PARTS).map(|index| part_name(self.name, index));
        let present = names.filter(|name| cookie::values(request, name).next().is_some());
        present.filter_map(|name| self.with_attributes(&format!("{name}=; Max-Age=0")))
    }

    fn with_attributes(&self, cookie: &str) -> Option<HeaderValue> {
        let CookieSettings {
            name: _,
            domain,
            same_site,
            path,
        } = self.settings();
        let domain = domain.as_ref();
        let domain = domain.map_or_else(String::new, |it| format!("; Domain={it}"));
        self.value(format!("{cookie}; Path={path}{domain}"), *same_site)
    }

    /// Returns the sealed values of a sign-in, of which there may be several.
    pub(super) fn login(&self, headers: &HeaderMap, id: &str) -> Vec<Vec<u8>> {
        let name = self.login_name(id);
        let values = cookie::values(headers, &name).take(2);
        values.map(<[u8]>::to_vec).collect()
    }

    /// Returns the cookie of a sign-in that begins. Only the path that the provider sends the browser to gets it.
    pub(super) fn set_login(&self, id: &str, text: &str) -> Option<HeaderValue> {
        let (name, path) = (self.login_name(id), &self.oidc.redirect_path);
        self.short_lived(format!("{name}={text}; Path={path}; Max-Age={MAX_AGE}"))
    }

    /// Returns what removes the cookies of a sign-in from its browser.
    pub(super) fn end_login(&self, id: &str) -> Vec<HeaderValue> {
        let path = &*self.oidc.redirect_path;
        let cookies = [(self.login_name(id), path), (self.browser_name(id), "/")];
        let expired = cookies.into_iter().filter_map(|(name, path)| {
            let expired = format!("{name}=; Path={path}; Max-Age=0");
            self.short_lived(expired)
        });
        expired.collect()
    }

    /// Returns what removes the oldest sign-ins of a request from its browser, so that another one may begin. Only the path that
    /// the provider sends the browser to gets their own cookies: those that tell browsers apart count.
    pub(super) fn end_oldest_logins(&self, request: &HeaderMap) -> Vec<HeaderValue> {
        let begun = sign_ins(request, &self.settings().name, self.is_secure);
        let excess = (begun.len() + 1).saturating_sub(SIGN_INS);
        let oldest = begun.into_iter().take(excess.min(REMOVED));
        oldest.flat_map(|id| self.end_login(id)).collect()
    }

    fn login_name(&self, id: &str) -> String {
        login_name(&self.settings().name, id)
    }

    /// Returns the identifier of the browser of a sign-in.
    pub(super) fn browser(&self, headers: &HeaderMap, id: &str) -> Option<String> {
        let name = self.browser_name(id);
        let fits = |it: &u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_');
        let is_it = |it: &&[u8]| it.len() == BROWSER && it.iter().all(fits);
        let value = cookie::values(headers, &name).find(is_it)?;
        String::from_utf8(value.to_vec()).ok()
    }

    /// Returns the cookie that tells a browser from others while it signs in.
    pub(super) fn set_browser(&self, id: &str, text: &str) -> Option<HeaderValue> {
        let name = self.browser_name(id);
        self.short_lived(format!("{name}={text}; Path=/; Max-Age={MAX_AGE}"))
    }

    fn browser_name(&self, id: &str) -> String {
        browser_name(&self.settings().name, id, self.is_secure)
    }

    /// Returns the sealed value of a sign-out.
    pub(super) fn logout(&self, headers: &HeaderMap) -> Option<Vec<u8>> {
        let name = self.logout_name();
        cookie::values(headers, &name).next().map(<[u8]>::to_vec)
    }

    /// Returns the cookie of a sign-out that begins.
    pub(super) fn set_logout(&self, text: &str) -> Option<HeaderValue> {
        let (name, path) = (self.logout_name(), &self.oidc.logout_path);
        self.short_lived(format!("{name}={text}; Path={path}; Max-Age={MAX_AGE}"))
    }

    /// Returns what removes the cookie of a sign-out from its browser.
    pub(super) fn end_logout(&self) -> Option<HeaderValue> {
        let (name, path) = (self.logout_name(), &self.oidc.logout_path);
        self.short_lived(format!("{name}=; Path={path}; Max-Age=0"))
    }

    fn logout_name(&self) -> String {
        logout_name(&self.settings().name)
    }

    /// The provider's redirect is a request of another site, with which browsers send no `Strict` cookie.
    fn short_lived(&self, cookie: String) -> Option<HeaderValue> {
        let same_site = match self.settings().same_site {
            SameSite::Lax | SameSite::Strict => SameSite::Lax,
            SameSite::None => SameSite::None,
        };
        self.value(cookie, same_site)
    }

    fn value(&self, mut cookie: String, same_site: SameSite) -> Option<HeaderValue> {
        let name = same_site.name();
        cookie.push_str(&format!("; HttpOnly; SameSite={name}"));
        if self.is_secure {
            cookie.push_str("; Secure");
        }
        let mut value = HeaderValue::try_from(cookie).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// Returns headers that set cookies.
pub(super) fn headers(cookies: Vec<HeaderValue>) -> HeaderMap {
    let cookies = cookies.into_iter().map(|it| (SET_COOKIE, it));
    cookies.collect()
}

#[cfg(test)]
mod tests;
