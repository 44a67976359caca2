//! JSON strings that are safe to show in a terminal.

/// Appends `text` as a JSON string. Invalid UTF-8 becomes U+FFFD. Characters that JSON allows but a
/// terminal interprets are escaped too.
pub(super) fn write_string(line: &mut Vec<u8>, text: &[u8]) {
    line.push(b'"');
    if is_plain(text) {
        line.extend_from_slice(text);
    } else {
        write_escaped(line, text);
    }
    line.push(b'"');
}

/// Appends a text of which it is known that JSON and terminals take every character as it is.
#[inline]
pub(super) fn write_plain(line: &mut Vec<u8>, text: &[u8]) {
    debug_assert!(is_plain(text), "{}", text.escape_ascii());
    line.push(b'"');
    line.extend_from_slice(text);
    line.push(b'"');
}

/// Whether all bytes are printable ASCII characters that JSON does not escape. Looks at eight bytes at a time.
fn is_plain(text: &[u8]) -> bool {
    let Some(last) = text.last_chunk::<8>() else {
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && *byte != b'"' && *byte != b'\\';
        return text.iter().all(is_plain);
    };
    // The last eight bytes overlap with those before.
    let (words, _) = text.as_chunks::<8>();
    let all = |marked, word: &[u8; 8]| marked | marks(*word);
    words.iter().fold(marks(*last), all) & repeated(0x80) == 0
}

/// Sets the highest bit of some byte if one of the eight is not plain. A byte that is below what is subtracted from it
/// borrows, which sets its highest bit; it may change higher bytes, but then the answer is known.
fn marks(word: [u8; 8]) -> u64 {
    let word = u64::from_le_bytes(word);
    let is = |byte: u8| (word ^ repeated(byte)).wrapping_sub(repeated(1));
    word | word.wrapping_sub(repeated(b' ')) | is(b'"') | is(b'\\') | is(0x7f)
}

const fn repeated(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

#[cold]
fn write_escaped(line: &mut Vec<u8>, text: &[u8]) {
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            write_character(line, character);
        }
        if !chunk.invalid().is_empty() {
            line.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

fn write_character(line: &mut Vec<u8>, character: char) {
    let short = match character {
        '"' => b"\\\"",
        '\\' => b"\\\\",
        '\n' => b"\\n",
        '\r' => b"\\r",
        '\t' => b"\\t",
        '\u{8}' => b"\\b",
        '\u{c}' => b"\\f",
        _ if character.is_control() || is_invisible(character) => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write_unit(line, *unit);
            }
            return;
        }
        _ => {
            line.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            return;
        }
    };
    line.extend_from_slice(short);
}

fn write_unit(line: &mut Vec<u8>, unit: u16) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    line.extend_from_slice(b"\\u");
    line.extend([12, 8, 4, 0].map(|shift| DIGITS[usize::from(unit >> shift & 15)]));
}

/// Line separators, bidirectional controls, zero-width and other format characters, and tags.
fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escaped(text: &[u8]) -> String {
        let mut line = Vec::new();
        write_string(&mut line, text);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        assert_eq!(escaped(b"/a/b~ c"), r#""/a/b~ c""#);
        assert_eq!(escaped(b""), r#""""#);
    }

    #[test]
    fn every_byte_at_every_place_is_classified() {
        for byte in 0..=u8::MAX {
            let expected = (b' '..0x7f).contains(&byte) && !b"\"\\".contains(&byte);
            for place in 0..20 {
                let mut text = [b'~'; 20];
                text[place] = byte;
                assert_eq!(is_plain(&text), expected, "{byte} at {place}");
            }
        }
    }

    #[test]
    fn escapes_what_json_and_terminals_interpret() {
        assert_eq!(
            escaped("\"\\\n\r\t\u{8}\u{c}\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}é🦀".as_bytes()),
            r#""\"\\\n\r\t\b\f\u001b\u007f\u009b\u202e\udb40\udc41é🦀""#
        );
    }

    #[test]
    fn replaces_invalid_utf8() {
        assert_eq!(escaped(&[b'a', 0xff, 0xc3, b'b']), "\"a\u{fffd}\u{fffd}b\"");
    }

    proptest! {
        #[test]
        fn any_bytes_become_a_printable_json_string(
            text in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..80),
                any::<String>().prop_map(String::into_bytes),
            ],
        ) {
            let json = escaped(&text);
            prop_assert!(!json.chars().any(|c| c.is_control() || is_invisible(c)), "{json}");
            let value: String = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(value, String::from_utf8_lossy(&text));
        }
    }
}
