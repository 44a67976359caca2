//! The server name of a ClientHello that may be forwarded as it is (RFC 8446, 4.1.2; RFC 6066, 3). Reads no more of it:
//! whether client and backend understand each other is theirs to find out. Takes bytes as they arrive, each once.

/// Maximum number of bytes of a ClientHello and its records. Those with post-quantum key shares have about 2 KiB.
const MAX: usize = 32 * 1024;
/// Content type of records with handshake messages, and type of the message.
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
/// The extension, and the type of its names.
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// Length of the headers of records and of handshake messages.
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;

/// A ClientHello that arrives.
#[derive(Default)]
pub(super) struct ClientHello {
    /// Everything that was received.
    received: Vec<u8>,
    /// The bytes of the message, without those of records.
    message: Vec<u8>,
    /// Where the next record begins in `received`.
    next: usize,
}

/// What is known after some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The message is not complete.
    Incomplete,
    /// It is complete, and has this server name in lower case, or none.
    Complete(Option<Box<str>>),
    /// It is no ClientHello, or is too large.
    Invalid,
}

impl ClientHello {
    /// Adds bytes that were received.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Status {
        self.received.extend_from_slice(bytes);
        loop {
            match self.status() {
                Status::Incomplete => {}
                known => return known,
            }
            match self.take_record() {
                Some(true) => {}
                Some(false) => return Status::Incomplete,
                None => return Status::Invalid,
            }
        }
    }

    /// Returns everything that was received.
    pub(super) fn into_received(self) -> Vec<u8> {
        self.received
    }

    /// Moves the content of the next record to the message. Returns whether it is complete; `None` if it is of another type
    /// or too large.
    fn take_record(&mut self) -> Option<bool> {
        let Some(header) = self.received.get(self.next..self.next + RECORD_HEADER) else {
            return Some(false);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let begin = self.next + RECORD_HEADER;
        let is_too_large = begin + length > MAX;
        if header[0] != HANDSHAKE || header[1] != 3 || length == 0 || is_too_large {
            return None;
        }
        let Some(content) = self.received.get(begin..begin + length) else {
            return Some(false);
        };
        self.message.extend_from_slice(content);
        self.next = begin + length;
        Some(true)
    }

    fn status(&self) -> Status {
        let Some(header) = self.message.first_chunk::<MESSAGE_HEADER>() else {
            return Status::Incomplete;
        };
        let length = u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
        if header[0] != CLIENT_HELLO || length > MAX {
            return Status::Invalid;
        }
        match self.message.get(MESSAGE_HEADER..MESSAGE_HEADER + length) {
            None => Status::Incomplete,
            Some(body) => server_name(body).map_or(Status::Invalid, Status::Complete),
        }
    }
}

/// Returns the server name of the body of a ClientHello, if it has one; `None` if the body is malformed.
fn server_name(body: &[u8]) -> Option<Option<Box<str>>> {
    let mut body = Reader(body);
    // Version and random.
    body.take(2 + 32)?;
    body.vector8()?;
    body.vector16()?;
    body.vector8()?;
    if body.0.is_empty() {
        return Some(None);
    }
    let mut extensions = Reader(body.vector16()?);
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let content = extensions.vector16()?;
        if kind == SERVER_NAME {
            return first_host(content).map(Some);
        }
    }
    Some(None)
}

/// Returns the first host of the extension.
fn first_host(extension: &[u8]) -> Option<Box<str>> {
    let mut names = Reader(Reader(extension).vector16()?);
    loop {
        let kind = names.take(1)?[0];
        let name = names.vector16()?;
        if kind == HOST_NAME {
            let name = std::str::from_utf8(name).ok().filter(|it| it.is_ascii())?;
            return Some(normalized(name));
        }
    }
}

/// Bytes that are left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Reads a vector with a length of one byte.
    fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1)?[0];
        self.take(length.into())
    }

    /// Reads a vector with a length of two bytes.
    fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }
}

