//! Bytes in hexadecimal.

/// The two lower-case digits of each byte.
pub const DIGITS: [[u8; 2]; 256] = {
    const VALUES: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [[0; 2]; 256];
    let mut byte = 0;
    while byte < digits.len() {
        digits[byte] = [VALUES[byte >> 4], VALUES[byte & 15]];
        byte += 1;
    }
    digits
};

/// Returns two lower-case digits for each byte.
pub fn encode(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| DIGITS[usize::from(*byte)]);
    digits.map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_two_digits() {
        for byte in 0..=u8::MAX {
            assert_eq!(encode(&[byte]), format!("{byte:02x}"));
        }
        assert_eq!(encode(&[0, 0xa5, 0xff]), "00a5ff");
    }
}
