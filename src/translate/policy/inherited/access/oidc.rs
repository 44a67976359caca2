//! `oidc`: sign-in of browsers at an OpenID provider. Must not know which requests it applies to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use http::header::{AUTHORIZATION, HeaderName};

use crate::api::access_policy::{Oidc, OidcCookie};
use crate::api::reference::SecretRef;
use crate::ir::ObjectRef;
use crate::ir::hex;
use crate::ir::oidc::{self as ir, ClientSecret, CookieSettings, HOST_PREFIX, SameSite};
use crate::ir::token::Provider;

use super::super::credential::CLIENT_SECRET;
use super::super::policy::Content;
use super::api_key::is_token;
use super::discovery;
use super::jwks::PUBLIC;
use super::remote::{self, Remote};
use super::secret::{References, claim_headers, header};
use crate::translate::duration;
use crate::translate::gateway::certificate::value;
use crate::translate::policy::backend_tls::is_dns_name;
use crate::translate::reason::{Fault, Faults, Reason, all, invalid};

const REDIRECT_PATH: &str = "/oauth2/callback";
const LOGOUT_PATH: &str = "/oauth2/logout";
/// An example: by default, there is none.
const BACK_CHANNEL_LOGOUT_PATH: &str = "/oauth2/backchannel-logout";
const PAGE: &str = "text/html";
const ABSOLUTE_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
const ABSOLUTE_TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(30 * 24 * 60 * 60);
/// By how much the clocks of the provider and of Portcullis may differ, in seconds.
const LEEWAY: u64 = 60;
/// The parameters of authorization requests that make a sign-in safe, and those that would replace them (RFC 9101).
const PROTOCOL: [&str; 11] = [
    "client_id",
    "redirect_uri",
    "response_type",
    "response_mode",
    "scope",
    "state",
    "nonce",
    "code_challenge",
    "code_challenge_method",
    "request",
    "request_uri",
];
/// Maximum length of the name of a parameter.
const MAX_NAME: usize = 64;
/// The scope without which a provider issues no ID token.
const OPENID: &str = "openid";

/// Parses the section.
pub(super) fn read(references: &mut References<'_>, section: &Oidc) -> Result<Content, Fault> {
    let Oidc {
        issuer,
        client_id,
        client_secret_ref,
        scopes,
        authorization_parameters,
        redirect_path: _,
        logout_path: _,
        back_channel_logout_path: _,
        cookie,
        forward_access_token: _,
        forward_id_token: _,
        claim_to_headers,
        redirect_only_for,
        pass_through_bearer,
        absolute_timeout,
        ca_config_map_ref: _,
    } = section;
    if client_id.is_empty() || !client_id.bytes().all(|it| matches!(it, b' '..=b'~')) {
        return invalid("spec.oidc.clientID: is not printable text".to_owned());
    }
    let paths = Paths::read(section)?;
    let client_secret = client_secret_ref.as_ref();
    let client_secret = client_secret.map(|it| client_secret_of(references, it));
    let claim_headers = claim_headers(claim_to_headers, "spec.oidc")?;
    let (access_token_header, id_token_header) = token_headers(section)?;
    let absolute_timeout = self::absolute_timeout(absolute_timeout.as_deref())?;
    let scope = scope(scopes)?;
    let authorization_parameters = parameters(authorization_parameters)?;
    let cookie = self::cookie(references.origin, cookie.as_ref())?;
    let redirect_only_for = media_types(redirect_only_for)?;
    let client_secret = client_secret.transpose()?;
    let place = (
        ("spec.oidc.issuer", "spec.oidc.caConfigMapRef"),
        "nobody can sign in",
    );
    let set = remote::fetched(references, Remote::of_provider(section), &PUBLIC, place)?;
    // A provider that nobody can verify gets no secret.
    let unusable = "spec.oidc.caConfigMapRef: cannot be used";
    let authorities = set.authorities;
    let authorities = authorities.ok_or_else(|| Fault::new(Reason::Invalid, unusable))?;
    let endpoints = set.discovery.as_ref().map(discovery::endpoints);
    Ok(Content::Oidc(Arc::new(ir::Oidc {
        policy: references.origin.clone(),
        client_id: client_id.as_str().into(),
        client_secret,
        id_token: Provider {
            issuer: issuer.as_str().into(),
            audiences: [client_id.as_str().into()].into(),
            keys: set.keys,
            key_server_tls: None,
            key_set: Some(set.name),
            from: Box::default(),
            claim_headers,
            leeway: LEEWAY,
            token_type: None,
        },
        // What was fetched was checked. A controller of another version may check less.
        endpoints: endpoints.and_then(Result::ok),
        authorities,
        scope,
        authorization_parameters,
        redirect_path: paths.redirect,
        logout_path: paths.logout,
        back_channel_logout_path: paths.back_channel_logout,
        cookie,
        access_token_header,
        id_token_header,
        redirect_only_for,
        pass_through_bearer: *pass_through_bearer,
        absolute_timeout,
    })))
}

