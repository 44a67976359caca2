//! What the proxy knows of clients.

#[path = "../../../../src/proxy/client/client_address.rs"]
mod client_address;
#[path = "../../../../src/proxy/client/client_certificate.rs"]
mod client_certificate;
#[path = "../../../../src/proxy/client/forwarding.rs"]
pub(super) mod forwarding;
#[path = "../../../../src/proxy/client/forwarding_names.rs"]
pub(super) mod forwarding_names;
#[path = "../../../../src/proxy/client/forwarding_rules.rs"]
mod forwarding_rules;
#[path = "../../../../src/proxy/client/host.rs"]
pub(super) mod host;
#[path = "../../../../src/proxy/client/spelling.rs"]
pub(super) mod spelling;

use rustls::pki_types::CertificateDer;

/// Describes a certificate for backends.
pub(crate) fn describe(certificate: &[u8]) -> String {
    let value = client_certificate::describe(&CertificateDer::from(certificate));
    let value = value.expect("every certificate has a hash");
    value.to_str().expect("it is visible ASCII").to_owned()
}
