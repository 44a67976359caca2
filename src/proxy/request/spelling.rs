//! Other spellings of headers that only the proxy or the framing decides: `X_Forwarded_For` is `X-Forwarded-For` for an
//! application behind CGI or WSGI. All other headers with an underscore are forwarded, unless a policy says otherwise.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName};

use crate::filter;
use crate::ir::client::Underscores;
use crate::proxy::client::forwarding::{
    X_FORWARDED_CLIENT_CERT, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT,
    X_FORWARDED_PROTO, X_REAL_IP, X_REQUEST_ID,
};
use crate::proxy::error::Error;

/// Headers that a client must not set under another spelling.
const PROTECTED: [HeaderName; 9] = [
    CONTENT_LENGTH,
    TRANSFER_ENCODING,
    X_FORWARDED_FOR,
    X_FORWARDED_PROTO,
    X_FORWARDED_HOST,
    X_FORWARDED_PORT,
    X_FORWARDED_CLIENT_CERT,
    X_REAL_IP,
    X_REQUEST_ID,
];

/// Reports whether a name may be another spelling of a protected one. Excludes most names by their length, since every
/// header of every request is looked at.
#[inline]
pub(super) fn may_be_alias(name: &str) -> bool {
    matches!(name.len(), 9 | 12 | 14..=17 | 23) && filter::has_symbol(name)
}

/// Removes other spellings of the protected headers.
pub(super) fn remove_aliases(headers: &mut HeaderMap) {
    filter::remove_aliases(headers, |alias| {
        PROTECTED.iter().any(|name| filter::is_alias(alias, name))
    });
}

/// Applies what a policy says of headers with an underscore in their names.
#[cold]
pub(super) fn apply(underscores: Underscores, headers: &mut HeaderMap) -> Result<(), Error> {
    let has_underscore = |name: &HeaderName| name.as_str().contains('_');
    match underscores {
        Underscores::Allow => {}
        Underscores::Drop => filter::remove_aliases(headers, has_underscore),
        Underscores::Reject => {
            if headers.keys().any(has_underscore) {
                return Err(Error::BadRequest("a header has an underscore in its name"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_protected_header_is_recognized() {
        for name in PROTECTED {
            for symbol in ["_", ".", "!", "~"] {
                assert!(may_be_alias(&name.as_str().replace('-', symbol)), "{name}");
            }
            assert!(!may_be_alias(name.as_str()), "{name}");
        }
    }
}
