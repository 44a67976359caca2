//! Pages in place of responses with an error status. Must not know how a page is selected.

use bytes::Bytes;
use http::HeaderValue;
use serde::Serialize;

use super::ObjectRef;
use super::serialized;

/// A page for responses with one of some statuses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ErrorPage {
    /// Statuses from 400 to 599, sorted, each once.
    pub codes: Vec<u16>,
    /// The responses that it replaces.
    pub source: PageSource,
    /// Where the page comes from.
    #[serde(flatten)]
    pub content: PageContent,
    /// Whether the response keeps its status; otherwise it gets that of the server of the page, or 200.
    pub keeps_status: bool,
}

/// Where a page comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PageContent {
    /// The page in each of its media types, in order of preference; at least one.
    Variants(Vec<PageVariant>),
    /// A server that is asked for it.
    Server(PageServer),
}

/// A server of pages. Which backend it is depends on the Gateway: [`super::PolicyServers`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PageServer {
    /// The policy that names it.
    pub policy: ObjectRef,
    /// Its place among the servers that the policy names.
    pub index: usize,
    /// The object that it is.
    pub backend: ObjectRef,
}

/// The responses that a page replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum PageSource {
    /// Those of Portcullis itself.
    Gateway,
    /// Those of backends.
    Backend,
    /// All of them.
    Any,
}

/// Who gives a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Responder {
    /// Portcullis itself.
    Gateway,
    /// A backend.
    Backend,
}

impl PageSource {
    /// Reports whether the page replaces responses of `responder`.
    pub fn covers(self, responder: Responder) -> bool {
        match self {
            Self::Gateway => responder == Responder::Gateway,
            Self::Backend => responder == Responder::Backend,
            Self::Any => true,
        }
    }
}

/// A page in one media type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PageVariant {
    /// Its `Content-Type`: a media type in lower case, and the charset of texts.
    #[serde(serialize_with = "serialized::value")]
    pub content_type: HeaderValue,
    /// The page. Shared with the object that it comes from.
    #[serde(serialize_with = "serialized::body")]
    pub body: Bytes,
}

impl PageVariant {
    /// Returns its media type, without parameters.
    pub fn media_type(&self) -> &str {
        let content_type = self.content_type.to_str().unwrap_or_default();
        content_type.split(';').next().unwrap_or_default()
    }
}
