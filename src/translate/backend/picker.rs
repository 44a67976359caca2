//! The endpoint picker of an InferencePool: its server, and how that is asked. Must not know how backends are kept.

use std::sync::Arc;

use crate::ir::picker::is_pool;
use crate::ir::route::BackendTarget;
use crate::ir::tls::{AlpnProtocol, Authorities, TlsVersion, Verification};
use crate::ir::{BackendId, Choice, ClientTls, FailureMode, ObjectRef, PickerRef, PickerTimeouts};

use super::super::reason::Fault;

/// The picker of a pool.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Appointed {
    /// Its server, or why it cannot be asked.
    pub(super) server: Result<Server, Fault>,
    pub(super) failure_mode: FailureMode,
    /// Whether requests are sent to the pool.
    pub(super) is_served: bool,
}

/// The server of a picker.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) id: BackendId,
    pub(super) is_encrypted: bool,
}

impl Appointed {
    pub(super) fn choice(&self) -> Choice {
        Choice::Picker(Arc::new(PickerRef {
            server: match &self.server {
                Ok(server) => BackendTarget::Backend(server.id.clone()),
                Err(fault) => BackendTarget::Invalid(fault.message.as_str().into()),
            },
            failure_mode: self.failure_mode,
            timeouts: PickerTimeouts::default(),
        }))
    }

    /// Returns the server, if requests need it.
    pub(super) fn claim(&self) -> Option<&BackendId> {
        let server = self.server.as_ref().ok().filter(|_| self.is_served)?;
        Some(&server.id)
    }
}

impl Server {
    /// Says how it is asked.
    pub(super) fn describe(&self) -> String {
        let Self { id, is_encrypted } = self;
        let BackendId {
            object, port, tls, ..
        } = id;
        let how = match (tls.as_ref().map(|used| &used.policy), is_encrypted) {
            (Some(policy), true) if is_pool(policy) => {
                "in TLS, whose certificate is not verified: a BackendTLSPolicy for it verifies it"
                    .to_owned()
            }
            (Some(policy), true) => format!("in TLS by {policy}"),
            (Some(policy), false) => format!("in plain text by {policy}"),
            (None, _) => "in plain text, since its appProtocol is kubernetes.io/h2c".to_owned(),
        };
        format!("the picker is {object}:{port}, {how}")
    }
}

/// Returns the TLS settings of a use of a picker, if no policy but the pool itself says how it is asked; `None` otherwise.
pub(super) fn own_tls(id: &BackendId) -> Option<ClientTls> {
    let is_own = id.tls.as_ref().is_some_and(|used| is_pool(&used.policy));
    is_own.then(|| unverified(&id.object))
}

/// Returns the TLS settings for a picker that no policy is about. Pickers sign their own certificates, so that these are not
/// verified.
pub(super) fn unverified(service: &ObjectRef) -> ClientTls {
    ClientTls {
        server_name: format!("{}.{}.svc", service.name, service.namespace).into(),
        verification: Verification {
            authorities: Authorities::Unverified,
            names: Vec::new(),
            pins: Vec::new(),
        },
        client_certificate: None,
        min_version: TlsVersion::Tls12,
        alpn: vec![AlpnProtocol::H2],
    }
}