/// Parses the headers in which the access token and the ID token are forwarded.
fn token_headers(section: &Oidc) -> Result<(Option<HeaderName>, Option<HeaderName>), Fault> {
    let forwarded = |name: Option<&str>, field: &str| {
        let header = name.map(|name| header(name, &format!("spec.oidc.{field}"), &[AUTHORIZATION]));
        header.transpose()
    };
    let access_token = forwarded(
        section.forward_access_token.as_deref(),
        "forwardAccessToken",
    )?;
    let id_token = forwarded(section.forward_id_token.as_deref(), "forwardIDToken")?;
    if access_token.is_some() && access_token == id_token {
        return invalid("spec.oidc.forwardIDToken: is the header of forwardAccessToken".to_owned());
    }
    Ok((access_token, id_token))
}

fn client_secret_of(
    references: &mut References<'_>,
    reference: &SecretRef,
) -> Result<ClientSecret, Fault> {
    references.read(reference, "spec.oidc.clientSecretRef", |secret| {
        Ok((client_secret(value(secret, CLIENT_SECRET)?)?, Vec::new()))
    })
}

/// The whitespace at the end does not count: files end with a line feed.
fn client_secret(bytes: &[u8]) -> Result<ClientSecret, String> {
    let bytes = bytes.trim_ascii_end();
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && bytes.iter().all(|it| matches!(it, b' '..=b'~')) => {
            Ok(ClientSecret::new(text))
        }
        _ => Err(format!("has a {CLIENT_SECRET} that is not printable text")),
    }
}

/// The paths of the section.
struct Paths {
    redirect: Box<str>,
    logout: Box<str>,
    back_channel_logout: Option<Box<str>>,
}

impl Paths {
    fn read(section: &Oidc) -> Result<Self, Fault> {
        let redirect = section.redirect_path.as_deref();
        let redirect = path(redirect, REDIRECT_PATH, "redirectPath")?;
        let logout = path(section.logout_path.as_deref(), LOGOUT_PATH, "logoutPath")?;
        if redirect == logout {
            return invalid("spec.oidc.logoutPath: is redirectPath, too".to_owned());
        }
        let back_channel_logout = section.back_channel_logout_path.as_deref().map(|text| {
            const FIELD: &str = "backChannelLogoutPath";
            let path = path(Some(text), BACK_CHANNEL_LOGOUT_PATH, FIELD)?;
            for (other, name) in [(&redirect, "redirectPath"), (&logout, "logoutPath")] {
                if path == *other {
                    return invalid(format!("spec.oidc.{FIELD}: is {name}, too"));
                }
            }
            Ok(path)
        });
        Ok(Self {
            back_channel_logout: back_channel_logout.transpose()?,
            redirect,
            logout,
        })
    }
}

/// Parses a path that requests have as it is: without query and percent-encoding.
fn path(text: Option<&str>, default: &str, field: &str) -> Result<Box<str>, Fault> {
    let path = text.unwrap_or(default);
    let fits = |it: u8| it.is_ascii_alphanumeric() || b"/-._~!$&'()*+,=:@".contains(&it);
    let segments = || path.split('/');
    let is_path = path.starts_with('/')
        && path.len() > 1
        && path.bytes().all(fits)
        && !segments().skip(1).any(|it| matches!(it, "" | "." | ".."));
    match is_path {
        true => Ok(path.into()),
        false => invalid(format!(
            "spec.oidc.{field}: {path:?} is not a path such as {default}"
        )),
    }
}

fn scope(scopes: &[String]) -> Result<Box<str>, Fault> {
    let (mut distinct, mut faults) = (vec![OPENID], Faults::default());
    for (index, scope) in scopes.iter().enumerate() {
        // RFC 6749, 3.3.
        let fits = |it: u8| matches!(it, b'!' | b'#'..=b'[' | b']'..=b'~');
        let scope = match scope.is_empty() || !scope.bytes().all(fits) {
            true => invalid(format!(
                "spec.oidc.scopes[{index}]: {scope:?} is not a scope"
            )),
            false => Ok(scope.as_str()),
        };
        let scope = faults.keep(scope);
        distinct.extend(scope.filter(|it| !distinct.contains(it)));
    }
    faults.finish(distinct.join(" ").into())
}

/// Parses parameters of authorization requests, none of which may be one of the protocol.
fn parameters(named: &BTreeMap<String, String>) -> Result<BTreeMap<Box<str>, Box<str>>, Fault> {
    let read = named.iter().map(|(name, value)| {
        let field = format!("spec.oidc.authorizationParameters[{name:?}]");
        let fits = |it: u8| it.is_ascii_alphanumeric() || b"_-.".contains(&it);
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(fits) {
            return invalid(format!(
                "{field}: the name is not one of up to {MAX_NAME} letters, digits, _, - and ."
            ));
        }
        if PROTOCOL.contains(&name.as_str()) {
            return invalid(format!("{field}: is set by the protocol"));
        }
        match value.chars().any(char::is_control) {
            true => invalid(format!("{field}: is not printable text")),
            false => Ok((name.as_str().into(), value.as_str().into())),
        }
    });
    all(read)
}

