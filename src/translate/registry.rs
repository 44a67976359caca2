//! The kinds of routes and backends, as the steps below them see these.

use crate::api::core::ServicePort;
use crate::ir::ObjectRef;
use crate::settings::permissions::BackendKinds;

use super::backend;
use super::input::{Input, KindQueries};
use super::protocol::Protocol;
use super::route::routes;

/// All kinds.
pub(super) struct Registry;

impl KindQueries for Registry {
    fn of_routes(&self, protocol: Protocol) -> Vec<&'static str> {
        routes::kinds_of(protocol)
    }

    fn is_backend(&self, enabled: &BackendKinds, group: &str, kind: &str) -> bool {
        backend::find_enabled(enabled, group, kind).is_some()
    }

    fn is_target(&self, enabled: &BackendKinds, group: &str, kind: &str) -> bool {
        backend::is_target(enabled, group, kind)
    }

    fn target_ports<'a>(
        &self,
        input: &Input<'a>,
        enabled: &BackendKinds,
        object: &ObjectRef,
    ) -> Option<&'a [ServicePort]> {
        backend::target_ports(input, enabled, object)
    }
}
