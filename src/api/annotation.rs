//! Names of the annotations of Portcullis. Their meanings are in the modules that read them.

/// The beginning of all names.
pub(crate) const PREFIX: &str = "portcullis.dev/";
/// Moves the matches of a route before or after those of other routes.
pub(crate) const PRIORITY: &str = "portcullis.dev/priority";
/// Gives new endpoints of a Service a share of the requests that grows with time.
pub(crate) const SLOW_START: &str = "portcullis.dev/slow-start";

/// All annotations that authors of objects may set.
pub(super) const ALL: [&str; 2] = [PRIORITY, SLOW_START];
