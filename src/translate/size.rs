//! Sizes of fields: quantities of Kubernetes that are whole bytes.

use crate::api::route_policy::Size;

use super::reason::{Fault, Reason};

/// Units, the longer ones first.
const UNITS: [(&str, u64); 6] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
];

/// Parses the size at `field` in bytes.
pub(super) fn parse(size: &Size, field: &str) -> Result<u64, Fault> {
    let text = match size {
        Size::Bytes(bytes) => return Ok(*bytes),
        Size::Quantity(text) => text,
    };
    of_quantity(text).ok_or_else(|| {
        let message = format!("{field}: {text:?} is not a size such as 65536, 512Ki or 8Mi");
        Fault::new(Reason::Invalid, message)
    })
}

fn of_quantity(text: &str) -> Option<u64> {
    let unit = UNITS.iter().find_map(|(unit, bytes)| {
        let number = text.strip_suffix(unit)?;
        Some((number, *bytes))
    });
    let (number, bytes) = unit.unwrap_or((text, 1));
    let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| is_number)?;
    number.checked_mul(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_whole_bytes() {
        for (text, expected) in [
            ("0", Some(0)),
            ("65536", Some(65_536)),
            ("1k", Some(1_000)),
            ("1Ki", Some(1_024)),
            ("8Mi", Some(8 << 20)),
            ("3M", Some(3_000_000)),
            ("2Gi", Some(2 << 30)),
            ("2G", Some(2_000_000_000)),
            ("", None),
            ("Mi", None),
            ("+1", None),
            ("-1", None),
            ("1.5Mi", None),
            ("1m", None),
            ("1 Mi", None),
            ("18446744073709551615Gi", None),
        ] {
            assert_eq!(of_quantity(text), expected, "{text:?}");
        }
    }
}
