//! What headers take of memory, and copies of them out of the buffers that they were read into.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Returns the memory of headers: their text, and about as much for each line as a `HeaderMap` takes.
pub fn size(headers: &HeaderMap) -> usize {
    const LINE: usize = size_of::<(HeaderName, HeaderValue)>() + 5 * size_of::<usize>();
    let lines = headers.iter();
    lines
        .map(|(name, value)| name.as_str().len() + value.len() + LINE)
        .sum()
}

/// Returns the memory of headers whose values have memory of their own ([`detach`]): that of the blocks that the allocator takes
/// for long ones.
pub fn allocated(headers: &HeaderMap) -> usize {
    let rest = |value: &HeaderValue| block(value.len()) - value.len();
    size(headers) + headers.values().map(rest).sum::<usize>()
}

/// Returns the size of the block for this many bytes. Of each power of two, the allocator has four sizes.
fn block(bytes: usize) -> usize {
    let step = bytes.next_power_of_two() / 8;
    bytes.next_multiple_of(step.max(size_of::<usize>()))
}

/// Copies values, which otherwise keep the whole buffer allocated that they were read into.
pub fn detach(headers: &mut HeaderMap) {
    for value in headers.values_mut() {
        // What was valid once is valid again.
        if let Ok(mut copy) = HeaderValue::from_bytes(value.as_bytes()) {
            copy.set_sensitive(value.is_sensitive());
            *value = copy;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn long_values_take_blocks_of_the_allocator() {
        for (length, expected) in [
            (0, 0),
            (1, 8),
            (8 * 1024, 8 * 1024),
            (8 * 1024 + 1, 10 * 1024),
            (15_000, 16 * 1024),
            (60_000, 64 * 1024),
        ] {
            let value = HeaderValue::from_maybe_shared(Bytes::from(vec![b'x'; length])).unwrap();
            let headers = HeaderMap::from_iter([(http::header::LINK, value)]);
            let more = allocated(&headers) - size(&headers);
            assert_eq!(length + more, expected);
        }
    }

    #[test]
    fn detached_values_are_equal_and_have_memory_of_their_own() {
        let buffer = Bytes::from_static(b"one\xfftwo");
        let mut headers = HeaderMap::new();
        for part in [0..4, 4..7] {
            let mut value = HeaderValue::from_maybe_shared(buffer.slice(part)).unwrap();
            value.set_sensitive(headers.is_empty());
            headers.append("field", value);
        }
        let mut copy = headers.clone();
        detach(&mut copy);
        assert_eq!(copy, headers);
        for (copied, value) in copy.values().zip(headers.values()) {
            assert_eq!(copied.is_sensitive(), value.is_sensitive());
            let is_same = copied.as_bytes().as_ptr() == value.as_bytes().as_ptr();
            assert!(!is_same, "{value:?}");
        }
        assert_eq!(size(&copy), size(&headers));
    }
}
