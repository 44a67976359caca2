//! Versions of TLS, and its cipher suites and groups by their names and numbers in IANA's registry. Must not know which
//! library has them.

use std::fmt;

use serde::{Serialize, Serializer};

/// A protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum TlsVersion {
    /// TLS 1.2
    Tls12,
    /// TLS 1.3
    Tls13,
}

/// A cipher suite that can be offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CipherSuite(u16);

/// A group for key exchange that can be offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group(u16);

const SUITES: [(&str, u16, TlsVersion); 9] = [
    ("TLS_AES_128_GCM_SHA256", 0x1301, TlsVersion::Tls13),
    ("TLS_AES_256_GCM_SHA384", 0x1302, TlsVersion::Tls13),
    ("TLS_CHACHA20_POLY1305_SHA256", 0x1303, TlsVersion::Tls13),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        0xc02b,
        TlsVersion::Tls12,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        0xc02c,
        TlsVersion::Tls12,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        0xcca9,
        TlsVersion::Tls12,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        0xc02f,
        TlsVersion::Tls12,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        0xc030,
        TlsVersion::Tls12,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        0xcca8,
        TlsVersion::Tls12,
    ),
];

/// The groups, each with the oldest version that can use it.
const GROUPS: [(&str, u16, TlsVersion); 5] = [
    ("x25519", 0x001d, TlsVersion::Tls12),
    ("secp256r1", 0x0017, TlsVersion::Tls12),
    ("secp384r1", 0x0018, TlsVersion::Tls12),
    ("X25519MLKEM768", 0x11ec, TlsVersion::Tls13),
    ("SecP256r1MLKEM768", 0x11eb, TlsVersion::Tls13),
];

fn entry(
    table: &'static [(&'static str, u16, TlsVersion)],
    number: u16,
) -> (&'static str, TlsVersion) {
    let found = table.iter().find(|(_, it, _)| *it == number);
    found.map_or(("", TlsVersion::Tls13), |(name, _, version)| {
        (name, *version)
    })
}

/// Implements for a type what all entries of its table have.
macro_rules! registered {
    ($entry:ident, $table:ident) => {
        impl $entry {
            /// Returns the one of this name.
            pub fn named(name: &str) -> Option<Self> {
                let found = $table.iter().find(|(it, ..)| *it == name);
                found.map(|(_, number, _)| Self(*number))
            }

            /// Returns all of them.
            pub fn all() -> impl Iterator<Item = Self> {
                $table.iter().map(|(_, number, _)| Self(*number))
            }

            /// Returns its number.
            pub fn number(self) -> u16 {
                self.0
            }

            /// Returns its name.
            pub fn name(self) -> &'static str {
                entry(&$table, self.0).0
            }
        }

        impl fmt::Display for $entry {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl Serialize for $entry {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

registered!(CipherSuite, SUITES);
registered!(Group, GROUPS);

impl CipherSuite {
    /// Returns the only version that can use it.
    pub fn version(self) -> TlsVersion {
        entry(&SUITES, self.0).1
    }
}

impl Group {
    /// Returns the oldest version that can use it.
    pub fn oldest_version(self) -> TlsVersion {
        entry(&GROUPS, self.0).1
    }
}