fn absolute_timeout(text: Option<&str>) -> Result<Duration, Fault> {
    const FIELD: &str = "spec.oidc.absoluteTimeout";
    let timeout = text.map_or(Ok(ABSOLUTE_TIMEOUT), |text| duration::parse(text, FIELD))?;
    match ABSOLUTE_TIMEOUTS.contains(&timeout) {
        true => Ok(timeout),
        false => invalid(format!("{FIELD}: is less than 1m or more than 720h")),
    }
}

fn media_types(types: &[String]) -> Result<Box<[Box<str>]>, Fault> {
    if types.is_empty() {
        return Ok([PAGE.into()].into());
    }
    let read = types.iter().enumerate().map(|(index, text)| {
        let halves = text.split_once('/');
        match halves.is_some_and(|(kind, name)| is_token(kind) && is_token(name) && name != "*") {
            true => Ok(text.to_ascii_lowercase().into()),
            false => invalid(format!(
                "spec.oidc.redirectOnlyFor[{index}]: {text:?} is not a media type such as {PAGE}"
            )),
        }
    });
    all(read)
}

fn cookie(policy: &ObjectRef, cookie: Option<&OidcCookie>) -> Result<CookieSettings, Fault> {
    let default = OidcCookie::default();
    let OidcCookie {
        name,
        domain,
        same_site,
        path: of_path,
    } = cookie.unwrap_or(&default);
    let name = name.clone().unwrap_or_else(|| own_name(policy));
    // Over HTTPS, the name has it anyway, where browsers accept that.
    let name = name.strip_prefix(HOST_PREFIX).unwrap_or(&name);
    if !is_token(name) {
        return invalid(format!("spec.oidc.cookie.name: {name:?} is not a name"));
    }
    let domain = domain.as_deref().map(|text| {
        let name = text.strip_prefix('.').unwrap_or(text).to_ascii_lowercase();
        match is_dns_name(&name) && name.contains('.') {
            true => Ok(name.into()),
            false => invalid(format!(
                "spec.oidc.cookie.domain: {text:?} is not a DNS name with a dot"
            )),
        }
    });
    let same_site = match same_site.as_deref() {
        None | Some("Lax") => SameSite::Lax,
        Some("Strict") => SameSite::Strict,
        Some("None") => SameSite::None,
        Some(other) => {
            return invalid(format!(
                "spec.oidc.cookie.sameSite: {other:?} is none of Lax, Strict and None"
            ));
        }
    };
    let path = match of_path.as_deref() {
        None | Some("/") => "/".into(),
        Some(text) => path(Some(text), "/app", "cookie.path")?,
    };
    Ok(CookieSettings {
        name: name.into(),
        domain: domain.transpose()?,
        same_site,
        path,
    })
}

/// Returns the name of the cookies of a policy that names none: another policy for the same host has another one.
fn own_name(policy: &ObjectRef) -> String {
    let digest = digest(&SHA256, policy.to_string().as_bytes());
    format!("oidc-{}", hex::encode(&digest.as_ref()[..4]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_requests() {
        for good in ["/a", "/oauth2/callback", "/a/b.c~d", "/@me"] {
            assert_eq!(&*path(Some(good), "/x", "redirectPath").unwrap(), good);
        }
        for bad in [
            "", "/", "a", "//a", "/a/", "/a/../b", "/a/./b", "/a?b", "/a%20b", "/a#b", "/a\\b",
            "/é",
        ] {
            assert!(path(Some(bad), "/x", "redirectPath").is_err(), "{bad}");
        }
    }

    #[test]
    fn scopes_have_openid_once() {
        let scope = |scopes: &[&str]| {
            let scopes: Vec<_> = scopes.iter().map(ToString::to_string).collect();
            scope(&scopes).map(String::from).map_err(|it| it.message)
        };
        assert_eq!(scope(&[]).unwrap(), "openid");
        assert_eq!(
            scope(&["email", "openid", "email"]).unwrap(),
            "openid email"
        );
        assert!(scope(&["a b"]).is_err() && scope(&["\""]).is_err() && scope(&[""]).is_err());
    }

    #[test]
    fn parameters_of_the_protocol_cannot_be_replaced() {
        let is_valid = |name: &str| {
            let named = BTreeMap::from([(name.to_owned(), "a".to_owned())]);
            parameters(&named).is_ok()
        };
        assert!(is_valid("audience"));
        for name in PROTOCOL {
            assert!(!is_valid(name), "{name}");
        }
    }

    #[test]
    fn policies_have_cookies_of_their_own() {
        let name = |name: &str| {
            own_name(&ObjectRef::new(
                "portcullis.dev",
                "AccessPolicy",
                "ns",
                name,
            ))
        };
        assert_eq!(name("a"), name("a"));
        assert_ne!(name("a"), name("b"));
        assert!(is_token(&name("a")));
    }

    #[test]
    fn client_secret_is_a_line() {
        assert_eq!(client_secret(b"a b\n").unwrap().secret_text(), "a b");
        for bad in [&b"\n"[..], b"a\nb", b"\xff", "é".as_bytes()] {
            assert!(client_secret(bad).is_err());
        }
    }
}
