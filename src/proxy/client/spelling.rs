//! Headers with an underscore in their names: what a policy says of them. Other spellings of headers that only the proxy may
//! say are removed in any case.

use http::{HeaderMap, HeaderName};

use crate::ir::client::Underscores;
use crate::ir::protected_headers::remove;
use crate::proxy::error::Error;

/// Applies what a policy says of headers with an underscore in their names to a head or to trailers.
#[cold]
pub(in crate::proxy) fn apply(
    underscores: Underscores,
    headers: &mut HeaderMap,
) -> Result<(), Error> {
    let has_underscore = |name: &HeaderName| name.as_str().contains('_');
    match underscores {
        Underscores::Allow => {}
        Underscores::Drop => remove(headers, has_underscore),
        Underscores::Reject => {
            if headers.keys().any(has_underscore) {
                return Err(Error::BadRequest("a header has an underscore in its name"));
            }
        }
    }
    Ok(())
}
