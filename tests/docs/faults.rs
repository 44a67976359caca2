//! The faults of docs/operations.md: a test injects each of them and looks for its texts, which are first of all problems everywhere.

use std::collections::BTreeSet;

use crate::read;
use crate::security::{has_test, rows};

/// The tests of one file.
struct Injected {
    /// The file that has the texts.
    texts: &'static str,
    /// The file of the tests.
    tests: &'static str,
    /// Each fault with its test, and a text of its first problem that no other one has.
    faults: &'static [(&'static str, &'static str, &'static str)],
}

const OF_REFERENCES: &str = "faults_of_references_are_the_first_problem_until_they_are_repaired";
const OF_CONTENT: &str = "faults_of_content_are_the_first_problem_until_they_are_repaired";

const REFERENCES: Injected = Injected {
    texts: "tests/proxy/faults/references.rs",
    tests: "tests/proxy/faults.rs",
    faults: &[
        (
            "missing Service",
            OF_REFERENCES,
            "Service default/ap does not exist",
        ),
        (
            "wrong port in a backendRef",
            OF_REFERENCES,
            "Service default/app has no port 81; its ports: [80]",
        ),
        (
            "kind of backend that is not supported",
            OF_REFERENCES,
            "is not supported as a backend; supported kinds: ",
        ),
        (
            "missing ReferenceGrant",
            OF_REFERENCES,
            "no ReferenceGrant in namespace data permits it; add one there",
        ),
        (
            "missing target of a mirror",
            OF_REFERENCES,
            "Service default/copy does not exist",
        ),
        (
            "missing parent",
            OF_REFERENCES,
            "names Gateway default/gatewy, which does not exist",
        ),
        (
            "missing listener",
            OF_REFERENCES,
            "has no listener named htp (sectionName)",
        ),
        (
            "missing target of a policy",
            OF_REFERENCES,
            "HTTPRoute default/rout does not exist; did you mean route?",
        ),
        (
            "missing Secret of a listener",
            OF_REFERENCES,
            "Secret default/tls does not exist",
        ),
        (
            "Secret without a certificate",
            OF_REFERENCES,
            "Secret default/tls has no PEM certificate in tls.crt",
        ),
        (
            "missing Secret of a policy",
            OF_REFERENCES,
            "Secret default/users does not exist",
        ),
        (
            "missing authorities of a backend",
            OF_REFERENCES,
            "ConfigMap default/ca does not exist",
        ),
        (
            "missing ConfigMap of an error page",
            OF_REFERENCES,
            "ConfigMap default/pages does not exist",
        ),
        (
            "policy that permits more than one above it",
            OF_REFERENCES,
            "permits addresses that AccessPolicy default/edge does not permit",
        ),
        (
            "limit of all pods without a controller",
            OF_REFERENCES,
            "limit all has scope Gateway",
        ),
        (
            "sign-in that returns to no rule",
            OF_REFERENCES,
            "browsers that come back from the provider are not signed in",
        ),
        (
            "GatewayClass of nobody",
            OF_REFERENCES,
            "spec.gatewayClassName is nginx, which does not exist",
        ),
    ],
};

const CONTENT: Injected = Injected {
    texts: "tests/proxy/faults/content.rs",
    tests: "tests/proxy/faults.rs",
    faults: &[
        (
            "weights that are all 0",
            OF_CONTENT,
            "all weights of spec.rules[0].backendRefs are 0",
        ),
        (
            "hostname of no listener",
            OF_CONTENT,
            "NoMatchingListenerHostname",
        ),
        (
            "kind of route that no listener allows",
            OF_CONTENT,
            "allows HTTPRoutes; see protocol and allowedRoutes.kinds of its listeners",
        ),
        (
            "shadowed rule",
            OF_CONTENT,
            "the same match or a wider one comes first in spec.rules[0] of HTTPRoute default/route",
        ),
        ("listeners in conflict", OF_CONTENT, "ProtocolConflict"),
        (
            "edit with an unknown field",
            OF_CONTENT,
            "spec.rulez: unknown field; did you mean rules?",
        ),
        (
            "file that is a template",
            OF_CONTENT,
            "render the template first",
        ),
        (
            "expired certificate",
            OF_CONTENT,
            "the certificate has expired at ",
        ),
        (
            "certificate of the future",
            OF_CONTENT,
            "the certificate is not valid before ",
        ),
        (
            "certificate that ends soon",
            OF_CONTENT,
            "the certificate expires at ",
        ),
        (
            "certificate of another host",
            OF_CONTENT,
            "no certificate is for a.com, only for b.com",
        ),
        (
            "no ready endpoint",
            OF_CONTENT,
            "has no ready endpoint: its requests get 503",
        ),
    ],
};

