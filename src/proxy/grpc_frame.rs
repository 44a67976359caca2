//! Messages of gRPC on the wire: each has a prefix with a flag of compression and its length. Does no I/O.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use prost::Message;

/// The flag of compression and the length before each message.
const PREFIX: usize = 5;
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// What makes the bytes of a call no messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::proxy) enum FrameError {
    /// A message is compressed, although the call accepts no compression.
    #[error("a compressed message")]
    Compressed,
    /// A message exceeds the limit.
    #[error("a message above the limit")]
    TooLarge,
    /// The bytes end within a message.
    #[error("an incomplete message")]
    Incomplete,
    /// The bytes of a message are not of its type.
    #[error("a malformed message")]
    Malformed,
}

/// Encodes a message with its prefix.
pub(in crate::proxy) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows as needed, so encoding cannot fail.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// Decodes the only message of a response.
///
/// # Errors
/// If it is not the only one, or not whole.
pub(in crate::proxy) fn decode_only<M: Message + Default>(data: Bytes) -> Result<M, FrameError> {
    let mut messages = Messages::new(data.len());
    messages.push(data);
    let message = messages.next()?.ok_or(FrameError::Incomplete)?;
    match messages.is_empty() {
        true => Ok(message),
        false => Err(FrameError::Malformed),
    }
}

/// Reports whether trailers, or the head of a response without a body, say that a call has succeeded.
pub(in crate::proxy) fn is_ok(headers: &HeaderMap) -> bool {
    headers.get(GRPC_STATUS).is_some_and(|code| code == "0")
}

/// Reports whether headers have the status of a call.
pub(in crate::proxy) fn has_status(headers: &HeaderMap) -> bool {
    headers.contains_key(GRPC_STATUS)
}

/// Splits the bytes of a call into messages, however they arrive.
pub(in crate::proxy) struct Messages {
    /// The part that is read next.
    first: Bytes,
    /// Parts of a message that is not whole yet, `first` included.
    partial: BytesMut,
    max: usize,
}

impl Messages {
    /// Accepts messages of up to `max` bytes.
    pub(in crate::proxy) fn new(max: usize) -> Self {
        Self {
            first: Bytes::new(),
            partial: BytesMut::new(),
            max,
        }
    }

    /// Adds bytes that have arrived.
    pub(in crate::proxy) fn push(&mut self, data: Bytes) {
        if self.first.is_empty() && self.partial.is_empty() {
            self.first = data;
            return;
        }
        if !self.first.is_empty() {
            self.partial.extend_from_slice(&self.first);
            self.first = Bytes::new();
        }
        self.partial.extend_from_slice(&data);
    }

    /// Reports whether no byte is left.
    pub(in crate::proxy) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes that are left.
    pub(in crate::proxy) fn len(&self) -> usize {
        self.first.len() + self.partial.len()
    }

