//! The token of the operator: clients that send it get what clients on loopback get. The file is read for each request with a
//! token, so that a new token is in effect at once.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// Minimum length of a token, in bytes.
const MIN_TOKEN: usize = 32;
/// Maximum size of its file, in bytes.
const MAX_FILE: u64 = 4096;

/// A file with a token.
#[derive(Clone, Debug)]
pub struct TokenFile(PathBuf);

/// What a request proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// It has no token.
    Nothing,
    /// It has the token of the file.
    Token,
    /// It has another token, or the file has none.
    Wrong,
}

impl TokenFile {
    /// Opens the file, if there is one.
    ///
    /// # Errors
    /// When it cannot be read, or has no token.
    pub fn open(path: Option<&Path>) -> io::Result<Option<Self>> {
        let Some(path) = path else { return Ok(None) };
        let file = Self(path.to_owned());
        let wrong = |error: io::Error| {
            let text = format!("cannot use the admin token {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        };
        file.read().map_err(wrong)?;
        Ok(Some(file))
    }

    /// Reads the token.
    fn read(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        File::open(&self.0)?.take(MAX_FILE).read_to_end(&mut text)?;
        let token = text.trim_ascii();
        if token.len() < MIN_TOKEN {
            let short = format!(
                "a token must have at least {MIN_TOKEN} bytes; make one with `openssl rand -hex 32`"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, short));
        }
        Ok(token.to_vec())
    }

    /// Compares the token of a request with that of the file, in constant time.
    pub(super) async fn verify(&self, headers: &HeaderMap) -> Proof {
        let Some(value) = headers.get(AUTHORIZATION) else {
            return Proof::Nothing;
        };
        let Some(token) = bearer(value.as_bytes()).map(|it| digest(&SHA256, it)) else {
            return Proof::Wrong;
        };
        let file = self.clone();
        // A file system that does not respond must not delay a probe.
        let read = tokio::task::spawn_blocking(move || file.read()).await;
        let is_equal = |expected: &[u8]| {
            let expected = digest(&SHA256, expected);
            verify_slices_are_equal(expected.as_ref(), token.as_ref()).is_ok()
        };
        match read {
            Ok(Ok(expected)) if is_equal(&expected) => Proof::Token,
            _ => Proof::Wrong,
        }
    }
}

/// The token of the scheme Bearer (RFC 6750), whose name has no case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    scheme
        .eq_ignore_ascii_case(SCHEME)
        .then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn headers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())])
    }

    #[tokio::test]
    async fn only_the_token_of_the_file_is_proof() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, format!("{TOKEN}\n")).unwrap();
        let token = TokenFile::open(Some(file.path())).unwrap().unwrap();
        for (value, proof) in [
            (format!("Bearer {TOKEN}"), Proof::Token),
            (format!("bearer  {TOKEN}"), Proof::Token),
            (format!("Bearer {TOKEN}0"), Proof::Wrong),
            (format!("Bearer {}", &TOKEN[1..]), Proof::Wrong),
            (format!("Basic {TOKEN}"), Proof::Wrong),
            (TOKEN.to_owned(), Proof::Wrong),
            ("Bearer ".to_owned(), Proof::Wrong),
            (String::new(), Proof::Wrong),
        ] {
            assert_eq!(token.verify(&headers(&value)).await, proof, "{value:?}");
        }
        assert_eq!(token.verify(&HeaderMap::new()).await, Proof::Nothing);
    }

    #[tokio::test]
    async fn a_changed_file_counts_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, TOKEN).unwrap();
        let token = TokenFile::open(Some(file.path())).unwrap().unwrap();
        let old = headers(&format!("Bearer {TOKEN}"));
        assert_eq!(token.verify(&old).await, Proof::Token);
        let other = TOKEN.to_uppercase();
        fs::write(&file, &other).unwrap();
        assert_eq!(token.verify(&old).await, Proof::Wrong);
        let new = headers(&format!("Bearer {other}"));
        assert_eq!(token.verify(&new).await, Proof::Token);
        // An empty file is no token that anyone could guess.
        fs::write(&file, "").unwrap();
        assert_eq!(token.verify(&headers("Bearer ")).await, Proof::Wrong);
    }

    #[test]
    fn short_tokens_and_absent_files_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, &TOKEN[1..]).unwrap();
        let error = TokenFile::open(Some(file.path())).unwrap_err();
        assert!(error.to_string().contains("at least 32 bytes"));
        assert!(TokenFile::open(Some(Path::new("/does/not/exist"))).is_err());
        assert!(TokenFile::open(None).unwrap().is_none());
    }
}
