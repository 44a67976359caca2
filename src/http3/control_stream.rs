//! The frames that a client sends on its control stream (RFC 9114, 6.2.1 and 7.2). Holds no bytes of them.

use bytes::Bytes;

use super::error::{Code, Error};
use super::frame::{
    self, ENABLE_CONNECT_PROTOCOL, HeaderReader, Kind, MAX_FIELD_SECTION_SIZE,
    QPACK_BLOCKED_STREAMS, QPACK_MAX_TABLE_CAPACITY,
};
use super::varint;

/// A frame that a server acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlFrame {
    /// The settings of the client. Comes once, and first.
    Settings(Settings),
    /// The client accepts no more pushes, and will end the connection.
    GoAway,
}

/// Settings of a client that a server regards: it sends no fields that need a dynamic table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The maximum size of a response's fields, as RFC 9114, 4.2.2 counts it, if there is one.
    pub(crate) max_field_section_size: Option<u64>,
}

/// Reads a control stream.
#[derive(Debug, Default)]
pub(super) struct ControlReader {
    header: HeaderReader,
    payload: Payload,
    /// Bytes of the payload that have not arrived.
    left: u64,
    has_settings: bool,
    /// The ids of the last GOAWAY and MAX_PUSH_ID.
    go_away: Option<u64>,
    max_push_id: Option<u64>,
}

#[derive(Debug, Default)]
enum Payload {
    /// Between frames.
    #[default]
    None,
    Settings(SettingsReader),
    /// One integer, of a frame of this type.
    Id(Kind, varint::Partial),
    Skipped,
}

impl ControlReader {
    /// Takes bytes until there is a frame that a server acts on. `None` after all of them.
    pub(super) fn read(&mut self, input: &mut Bytes) -> Result<Option<ControlFrame>, Error> {
        loop {
            if matches!(self.payload, Payload::None) {
                let Some((kind, length)) = self.header.read(input) else {
                    return Ok(None);
                };
                self.left = length;
                self.payload = self.begin(kind)?;
            }
            if self.left > 0 && input.is_empty() {
                return Ok(None);
            }
            if let Some(frame) = self.read_payload(input)? {
                return Ok(Some(frame));
            }
        }
    }

    fn begin(&mut self, kind: Kind) -> Result<Payload, Error> {
        if !self.has_settings && kind != Kind::Settings {
            return Err(Error::Connection(
                Code::MissingSettings,
                "a control stream that does not begin with SETTINGS",
            ));
        }
        match kind {
            Kind::Settings if self.has_settings => Err(Error::unexpected("a second SETTINGS")),
            Kind::Settings => {
                self.has_settings = true;
                Ok(Payload::Settings(SettingsReader::default()))
            }
            Kind::CancelPush | Kind::GoAway | Kind::MaxPushId => {
                Ok(Payload::Id(kind, varint::Partial::default()))
            }
            Kind::Unknown => Ok(Payload::Skipped),
            Kind::Data | Kind::Headers => {
                Err(Error::unexpected("a request frame on the control stream"))
            }
            Kind::PushPromise => Err(Error::unexpected("PUSH_PROMISE of a client")),
            Kind::OfHttp2 => Err(Error::unexpected("a frame type of HTTP/2")),
        }
    }

    /// Takes bytes of the payload, some if it has any.
    fn read_payload(&mut self, input: &mut Bytes) -> Result<Option<ControlFrame>, Error> {
        let mut part = frame::take(input, &mut self.left);
        let is_end = self.left == 0;
        let read = match &mut self.payload {
            Payload::None | Payload::Skipped => None,
            Payload::Settings(settings) => {
                settings.read(&mut part)?;
                match is_end {
                    true => Some(ControlFrame::Settings(settings.finish()?)),
                    false => None,
                }
            }
            Payload::Id(kind, integer) => {
                let (kind, id) = (*kind, integer.read(&mut part));
                match id {
                    Some(id) if is_end && part.is_empty() => self.on_id(kind, id)?,
                    None if !is_end => None,
                    _ => return Err(Error::layout("a frame that is not one integer")),
                }
            }
        };
        if is_end {
            self.payload = Payload::None;
        }
        Ok(read)
    }

    fn on_id(&mut self, kind: Kind, id: u64) -> Result<Option<ControlFrame>, Error> {
        let refused = |description| Err(Error::Connection(Code::IdError, description));
        match kind {
            Kind::GoAway if self.go_away.is_some_and(|last| id > last) => {
                refused("GOAWAY with a larger id than before")
            }
            Kind::GoAway => {
                self.go_away = Some(id);
                Ok(Some(ControlFrame::GoAway))
            }
            Kind::MaxPushId if self.max_push_id.is_some_and(|last| id < last) => {
                refused("MAX_PUSH_ID with a smaller id than before")
            }
            Kind::MaxPushId => {
                self.max_push_id = Some(id);
                Ok(None)
            }
            _ => refused("CANCEL_PUSH of a push that was not promised"),
        }
    }
}

/// Reads the payload of SETTINGS.
#[derive(Debug, Default)]
struct SettingsReader {
    integer: varint::Partial,
    id: Option<u64>,
    settings: Settings,
    /// A bit for each known id that was read.
    seen: u16,
}

impl SettingsReader {
    fn read(&mut self, input: &mut Bytes) -> Result<(), Error> {
        while let Some(integer) = self.integer.read(input) {
            match self.id.take() {
                None => self.id = Some(integer),
                Some(id) => self.set(id, integer)?,
            }
        }
        Ok(())
    }

