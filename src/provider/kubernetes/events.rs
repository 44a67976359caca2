//! The events of a watch response. Parses of an object only its head: the rest may be large, and may not be needed.

use futures_util::{AsyncBufRead, AsyncBufReadExt};
use kube::core::Status;
use serde::Deserialize;

use super::head::Head;

/// An event.
pub(super) struct Event {
    pub(super) change: EventType,
    /// The head of its object. That of a bookmark has only a version.
    pub(super) head: Head,
    /// The whole event as JSON.
    pub(super) text: Vec<u8>,
}

/// What has happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum EventType {
    Added,
    Modified,
    Deleted,
    /// Nothing.
    Bookmark,
    /// The object is a [`Status`].
    Error,
}

#[derive(Deserialize)]
struct Line<T> {
    #[serde(rename = "type")]
    change: EventType,
    object: T,
}

/// The events of a response, as they arrive.
pub(super) struct Events<R>(R);

impl<R: AsyncBufRead + Unpin> Events<R> {
    pub(super) fn new(response: R) -> Self {
        Self(response)
    }

    /// Returns the next event, or `None` at the end of the response. Not cancel safe.
    ///
    /// # Errors
    /// When the response cannot be read, an event is invalid, or the API server sends an error.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, kube::Error> {
        let mut line = Vec::new();
        let read = self.0.read_until(b'\n', &mut line).await;
        read.map_err(kube::Error::ReadEvents)?;
        // The next watch repeats an event that the end of this one has cut off.
        if !line.ends_with(b"\n") {
            return Ok(None);
        }
        parse(line).map(Some)
    }
}

fn parse(text: Vec<u8>) -> Result<Event, kube::Error> {
    let event: Result<Line<Head>, _> = serde_json::from_slice(&text);
    let event = event.map_err(kube::Error::SerdeError)?;
    if event.change == EventType::Error {
        let error: Result<Line<Box<Status>>, _> = serde_json::from_slice(&text);
        let status = error.map_err(kube::Error::SerdeError)?.object;
        return Err(kube::Error::Api(status));
    }
    Ok(Event {
        change: event.change,
        head: event.object,
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what has happened to which versions.
    async fn read(response: &str) -> Result<Vec<(EventType, Option<String>)>, kube::Error> {
        let mut events = Events::new(response.as_bytes());
        let mut all = Vec::new();
        while let Some(event) = events.next().await? {
            all.push((event.change, event.head.metadata.resource_version));
        }
        Ok(all)
    }

    #[tokio::test]
    async fn reads_each_line() {
        let response = concat!(
            r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"7"},"spec":{}}}"#,
            "\r\n",
            r#"{"object":{},"type":"BOOKMARK","other":1}"#,
            "\n",
        );
        let events = read(response).await.unwrap();
        let expected = [
            (EventType::Added, Some("7".to_owned())),
            (EventType::Bookmark, None),
        ];
        assert_eq!(events, expected);
    }

    #[tokio::test]
    async fn event_that_is_cut_off_does_not_count() {
        let event = r#"{"type":"DELETED","object":{}}"#;
        let events = read(&format!("{event}\n{event}")).await.unwrap();
        assert_eq!(events.len(), 1);
    }

    #[tokio::test]
    async fn invalid_event_is_an_error() {
        let lines = [
            "",
            "{}",
            r#"{"type":"ADDED""#,
            r#"{"type":"OTHER","object":{}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":7}}}"#,
        ];
        for line in lines {
            let error = read(&format!("{line}\n")).await.unwrap_err();
            assert!(matches!(error, kube::Error::SerdeError(_)), "{line}");
        }
    }

    #[tokio::test]
    async fn error_has_the_status_of_the_api_server() {
        let line = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410}}"#;
        let error = read(&format!("{line}\n")).await.unwrap_err();
        let kube::Error::Api(status) = error else {
            panic!("{error}");
        };
        assert_eq!(status.code, 410);
    }
}
