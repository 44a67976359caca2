//! The configuration that is explained, and the places in it. Must not know requests.

use super::explanation::InService;
use super::matches::Values;
use crate::ir::RuleId;
use crate::table::{Listener, Port, Table};

/// The configuration that is explained.
#[derive(Clone, Copy)]
pub struct Configuration<'a> {
    /// The table.
    pub table: &'a Table,
    /// Where it is.
    pub state: State<'a>,
    /// Whether values of headers and query parameters are shown.
    pub values: Values,
}

/// Where a configuration is.
#[derive(Clone, Copy)]
pub enum State<'a> {
    /// No proxy serves it.
    Offline {
        /// Returns lines about the policies on TLS for the backends of a rule, which the IR does not contain.
        policies: &'a DescribePolicies<'a>,
    },
    /// The proxy of this process serves it.
    InService {
        /// The last revision of the objects, if they come from a controller.
        revision: Option<u64>,
    },
}

/// Describes the policies for the backends of a rule, for requests to a listener of a port.
pub(super) type DescribePolicies<'a> = dyn Fn(&RuleId, &Port, &Listener) -> Vec<String> + 'a;

impl Configuration<'_> {
    /// Reports whether a proxy serves it.
    pub(super) fn is_in_service(&self) -> bool {
        matches!(self.state, State::InService { .. })
    }

    /// Returns which one a proxy serves, if it is in service.
    pub(super) fn in_service(&self) -> Option<InService> {
        match self.state {
            State::Offline { .. } => None,
            State::InService { revision } => Some(InService {
                generation: self.table.generation,
                revision,
            }),
        }
    }
}

/// A listener on its port.
#[derive(Clone, Copy)]
pub struct ListenerOnPort<'a> {
    /// The port.
    pub port: &'a Port,
    /// The listener.
    pub listener: &'a Listener,
}
