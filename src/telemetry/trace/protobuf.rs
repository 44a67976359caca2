//! Writes messages of Protocol Buffers, field by field. Fields have the values that `proto3` leaves out unless it says otherwise.
//! Must not know what the messages mean.

use prost::encoding::{WireType, encode_varint, encoded_len_varint};

/// A message that is being written.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Makes room for so many bytes.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    /// Makes room for so many bytes in all.
    pub(super) fn enlarge(&mut self, bytes: usize) {
        self.0.reserve_exact(bytes.saturating_sub(self.0.len()));
    }

    /// Reports whether another message can be appended without an allocation.
    pub(super) fn has_room(&self, next: &Self) -> bool {
        self.0.capacity() - self.0.len() >= next.0.len()
    }

    /// The bytes of the message.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Bytes that it takes.
    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Makes it the beginning of a message in a field, whose end is as many bytes that follow.
    pub(super) fn precede(&mut self, field: u32, following: usize) {
        let mut whole = Self::default();
        whole.key(field, WireType::LengthDelimited);
        whole.varint((self.0.len() + following) as u64);
        whole.append(self);
        *self = whole;
    }

    /// Appends the fields of another message.
    pub(super) fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// Writes an integer, unless it is 0.
    #[inline]
    pub(super) fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.present_number(field, value);
        }
    }

    /// Writes an integer, also 0: the field is one of a `oneof`. A negative `int64` has the bits of its two's complement.
    #[inline]
    pub(super) fn present_number(&mut self, field: u32, value: u64) {
        self.key(field, WireType::Varint);
        self.varint(value);
    }

    /// Writes a `fixed64`, unless it is 0.
    pub(super) fn fixed64(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.key(field, WireType::SixtyFourBit);
            self.0.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// Writes a `fixed32`, unless it is 0.
    pub(super) fn fixed32(&mut self, field: u32, value: u32) {
        if value != 0 {
            self.key(field, WireType::ThirtyTwoBit);
            self.0.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// Writes bytes or a text, unless it is empty.
    #[inline]
    pub(super) fn bytes(&mut self, field: u32, value: impl AsRef<[u8]>) {
        if !value.as_ref().is_empty() {
            self.present_bytes(field, value);
        }
    }

    /// Writes bytes or a text, also an empty one: the field is one of a `oneof`.
    #[inline]
    pub(super) fn present_bytes(&mut self, field: u32, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        self.key(field, WireType::LengthDelimited);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    /// Writes a message, also an empty one.
    #[inline]
    pub(super) fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        self.key(field, WireType::LengthDelimited);
        let start = self.0.len();
        self.0.push(0);
        write(self);
        let length = self.0.len() - start - 1;
        match one_byte(length as u64) {
            Some(byte) => self.0[start] = byte,
            None => self.write_length::<1>(start),
        }
    }

    /// Writes a message that most often takes from 128 to 16,383 bytes. Others are moved.
    pub(super) fn long_message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        self.key(field, WireType::LengthDelimited);
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 2]);
        write(self);
        self.write_length::<2>(start);
    }

    /// Writes the length of the message behind `start`, where it has room for so many bytes.
    fn write_length<const ROOM: usize>(&mut self, start: usize) {
        let end = self.0.len();
        let length = (end - start - ROOM) as u64;
        let size = encoded_len_varint(length);
        if size != ROOM {
            self.0.resize(end.max(end + size - ROOM), 0);
            self.0.copy_within(start + ROOM..end, start + size);
            self.0.truncate(end + size - ROOM);
        }
        encode_varint(length, &mut &mut self.0[start..start + size]);
    }

    #[inline]
    fn key(&mut self, field: u32, wire_type: WireType) {
        self.varint(u64::from(field) << 3 | wire_type as u64);
    }

    #[inline]
    fn varint(&mut self, value: u64) {
        match one_byte(value) {
            Some(byte) => self.0.push(byte),
            None => encode_varint(value, &mut self.0),
        }
    }
}

/// Returns the encoding of an integer that takes one byte, as most do.
#[inline]
fn one_byte(value: u64) -> Option<u8> {
    (value < 0x80).then_some(value as u8)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[derive(Clone, PartialEq, prost::Message)]
    struct Known {
        #[prost(uint64, tag = "1")]
        number: u64,
        #[prost(string, tag = "2")]
        text: String,
        #[prost(message, repeated, tag = "3")]
        children: Vec<Self>,
        #[prost(fixed64, tag = "4")]
        fixed64: u64,
        #[prost(fixed32, tag = "16")]
        fixed32: u32,
        #[prost(oneof = "Choice", tags = "20, 21")]
        choice: Option<Choice>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    enum Choice {
        #[prost(int64, tag = "20")]
        Number(i64),
        #[prost(string, tag = "21")]
        Text(String),
    }

    fn write(known: &Known, message: &mut Message, are_long: bool) {
        message.number(1, known.number);
        message.bytes(2, &known.text);
        for child in &known.children {
            let write = |message: &mut Message| write(child, message, are_long);
            match are_long {
                true => message.long_message(3, write),
                false => message.message(3, write),
            }
        }
        message.fixed64(4, known.fixed64);
        message.fixed32(16, known.fixed32);
        match &known.choice {
            Some(Choice::Number(number)) => message.present_number(20, *number as u64),
            Some(Choice::Text(text)) => message.present_bytes(21, text),
            None => {}
        }
    }

    #[test]
    fn writes_what_another_implementation_writes() {
        let leaf = |size: usize| Known {
            number: size as u64,
            text: "a".repeat(size),
            ..Known::default()
        };
        let chosen = |choice| Known {
            choice: Some(choice),
            ..Known::default()
        };
        // Lengths around those that take another byte, also of what is around them.
        let sizes = [
            0, 1, 122, 123, 124, 125, 126, 127, 128, 16_370, 16_384, 2_097_152,
        ];
        let messages = sizes.map(|size| Known {
            children: vec![leaf(0), leaf(size), leaf(1)],
            fixed64: size as u64,
            fixed32: size as u32,
            ..Known::default()
        });
        let choices = [
            Choice::Number(0),
            Choice::Number(-1),
            Choice::Number(i64::MAX),
            Choice::Text(String::new()),
        ];
        let whole = Known {
            children: messages.into(),
            number: u64::MAX,
            ..Known::default()
        };
        for known in choices.map(chosen).into_iter().chain([whole]) {
            for are_long in [false, true] {
                let mut message = Message::default();
                write(&known, &mut message, are_long);
                assert!(message.as_bytes() == known.encode_to_vec());
            }
        }
    }

    #[test]
    fn beginning_of_a_message_knows_its_end() {
        let known = Known {
            children: vec![Known {
                number: 1,
                text: "a".repeat(200),
                ..Known::default()
            }],
            ..Known::default()
        };
        let mut message = Message::default();
        message.number(1, 1);
        let mut end = Message::default();
        end.bytes(2, "a".repeat(200));
        message.precede(3, end.as_bytes().len());
        message.append(&end);
        assert!(message.as_bytes() == known.encode_to_vec());
    }
}
