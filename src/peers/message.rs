//! Messages between pods, each with its length before it: a request with wishes for tokens and its response, and a logout token and
//! its answer. Numbers are big-endian. Must not know connections.

use crate::table::{Ask, Grant};

/// Wishes of a message.
pub(super) const MAX_ASKS: usize = 1024;
/// Bytes of a wish: the limit, the key, the tokens.
const ASK: usize = 24;
/// Bytes of a response to it: the tokens, those left, the wait.
const GRANT: usize = 20;
/// Maximum length of the name of a pod.
const MAX_NAME: usize = 253;
/// Maximum length of a message, without its length.
pub(super) const MAX_MESSAGE: usize = 1 + MAX_NAME + MAX_ASKS * ASK;

/// Why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Encodes wishes of the pod `name`. More than [`MAX_ASKS`] are left out, as is what is too long of the name.
pub(super) fn request(name: &str, asks: impl Iterator<Item = Ask>) -> Vec<u8> {
    let name = &name.as_bytes()[..name.len().min(MAX_NAME)];
    let mut bytes = vec![0; 4];
    bytes.push(name.len() as u8);
    bytes.extend_from_slice(name);
    for ask in asks.take(MAX_ASKS) {
        let Ask { limit, key, tokens } = ask;
        for number in [limit, key, tokens] {
            bytes.extend(number.to_be_bytes());
        }
    }
    with_length(bytes)
}

/// Decodes a request without its length: the name of the pod, and its wishes.
pub(super) fn read_request(
    message: &[u8],
) -> Result<(&str, impl ExactSizeIterator<Item = Ask>), Malformed> {
    let (name, asks) = text(message)?;
    if asks.len() % ASK != 0 || asks.len() > MAX_ASKS * ASK {
        return Err(Malformed);
    }
    let asks = asks.chunks_exact(ASK).map(|ask| Ask {
        limit: number(ask, 0),
        key: number(ask, 8),
        tokens: number(ask, 16),
    });
    Ok((name, asks))
}

/// Encodes responses, in the order of their wishes.
pub(super) fn response(grants: impl Iterator<Item = Grant>) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for Grant { tokens, left, wait } in grants {
        bytes.extend(tokens.to_be_bytes());
        bytes.extend(left.to_be_bytes());
        bytes.extend(wait.to_be_bytes());
    }
    with_length(bytes)
}

/// Decodes a response without its length: one to each of `asks` wishes.
pub(super) fn read_response(
    message: &[u8],
    asks: usize,
) -> Result<impl Iterator<Item = Grant>, Malformed> {
    if message.len() != asks * GRANT {
        return Err(Malformed);
    }
    Ok(message.chunks_exact(GRANT).map(|grant| Grant {
        tokens: number(grant, 0),
        left: number(grant, 8),
        wait: (number(grant, 12) & u64::from(u32::MAX)) as u32,
    }))
}

/// A logout token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogoutMessage<'a> {
    /// Namespace and name of the policy.
    pub(super) policy: (&'a str, &'a str),
    /// Its text.
    pub(super) token: &'a str,
    /// When the pod has ended sessions by it, in microseconds since 1970.
    pub(super) at: u64,
}

/// Encodes a logout token; `None` if it is too long.
pub(super) fn logout(message: LogoutMessage<'_>) -> Option<Vec<u8>> {
    let LogoutMessage { policy, token, at } = message;
    let mut bytes = vec![0; 4];
    bytes.extend(at.to_be_bytes());
    for text in [policy.0, policy.1] {
        bytes.push(u8::try_from(text.len()).ok()?);
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes.extend_from_slice(token.as_bytes());
    (bytes.len() - 4 <= MAX_MESSAGE).then(|| with_length(bytes))
}

/// Decodes a logout token without its length.
pub(super) fn read_logout(message: &[u8]) -> Result<LogoutMessage<'_>, Malformed> {
    let (at, rest) = message.split_first_chunk::<8>().ok_or(Malformed)?;
    let (namespace, rest) = text(rest)?;
    let (name, rest) = text(rest)?;
    Ok(LogoutMessage {
        policy: (namespace, name),
        token: str::from_utf8(rest).map_err(|_| Malformed)?,
        at: u64::from_be_bytes(*at),
    })
}

