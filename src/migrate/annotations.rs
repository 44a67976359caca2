//! The annotations of ingress-nginx: one row each, with what becomes of it.

use super::report::Outcome;
use super::report::Outcome::{ChangedMeaning, Converted, DefaultAlready, NotPossible};

/// What becomes of an annotation.
#[derive(Clone, Copy, Debug)]
pub struct Annotation {
    /// Name without the prefix.
    pub name: &'static str,
    /// The outcome of usual values.
    pub outcome: Outcome,
    /// Where it is in the output, what differs or what to do.
    pub text: &'static str,
    /// Whether the outcome depends on the value, so that a step of the migration reports it.
    pub(super) depends: bool,
}

const fn row(name: &'static str, outcome: Outcome, text: &'static str) -> Annotation {
    Annotation {
        name,
        outcome,
        text,
        depends: false,
    }
}

const fn by_value(name: &'static str, outcome: Outcome, text: &'static str) -> Annotation {
    Annotation {
        name,
        outcome,
        text,
        depends: true,
    }
}

/// Returns the row of an annotation, whose name is without the prefix.
pub fn find(name: &str) -> Option<&'static Annotation> {
    ANNOTATIONS.iter().find(|row| row.name == name)
}

const STREAMS: &str = "responses are sent on as they arrive, with bounded memory";
const TRACING: &str = "traces are configured for a Gateway by a TelemetryPolicy: docs/traces.md";
const WAF: &str = "there is no web application firewall: put one before the Gateway, or behind it";
const WAF_RULES: &str = "there is no web application firewall: put one before the Gateway, or behind it. With rules that may refuse requests (`SecRuleEngine On`), the routes refuse all requests (403)";
const INFLUX: &str = "ingress-nginx has removed it; use the metrics of docs/metrics.md";
const AUTH_CACHE: &str = "results of authorization servers are not stored";
const AUTH_TLS: &str = "the routes refuse all requests (403): certificates of clients are required by spec.tls.frontend of the Gateway, for a port \
     with all of its hosts (docs/tls.md#client-certificates); move the host to a port of its own";
const AUTH_URL: &str = "AccessPolicy external, for a Service of the cluster (`http://NAME.NAMESPACE.svc…`); for other servers, the routes refuse all requests (403)";
const BACKEND_CA: &str =
    "BackendTLSPolicy with the ConfigMap NAME-ca: create it with ca.crt of the Secret";
const GLOBAL: &str = "ingress-nginx has removed it: write a RateLimitPolicy with `scope: Gateway`, which all pods of a Gateway count together, without a store (docs/policies.md#limits-of-a-gateway)";

