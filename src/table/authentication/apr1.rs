//! Apache's variant of MD5-crypt, which `htpasswd` writes by default: a thousand rounds of MD5 (RFC 1321) over password and
//! salt. No library in use has MD5.

/// The beginning of hashes, which is a part of what is hashed.
const MAGIC: &[u8] = b"$apr1$";
const ROUNDS: usize = 1000;
const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Returns the digits that follow the salt in the hash of a password. Takes time in proportion to the length of the password.
pub(super) fn digits(password: &[u8], salt: &[u8]) -> [u8; 22] {
    let inner = md5(&[password, salt, password]);
    let mut text = [password, MAGIC, salt].concat();
    text.extend(inner.iter().cycle().take(password.len()));
    let mut bits = password.len();
    while bits > 0 {
        text.push(match bits % 2 {
            1 => 0,
            _ => password[0],
        });
        bits /= 2;
    }
    let mut hash = md5(&[&text]);
    for round in 0..ROUNDS {
        let (first, last) = match round % 2 {
            1 => (password, &hash[..]),
            _ => (&hash[..], password),
        };
        let salt: &[u8] = if round % 3 == 0 { b"" } else { salt };
        let password: &[u8] = if round % 7 == 0 { b"" } else { password };
        hash = md5(&[first, salt, password, last]);
    }
    encoded(&hash)
}

/// Returns a hash in digits of `crypt`, in the order of bytes that MD5-crypt has.
fn encoded(hash: &[u8; 16]) -> [u8; 22] {
    let byte = |at: usize| usize::from(hash[at]);
    let number = |high, middle, low| (byte(high) << 16) | (byte(middle) << 8) | byte(low);
    let numbers = [
        number(0, 6, 12),
        number(1, 7, 13),
        number(2, 8, 14),
        number(3, 9, 15),
        number(4, 10, 5),
        byte(11),
    ];
    std::array::from_fn(|at| DIGITS[(numbers[at / 4] >> (6 * (at % 4))) & 63])
}

/// Returns the digest of what these parts make up.
fn md5(parts: &[&[u8]]) -> [u8; 16] {
    let mut message = parts.concat();
    let bits = message.len() as u64 * 8;
    message.push(0x80);
    message.resize((message.len() + 8).next_multiple_of(64) - 8, 0);
    message.extend(bits.to_le_bytes());
    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    let (blocks, _) = message.as_chunks::<64>();
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        let [mut a, mut b, mut c, mut d] = state;
        for (step, constant) in CONSTANTS.iter().enumerate() {
            let round = step / 16;
            let (mixed, word) = match round {
                0 => ((b & c) | (!b & d), step),
                1 => ((d & b) | (!d & c), 5 * step + 1),
                2 => (b ^ c ^ d, 3 * step + 5),
                _ => (c ^ (b | !d), 7 * step),
            };
            let word = u32::from_le_bytes(words[word % 16]);
            let sum = a.wrapping_add(mixed).wrapping_add(word);
            let sum = sum.wrapping_add(*constant);
            let rotated = sum.rotate_left(SHIFTS[round][step % 4]);
            (a, d, c, b) = (d, c, b, b.wrapping_add(rotated));
        }
        for (sum, value) in state.iter_mut().zip([a, b, c, d]) {
            *sum = sum.wrapping_add(value);
        }
    }
    let mut digest = [0_u8; 16];
    let (places, _) = digest.as_chunks_mut::<4>();
    for (place, word) in places.iter_mut().zip(state) {
        *place = word.to_le_bytes();
    }
    digest
}

/// By how much sums are rotated, by round.
const SHIFTS: [[u32; 4]; 4] = [
    [7, 12, 17, 22],
    [5, 9, 14, 20],
    [4, 11, 16, 23],
    [6, 10, 15, 21],
];
/// The integer parts of 2^32 times the absolute sine of 1 to 64.
#[rustfmt::skip]
const CONSTANTS: [u32; 64] = [
    0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee,
    0xf57c_0faf, 0x4787_c62a, 0xa830_4613, 0xfd46_9501,
    0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be,
    0x6b90_1122, 0xfd98_7193, 0xa679_438e, 0x49b4_0821,
    0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa,
    0xd62f_105d, 0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8,
    0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed,
    0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a,
    0xfffa_3942, 0x8771_f681, 0x6d9d_6122, 0xfde5_380c,
    0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70,
    0x289b_7ec6, 0xeaa1_27fa, 0xd4ef_3085, 0x0488_1d05,
    0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665,
    0xf429_2244, 0x432a_ff97, 0xab94_23a7, 0xfc93_a039,
    0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
    0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1,
    0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb, 0xeb86_d391,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_rfc_1321() {
        for (text, expected) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0cc175b9c0f1b6a831c399e269772661"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            (
                "abcdefghijklmnopqrstuvwxyz",
                "c3fcd3d76192e4007dfb496cca67e13b",
            ),
            (
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
                "d174ab98d277d9f5a5611c2c9f419d9f",
            ),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            let digest = md5(&[text.as_bytes()]).map(|byte| format!("{byte:02x}"));
            assert_eq!(digest.concat(), expected, "{text}");
        }
        let whole = md5(&[&[b'a'; 130]]);
        assert_eq!(whole, md5(&[&[b'a'; 64], b"", &[b'a'; 66]]));
    }

    /// The first two are those of Apache's documentation ("Password Formats"), the others OpenSSL's.
    #[test]
    fn digits_are_those_of_other_programs() {
        let long = "0123456789abcdef".repeat(16);
        for (password, salt, expected) in [
            ("myPassword", "r31.....", "HqJZimcKQFAMYayBlzkrA/"),
            ("myPassword", "qHDFfhPC", "nITSVHgYbDAK1Y0acGRnY0"),
            ("password", "lZL6V/ci", "eIMz/iKDkbtys/uU7LEK00"),
            ("", "lZL6V/ci", "SVU5DyKasLwxHneKr84nN."),
            (&long[..64], "saltsalt", "Q6wzKYllZQ.77VVzlQluo."),
            (&long[..], "saltsalt", "LLbqe0xWPeVy4j8icOYPD0"),
        ] {
            let digits = digits(password.as_bytes(), salt.as_bytes());
            assert_eq!(digits, expected.as_bytes(), "{password}");
        }
    }
}
