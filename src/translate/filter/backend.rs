//! How filters that send requests to a backend name it.

use crate::api::reference::BackendObjectRef;
use crate::ir::RouteKind;
use crate::ir::route::BackendTarget;

/// Resolves the reference at a field to a backend for HTTP or gRPC requests; `None` means the kind of the route. An
/// unresolvable reference is a fault of the route (`ResolvedRefs`), not of the filter.
pub(super) type ResolveBackend<'a> =
    &'a mut dyn FnMut(&BackendObjectRef, &str, Option<RouteKind>) -> BackendTarget;
