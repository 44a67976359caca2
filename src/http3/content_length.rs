//! The content of a request against its Content-Length (RFC 9114, 4.1.2).

use http::HeaderMap;
use http::header::CONTENT_LENGTH;

use super::error::Error;

/// The most digits. More could exceed an integer.
const MAX_DIGITS: usize = 19;

/// The bytes of content that have to follow, if the request says how many.
#[derive(Debug)]
pub(crate) struct ContentLength(Option<u64>);

impl ContentLength {
    /// Reads the Content-Length of a request. Several are permitted if they are equal.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Error> {
        let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
        let Some(first) = lengths.next() else {
            return Ok(Self(None));
        };
        let first = parse(first.as_bytes())?;
        for other in lengths {
            if parse(other.as_bytes())? != first {
                return Err(Error::malformed("several values of Content-Length"));
            }
        }
        Ok(Self(Some(first)))
    }

    /// Returns the bytes that have to follow, if the request says how many.
    pub(crate) fn left(&self) -> Option<u64> {
        self.0
    }

    /// Counts content that has arrived.
    pub(crate) fn receive(&mut self, length: usize) -> Result<(), Error> {
        if let Some(left) = &mut self.0 {
            let after = left.checked_sub(length as u64);
            *left = after.ok_or(Error::malformed("more content than Content-Length"))?;
        }
        Ok(())
    }

    /// Checks that the content, which trailers may follow, may end here.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        match self.0 {
            None | Some(0) => Ok(()),
            Some(_) => Err(Error::malformed("less content than Content-Length")),
        }
    }
}

fn parse(value: &[u8]) -> Result<u64, Error> {
    const MALFORMED: Error = Error::malformed("a Content-Length that is no number");
    if !(1..=MAX_DIGITS).contains(&value.len()) {
        return Err(MALFORMED);
    }
    value.iter().try_fold(0, |length, byte| match byte {
        b'0'..=b'9' => Ok(10 * length + u64::from(byte - b'0')),
        _ => Err(MALFORMED),
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(values: &[&'static str]) -> Result<ContentLength, Error> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CONTENT_LENGTH, HeaderValue::from_static(value));
        }
        ContentLength::of(&headers)
    }

    #[test]
    fn content_has_the_announced_length() {
        for (values, parts, is_valid) in [
            (&[][..], &[][..], true),
            (&[], &[5, 5], true),
            (&["0"], &[], true),
            (&["10"], &[5, 5], true),
            (&["10", "010"], &[10], true),
            (&["10"], &[5], false),
            (&["10"], &[], false),
            (&["9999999999999999999"], &[usize::MAX], false),
            (&["10"], &[5, 6], false),
            (&["0"], &[1], false),
        ] {
            let mut length = of(values).unwrap();
            let received = parts.iter().try_for_each(|part| length.receive(*part));
            let ended = received.and_then(|()| length.finish());
            assert_eq!(ended.is_ok(), is_valid, "{values:?} {parts:?}");
        }
    }

    #[test]
    fn malformed_lengths_are_refused() {
        for values in [
            &["1", "2"][..],
            &["1", "x"],
            &[""],
            &["+1"],
            &["-1"],
            &["1, 1"],
            &["0x1"],
            &["10000000000000000000"],
        ] {
            let error = of(values).unwrap_err();
            assert!(matches!(error, Error::Stream(..)), "{values:?}");
        }
    }
}
