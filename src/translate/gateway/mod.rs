//! Gateways: classes, listeners, ListenerSets, parameters, certificates, and the attachment of routes to listeners.

pub(in crate::translate) mod added;
pub(super) mod assembly;
pub(super) mod attachment;
pub(super) mod authority;
pub(super) mod certificate;
mod conflict;
mod data_plane;
pub(super) mod draft;
pub(super) mod frontend;
pub(super) mod gateway;
pub(super) mod gateways;
mod infrastructure;
pub(super) mod listener;
mod listener_set;
pub(in crate::translate) mod occupied;
mod overlap;
pub(super) mod parameters;
pub(super) mod parent;
mod port_claims;
pub(super) mod priority;
pub(in crate::translate) mod quic;
mod released;
pub(super) mod report;
mod selector;
pub(super) mod set_parents;
mod translated;
