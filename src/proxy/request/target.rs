//! Normalizes the path for both matching and forwarding: merges duplicate slashes and rejects paths
//! that two implementations could read differently.

use std::borrow::Cow;

/// Why a path is rejected.
pub type BadPath = &'static str;

/// Normalizes a path that begins with `/`, in one pass. Allocates only if slashes are merged.
///
/// # Errors
/// Paths with literal or encoded dot segments, NUL, overlong or invalid percent-encoding.
pub fn normalize(path: &str) -> Result<Cow<'_, str>, BadPath> {
    let mut previous = 0;
    for byte in path.bytes() {
        match byte {
            b'%' | b'\\' | b';' => return normalize_slow(path),
            b'/' | b'.' if previous == b'/' => return normalize_slow(path),
            _ => previous = byte,
        }
    }
    Ok(Cow::Borrowed(path))
}

fn normalize_slow(path: &str) -> Result<Cow<'_, str>, BadPath> {
    let decoded = decode(path.as_bytes())?;
    for element in decoded.split(|byte| matches!(byte, b'/' | b'\\')) {
        let name = element
            .split(|byte| *byte == b';')
            .next()
            .unwrap_or_default();
        if name == b"." || name == b".." {
            return Err("the path has a dot segment");
        }
    }
    if !path.contains("//") {
        return Ok(Cow::Borrowed(path));
    }
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    Ok(Cow::Owned(merged))
}

/// Decodes percent-encoding once and rejects malicious encodings.
fn decode(path: &[u8]) -> Result<Vec<u8>, BadPath> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut bytes = path.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err("the path has a bad percent-encoding");
        };
        match (high * 16 + low) as u8 {
            0 => return Err("the path has a NUL"),
            0xc0 | 0xc1 => return Err("the path has an overlong encoding"),
            byte => decoded.push(byte),
        }
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_ordinary_paths() {
        for path in [
            "/",
            "/a/b.html",
            "/a.b/..c/...",
            "/a%2Fb",
            "/a;v=1/b",
            "/caf%c3%a9",
            "/a\\b",
            "/%252e%252e/x",
        ] {
            assert!(
                matches!(normalize(path), Ok(Cow::Borrowed(same)) if same == path),
                "{path}"
            );
        }
    }

    #[test]
    fn merges_duplicate_slashes() {
        assert_eq!(normalize("//admin").unwrap(), "/admin");
        assert_eq!(normalize("/a///b//").unwrap(), "/a/b/");
    }

    #[test]
    fn rejects_disguised_dot_segments() {
        for path in [
            "/a/../admin",
            "/a/..",
            "/./admin",
            "/.",
            "/a/%2e%2e/admin",
            "/a/.%2E",
            "/a/..;/admin",
            "/a/..;x=1/admin",
            "/a%2f..%2fadmin",
            "/a%5c..",
            "/a\\..\\admin",
            "/a/..%2fadmin",
            "/%00",
            "/%zz",
            "/%c0%ae",
            "/a%",
            "/a%2",
        ] {
            assert!(normalize(path).is_err(), "{path}");
        }
    }
}
