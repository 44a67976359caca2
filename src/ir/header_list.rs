//! The value of a header as a list, however its lines and commas are written (RFC 9110, 5.3 and 5.6.1). Must not know which
//! headers are lists.

/// Returns the elements of the lines of a header: without the whitespace around them, and without empty ones, which do not count.
pub fn elements<'a>(lines: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    lines
        .flat_map(|line| line.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_whitespace_and_empty_elements_make_no_other_list() {
        for lines in [
            &["a,b c"][..],
            &["a, b c"],
            &["a\t,  b c"],
            &["a", "b c"],
            &["a", "", "b c,"],
            &[",a ,,b c"],
        ] {
            let lines = lines.iter().map(|line| line.as_bytes());
            let elements: Vec<_> = elements(lines).collect();
            assert_eq!(elements, [&b"a"[..], b"b c"]);
        }
        assert_eq!(elements([&b" , "[..]].into_iter()).count(), 0);
    }
}