const PORTS: Injected = Injected {
    texts: "tests/proxy/faults.rs",
    tests: "tests/proxy/faults.rs",
    faults: &[(
        "port of another process",
        "port_of_another_process_is_the_first_problem_until_it_is_free",
        "another process uses the port",
    )],
};

const BACKENDS: Injected = Injected {
    texts: "tests/proxy/faults_of_backends.rs",
    tests: "tests/proxy/faults_of_backends.rs",
    faults: &[
        (
            "no ready endpoint of a TCPRoute",
            "backend_of_connections_without_endpoints_is_the_first_problem",
            "has no ready endpoint: its connections are reset",
        ),
        (
            "endpoint where nothing listens",
            "endpoint_that_dies_after_long_health_is_the_first_problem",
            "refuses connections (failed attempts in the last minute: 1)",
        ),
        (
            "backend that closes connections",
            "backend_that_closes_connections_is_the_first_problem",
            "closes connections before it responds",
        ),
        (
            "backend that breaks responses off",
            "backend_that_breaks_responses_off_is_the_first_problem",
            "closes connections before the end of its responses",
        ),
        (
            "backend that does not speak HTTP",
            "backend_that_does_not_speak_http_is_the_first_problem",
            "sends responses that violate the protocol",
        ),
        (
            "backend that responds too late",
            "backend_that_does_not_respond_in_time_is_the_first_problem",
            "does not respond within the backendRequest timeout",
        ),
        (
            "request timeout",
            "backend_that_does_not_respond_in_time_is_the_first_problem",
            "no complete response within the request timeout",
        ),
        (
            "errors of the application",
            "errors_of_the_application_are_the_first_problem",
            "were 5xx, most from the backend; see its log",
        ),
        (
            "retries that do not help",
            "errors_of_the_application_are_the_first_problem",
            "most from the backend, also after retries; see its log",
        ),
        (
            "backend with the certificate of another authority",
            "certificate_of_a_backend_is_the_first_problem",
            "the backend's certificate is from an authority that its BackendTLSPolicy does not trust",
        ),
        (
            "backend with the certificate of another host",
            "certificate_of_a_backend_is_the_first_problem",
            "has none of the names that its BackendTLSPolicy requires",
        ),
        (
            "backend with an expired certificate",
            "certificate_of_a_backend_is_the_first_problem",
            "the backend's certificate has expired",
        ),
        (
            "TLS to a port without it",
            "tls_to_a_port_without_it_is_the_first_problem",
            "the backend does not speak TLS as its BackendTLSPolicy requires",
        ),
        (
            "ejected endpoint",
            "endpoint_that_is_ejected_or_fails_its_checks_is_the_first_problem",
            "has failed and gets no requests while others work: refuses connections",
        ),
        (
            "failed health check",
            "endpoint_that_is_ejected_or_fails_its_checks_is_the_first_problem",
            "fails its health checks and gets no requests while others work",
        ),
        (
            "slow backend",
            "backend_that_becomes_slow_is_the_first_problem",
            " ms on average in the last minute, and took ",
        ),
        (
            "limit of a backend",
            "limit_of_a_backend_is_the_first_problem",
            "a limit of its policy is reached",
        ),
        (
            "hostname without addresses",
            "hostname_without_addresses_is_the_first_problem",
            "has no address that may be used, since DNS has none or does not answer",
        ),
        (
            "collector away for long, or that refuses spans",
            "spans_that_a_collector_refuses_are_the_first_problem",
            "their collector is away, too slow or refuses them",
        ),
    ],
};

const RELEASES: Injected = Injected {
    texts: "tests/proxy/release_backends.rs",
    tests: "tests/proxy/release_backends.rs",
    faults: &[(
        "releases without weight or ready endpoints",
        "releases_without_weight_are_the_first_problem_until_one_has_some",
        "has no release with a weight and a ready endpoint",
    )],
};

