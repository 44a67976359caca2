//! Certificates of listeners and client certificates of Gateways and backends: resolves references to Secrets,
//! and checks chains and keys. Must not know clocks: an expired certificate is served, and monitoring reports it. Never
//! prints key material.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::api::core::{Secret, TLS_TYPE};
use crate::api::reference::SecretRef;
use crate::ir;
use crate::ir::tls::AlpnProtocol;
use crate::ir::{Certificate, ObjectRef, ServerTls, TlsTermination};

use super::gateway::{ClientIdentity, GatewayDraft};
use super::listener::ListenerDraft;
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::memo::Parsed;
use crate::translate::protocol::Protocol;
use crate::translate::reason::{Fault, Reason, merge};
use crate::translate::reference_grant;
use crate::translate::served::LastGood;
use crate::translate::source::Source;

/// Maximum number of certificates in a chain.
const MAX_CHAIN: usize = 32;
/// Maximum size of `tls.crt` and of `tls.key`, in bytes.
const MAX_BYTES: usize = 256 * 1024;

/// The certificates in Secrets that Gateways and listeners refer to. Kept from one translation to the next.
#[derive(Default)]
pub(in crate::translate) struct Certificates {
    by_secret: Parsed<Secret, Content>,
    last_good: LastGood,
}

/// A certificate, or the problem of the Secret.
type Content = Result<Arc<Certificate>, Arc<str>>;

/// The result of a reference: a good certificate, or the last good one with the present problem.
struct Read {
    certificate: Arc<Certificate>,
    problem: Option<String>,
}

impl Certificates {
    /// Announces invalid Secrets of which another certificate is served than before.
    pub(super) fn step(&mut self, input: &Input<'_>, changes: &mut Changes) {
        self.last_good.step(|name| input.served.get(name), changes);
    }

    /// Sets the certificates of every listener that terminates TLS and the client certificate of a Gateway, or their faults. A
    /// listener with several references serves the good ones.
    pub(super) fn load(&mut self, input: &Input<'_>, gateway: &mut GatewayDraft<'_>) {
        self.load_client(input, gateway);
        let listeners = gateway.listeners.iter_mut();
        for listener in listeners.filter(|listener| listener.terminates_tls()) {
            self.load_listener(input, listener);
        }
    }

    /// Returns the certificate of a Secret that was and is valid, if it has the same names as before: then it changes
    /// nothing but handshakes.
    pub(super) fn renew(
        &mut self,
        input: &Input<'_>,
        name: &ObjectRef,
        known: &Certificate,
    ) -> Option<Arc<Certificate>> {
        let secret = input.find::<Secret>(name)?;
        let content = self.by_secret.get(name, secret, |previous| {
            let previous = previous.and_then(|previous| previous.as_ref().ok());
            read_once(secret, name, previous)
        });
        content.ok().filter(|new| new.names == known.names)
    }

    /// Removes what is no longer read.
    pub(super) fn remove(&mut self, unread: &Source) {
        match unread {
            Source::Object(name) => self.by_secret.remove(name),
            Source::ServedCertificate(name) => self.last_good.remove(name),
            _ => {}
        }
    }

    fn load_listener(&mut self, input: &Input<'_>, listener: &mut ListenerDraft<'_>) {
        let references = listener
            .spec
            .tls
            .as_ref()
            .map_or(&[][..], |tls| &tls.certificate_refs);
        let field = listener.field("tls.certificateRefs");
        let mut faults = Vec::new();
        if references.is_empty() {
            let message = format!("{field} is empty; name a Secret of type {TLS_TYPE}");
            faults.push(Fault::new(Reason::InvalidCertificateRef, message));
        }
        let mut certificates: Vec<Arc<Certificate>> = Vec::new();
        let mut held_over = Vec::new();
        for (index, reference) in references.iter().enumerate() {
            let field = format!("{field}[{index}]");
            match self.get(input, &listener.key.origin, reference, &field) {
                Ok(Read {
                    certificate,
                    problem,
                }) => {
                    let source = &certificate.source;
                    if certificates.iter().all(|one| one.source != *source) {
                        held_over.extend(problem.is_some().then(|| source.clone()));
                        certificates.push(certificate);
                    }
                    let fault = |problem| Fault::new(Reason::InvalidCertificateRef, problem);
                    faults.extend(problem.map(fault));
                }
                Err(fault) => faults.push(fault),
            }
        }
        if certificates.is_empty() {
            let why = merge(&faults)
                .map(|fault| fault.message)
                .unwrap_or_default();
            let message = format!("no usable certificate: {why}");
            listener.unprogrammed = Some(Fault::new(Reason::Invalid, message));
        } else {
            listener.termination = Some(TlsTermination {
                tls: Arc::new(ServerTls {
                    alpn: match listener.protocol {
                        Protocol::Https => AlpnProtocol::ALL.to_vec(),
                        _ => Vec::new(),
                    },
                    certificates,
                    min_version: listener.options.min_version,
                    ciphers: listener.options.ciphers,
                    suites: Vec::new(),
                    groups: Vec::new(),
                    client_validation: listener.client_validation.clone(),
                }),
                held_over,
            });
        }
        listener.unresolved.extend(faults);
    }

