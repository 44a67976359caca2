//! Feeds certificates to what describes them for backends. Checks that nothing panics, and that no name in a certificate
//! ends its quotes, adds a key or begins another element.

use crate::proxy::client::describe;

/// Checks one input.
pub fn check(data: &[u8]) {
    let text = describe(data);
    let mut keys = Vec::new();
    for pair in pairs(&text) {
        let (key, value) = pair.split_once('=').unwrap_or_else(|| panic!("{text}"));
        keys.push(key);
        if key == "Hash" {
            assert!(value.len() == 64 && value.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
    }
    assert_eq!(keys[0], "Hash");
    assert!(keys.get(1).is_none_or(|key| *key == "Subject"), "{text}");
    let names = keys.get(2..).unwrap_or_default();
    assert!(
        names.is_sorted_by_key(|key| *key != "URI")
            && names.iter().all(|key| *key == "URI" || *key == "DNS"),
        "{text}"
    );
}

/// The pairs of an element, as a backend splits them: at semicolons outside of quotes.
fn pairs(element: &str) -> Vec<&str> {
    let (mut pairs, mut begin) = (Vec::new(), 0);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (index, byte) in element.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b';' if !is_quoted => {
                pairs.push(&element[begin..index]);
                begin = index + 1;
            }
            b',' => assert!(is_quoted, "a second element: {element}"),
            _ => {}
        }
    }
    assert!(!is_quoted, "open quotes: {element}");
    pairs.push(&element[begin..]);
    pairs
}
