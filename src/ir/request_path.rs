//! The path of a request, as it decides and as it is forwarded. A filter that rewrites it changes both.

use std::sync::Arc;

use super::canonical_path::CanonicalPath;
use super::client::PathSettings;
use super::path_normalization::{self, BadPath};

/// What a request has beside its target, whose path is the one to forward.
#[derive(Clone, Debug, Default)]
pub struct RequestPath {
    /// The canonical form; `None` if it is the path to forward.
    canonical: Option<Box<str>>,
    /// How the listener normalizes paths.
    settings: Option<Arc<PathSettings>>,
}

impl RequestPath {
    /// Returns that of a normalized path with this canonical form, if it differs from the path to forward.
    #[inline]
    pub fn new(canonical: Option<String>, settings: Option<&Arc<PathSettings>>) -> Self {
        Self {
            canonical: canonical.map(Into::into),
            settings: settings.cloned(),
        }
    }

    /// Returns the canonical form of the path to forward.
    #[inline]
    pub fn canonical<'a>(&'a self, forwarded: &'a str) -> CanonicalPath<'a> {
        CanonicalPath::of_canonical(self.canonical.as_deref().unwrap_or(forwarded))
    }

    /// Takes what a filter has made of the canonical form, and returns it as the path to forward.
    ///
    /// # Errors
    /// Paths that the listener would refuse from a client, and those with dot segments.
    pub fn rewrite(&mut self, path: String) -> Result<String, BadPath> {
        let path = path_normalization::rewritten(path, self.settings.as_deref())?;
        self.canonical = None;
        Ok(path)
    }
}
