//! Integers of QPACK, which begin with some bits of a byte (RFC 9204, 4.1.1, and RFC 7541, 5.1).

use super::varint::MAX;

/// Bits of a byte after the first one.
const BITS: u32 = 7;

/// An integer whose bytes arrive one after another.
#[derive(Debug)]
pub(super) struct Partial {
    value: u64,
    shift: u32,
}

/// An integer above the largest one of QUIC, or with more bytes than that one needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

impl Partial {
    /// Begins with the last `prefix` bits of a byte. Returns the integer if these are all of it.
    pub(super) fn new(first: u8, prefix: u32) -> Result<u64, Self> {
        let most = (1 << prefix) - 1;
        match u64::from(first) & most {
            value if value < most => Ok(value),
            value => Err(Self { value, shift: 0 }),
        }
    }

    /// Adds a byte. Returns the integer if it is the last one.
    pub(super) fn add(&mut self, byte: u8) -> Result<Option<u64>, TooLarge> {
        if self.shift > 8 * BITS {
            return Err(TooLarge);
        }
        self.value += u64::from(byte & 0x7f) << self.shift;
        self.shift += BITS;
        match self.value {
            value if value > MAX => Err(TooLarge),
            value => Ok((byte & 0x80 == 0).then_some(value)),
        }
    }
}

/// Takes an integer whose first byte has `prefix` bits of it. `None` if it is too large or not complete.
pub(super) fn read(input: &mut &[u8], prefix: u32) -> Option<u64> {
    let mut next = || {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        Some(*byte)
    };
    let mut partial = match Partial::new(next()?, prefix) {
        Ok(value) => return Some(value),
        Err(partial) => partial,
    };
    loop {
        if let Some(value) = partial.add(next()?).ok()? {
            return Some(value);
        }
    }
}

/// Writes an integer into the last `prefix` bits of `first` and as many bytes as it needs.
pub(super) fn write(value: u64, first: u8, prefix: u32, output: &mut Vec<u8>) {
    let most = (1 << prefix) - 1;
    if value < most {
        output.push(first | value as u8);
        return;
    }
    output.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        output.push(rest as u8 | 0x80);
        rest >>= BITS;
    }
    output.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_the_samples_of_the_rfc() {
        // RFC 7541, C.1.
        for (value, prefix, bytes) in [
            (10, 5, &[0x0a][..]),
            (1337, 5, &[0x1f, 0x9a, 0x0a]),
            (42, 8, &[0x2a]),
        ] {
            let mut written = Vec::new();
            write(value, 0, prefix, &mut written);
            assert_eq!(written, bytes);
            assert_eq!(read(&mut &bytes[..], prefix), Some(value));
        }
    }

    #[test]
    fn reads_what_it_writes_up_to_62_bits() {
        for prefix in 3..=8 {
            let most = (1 << prefix) - 1;
            for value in [0, most - 1, most, most + 1, most + 127, most + 128, MAX] {
                let mut written = Vec::new();
                write(value, 0, prefix, &mut written);
                let mut input = &written[..];
                assert_eq!(read(&mut input, prefix), Some(value));
                assert!(input.is_empty());
                let cut = &written[..written.len() - 1];
                assert_eq!(read(&mut &cut[..], prefix), None);
            }
        }
    }

    #[test]
    fn refuses_integers_that_are_too_large_or_too_long() {
        let mut written = Vec::new();
        write(MAX + 1, 0, 6, &mut written);
        assert_eq!(read(&mut &written[..], 6), None);
        let padded = |zeros| {
            let bytes = [&[0x3f][..], &vec![0x80; zeros], &[0]].concat();
            read(&mut &bytes[..], 6)
        };
        assert_eq!((padded(8), padded(9), padded(1000)), (Some(63), None, None));
    }
}
