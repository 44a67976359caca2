//! Names and label values within the limits of Kubernetes. Longer ones are truncated and get a hash
//! of the full name, so that they stay distinct.

use std::fmt::Write;

/// Maximum length of a DNS label and of a label value.
const MAX: usize = 63;

/// Converts text to an RFC 1035 DNS label: lower-case letters, digits and `-`, starting with a
/// letter.
pub(super) fn dns_label(text: &str) -> String {
    let is_label = text.len() <= MAX
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && !text.ends_with('-')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if is_label {
        return text.to_owned();
    }
    let mut label = text.replace(
        |letter: char| !(letter.is_ascii_lowercase() || letter.is_ascii_digit()),
        "-",
    );
    if !label.starts_with(|first: char| first.is_ascii_lowercase()) {
        label.insert_str(0, "gw-");
    }
    truncate(&label, text)
}

/// Converts an object name to a label value.
pub(super) fn label_value(name: &str) -> String {
    if name.len() <= MAX {
        name.to_owned()
    } else {
        truncate(name, name)
    }
}

/// Truncates `text` and appends a hash of `whole`.
fn truncate(text: &str, whole: &str) -> String {
    let hash = fnv1a(whole);
    let mut short: String = text.chars().take(MAX - "-".len() - 10).collect();
    short.truncate(short.trim_end_matches(['-', '.']).len());
    // 40 bits suffice for the names of one namespace and leave more of the name readable.
    let _ = write!(short, "-{:010x}", hash >> 24);
    short
}

/// Computes the 64-bit FNV-1a hash. It is stable across versions and machines, unlike the hashers
/// of the standard library.
pub(super) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_names_within_the_limit() {
        assert_eq!(dns_label("web-portcullis"), "web-portcullis");
        assert_eq!(dns_label(&"a".repeat(63)), "a".repeat(63));
        assert_eq!(label_value("a.b-c"), "a.b-c");
    }

    #[test]
    fn truncates_long_names_and_keeps_them_distinct() {
        let names = [
            "1st-portcullis",
            "a.b-portcullis",
            "a-b-portcullis.",
            &"a".repeat(64),
            &"a".repeat(65),
            &format!("{}-{}", "a".repeat(51), "b".repeat(20)),
        ];
        let mut seen = std::collections::BTreeSet::new();
        for name in names {
            let label = dns_label(name);
            assert!(label.len() <= MAX, "{label}");
            assert_eq!(dns_label(&label), label, "{name} gives no label");
            assert!(seen.insert(label));
        }
        assert_eq!(dns_label("1st"), "gw-1st-4499051817");
        assert_eq!(label_value(&"a.".repeat(60)).len(), 62);
    }

    #[test]
    fn hash_is_fnv1a() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }
}
