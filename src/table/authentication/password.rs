//! Verifies passwords against the hashes of htpasswd files. Takes up to a second of CPU time.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha_crypt::{PasswordVerifier, ShaCrypt};

use super::apr1;
use crate::ir::authentication::{HashScheme, PasswordHash};

/// Number of bytes of a password that bcrypt reads: all longer ones with the same beginning have the same hash.
const MAX_BCRYPT: usize = 72;

/// Reports whether a password has this hash.
pub(super) fn verify(hash: &PasswordHash, password: &[u8]) -> bool {
    let text = hash.secret_text();
    match hash.scheme {
        HashScheme::Bcrypt => {
            password.len() <= MAX_BCRYPT && bcrypt::verify(password, text).unwrap_or(false)
        }
        HashScheme::ShaCrypt => ShaCrypt::default().verify_password(password, text).is_ok(),
        HashScheme::Apr1 => {
            let parts = text
                .strip_prefix("$apr1$")
                .and_then(|it| it.split_once('$'));
            parts.is_some_and(|(salt, expected)| {
                let found = apr1::digits(password, salt.as_bytes());
                verify_slices_are_equal(&found, expected.as_bytes()).is_ok()
            })
        }
        HashScheme::Sha1 => {
            let expected = text.strip_prefix("{SHA}");
            let expected = expected.and_then(|it| STANDARD.decode(it).ok());
            let found = digest(&SHA1_FOR_LEGACY_USE_ONLY, password);
            expected.is_some_and(|it| verify_slices_are_equal(found.as_ref(), &it).is_ok())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `password`, as the C library and OpenSSL hash it.
    const HASHES: [&str; 6] = [
        "$2y$05$abcdefghijklmnopqrstuuWG29KuyeAicPCJODk1zjyGvyQUU2awu",
        "$5$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5",
        "$6$saltstring$adDbXsJjcDlq2662QPgd.tkSOVmnG9Tt3oXl4HR60SusC3AGjirnDenVZp3DGwLwqy6iYKCzannhaX9DR72nN1",
        "$6$rounds=1500$saltstring$nXwm0RLUhOhqefv/A5QKRBuClPyZD5TILD.W/VDd..PGVAINRy10jEUzdAyRq07oiEEEAOigj4KZmiaTGj6Ht/",
        "$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00",
        "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
    ];

    #[test]
    fn password_that_bcrypt_does_not_read_to_its_end_is_refused() {
        let longest = [b'a'; MAX_BCRYPT];
        let hash = bcrypt::hash(longest, 4).unwrap();
        let hash: PasswordHash = hash.parse().unwrap();
        assert!(verify(&hash, &longest));
        for further in [&b"b"[..], b"\0", &[b'a'; 100]] {
            assert!(!verify(&hash, &[&longest[..], further].concat()));
        }
    }

    #[test]
    fn verifies_hashes_of_other_programs() {
        for text in HASHES {
            let hash: PasswordHash = text.parse().unwrap();
            assert!(verify(&hash, b"password"), "{text}");
            for other in [
                &b"Password"[..],
                b"",
                b"password\0",
                b"passwor",
                b"password ",
            ] {
                assert!(!verify(&hash, other), "{text} {other:?}");
            }
        }
    }
}
