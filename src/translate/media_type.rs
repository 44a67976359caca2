//! Media types (RFC 9110, 8.3.1), without parameters.

/// Parses a media type such as `text/html`. Returns it in lower case; `None` if it is none.
pub(super) fn parse(text: &str) -> Option<String> {
    let (kind, subtype) = text.split_once('/')?;
    (is_token(kind) && is_token(subtype)).then(|| text.to_ascii_lowercase())
}

/// Parses a media type, or all types of one kind such as `text/*`. Returns it in lower case; `None` if it is neither.
pub(super) fn parse_range(text: &str) -> Option<String> {
    match text.split_once('/')? {
        (kind, "*") => is_token(kind).then(|| text.to_ascii_lowercase()),
        _ => parse(text),
    }
}

fn is_token(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}
