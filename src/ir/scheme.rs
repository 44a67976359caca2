//! The scheme of a URI.

use serde::Serialize;

/// A scheme that a redirect can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Scheme {
    /// `http`
    Http,
    /// `https`
    Https,
}
