//! Names and label values that fit the limits of Kubernetes: unchanged where they fit, else cut, with a hash of the whole
//! so that two do not meet.

use std::fmt::Write;

/// The longest DNS label, and the longest value of a label.
const MAX: usize = 63;

/// The text as a DNS label of RFC 1035: lower-case letters, digits and `-`, beginning with a letter.
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
    cut(&label, text)
}

/// The name of an object as the value of a label.
pub(super) fn label_value(name: &str) -> String {
    if name.len() <= MAX {
        name.to_owned()
    } else {
        cut(name, name)
    }
}

/// The beginning of `text`, then a hash of `whole`.
fn cut(text: &str, whole: &str) -> String {
    let hash = fnv1a(whole);
    let mut short: String = text.chars().take(MAX - "-".len() - 10).collect();
    short.truncate(short.trim_end_matches(['-', '.']).len());
    // 40 bits are enough for the names of one namespace, and leave more of the name to read.
    let _ = write!(short, "-{:010x}", hash >> 24);
    short
}

/// FNV-1a of 64 bits: the same in every version and on every machine, unlike the hashers of the standard library.
pub(super) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_stays() {
        assert_eq!(dns_label("web-portcullis"), "web-portcullis");
        assert_eq!(dns_label(&"a".repeat(63)), "a".repeat(63));
        assert_eq!(label_value("a.b-c"), "a.b-c");
    }

    #[test]
    fn what_does_not_fit_is_cut_and_told_apart() {
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
    fn the_hash_is_fnv1a() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }
}
