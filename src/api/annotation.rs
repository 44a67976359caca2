//! Names of the annotations of Portcullis, and the prefix of those of ingress-nginx. Their meanings are in the modules that read them.

/// The beginning of all names.
pub(crate) const PREFIX: &str = "portcullis.dev/";
/// Moves the matches of a route before or after those of other routes.
pub(crate) const PRIORITY: &str = "portcullis.dev/priority";
/// Permits, on a Gateway, the priorities of the routes that attach to it or to its ListenerSets.
pub(crate) const ALLOW_ROUTE_PRIORITY: &str = "portcullis.dev/allow-route-priority";
/// Gives new endpoints of a Service a share of the requests that grows with time.
pub(crate) const SLOW_START: &str = "portcullis.dev/slow-start";

/// The beginning of the names of the annotations of ingress-nginx, which `portcullis migrate` reads.
pub(crate) const INGRESS_NGINX: &str = "nginx.ingress.kubernetes.io/";

/// All annotations that authors of objects may set.
pub(super) const ALL: [&str; 3] = [PRIORITY, ALLOW_ROUTE_PRIORITY, SLOW_START];