    /// Sets the client certificate that a Gateway presents to backends.
    fn load_client(&mut self, input: &Input<'_>, gateway: &mut GatewayDraft<'_>) {
        let backend = gateway.object.spec.tls.as_ref();
        let backend = backend.and_then(|tls| tls.backend.as_ref());
        let Some(reference) = backend.and_then(|it| it.client_certificate_ref.as_ref()) else {
            return;
        };
        let field = "spec.tls.backend.clientCertificateRef";
        let (certificate, fault) = match self.get(input, &gateway.name, reference, field) {
            Ok(Read {
                certificate,
                problem,
            }) => {
                let fault = |problem| Fault::new(Reason::InvalidClientCertificateRef, problem);
                (Ok(certificate), problem.map(fault))
            }
            Err(mut fault) => {
                if fault.reason == Reason::InvalidCertificateRef {
                    fault.reason = Reason::InvalidClientCertificateRef;
                }
                (Err(Arc::from(&*fault.message)), Some(fault))
            }
        };
        gateway.client_certificate = Some(ClientIdentity { certificate, fault });
    }

    fn get(
        &mut self,
        input: &Input<'_>,
        origin: &ObjectRef,
        reference: &SecretRef,
        field: &str,
    ) -> Result<Read, Fault> {
        let (name, secret) = find(input, origin, reference, field)?;
        let content = self.by_secret.get(&name, secret, |previous| {
            let known = previous.and_then(|previous| previous.as_ref().ok());
            read_once(secret, &name, known.or_else(|| input.served.get(&name)))
        });
        let problem = match content {
            Ok(certificate) => {
                return Ok(Read {
                    certificate,
                    problem: None,
                });
            }
            Err(problem) => problem,
        };
        input.read(|| Source::ServedCertificate(name.clone()));
        let last = input.served.get(&name);
        self.last_good.insert(&name, last);
        let fault = unusable(field, &name, &problem);
        let last = last.ok_or_else(|| fault.clone())?;
        Ok(Read {
            certificate: last.clone(),
            problem: Some(held_over(&fault, last)),
        })
    }
}

/// Reads a Secret. Returns the last good certificate itself if the content is the same, so that sharing shows equality.
fn read_once(secret: &Secret, name: &ObjectRef, last: Option<&Arc<Certificate>>) -> Content {
    let certificate = read(secret, name)?;
    let same = last.filter(|last| ***last == certificate);
    Ok(same.cloned().unwrap_or_else(|| Arc::new(certificate)))
}

fn unusable(field: &str, name: &ObjectRef, problem: &str) -> Fault {
    Fault::new(
        Reason::InvalidCertificateRef,
        format!("{field}: {name} {problem}"),
    )
}

/// Returns the client certificate that an object `origin` presents to backends. With a problem, the last good
/// certificate stays in use beside the fault.
pub(in crate::translate) fn client(
    input: &Input<'_>,
    origin: &ObjectRef,
    reference: &SecretRef,
    field: &str,
    last_good: &mut LastGood,
) -> (Result<Arc<Certificate>, Fault>, Option<Fault>) {
    let invalid = |mut fault: Fault| {
        if fault.reason == Reason::InvalidCertificateRef {
            fault.reason = Reason::InvalidClientCertificateRef;
        }
        fault
    };
    let (name, secret) = match find(input, origin, reference, field) {
        Ok(found) => found,
        Err(fault) => {
            let fault = invalid(fault);
            return (Err(fault.clone()), Some(fault));
        }
    };
    let last = input.served.of_client(&name);
    let problem = match read_once(secret, &name, last) {
        Ok(certificate) => return (Ok(certificate), None),
        Err(problem) => problem,
    };
    input.read(|| Source::ServedCertificate(name.clone()));
    last_good.insert(&name, last);
    let fault = invalid(unusable(field, &name, &problem));
    match last {
        None => (Err(fault.clone()), Some(fault)),
        Some(last) => {
            let message = held_over(&fault, last);
            (Ok(last.clone()), Some(Fault::new(fault.reason, message)))
        }
    }
}

fn held_over(fault: &Fault, last: &Certificate) -> String {
    let short = last.fingerprint.get(..16).unwrap_or_default();
    format!(
        "{}; its last good certificate (sha256 {short}…) keeps serving",
        fault.message
    )
}

fn find<'a>(
    input: &Input<'a>,
    origin: &ObjectRef,
    reference: &SecretRef,
    field: &str,
) -> Result<(ObjectRef, &'a Arc<Secret>), Fault> {
    let name = reference.object_ref(&origin.namespace);
    if !name.is_core("Secret") {
        let problem = "is not a Secret, the only kind that is supported";
        return Err(unusable(field, &name, problem));
    }
    // Check the permission first: without one, the status must not disclose whether the object exists.
    reference_grant::check(input, origin, &name, field)?;
    let secret = input.find::<Secret>(&name);
    let secret = secret.ok_or_else(|| unusable(field, &name, input.absence(&name)))?;
    Ok((name, secret))
}

