//! Unidirectional streams of a client (RFC 9114, 6.2, and RFC 9204, 4.2): their types, and what QPACK streams may carry while
//! no table has dynamic entries.

use bytes::{Buf, Bytes};

use super::control_stream::{ControlFrame, ControlReader};
use super::error::{Code, Error};
use super::frame::CONTROL_STREAM;
use super::{prefix_integer, varint};

const PUSH_STREAM: u64 = 0x1;
const ENCODER_STREAM: u64 = 0x2;
const DECODER_STREAM: u64 = 0x3;

/// Set Dynamic Table Capacity, of 0 (RFC 9204, 4.3.1).
const NO_CAPACITY: u8 = 0b0010_0000;
/// First bits of Stream Cancellation, and bits of its integer in the first byte (RFC 9204, 4.4.2).
const CANCELLATION: u8 = 0b01;
const CANCELLATION_BITS: u32 = 6;

/// The types of streams that a client has opened, each of which it may open once.
#[derive(Debug, Default)]
pub(crate) struct StreamTypes {
    has_control: bool,
    has_encoder: bool,
    has_decoder: bool,
}

/// What a unidirectional stream brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEvent {
    Control(ControlFrame),
    /// The type is unknown. The rest should not be read: the code to stop it with is [`Code::StreamCreationError`]. If it is
    /// read nevertheless, it is ignored.
    Unknown,
}

/// Reads a unidirectional stream of a client. Holds no bytes of it.
#[derive(Debug, Default)]
pub(crate) struct StreamReader(State);

#[derive(Debug)]
enum State {
    Type(varint::Partial),
    Control(Box<ControlReader>),
    Encoder,
    /// With the integer of an instruction that is not complete.
    Decoder(Option<prefix_integer::Partial>),
    Ignored,
}

impl Default for State {
    fn default() -> Self {
        Self::Type(varint::Partial::default())
    }
}

impl StreamReader {
    /// Takes bytes until there is something that a server acts on. `None` after all of them. `types` are those of the
    /// connection.
    pub(crate) fn read(
        &mut self,
        types: &mut StreamTypes,
        input: &mut Bytes,
    ) -> Result<Option<StreamEvent>, Error> {
        if let State::Type(partial) = &mut self.0 {
            let Some(kind) = partial.read(input) else {
                return Ok(None);
            };
            self.0 = types.open(kind)?;
            if matches!(self.0, State::Ignored) {
                return Ok(Some(StreamEvent::Unknown));
            }
        }
        match &mut self.0 {
            State::Control(control) => Ok(control.read(input)?.map(StreamEvent::Control)),
            State::Encoder => read_encoder(input).map(|()| None),
            State::Decoder(partial) => read_decoder(partial, input).map(|()| None),
            State::Type(_) | State::Ignored => {
                input.clear();
                Ok(None)
            }
        }
    }

    /// Checks that the stream may end or be reset.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        match &self.0 {
            State::Type(_) | State::Ignored => Ok(()),
            State::Control(_) | State::Encoder | State::Decoder(_) => Err(Error::Connection(
                Code::ClosedCriticalStream,
                "the end of a control stream or of a QPACK stream",
            )),
        }
    }
}

impl StreamTypes {
    fn open(&mut self, kind: u64) -> Result<State, Error> {
        let refused = |description| Err(Error::Connection(Code::StreamCreationError, description));
        let (is_open, state) = match kind {
            CONTROL_STREAM => (&mut self.has_control, State::Control(Box::default())),
            ENCODER_STREAM => (&mut self.has_encoder, State::Encoder),
            DECODER_STREAM => (&mut self.has_decoder, State::Decoder(None)),
            PUSH_STREAM => return refused("a push stream of a client"),
            _ => return Ok(State::Ignored),
        };
        if *is_open {
            return refused("a second stream of its type");
        }
        *is_open = true;
        Ok(state)
    }
}

/// Reads instructions for a table that has no capacity: none but the one that sets this capacity is possible.
fn read_encoder(input: &mut Bytes) -> Result<(), Error> {
    while input.has_remaining() {
        if input.get_u8() != NO_CAPACITY {
            return Err(Error::Connection(
                Code::QpackEncoderStreamError,
                "an instruction for a dynamic table of no capacity",
            ));
        }
    }
    Ok(())
}