const CLIENTS: Injected = Injected {
    texts: "tests/proxy/faults_of_clients.rs",
    tests: "tests/proxy/faults_of_clients.rs",
    faults: &[
        (
            "clients without trust",
            "handshakes_of_clients_that_fail_are_the_first_problem",
            "they do not trust the certificate of the listener",
        ),
        (
            "clients with another name",
            "handshakes_of_clients_that_fail_are_the_first_problem",
            "no listener has the name that they ask for",
        ),
        (
            "clients with an old version of TLS",
            "clients_without_a_common_version_are_the_first_problem",
            "they have no version, cipher or group of TLS in common with the listener",
        ),
        (
            "clients without a valid certificate",
            "clients_without_a_valid_certificate_are_the_first_problem",
            "their certificates are missing or not valid",
        ),
        (
            "too many client connections",
            "limit_of_client_connections_is_the_first_problem",
            "the limit of client connections is reached",
        ),
        (
            "limit of a policy",
            "limit_that_refuses_many_requests_is_the_first_problem",
            "were over the limit one: they are refused",
        ),
        (
            "issuer of tokens away",
            "issuer_of_tokens_that_is_away_is_the_first_problem",
            "ResolvedRefs is False (KeySetNotFetched)",
        ),
        (
            "OpenID provider that refuses the client",
            "provider_that_refuses_the_client_of_a_policy_or_is_away_is_the_first_problem",
            "the provider does not accept clientID or the client secret",
        ),
        (
            "OpenID provider away",
            "provider_that_refuses_the_client_of_a_policy_or_is_away_is_the_first_problem",
            "the provider is away or too slow",
        ),
        (
            "pod that shares limits away",
            "pod_that_shares_limits_and_is_away_is_the_first_problem",
            "each admits its own part of the limits with scope Gateway",
        ),
    ],
};

const PROCESSES: Injected = Injected {
    texts: "tests/proxy/incidents_of_processes.rs",
    tests: "tests/proxy/incidents_of_processes.rs",
    faults: &[
        (
            "workers without CPU time",
            "status_tells_that_workers_have_too_little_cpu_time",
            "requests wait for a CPU",
        ),
        (
            "no file descriptor left",
            "status_tells_that_no_file_descriptor_is_left",
            "the process has no file descriptor left",
        ),
        (
            "nobody reads the logs",
            "status_tells_that_nobody_reads_the_access_log",
            "what reads them is too slow, or has stopped",
        ),
        (
            "controller away",
            "status_tells_that_the_name_of_the_controller_is_not_resolved",
            "check that its pods run and that this one may connect to them; the log has the error",
        ),
    ],
};

/// Those that are observed without being injected.
const OBSERVED: Injected = Injected {
    texts: "src/admin/problems.rs",
    tests: "src/admin/problems.rs",
    faults: &[
        (
            "memory near its limit",
            "what_a_process_lacks_comes_first_until_it_has_it",
            "the kernel ends it at the limit",
        ),
        (
            "API server away",
            "what_a_process_lacks_comes_first_until_it_has_it",
            "API server",
        ),
    ],
};

const ALL: [Injected; 8] = [
    REFERENCES, CONTENT, PORTS, BACKENDS, RELEASES, CLIENTS, PROCESSES, OBSERVED,
];

#[test]
fn a_test_injects_each_fault_of_the_page() {
    let page = read("docs/operations.md");
    let rows = rows(&page, "| first problem |");
    let listed: BTreeSet<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(listed.len(), rows.len(), "a fault stands twice");
    assert!(listed.len() >= 40, "{} faults", listed.len());
    let mut tested = BTreeSet::new();
    for injected in ALL {
        let (texts, tests) = (read(injected.texts), read(injected.tests));
        for &(fault, test, text) in injected.faults {
            assert!(has_test(&tests, test), "no test {}::{test}", injected.tests);
            // A table of faults is in a file of its own.
            let code = match injected.texts == injected.tests {
                true => body(&tests, test),
                false => &texts,
            };
            assert!(code.contains(text), "{fault}: {test} looks for no {text:?}");
            let having = rows.iter().filter(|row| row[2].contains(text));
            let having: Vec<_> = having.map(|row| row[0]).collect();
            assert_eq!(having, [fault], "{text:?}");
            assert!(tested.insert(fault), "{fault} stands twice");
        }
    }
    assert_eq!(tested, listed);
}

/// Returns a test from its name on.
fn body<'a>(code: &'a str, test: &str) -> &'a str {
    let name = format!("fn {test}(");
    let line = code.lines().find(|line| line.contains(&name)).unwrap();
    // A test of a module is indented.
    let indentation = &line[..line.len() - line.trim_start().len()];
    let (_, rest) = code.split_once(&name).unwrap();
    rest.split_once(&format!("\n{indentation}}}\n")).unwrap().0
}
