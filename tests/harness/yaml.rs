//! Objects as YAML text: Gateways, HTTPRoutes, Services with their endpoints, and TLS Secrets. All are in namespace
//! `default` unless the text says otherwise.

use std::fmt::Write;
use std::net::SocketAddr;

use super::tls::Certificate;

/// Returns an HTTP listener; for all hosts if `hostname` is empty.
pub(crate) fn http(name: &str, port: u16, hostname: &str) -> String {
    format!(
        "{{name: {name}, port: {port}, protocol: HTTP{}}}",
        of(hostname)
    )
}

/// Returns an HTTPS listener of a Gateway with these Secrets.
pub(crate) fn https(name: &str, port: u16, hostname: &str, secrets: &[&str]) -> String {
    let secrets: Vec<_> = secrets
        .iter()
        .map(|name| format!("{{name: {name}}}"))
        .collect();
    let tls = format!(
        "tls: {{mode: Terminate, certificateRefs: [{}]}}",
        secrets.join(", ")
    );
    format!(
        "{{name: {name}, port: {port}, protocol: HTTPS, {tls}{}}}",
        of(hostname)
    )
}

fn of(hostname: &str) -> String {
    if hostname.is_empty() {
        String::new()
    } else {
        format!(", hostname: '{hostname}'")
    }
}

/// Returns a Gateway with these listeners.
pub(crate) fn gateway(name: &str, listeners: &[String]) -> String {
    gateway_with(name, listeners, "")
}

/// Returns a Gateway with these listeners and additional `spec` lines, each indented by two blanks.
pub(crate) fn gateway_with(name: &str, listeners: &[String], more: &str) -> String {
    let listeners = listeners.join(", ");
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}}}\nspec:\n  \
         gatewayClassName: portcullis\n  listeners: [{listeners}]\n{more}"
    )
}

/// Returns an HTTPRoute of `parent`, a Gateway or `gateway/listener`. `rules` is a YAML list in flow style.
pub(crate) fn route(name: &str, parent: &str, hostnames: &[&str], rules: &str) -> String {
    let (gateway, section) = parent.split_once('/').unwrap_or((parent, ""));
    let section = if section.is_empty() {
        String::new()
    } else {
        format!(", sectionName: {section}")
    };
    let hostnames: Vec<_> = hostnames.iter().map(|host| format!("'{host}'")).collect();
    let hostnames = hostnames.join(", ");
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}}}\nspec:\n  \
         parentRefs: [{{name: {gateway}{section}}}]\n  hostnames: [{hostnames}]\n  rules: {rules}\n"
    )
}

/// Rules that send everything to port 80 of a Service.
pub(crate) fn all_to(service: &str) -> String {
    format!("[{{backendRefs: [{{name: {service}, port: 80}}]}}]")
}

/// Returns a Service with port 80 and these endpoints.
pub(crate) fn service(name: &str, addresses: &[SocketAddr]) -> String {
    service_of(name, addresses, "")
}

/// Like [`service`], with an `appProtocol` such as `kubernetes.io/h2c`.
pub(crate) fn service_of(name: &str, addresses: &[SocketAddr], protocol: &str) -> String {
    let protocol = if protocol.is_empty() {
        String::new()
    } else {
        format!(", appProtocol: {protocol}")
    };
    let mut text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  ports: [{{name: http, port: 80{protocol}}}]\n"
    );
    for (index, address) in addresses.iter().enumerate() {
        let (ip, port) = (address.ip(), address.port());
        let version = if ip.is_ipv6() { "IPv6" } else { "IPv4" };
        write!(
            text,
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-{index}\n  \
             labels: {{kubernetes.io/service-name: {name}}}\naddressType: {version}\n\
             ports: [{{name: http, port: {port}}}]\nendpoints: [{{addresses: ['{ip}']}}]\n"
        )
        .expect("text takes everything");
    }
    text
}

/// Returns a TLS Secret.
pub(crate) fn secret(name: &str, certificate: &Certificate) -> String {
    secret_of(name, &certificate.pem, &certificate.key)
}

/// Returns a TLS Secret with arbitrary content.
pub(crate) fn secret_of(name: &str, certificate: &str, key: &str) -> String {
    let indented =
        |text: &str| -> String { text.lines().map(|line| format!("    {line}\n")).collect() };
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\ntype: kubernetes.io/tls\nstringData:\n  \
         tls.crt: |\n{}  tls.key: |\n{}",
        indented(certificate),
        indented(key)
    )
}