/// Reads instructions from a decoder that got no section with references to a dynamic table: there is nothing to acknowledge,
/// and a cancellation has no effect (RFC 9204, 4.4).
fn read_decoder(
    partial: &mut Option<prefix_integer::Partial>,
    input: &mut Bytes,
) -> Result<(), Error> {
    let refused = |description| Error::Connection(Code::QpackDecoderStreamError, description);
    while input.has_remaining() {
        let byte = input.get_u8();
        let is_complete = match partial {
            Some(integer) => {
                let read = integer.add(byte);
                read.map_err(|_| refused("an integer that is too large"))?
                    .is_some()
            }
            None if byte >> CANCELLATION_BITS != CANCELLATION => {
                return Err(refused("an acknowledgment of what was not sent"));
            }
            None => match prefix_integer::Partial::new(byte, CANCELLATION_BITS) {
                Ok(_) => true,
                Err(integer) => {
                    *partial = Some(integer);
                    false
                }
            },
        };
        if is_complete {
            *partial = None;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::control_stream::Settings;
    use super::*;

    /// Reads a stream of a new connection, in one piece and byte by byte.
    fn read(stream: &[u8]) -> Result<Vec<StreamEvent>, Error> {
        let read = |size| {
            let (mut reader, mut types) = (StreamReader::default(), StreamTypes::default());
            let mut events = Vec::new();
            for part in stream.chunks(size) {
                let mut part = Bytes::copy_from_slice(part);
                while let Some(event) = reader.read(&mut types, &mut part)? {
                    events.push(event);
                }
                assert!(part.is_empty());
            }
            Ok(events)
        };
        let whole = read(stream.len().max(1));
        assert_eq!(read(1), whole);
        whole
    }

    fn code(stream: &[u8]) -> Option<Code> {
        match read(stream) {
            Err(Error::Connection(code, _)) => Some(code),
            Err(other) => panic!("{other:?} does not end the connection"),
            Ok(_) => None,
        }
    }

    #[test]
    fn streams_have_types() {
        let settings = ControlFrame::Settings(Settings::default());
        let expected = [StreamEvent::Control(settings)];
        assert_eq!(read(&[0, 4, 0]).unwrap(), expected);
        assert_eq!(read(&[0x40, 0, 4, 0]).unwrap(), expected);
        assert_eq!(read(&[2]).unwrap(), []);
        assert_eq!(read(&[3]).unwrap(), []);
        assert_eq!(read(&[]).unwrap(), []);
        for unknown in [&[0x21, 1, 2][..], &[0x40, 0x54], &[4; 100]] {
            assert_eq!(read(unknown).unwrap(), [StreamEvent::Unknown]);
        }
        assert_eq!(code(&[1, 0]), Some(Code::StreamCreationError));
        assert_eq!(code(&[0, 0, 0]), Some(Code::MissingSettings));
    }

    #[test]
    fn each_type_is_opened_once() {
        let mut types = StreamTypes::default();
        let mut open = |kind: u8| {
            let mut input = Bytes::copy_from_slice(&[kind]);
            StreamReader::default().read(&mut types, &mut input)
        };
        for kind in [0, 2, 3] {
            assert_eq!(open(kind), Ok(None));
        }
        for _ in 0..2 {
            assert_eq!(open(0x21), Ok(Some(StreamEvent::Unknown)));
        }
        for kind in [0, 1, 2, 3] {
            let refused = open(kind);
            let Err(Error::Connection(code, _)) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(code, Code::StreamCreationError);
        }
    }

    #[test]
    fn critical_streams_do_not_end() {
        for (stream, is_critical) in [
            (&[][..], false),
            (&[0x40], false),
            (&[0x21, 1], false),
            (&[0], true),
            (&[0, 4, 0], true),
            (&[2], true),
            (&[3], true),
        ] {
            let (mut reader, mut types) = (StreamReader::default(), StreamTypes::default());
            let mut input = Bytes::copy_from_slice(stream);
            while reader.read(&mut types, &mut input).unwrap().is_some() {}
            let closed = matches!(
                reader.finish(),
                Err(Error::Connection(Code::ClosedCriticalStream, _))
            );
            assert_eq!(closed, is_critical, "{stream:?}");
        }
    }

    #[test]
    fn encoders_have_no_table() {
        assert_eq!(code(&[2, 0x20, 0x20]), None);
        for instruction in [
            // RFC 9204, B.2 and B.4.
            &[0x3f, 0xbd, 0x01][..],
            &[0x4a, 0x63, 0x75],
            &[0x02],
            &[0x21],
            &[0xc0, 0x00],
            &[0x40],
            &[0x00],
        ] {
            let stream = [&[2, 0x20][..], instruction].concat();
            let error = Some(Code::QpackEncoderStreamError);
            assert_eq!(code(&stream), error, "{instruction:?}");
        }
    }

    #[test]
    fn decoders_cancel_streams_and_acknowledge_nothing() {
        assert_eq!(code(&[3, 0x48, 0x40, 0x7f, 0x80, 0x01, 0x7e]), None);
        assert_eq!(code(&[3, 0x7f, 0xff]), None);
        for instruction in [
            // RFC 9204, B.3 and B.2.
            &[0x84][..],
            &[0x01],
            &[0x00],
            &[0xff, 0x00],
        ] {
            let stream = [&[3, 0x40][..], instruction].concat();
            let error = Some(Code::QpackDecoderStreamError);
            assert_eq!(code(&stream), error, "{instruction:?}");
        }
        let long = [&[3, 0x7f][..], &[0xff; 10]].concat();
        assert_eq!(code(&long), Some(Code::QpackDecoderStreamError));
    }
}