/// Encodes the answer to a logout token: whether it need not be sent again.
pub(super) fn answer(is_heard: bool) -> Vec<u8> {
    with_length(vec![0, 0, 0, 0, u8::from(is_heard)])
}

/// Decodes an answer without its length.
pub(super) fn read_answer(message: &[u8]) -> Result<bool, Malformed> {
    match message {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(Malformed),
    }
}

/// Splits off a text that follows its length.
fn text(bytes: &[u8]) -> Result<(&str, &[u8]), Malformed> {
    let (length, rest) = bytes.split_first().ok_or(Malformed)?;
    let (text, rest) = rest
        .split_at_checked(usize::from(*length))
        .ok_or(Malformed)?;
    Ok((str::from_utf8(text).map_err(|_| Malformed)?, rest))
}

/// Writes the length into the first four bytes.
fn with_length(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Reads a number; 0 beyond the end.
fn number(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_be_bytes(*bytes.unwrap_or(&[0; 8]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ask(number: u64) -> Ask {
        Ask {
            limit: u64::MAX - number,
            key: number << 40,
            tokens: number,
        }
    }

    #[test]
    fn messages_round_trip_and_are_bounded() {
        for count in [0, 1, MAX_ASKS, MAX_ASKS + 1] {
            let asks: Vec<_> = (0..count as u64).map(ask).collect();
            let bytes = request("edge-1", asks.iter().copied());
            assert_eq!(bytes.len() - 4, number(&bytes, 0) as usize >> 32);
            assert!(bytes.len() - 4 <= MAX_MESSAGE);
            let (name, read) = read_request(&bytes[4..]).unwrap();
            assert_eq!(name, "edge-1");
            assert!(read.eq(asks.into_iter().take(MAX_ASKS)));
        }
        let grant = Grant {
            tokens: 3,
            left: u64::MAX,
            wait: Grant::UNSERVED,
        };
        let bytes = response([grant, grant].into_iter());
        assert!(read_response(&bytes[4..], 2).unwrap().eq([grant, grant]));
        assert!(read_response(&bytes[4..], 1).is_err());
        assert!(read_response(&bytes[5..], 2).is_err());
        let long = "x".repeat(1_000);
        let bytes = request(&long, std::iter::empty());
        assert_eq!(read_request(&bytes[4..]).unwrap().0.len(), MAX_NAME);
    }

    #[test]
    fn malformed_requests_are_refused() {
        let mut long = request("a", (0..MAX_ASKS as u64).map(ask));
        long.extend([0; ASK]);
        for bytes in [&b""[..], b"\x05ab", b"\x01\xff", b"\x01a1", &long[4..]] {
            assert!(read_request(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(read_request(b"\0").unwrap().1.len(), 0);
    }

    #[test]
    fn logout_tokens_round_trip_and_are_bounded() {
        let token = "x".repeat(16 * 1024);
        let message = LogoutMessage {
            policy: ("ns", "policy"),
            token: &token,
            at: 1 << 60,
        };
        let bytes = logout(message).unwrap();
        assert_eq!(bytes.len() - 4, number(&bytes, 0) as usize >> 32);
        assert_eq!(read_logout(&bytes[4..]), Ok(message));
        for end in 4..4 + 8 + 3 + 7 {
            assert_eq!(read_logout(&bytes[4..end]), Err(Malformed), "{end}");
        }
        let long = "x".repeat(MAX_MESSAGE);
        let token = LogoutMessage {
            token: &long,
            ..message
        };
        let name = LogoutMessage {
            policy: ("ns", long.as_str()),
            ..message
        };
        assert_eq!([logout(token), logout(name)], [None, None]);
        for is_heard in [false, true] {
            assert_eq!(read_answer(&answer(is_heard)[4..]), Ok(is_heard));
        }
        for malformed in [&b""[..], b"\x02", b"\x01\x01"] {
            assert_eq!(read_answer(malformed), Err(Malformed));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), asks in 0_usize..12) {
            if let Ok((name, asks)) = read_request(&bytes) {
                let again = request(name, asks);
                prop_assert_eq!(&again[4..], &bytes[..]);
            }
            if let Ok(grants) = read_response(&bytes, asks) {
                let again = response(grants);
                prop_assert_eq!(&again[4..], &bytes[..]);
            }
        }
    }
}
