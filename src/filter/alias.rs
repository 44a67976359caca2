//! Header names that an application may take for another one. CGI and WSGI replace every `-` of a name by `_`
//! (RFC 3875, 4.1.18), and some servers every other symbol too, so that `X_User` is read as `X-User`.

use http::{HeaderMap, HeaderName};

/// Reports whether `name` is another spelling of `of`, with symbols in the place of `-`.
pub fn is_alias(name: &HeaderName, of: &HeaderName) -> bool {
    let (name, of) = (name.as_str(), of.as_str());
    name.len() == of.len() && name != of && folded(name).eq(folded(of))
}

/// Removes the headers whose names have symbols other than `-` and fulfil the condition.
pub fn remove_aliases(headers: &mut HeaderMap, condition: impl Fn(&HeaderName) -> bool) {
    let names = headers.keys();
    let aliases = names.filter(|name| has_symbol(name.as_str()) && condition(name));
    let aliases: Vec<HeaderName> = aliases.cloned().collect();
    for name in aliases {
        headers.remove(name);
    }
}

/// Reports whether a header name has a symbol other than `-`.
pub fn has_symbol(name: &str) -> bool {
    name.bytes().any(is_symbol)
}

fn is_symbol(byte: u8) -> bool {
    !byte.is_ascii_alphanumeric() && byte != b'-'
}

fn folded(name: &str) -> impl Iterator<Item = u8> {
    name.bytes()
        .map(|byte| if is_symbol(byte) { b'-' } else { byte })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_in_the_place_of_hyphens_make_an_alias() {
        let name = HeaderName::from_static;
        for (one, of, expected) in [
            ("x_user", "x-user", true),
            ("x.user_id", "x-user-id", true),
            ("x-user", "x_user", true),
            ("x-user", "x-user", false),
            ("x_user", "x-user-id", false),
            ("xuser", "x-user", false),
        ] {
            assert_eq!(is_alias(&name(one), &name(of)), expected, "{one} {of}");
        }
    }
}