/// The annotations of ingress-nginx 1.12, with their aliases and those that it had removed before, by name.
// One line for each, to be read as a table.
#[rustfmt::skip]
pub const ANNOTATIONS: &[Annotation] = &[
    by_value("affinity", Converted, "BackendPolicy sessionPersistence"),
    by_value("affinity-canary-behavior", DefaultAlready, "a session stays at its backend, canary or not, as with `sticky`"),
    by_value("affinity-mode", DefaultAlready, "sessions stay at their endpoints, as with `persistent`"),
    by_value("allowlist-source-range", Converted, "AccessPolicy ipRules.allow"),
    by_value("app-root", Converted, "a rule of the HTTPRoute that redirects `/`"),
    row("auth-always-set-cookie", NotPossible, "cookies of authorization servers are only sent with their own responses"),
    row("auth-cache-duration", NotPossible, AUTH_CACHE),
    row("auth-cache-key", NotPossible, AUTH_CACHE),
    row("auth-keepalive", DefaultAlready, "connections to authorization servers are reused"),
    row("auth-keepalive-requests", DefaultAlready, "connections to authorization servers are reused"),
    row("auth-keepalive-share-vars", DefaultAlready, "connections to authorization servers are reused"),
    row("auth-keepalive-timeout", DefaultAlready, "connections to authorization servers are reused"),
    by_value("auth-method", DefaultAlready, "authorization servers get GET; with another method, see auth-url"),
    by_value("auth-proxy-set-headers", NotPossible, "authorization servers get headers of the request (external.http.allowedHeaders) and no others: the routes refuse all requests (403)"),
    by_value("auth-realm", Converted, "AccessPolicy basic.realm"),
    by_value("auth-request-redirect", ChangedMeaning, "X-Original-URL and X-Forwarded-Uri name the URL, and not X-Auth-Request-Redirect"),
    by_value("auth-response-headers", Converted, "AccessPolicy external.http.allowedResponseHeaders; more than 64 close the routes"),
    by_value("auth-secret", Converted, "AccessPolicy basic.secretRef, for hashes of bcrypt, SHA-crypt, `$apr1$` and `{SHA}`"),
    by_value("auth-secret-type", Converted, "`auth-file` is what AccessPolicies read; `auth-map` needs a Secret with lines of an htpasswd file under `auth`"),
    by_value("auth-signin", ChangedMeaning, "AccessPolicy external.signInRedirect, for browsers only"),
    by_value("auth-signin-redirect-param", ChangedMeaning, "the parameter of external.signInRedirect with `{return}`"),
    by_value("auth-snippet", NotPossible, "headers that say what the request was are sent in any case; with others, the routes refuse all requests (403)"),
    by_value("auth-tls-error-page", NotPossible, "a client without a valid certificate gets no connection"),
    by_value("auth-tls-match-cn", NotPossible, AUTH_TLS),
    by_value("auth-tls-pass-certificate-to-upstream", ChangedMeaning, "backends get X-Forwarded-Client-Cert (docs/tls.md#client-certificates)"),
    by_value("auth-tls-secret", NotPossible, AUTH_TLS),
    by_value("auth-tls-verify-client", NotPossible, AUTH_TLS),
    by_value("auth-tls-verify-depth", ChangedMeaning, "chains have up to the depth that webpki permits"),
    by_value("auth-type", Converted, "`basic` is AccessPolicy basic; `digest` does not exist: the routes refuse all requests (403)"),
    by_value("auth-url", ChangedMeaning, AUTH_URL),
    by_value("backend-protocol", ChangedMeaning, "HTTPS is a BackendTLSOverride with insecureSkipVerify; GRPC is a GRPCRoute; AJP and FCGI do not exist"),
    by_value("canary", Converted, "backendRefs and rules of the HTTPRoute of the main Ingress"),
    by_value("canary-by-cookie", Converted, "a rule with a match of the header `Cookie`"),
    by_value("canary-by-header", Converted, "a rule with a match of the header"),
    by_value("canary-by-header-pattern", Converted, "a rule with a regular expression for the header"),
    by_value("canary-by-header-value", Converted, "a rule with a match of the header"),
    by_value("canary-weight", Converted, "weights of backendRefs"),
    by_value("canary-weight-total", Converted, "weights of backendRefs"),
    row("client-body-buffer-size", DefaultAlready, "request bodies are sent on as they arrive"),
    by_value("configuration-snippet", Converted, "header filters, if it only sets and removes headers"),
    row("connection-proxy-header", DefaultAlready, "connections to backends are reused, and upgrades are forwarded"),
    by_value("cors-allow-credentials", Converted, "CORS filter allowCredentials"),
    by_value("cors-allow-headers", Converted, "CORS filter allowHeaders"),
    by_value("cors-allow-methods", Converted, "CORS filter allowMethods"),
    by_value("cors-allow-origin", Converted, "CORS filter allowOrigins"),
    by_value("cors-expose-headers", Converted, "CORS filter exposeHeaders"),
    by_value("cors-max-age", Converted, "CORS filter maxAge"),
    by_value("custom-headers", Converted, "response header filter, if the ConfigMap is in the input"),
    by_value("custom-http-errors", ChangedMeaning, "RoutePolicy errorPages with the Service of `default-backend`; that of the controller is not known (docs/policies.md#error-pages)"),
    by_value("default-backend", ChangedMeaning, "RoutePolicy errorPages: without an endpoint, the Service is asked for a page for 503, and does not get the request itself"),
    by_value("denylist-source-range", Converted, "AccessPolicy ipRules.deny"),
    row("disable-proxy-intercept-errors", DefaultAlready, "responses of backends stay as they are"),
    row("enable-access-log", ChangedMeaning, "the access log has all requests: a TelemetryPolicy selects them"),
    by_value("enable-cors", Converted, "CORS filter of the HTTPRoute"),
    by_value("enable-global-auth", DefaultAlready, "there is no global authorization server"),
    row("enable-influxdb", NotPossible, INFLUX),
    by_value("enable-modsecurity", NotPossible, WAF),
    row("enable-opentelemetry", ChangedMeaning, TRACING),
    row("enable-opentracing", ChangedMeaning, TRACING),
    by_value("enable-owasp-core-rules", NotPossible, WAF),
    row("enable-rewrite-log", DefaultAlready, "`portcullis explain` shows rewrites"),
    row("fastcgi-index", NotPossible, "backends speak HTTP: put a web server before them"),
    row("fastcgi-params-configmap", NotPossible, "backends speak HTTP: put a web server before them"),
    by_value("force-ssl-redirect", Converted, "an HTTPRoute that redirects to HTTPS"),
    by_value("from-to-www-redirect", Converted, "an HTTPRoute that redirects the other host"),
    row("global-rate-limit", NotPossible, GLOBAL),
    row("global-rate-limit-ignored-cidrs", NotPossible, GLOBAL),
    row("global-rate-limit-key", NotPossible, GLOBAL),
    row("global-rate-limit-window", NotPossible, GLOBAL),
    row("http2-push-preload", DefaultAlready, "browsers do not take pushed responses any more; the header Link reaches them"),
    row("influxdb-host", NotPossible, INFLUX),
    row("influxdb-measurement", NotPossible, INFLUX),
    row("influxdb-port", NotPossible, INFLUX),
    row("influxdb-server-name", NotPossible, INFLUX),
    by_value("limit-allowlist", Converted, "RateLimitPolicy rules[].exempt.cidrs"),
    by_value("limit-burst-multiplier", Converted, "RateLimitPolicy rules[].limit.burst"),
    by_value("limit-connections", ChangedMeaning, "RateLimitPolicy rules[].concurrent, which counts requests and not connections"),
    row("limit-rate", NotPossible, "there is no limit on the bandwidth of a response; RateLimitPolicy cost ResponseBytes limits bytes in a time"),
    row("limit-rate-after", NotPossible, "see limit-rate"),
    by_value("limit-rpm", Converted, "RateLimitPolicy rules[].limit, per replica, status 503"),
    by_value("limit-rps", Converted, "RateLimitPolicy rules[].limit, per replica, status 503"),
    by_value("limit-whitelist", Converted, "RateLimitPolicy rules[].exempt.cidrs"),
    by_value("load-balance", Converted, "BackendPolicy loadBalancing; `ewma` is the default, by requests in progress"),
    by_value("mirror-host", ChangedMeaning, "copies have the host of the request"),
    by_value("mirror-request-body", DefaultAlready, "copies have the body"),
    by_value("mirror-target", Converted, "RequestMirror filter, for a Service of the namespace"),
    by_value("modsecurity-snippet", NotPossible, WAF_RULES),
    by_value("modsecurity-transaction-id", NotPossible, WAF),
    row("opentelemetry-operation-name", ChangedMeaning, TRACING),
    row("opentelemetry-trust-incoming-span", ChangedMeaning, TRACING),
    row("opentracing-trust-incoming-span", ChangedMeaning, TRACING),
    by_value("permanent-redirect", Converted, "RequestRedirect filter"),
    by_value("permanent-redirect-code", Converted, "RequestRedirect filter statusCode"),
    row("preserve-trailing-slash", DefaultAlready, "redirects to HTTPS keep the path as it is"),
    by_value("proxy-body-size", Converted, "RoutePolicy requestBody.maxSize"),
    row("proxy-buffer-size", DefaultAlready, "heads of responses have room for up to 64 KiB"),
    by_value("proxy-buffering", DefaultAlready, STREAMS),
    row("proxy-buffers-number", DefaultAlready, STREAMS),
    row("proxy-busy-buffers-size", DefaultAlready, STREAMS),
    by_value("proxy-connect-timeout", Converted, "BackendPolicy connection.connectTimeout"),
    by_value("proxy-cookie-domain", NotPossible, "cookies of backends stay as they are: configure the domain there"),
    by_value("proxy-cookie-path", NotPossible, "cookies of backends stay as they are: configure the path there"),
    by_value("proxy-http-version", DefaultAlready, "requests are sent with HTTP/1.1"),
    row("proxy-max-temp-file-size", DefaultAlready, STREAMS),
    by_value("proxy-next-upstream", ChangedMeaning, "failed connections are tried again without a setting, and `off` is RoutePolicy retry.attempts 0; statuses become retry.codes, which repeat every method, only with `error timeout non_idempotent`"),
    by_value("proxy-next-upstream-timeout", ChangedMeaning, "RoutePolicy timeouts.request may cover all attempts"),
    by_value("proxy-next-upstream-tries", Converted, "RoutePolicy retry.attempts, with statuses that are converted or with `1`; otherwise up to 3 endpoints are tried"),
    by_value("proxy-read-timeout", Converted, "RoutePolicy timeouts.streamIdle: a time without a byte, not a total"),
    by_value("proxy-redirect-from", NotPossible, "redirects of backends stay as they are: backends get the host of the client"),
    by_value("proxy-redirect-to", NotPossible, "redirects of backends stay as they are: backends get the host of the client"),
    by_value("proxy-request-buffering", DefaultAlready, "request bodies are sent on as they arrive, as with `off`"),
    by_value("proxy-send-timeout", Converted, "RoutePolicy timeouts.streamIdle: a time without a byte, not a total"),
    row("proxy-ssl-ciphers", DefaultAlready, "cipher suites to backends are those of rustls, all with forward secrecy"),
    by_value("proxy-ssl-name", Converted, "hostname of the policy on TLS to the backend"),
    row("proxy-ssl-protocols", DefaultAlready, "TLS 1.2 and 1.3"),
    by_value("proxy-ssl-secret", NotPossible, BACKEND_CA),
    by_value("proxy-ssl-server-name", ChangedMeaning, "backends get the hostname of the policy as SNI"),
    by_value("proxy-ssl-verify", NotPossible, BACKEND_CA),
    row("proxy-ssl-verify-depth", ChangedMeaning, "chains have up to the depth that webpki permits"),
    row("relative-redirects", ChangedMeaning, "redirects name scheme and host"),
    by_value("rewrite-target", Converted, "RouteFilter regexRewrite; all paths of the host are regular expressions, as in ingress-nginx"),
    by_value("satisfy", NotPossible, "`all` is how AccessPolicies work; with `any` here addresses and credentials are both required"),
    by_value("server-alias", Converted, "hostnames of the HTTPRoute"),
    by_value("server-snippet", Converted, "header filters, if it only sets and removes headers"),
    by_value("service-upstream", ChangedMeaning, "requests go to the endpoints of the Service, and not to its address"),
    by_value("session-cookie-change-on-failure", DefaultAlready, "a session moves when its endpoint fails"),
    row("session-cookie-conditional-samesite-none", ChangedMeaning, "the cookie has SameSite=Lax"),
    by_value("session-cookie-domain", ChangedMeaning, "the cookie is of the host alone"),
    by_value("session-cookie-expires", Converted, "BackendPolicy sessionPersistence.absoluteTimeout"),
    by_value("session-cookie-max-age", Converted, "BackendPolicy sessionPersistence.absoluteTimeout"),
    by_value("session-cookie-name", Converted, "BackendPolicy sessionPersistence.sessionName"),
    row("session-cookie-partitioned", ChangedMeaning, "the cookie is not partitioned"),
    by_value("session-cookie-path", ChangedMeaning, "the path of the cookie follows from the paths of the rule"),
    by_value("session-cookie-samesite", ChangedMeaning, "the cookie has SameSite=Lax"),
    by_value("session-cookie-secure", DefaultAlready, "the cookie has Secure over HTTPS"),
    row("ssl-ciphers", ChangedMeaning, "cipher suites are those of rustls, all with forward secrecy: ClientPolicy tls.cipherSuites selects some"),
    by_value("ssl-passthrough", Converted, "TLSRoute, and a listener that passes TLS through; with restrictions of the host, which do not hold for it, connections are refused"),
    row("ssl-prefer-server-ciphers", ChangedMeaning, "clients choose among the offered cipher suites"),
    by_value("ssl-redirect", Converted, "an HTTPRoute that redirects to HTTPS, or none with `false`"),
    row("stream-snippet", NotPossible, "use a TCPRoute or UDPRoute (docs/l4.md)"),
    by_value("temporal-redirect", Converted, "RequestRedirect filter"),
    by_value("temporal-redirect-code", Converted, "RequestRedirect filter statusCode"),
    by_value("upstream-hash-by", Converted, "BackendPolicy loadBalancing.consistentHash, for an address, a header, a cookie or the host"),
    row("upstream-hash-by-subset", NotPossible, "a key belongs to one endpoint, and not to several"),
    row("upstream-hash-by-subset-size", NotPossible, "a key belongs to one endpoint, and not to several"),
    by_value("upstream-vhost", Converted, "URLRewrite filter hostname"),
    row("use-port-in-redirects", DefaultAlready, "redirects name the port where it is not that of the scheme"),
    by_value("use-regex", Converted, "all paths of the host are regular expressions, as in ingress-nginx"),
    by_value("whitelist-source-range", Converted, "AccessPolicy ipRules.allow"),
    by_value("x-forwarded-prefix", Converted, "request header filter"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_and_appear_once() {
        for pair in ANNOTATIONS.windows(2) {
            assert!(pair[0].name < pair[1].name, "{}", pair[1].name);
        }
    }
}