    fn set(&mut self, id: u64, value: u64) -> Result<(), Error> {
        let refused = |description| Err(Error::Connection(Code::SettingsError, description));
        match id {
            // RFC 9114, 11.2.2.
            0x0 | 0x2..=0x5 => return refused("a setting of HTTP/2"),
            QPACK_MAX_TABLE_CAPACITY
            | MAX_FIELD_SECTION_SIZE
            | QPACK_BLOCKED_STREAMS
            | ENABLE_CONNECT_PROTOCOL => {}
            _ => return Ok(()),
        }
        if self.seen & 1 << id != 0 {
            return refused("a setting that is there twice");
        }
        self.seen |= 1 << id;
        match id {
            MAX_FIELD_SECTION_SIZE => self.settings.max_field_section_size = Some(value),
            ENABLE_CONNECT_PROTOCOL if value > 1 => {
                return refused("ENABLE_CONNECT_PROTOCOL that is neither 0 nor 1");
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&self) -> Result<Settings, Error> {
        match self.id.is_some() || self.integer.is_begun() {
            true => Err(Error::layout("SETTINGS that end within a setting")),
            false => Ok(self.settings),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: &[u8] = &[4, 0];

    fn read(parts: &[&[u8]]) -> Result<Vec<ControlFrame>, Error> {
        let (mut reader, mut frames) = (ControlReader::default(), Vec::new());
        let mut input = Bytes::from(parts.concat());
        while let Some(frame) = reader.read(&mut input)? {
            frames.push(frame);
        }
        assert!(input.is_empty());
        Ok(frames)
    }

    fn code(parts: &[&[u8]]) -> Option<Code> {
        match read(parts) {
            Err(Error::Connection(code, _)) => Some(code),
            Err(other) => panic!("{other:?} does not end the connection"),
            Ok(_) => None,
        }
    }

    #[test]
    fn reads_settings_and_goaway_and_skips_unknown_frames() {
        let settings = [1, 0x40, 100, 6, 0x7f, 0xff, 7, 16, 8, 1, 0x21, 9, 0x33, 1];
        let frames = [
            &[4, settings.len() as u8][..],
            &settings,
            b"\x21\x03abc",
            &[0xd, 1, 5, 0xd, 1, 5, 0xd, 2, 0x40, 6],
            &[7, 1, 9],
            &[0x40, 0x40, 0],
            &[7, 2, 0x40, 9],
            &[7, 1, 0],
        ];
        let expected = Settings {
            max_field_section_size: Some(16_383),
        };
        let go_away = ControlFrame::GoAway;
        let expected = [ControlFrame::Settings(expected), go_away, go_away, go_away];
        assert_eq!(read(&frames).unwrap(), expected);
        let none = ControlFrame::Settings(Settings::default());
        assert_eq!(read(&[SETTINGS]).unwrap(), [none]);
    }

    #[test]
    fn settings_come_first_and_once() {
        for kind in [0, 1, 2, 3, 5, 6, 7, 8, 9, 0xd, 0x21] {
            let error = Some(Code::MissingSettings);
            assert_eq!(code(&[&[kind, 0]]), error, "{kind}");
        }
        let twice = code(&[SETTINGS, b"\x21\x00", SETTINGS]);
        assert_eq!(twice, Some(Code::FrameUnexpected));
    }

    #[test]
    fn frames_that_are_not_permitted_end_the_connection() {
        for kind in [0, 1, 2, 5, 6, 8, 9] {
            let error = Some(Code::FrameUnexpected);
            assert_eq!(code(&[SETTINGS, &[kind, 1, 0]]), error, "{kind}");
        }
    }

    #[test]
    fn malformed_settings_end_the_connection() {
        for (settings, error) in [
            (&[0, 0][..], Code::SettingsError),
            (&[2, 0], Code::SettingsError),
            (&[3, 0], Code::SettingsError),
            (&[4, 0], Code::SettingsError),
            (&[5, 0], Code::SettingsError),
            (&[8, 2], Code::SettingsError),
            (&[6, 1, 0x40, 6, 1], Code::SettingsError),
            (&[6], Code::FrameError),
            (&[6, 0x40], Code::FrameError),
            (&[0x40], Code::FrameError),
        ] {
            let header = [4, settings.len() as u8];
            assert_eq!(code(&[&header, settings]), Some(error), "{settings:?}");
        }
        // Unknown ones are ignored, however often.
        assert_eq!(code(&[&[4, 6, 0x21, 1, 0x21, 2, 9, 9]]), None);
    }

    #[test]
    fn frames_with_an_id_are_one_integer() {
        for frame in [
            &[7, 0][..],
            &[7, 1, 0x40],
            &[7, 2, 0, 0],
            &[0xd, 3, 0x80, 0, 0],
            &[3, 9, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
        ] {
            let error = Some(Code::FrameError);
            assert_eq!(code(&[SETTINGS, frame]), error, "{frame:?}");
        }
    }

    #[test]
    fn ids_that_are_wrong_end_the_connection() {
        for frames in [
            &[3, 1, 0][..],
            &[0xd, 1, 5, 3, 1, 0],
            &[7, 1, 4, 7, 1, 5],
            &[0xd, 1, 5, 0xd, 1, 4],
        ] {
            let error = Some(Code::IdError);
            assert_eq!(code(&[SETTINGS, frames]), error, "{frames:?}");
        }
    }
}