    /// Returns the next message that is whole.
    ///
    /// # Errors
    /// Its prefix or its bytes are not valid. No further message can be read then.
    pub(in crate::proxy) fn next<M: Message + Default>(&mut self) -> Result<Option<M>, FrameError> {
        let bytes = match self.first.is_empty() {
            false => &self.first[..],
            true => &self.partial[..],
        };
        let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let [0, length @ ..] = prefix else {
            return Err(FrameError::Compressed);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > self.max {
            return Err(FrameError::TooLarge);
        }
        if rest.len() < length {
            return Ok(None);
        }
        let whole = PREFIX + length;
        let mut message = match self.first.is_empty() {
            false => self.first.split_to(whole),
            // A copy, so that a message that is held does not hold what follows it.
            true => {
                let message = Bytes::copy_from_slice(&self.partial[..whole]);
                self.partial.advance(whole);
                // Nor does what follows hold the buffer of a message that was longer.
                if self.partial.len() < whole {
                    self.partial = BytesMut::from(&self.partial[..]);
                }
                message
            }
        };
        message.advance(PREFIX);
        M::decode(message)
            .map_err(|_| FrameError::Malformed)
            .map(Some)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message with bytes of any length.
    #[derive(Clone, PartialEq, Message)]
    struct Sample {
        #[prost(bytes = "bytes", tag = "1")]
        body: Bytes,
        #[prost(bool, tag = "2")]
        is_last: bool,
    }

    fn read(messages: &mut Messages) -> Result<Vec<Sample>, FrameError> {
        let mut read = Vec::new();
        while let Some(message) = messages.next()? {
            read.push(message);
        }
        Ok(read)
    }

    #[test]
    fn malformed_bytes_are_no_messages() {
        let of = |data: &'static [u8]| decode_only::<Sample>(Bytes::from_static(data));
        assert_eq!(of(&[0, 0, 0, 0, 0]), Ok(Sample::default()));
        assert_eq!(of(&[]), Err(FrameError::Incomplete));
        assert_eq!(of(&[0, 0, 0, 0]), Err(FrameError::Incomplete));
        assert_eq!(of(&[1, 0, 0, 0, 0]), Err(FrameError::Compressed));
        assert_eq!(of(&[0, 0, 0, 0, 1]), Err(FrameError::Incomplete));
        assert_eq!(of(&[0, 0, 0, 0, 0, 0]), Err(FrameError::Malformed));
        assert_eq!(of(&[0, 0, 0, 0, 1, 0xff]), Err(FrameError::Malformed));
    }

    #[test]
    fn message_above_the_limit_is_refused_before_it_arrives() {
        let mut messages = Messages::new(3);
        messages.push(Bytes::from_static(&[0, 0, 0, 0, 4]));
        assert_eq!(messages.next::<Sample>(), Err(FrameError::TooLarge));
    }

    #[test]
    fn what_follows_a_long_message_does_not_hold_its_buffer() {
        const PART: usize = 40_000;
        let sample = Sample {
            body: Bytes::from(vec![1; 100_000]),
            is_last: false,
        };
        let mut bytes = BytesMut::from(&encode(&sample)[..]);
        // The beginning of another message.
        bytes.put_u8(0);
        let mut messages = Messages::new(bytes.len());
        while bytes.len() > PART {
            messages.push(bytes.split_to(PART).freeze());
            assert_eq!(messages.next::<Sample>(), Ok(None));
        }
        messages.push(bytes.freeze());
        assert_eq!(messages.next::<Sample>(), Ok(Some(sample)));
        assert_eq!(messages.len(), 1);
        let held = messages.partial.capacity();
        assert!(held < 1000, "{held} bytes");
    }

    #[test]
    fn status_is_that_of_the_call() {
        let of = |code: &str| HeaderMap::from_iter([(GRPC_STATUS, code.parse().unwrap())]);
        assert!(is_ok(&of("0")) && has_status(&of("0")));
        assert!(!is_ok(&of("14")) && has_status(&of("14")) && !is_ok(&of("00")));
        assert!(!is_ok(&HeaderMap::new()) && !has_status(&HeaderMap::new()));
    }

    proptest! {
        #[test]
        fn messages_are_the_same_however_their_bytes_arrive(
            bodies in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), any::<bool>()), 0..8),
            cuts in prop::collection::vec(1..97_usize, 1..64),
        ) {
            let sent: Vec<_> = bodies
                .into_iter()
                .map(|(body, is_last)| Sample { body: body.into(), is_last })
                .collect();
            let mut bytes: BytesMut = sent.iter().flat_map(encode).collect();
            let mut messages = Messages::new(1024);
            let mut read_messages = Vec::new();
            for cut in cuts.iter().cycle() {
                if bytes.is_empty() {
                    break;
                }
                messages.push(bytes.split_to((*cut).min(bytes.len())).freeze());
                read_messages.extend(read(&mut messages).unwrap());
            }
            prop_assert_eq!(read_messages, sent);
            prop_assert!(messages.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_take_more_than_they_are(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20),
        ) {
            let mut messages = Messages::new(64);
            let mut pushed = 0;
            for part in parts {
                pushed += part.len();
                messages.push(part.into());
                let outcome = read(&mut messages);
                prop_assert!(messages.len() <= pushed);
                if outcome.is_err() {
                    break;
                }
            }
        }
    }
}