/// Returns a server name in lower case and without a trailing dot.
pub(super) fn normalized(name: &str) -> Box<str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.to_ascii_lowercase().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_lower_case_without_a_trailing_dot() {
        assert_eq!(&*normalized("A.Example."), "a.example");
        assert_eq!(&*normalized("b"), "b");
    }

    /// Returns a ClientHello with this server name and a padding extension of a size.
    fn message(name: Option<&str>, padding: u16) -> Vec<u8> {
        let mut extensions = vec![0, 21];
        extensions.extend(padding.to_be_bytes());
        extensions.resize(extensions.len() + usize::from(padding), 0);
        if let Some(name) = name {
            let length = name.len() as u16;
            extensions.extend([0, 0]);
            extensions.extend((length + 5).to_be_bytes());
            extensions.extend((length + 3).to_be_bytes());
            extensions.push(0);
            extensions.extend(length.to_be_bytes());
            extensions.extend(name.as_bytes());
        }
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        let mut message = (body.len() as u32).to_be_bytes().to_vec();
        message[0] = CLIENT_HELLO;
        message.extend(body);
        message
    }

    /// Puts a message into records with this number of bytes each.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |content: &[u8]| {
            let mut record = vec![HANDSHAKE, 3, 1];
            record.extend((content.len() as u16).to_be_bytes());
            record.extend(content);
            record
        };
        message.chunks(size).flat_map(record).collect()
    }

    fn complete(name: &str) -> Status {
        Status::Complete(Some(name.into()))
    }

    #[test]
    fn finds_the_name_however_the_bytes_arrive() {
        for size in [1, 7, 16_384] {
            let bytes = records(&message(Some("A.Example.com."), 300), size);
            for step in [1, 5, bytes.len()] {
                let mut hello = ClientHello::default();
                let mut chunks = bytes.chunks(step).peekable();
                while let Some(chunk) = chunks.next() {
                    let status = hello.push(chunk);
                    match chunks.peek() {
                        Some(_) => assert_eq!(status, Status::Incomplete),
                        None => assert_eq!(status, complete("a.example.com")),
                    }
                }
                assert_eq!(hello.into_received(), bytes);
            }
        }
    }

    #[test]
    fn early_data_may_follow() {
        let mut bytes = records(&message(Some("a.test"), 0), 1000);
        bytes.extend([20, 3, 3, 0, 1, 1, 23, 3, 3, 0x40, 0]);
        bytes.resize(bytes.len() + 40_000, 0);
        assert_eq!(ClientHello::default().push(&bytes), complete("a.test"));
    }

    #[test]
    fn large_hellos_have_names() {
        let bytes = records(&message(Some("a.test"), 20_000), 16_384);
        assert_eq!(ClientHello::default().push(&bytes), complete("a.test"));
    }

    #[test]
    fn hello_may_have_no_name() {
        let bytes = records(&message(None, 0), 1000);
        assert_eq!(ClientHello::default().push(&bytes), Status::Complete(None));
        let without_extensions = {
            let mut body = vec![3, 1];
            body.extend([7; 32]);
            body.extend([0, 0, 2, 0, 5, 1, 0]);
            let mut message = vec![CLIENT_HELLO, 0, 0, body.len() as u8];
            message.extend(body);
            records(&message, 1000)
        };
        let status = ClientHello::default().push(&without_extensions);
        assert_eq!(status, Status::Complete(None));
    }

    #[test]
    fn refuses_what_is_no_hello() {
        let http = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        let mut other_message = message(Some("a.test"), 0);
        other_message[0] = 2;
        let mut truncated = message(Some("a.test"), 0);
        let length = truncated.len();
        truncated[length - 8] = 0xff;
        let huge = records(&message(Some("a.test"), 40_000), 16_384);
        let small_records = records(&message(Some("a.test"), 6000), 1);
        for bytes in [
            http,
            records(&other_message, 1000),
            records(&truncated, 1000),
            huge,
            small_records,
            vec![HANDSHAKE, 3, 1, 0, 0],
        ] {
            assert_eq!(ClientHello::default().push(&bytes), Status::Invalid);
        }
    }

    #[test]
    fn every_truncation_and_change_is_harmless() {
        let bytes = records(&message(Some("a.test"), 9), 1000);
        for end in 0..bytes.len() {
            assert_eq!(
                ClientHello::default().push(&bytes[..end]),
                Status::Incomplete
            );
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[end] = value;
                ClientHello::default().push(&changed);
            }
        }
    }
}
