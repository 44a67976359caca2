//! `external`: how an authorization server is asked, and where browsers sign in. Must not know which backend the server is:
//! that depends on the Gateway.

use std::sync::Arc;

use http::uri::{Authority, Uri};

use crate::api::access_policy::External;
use crate::ir::ObjectRef;
use crate::ir::auth_call::{ExternalPolicy, SignIn};

use super::super::policy::Content;
use crate::translate::filter::external_auth;
use crate::translate::reason::{Fault, Reason};

/// The place of the URL to return to.
const RETURN: &str = "{return}";

/// Parses the section.
pub(super) fn read(policy: &ObjectRef, section: &External) -> Result<Content, Fault> {
    let External {
        auth,
        sign_in_redirect,
    } = section;
    let invalid = |message| Fault::new(Reason::Invalid, message);
    let call = external_auth::call(auth, "spec.external");
    let call = call.map_err(|fault| invalid(fault.message))?;
    let sign_in = sign_in_redirect.as_deref().map(|text| {
        let why = |why| invalid(format!("spec.external.signInRedirect: {why}"));
        sign_in(text).map_err(why)
    });
    let external = ExternalPolicy {
        policy: policy.clone(),
        call,
        sign_in: sign_in.transpose()?,
    };
    Ok(Content::External(
        Arc::new(external),
        auth.backend_ref.clone(),
    ))
}

/// Parses the address of a page to sign in. The error continues a sentence that begins with its field.
fn sign_in(text: &str) -> Result<SignIn, &'static str> {
    let (before, after) = match text.split_once(RETURN) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    };
    let fits = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    let after_place = after.unwrap_or_default();
    if !before.bytes().chain(after_place.bytes()).all(fits) {
        return Err("has a second {return}, or characters that a URL cannot have");
    }
    // The URL to return to is no part of the host: requests could name it.
    let path = match before.split_once("://") {
        Some(("http" | "https", rest)) => {
            let end = rest.find(['/', '?', '#']);
            if end.is_none() && after.is_some() {
                return Err("has {return} in the host");
            }
            let (host, path) = rest.split_at(end.unwrap_or(rest.len()));
            let authority: Result<Authority, _> = host.parse();
            let is_valid = authority.is_ok_and(|it| {
                let port = it.as_str().get(it.host().len()..).unwrap_or_default();
                !it.host().is_empty() && (port.is_empty() || it.port_u16().is_some())
            });
            if !is_valid || host.contains('@') {
                return Err("has no valid host");
            }
            path
        }
        // With a second slash, it would be a host.
        None if before.starts_with('/') && !before.starts_with("//") => before,
        _ => return Err("is neither a URL with https or http nor a path that begins with /"),
    };
    let whole = format!("/{}x{after_place}", path.trim_start_matches('/'));
    if whole.parse::<Uri>().is_err() {
        return Err("is not a URL");
    }
    Ok(SignIn {
        before: before.into(),
        after: after.map(Into::into),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sign_in_is_a_url_or_a_path_with_one_place() {
        for (text, before, after) in [
            (
                "https://login.example.com/start?rd={return}&a=b",
                "https://login.example.com/start?rd=",
                Some("&a=b"),
            ),
            ("http://login:8080", "http://login:8080", None),
            ("/oauth2/start?rd={return}", "/oauth2/start?rd=", Some("")),
            (
                "https://a.example/#/in/{return}",
                "https://a.example/#/in/",
                Some(""),
            ),
            ("https://[2001:db8::1]/", "https://[2001:db8::1]/", None),
        ] {
            let expected = SignIn {
                before: before.into(),
                after: after.map(Into::into),
            };
            assert_eq!(sign_in(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn refuses_other_addresses() {
        for (text, expected) in [
            ("", "neither a URL"),
            ("login.example.com", "neither a URL"),
            ("//login.example.com/", "neither a URL"),
            ("ftp://login.example.com/", "neither a URL"),
            ("javascript:alert(1)", "neither a URL"),
            ("/\\login.example.com", "characters"),
            ("https://{return}/", "in the host"),
            ("https://login.example.com{return}", "in the host"),
            ("https:///path", "no valid host"),
            ("https://user@login.example.com/", "no valid host"),
            ("https://login.example.com/?a={return}&b={return}", "second"),
            ("https://login.example.com/a b", "characters"),
            (
                "https://login.example.com/\r\nSet-Cookie: a=b",
                "characters",
            ),
        ] {
            let problem = sign_in(text).err().unwrap_or_default();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }
}
