//! Feeds the first bytes of connections to the parser of the PROXY protocol. Checks that nothing panics, that what is known
//! of a beginning never changes when more bytes arrive, and that nothing behind a header counts.

use crate::proxy::connection::known_header;

/// The longest header that is accepted.
const MAX: usize = 4096;

/// Checks one input.
pub fn check(data: &[u8]) {
    let whole = known_header(data);
    // Longer inputs take too long byte by byte.
    let step = data.len() / 256 + 1;
    for end in (0..data.len()).step_by(step) {
        let first = known_header(&data[..end]);
        assert!(first.is_none() || first == whole, "after {end} bytes");
    }
    assert!(whole.is_some() || data.len() < MAX);
    let Some(Ok((length, client))) = whole else {
        return;
    };
    assert!(length <= data.len().min(MAX));
    let header = &data[..length];
    assert_eq!(known_header(header), whole);
    assert_eq!(
        known_header(&data[..length - 1]),
        None,
        "it ends before its end"
    );
    if header.starts_with(b"PROXY ") {
        assert!(length <= 107 && header.ends_with(b"\r\n"));
        let text = client.map(|client| client.ip().to_string());
        // IPv6 addresses have several forms.
        if let Some(text) = text.filter(|text| text.contains('.') && !text.contains(':')) {
            let header = std::str::from_utf8(header).expect("it was parsed");
            assert!(header.contains(&format!(" {text} ")), "{header}");
        }
    }
}
