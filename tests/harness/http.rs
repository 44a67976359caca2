//! HTTP/1 messages read from a blocking byte stream, for clients and origins. Keeps all received
//! bytes.

use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Header or trailer fields in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(pub(crate) Vec<(String, String)>);

impl Fields {
    /// Returns the values of a field.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let same = |(field, _): &&(String, String)| field.eq_ignore_ascii_case(name);
        self.0
            .iter()
            .filter(same)
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// Returns the only value of a field; `None` for none or several.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        match *self.all(name) {
            [value] => Some(value),
            _ => None,
        }
    }

    fn parse(lines: &str) -> Self {
        let lines = lines.split("\r\n").filter(|line| !line.is_empty());
        Self(
            lines
                .map(|line| {
                    let (name, value) = line.split_once(':').unwrap_or((line, ""));
                    (name.to_owned(), value.trim().to_owned())
                })
                .collect(),
        )
    }
}

/// The head of a request or response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The first line.
    pub(crate) start: String,
    pub(crate) fields: Fields,
}

/// The body of a request or response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    pub(crate) trailers: Fields,
    /// Whether it is complete according to its framing.
    pub(crate) complete: bool,
}

/// Framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(usize),
    Chunked,
    Close,
}

/// Result of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Bytes(usize),
    /// EOF.
    End,
    /// The stream failed: a reset, or TLS without close_notify.
    Failed(ErrorKind),
    /// Timeout.
    Silent,
}

/// A byte stream with its received data.
pub(crate) struct Wire<S> {
    pub(crate) io: S,
    /// Received and not yet consumed.
    pub(crate) buffer: Vec<u8>,
    /// All received data.
    pub(crate) seen: Arc<Mutex<Vec<u8>>>,
}

impl<S: Read + Write> Wire<S> {
    pub(crate) fn new(io: S) -> Self {
        Self {
            io,
            buffer: Vec::new(),
            seen: Arc::default(),
        }
    }

    /// Reads once.
    pub(crate) fn fill(&mut self) -> Fill {
        let mut piece = [0; 16 * 1024];
        loop {
            return match self.io.read(&mut piece) {
                Ok(0) => Fill::End,
                Ok(count) => {
                    self.buffer.extend_from_slice(&piece[..count]);
                    let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.extend_from_slice(&piece[..count]);
                    Fill::Bytes(count)
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if is_silence(error.kind()) => Fill::Silent,
                Err(error) => Fill::Failed(error.kind()),
            };
        }
    }

    /// Takes `count` bytes, reading as needed.
    pub(crate) fn take(&mut self, count: usize) -> Result<Vec<u8>, Fill> {
        while self.buffer.len() < count {
            let fill = self.fill();
            if !matches!(fill, Fill::Bytes(_)) {
                return Err(fill);
            }
        }
        Ok(self.buffer.drain(..count).collect())
    }

    /// Takes everything up to and including `end`.
    pub(crate) fn take_until(&mut self, end: &[u8]) -> Result<Vec<u8>, Fill> {
        let mut from = 0;
        loop {
            let found = self.buffer[from..]
                .windows(end.len())
                .position(|bytes| bytes == end);
            if let Some(place) = found {
                return Ok(self.buffer.drain(..from + place + end.len()).collect());
            }
            from = (self.buffer.len() + 1).saturating_sub(end.len());
            let fill = self.fill();
            if !matches!(fill, Fill::Bytes(_)) {
                return Err(fill);
            }
        }
    }

    /// Takes the head of a message.
    pub(crate) fn head(&mut self) -> Result<Head, Fill> {
        let bytes = self.take_until(b"\r\n\r\n")?;
        let text = String::from_utf8_lossy(&bytes);
        let (start, fields) = text.split_once("\r\n").unwrap_or((&text, ""));
        Ok(Head {
            start: start.to_owned(),
            fields: Fields::parse(fields),
        })
    }

    /// Takes a body as far as it arrives.
    pub(crate) fn body(&mut self, framing: Framing) -> Body {
        let mut body = Body::default();
        body.complete = self.read_body(framing, &mut body).is_ok();
        body
    }

    fn read_body(&mut self, framing: Framing, body: &mut Body) -> Result<(), Fill> {
        match framing {
            Framing::Length(length) => self.take_into(length, &mut body.bytes),
            Framing::Close => loop {
                body.bytes.append(&mut self.buffer);
                match self.fill() {
                    Fill::Bytes(_) => {}
                    Fill::End => return Ok(()),
                    other => return Err(other),
                }
            },
            Framing::Chunked => self.read_chunks(body),
        }
    }

    fn read_chunks(&mut self, body: &mut Body) -> Result<(), Fill> {
        loop {
            let line = self.take_until(b"\r\n")?;
            let line = String::from_utf8_lossy(&line);
            let size = usize::from_str_radix(line.trim_end(), 16).expect("a plain chunk size");
            if size == 0 {
                break;
            }
            self.take_into(size, &mut body.bytes)?;
            assert_eq!(self.take(2)?, b"\r\n", "a chunk ends with its line");
        }
        let mut lines = Vec::new();
        while !lines.ends_with(b"\r\n\r\n") && lines != b"\r\n" {
            lines.append(&mut self.take_until(b"\r\n")?);
        }
        body.trailers = Fields::parse(&String::from_utf8_lossy(&lines));
        Ok(())
    }

    /// Takes `count` bytes; keeps what arrived if some are missing.
    fn take_into(&mut self, count: usize, bytes: &mut Vec<u8>) -> Result<(), Fill> {
        let result = self.take(count);
        match result {
            Ok(mut taken) => bytes.append(&mut taken),
            Err(fill) => {
                bytes.append(&mut self.buffer);
                return Err(fill);
            }
        }
        Ok(())
    }

    /// Writes everything; false if the connection is closed.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> bool {
        self.io
            .write_all(bytes)
            .and_then(|()| self.io.flush())
            .is_ok()
    }
}

fn is_silence(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Returns the framing given by header fields, if any.
pub(crate) fn framing(fields: &Fields) -> Option<Framing> {
    if fields.get("transfer-encoding") == Some("chunked") {
        return Some(Framing::Chunked);
    }
    let length = fields.get("content-length")?;
    Some(Framing::Length(length.parse().expect("a plain length")))
}
