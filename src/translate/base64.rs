//! Base64 as Secrets hold it: the standard alphabet with padding, line breaks allowed. Knows not what it decodes.

/// Decodes a value, or `None` when it is not base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let symbols: Vec<u8> = text
        .bytes()
        .filter(|byte| !matches!(byte, b'\n' | b'\r'))
        .collect();
    if !symbols.len().is_multiple_of(4) {
        return None;
    }
    let padding = symbols
        .iter()
        .rev()
        .take_while(|byte| **byte == b'=')
        .count();
    if padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(symbols.len() / 4 * 3);
    let (mut bits, mut held) = (0u32, 0u32);
    for symbol in &symbols[..symbols.len() - padding] {
        bits = (bits << 6 | u32::from(value(*symbol)?)) & 0xff_ffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xff) as u8);
        }
    }
    // Bits left over must be zero, or two texts would mean the same bytes.
    (bits & ((1 << held) - 1) == 0).then_some(bytes)
}

fn value(symbol: u8) -> Option<u8> {
    match symbol {
        b'A'..=b'Z' => Some(symbol - b'A'),
        b'a'..=b'z' => Some(symbol - b'a' + 26),
        b'0'..=b'9' => Some(symbol - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn decodes_what_secrets_hold_and_refuses_the_rest() {
        let cases = [
            ("", Some("")),
            ("Zg==", Some("f")),
            ("Zm8=", Some("fo")),
            ("Zm9v", Some("foo")),
            ("Zm9v\nYmFy\n", Some("foobar")),
            ("Zm9", None),
            ("Zh==", None),
            ("Z===", None),
            ("Zm9_", None),
            ("Zg==Zg==", None),
        ];
        for (text, bytes) in cases {
            let expected = bytes.map(|bytes| bytes.as_bytes().to_vec());
            assert_eq!(decode(text), expected, "{text:?}");
        }
    }
}
