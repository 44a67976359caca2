//! Integers of variable length (RFC 9000, 16).

use std::mem;

use bytes::Buf;

/// The largest integer.
pub(super) const MAX: u64 = (1 << 62) - 1;

/// An integer whose bytes arrive one after another.
#[derive(Debug, Default)]
pub(super) struct Partial {
    value: u64,
    /// Bytes that are missing; 0 before the first one.
    missing: u8,
}

impl Partial {
    /// Takes bytes until the integer is complete. The next call begins another one then.
    pub(super) fn read(&mut self, input: &mut impl Buf) -> Option<u64> {
        while input.has_remaining() {
            let byte = input.get_u8();
            if self.missing == 0 {
                self.missing = 1 << (byte >> 6);
                self.value = u64::from(byte & 0x3f);
            } else {
                self.value = self.value << 8 | u64::from(byte);
            }
            self.missing -= 1;
            if self.missing == 0 {
                return Some(mem::take(&mut self.value));
            }
        }
        None
    }

    /// Reports whether some bytes of an integer were read, but not all.
    pub(super) fn is_begun(&self) -> bool {
        self.missing > 0
    }
}

/// Writes an integer, at most [`MAX`], in as few bytes as possible.
pub(super) fn write(value: u64, output: &mut Vec<u8>) {
    debug_assert!(value <= MAX);
    match value {
        0..0x40 => output.push(value as u8),
        0x40..0x4000 => output.extend((value as u16 | 1 << 14).to_be_bytes()),
        0x4000..0x4000_0000 => output.extend((value as u32 | 2 << 30).to_be_bytes()),
        _ => output.extend((value | 3 << 62).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_the_samples_of_the_rfc() {
        // RFC 9000, A.1.
        for (bytes, value) in [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            let mut partial = Partial::default();
            let (last, first) = bytes.split_last().unwrap();
            assert_eq!(partial.read(&mut &first[..]), None);
            assert_eq!(partial.is_begun(), !first.is_empty());
            assert_eq!(partial.read(&mut &[*last][..]), Some(value));
            assert!(!partial.is_begun());
            if value != 37 || bytes.len() == 1 {
                let mut written = Vec::new();
                write(value, &mut written);
                assert_eq!(written, bytes);
            }
        }
    }

    #[test]
    fn reads_what_it_writes() {
        for value in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, MAX] {
            let mut written = Vec::new();
            write(value, &mut written);
            let mut input = &written[..];
            assert_eq!(Partial::default().read(&mut input), Some(value));
            assert!(input.is_empty());
        }
    }
}