fn read(secret: &Secret, name: &ObjectRef) -> Result<Certificate, String> {
    if secret.kind != TLS_TYPE {
        let kind = if secret.kind.is_empty() {
            "Opaque"
        } else {
            &secret.kind
        };
        return Err(format!(
            "is of type {kind}; it has to be of type {TLS_TYPE}"
        ));
    }
    let chain = read_chain(value(secret, "tls.crt")?)?;
    let key = read_key(value(secret, "tls.key")?)?;
    let leaf = chain.first().ok_or("has no certificate in tls.crt")?;
    let (rest, parsed) = X509Certificate::from_der(leaf)
        .map_err(|_| "has a first certificate in tls.crt that is not X.509".to_owned())?;
    if !rest.is_empty() {
        return Err("has a first certificate in tls.crt with bytes after its end".to_owned());
    }
    let names = names(&parsed);
    let validity = parsed.validity();
    let (not_before, not_after) = (
        validity.not_before.timestamp(),
        validity.not_after.timestamp(),
    );
    let fingerprint = sha256(leaf)?;
    Ok(Certificate {
        source: name.clone(),
        names,
        not_before,
        not_after,
        fingerprint,
        key: Arc::new(pair(chain, &key)?),
    })
}

/// Returns a value of a Secret. Errors continue a sentence that begins with its name.
pub(in crate::translate) fn value<'a>(secret: &'a Secret, key: &str) -> Result<&'a [u8], String> {
    let bytes = match (secret.string_data.get(key), secret.data.get(key)) {
        (Some(text), _) => text.as_bytes(),
        (None, Some(value)) => value
            .bytes()
            .ok_or_else(|| format!("has a {key} that is not base64"))?,
        (None, None) => return Err(format!("has no {key}")),
    };
    match bytes.len() {
        0 => Err(format!("has an empty {key}")),
        length if length > MAX_BYTES => {
            let limit = MAX_BYTES / 1024;
            Err(format!("has a {key} of more than {limit} KiB"))
        }
        _ => Ok(bytes),
    }
}

fn read_chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_slice_iter(pem);
    let chain: Vec<_> = certificates
        .take(MAX_CHAIN + 1)
        .collect::<Result<_, _>>()
        .map_err(|_| "has a tls.crt that is not PEM".to_owned())?;
    match chain.len() {
        0 => Err("has no PEM certificate in tls.crt".to_owned()),
        length if length > MAX_CHAIN => {
            Err(format!("has more than {MAX_CHAIN} certificates in tls.crt"))
        }
        _ => Ok(chain),
    }
}

fn read_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let text = String::from_utf8_lossy(pem);
    if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") {
        return Err("has an encrypted key in tls.key; store it decrypted".to_owned());
    }
    // The error may contain input, so it is dropped.
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| "has no PEM private key in tls.key".to_owned())
}

/// Joins a chain with its key, if the key belongs to the leaf.
fn pair(
    chain: Vec<CertificateDer<'static>>,
    key: &PrivateKeyDer<'static>,
) -> Result<CertifiedKey, String> {
    let key = sign::any_supported_type(key).map_err(|_| {
        "has a key in tls.key that is damaged or of an unsupported type; RSA (2048 bits and more), ECDSA (P-256, P-384, \
         P-521) and Ed25519 are supported"
            .to_owned()
    })?;
    let pair = CertifiedKey::new(chain, key);
    match pair.keys_match() {
        Ok(()) => Ok(pair),
        Err(rustls::Error::InconsistentKeys(_)) => Err(
            "has a key in tls.key that does not belong to the first certificate in tls.crt"
                .to_owned(),
        ),
        Err(error) => Err(format!(
            "has a first certificate in tls.crt that cannot be served: {error}"
        )),
    }
}

/// Returns the DNS names of a certificate, or its common name if it has no alternative names.
fn names(certificate: &X509Certificate<'_>) -> Vec<Box<str>> {
    let lower = |name: &str| name.to_ascii_lowercase().into_boxed_str();
    if let Ok(Some(alternatives)) = certificate.subject_alternative_name() {
        let all = alternatives.value.general_names.iter();
        return all
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some(lower(name)),
                _ => None,
            })
            .collect();
    }
    let common = certificate.subject().iter_common_name();
    common
        .filter_map(|name| name.as_str().ok())
        .map(lower)
        .collect()
}

/// Returns the SHA-256 in lower-case hexadecimal.
pub(in crate::translate) fn sha256(bytes: &[u8]) -> Result<Box<str>, String> {
    let digest = ir::tls::sha256(bytes).ok_or("cannot be fingerprinted by this build")?;
    Ok(ir::hex::encode(&digest).into_boxed_str())
}
