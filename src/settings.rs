//! Settings of a data plane at start, as plain data with defaults. Must not know flags and environment variables, which
//! `cli::flags` reads, and nothing that can change while the process runs.

mod access_log;
pub mod controller_name;
pub mod location;
pub mod metrics;
pub mod permissions;
pub mod session_key;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;

pub use self::access_log::{AccessLog, AccessLogFilter, AccessLogTarget};
use crate::settings::controller_name::ControllerName;
use crate::settings::location::Location;
use crate::settings::metrics::MetricsDetail;
use crate::settings::permissions::Permissions;

/// Settings of a data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Source of Gateway API objects.
    pub source: Source,
    /// Gateways of GatewayClasses with this controllerName are served. Default: that of the project.
    pub controller_name: ControllerName,
    /// Address of health, metrics and the configuration dump; `None` disables it. Default: [`Self::ADMIN`].
    pub admin: Option<SocketAddr>,
    /// File with a token that gives clients of this address what those on loopback have. Default: none.
    pub admin_token_file: Option<PathBuf>,
    /// Number of worker threads, at least 1. Default: the cores available to the process.
    pub workers: usize,
    /// Format of the log on standard error. The access log is always JSON. Default: text.
    pub log_format: LogFormat,
    /// The access log. Default: all requests, on standard output.
    pub access_log: AccessLog,
    /// Which ports to bind. Default: as declared.
    pub ports: Ports,
    /// Timeouts and limits.
    pub limits: Limits,
    /// Clients whose `X-Forwarded-*` and `Forwarded` headers are trusted. Default: none.
    pub trusted_proxies: Vec<IpNet>,
    /// How detailed metrics of requests are.
    pub metrics: MetricsDetail,
    /// File with the secret that encrypts session tokens. Default: none; the process generates a key.
    pub session_key_file: Option<PathBuf>,
    /// File with another secret, whose session tokens are accepted. Default: none.
    pub accepted_session_key_file: Option<PathBuf>,
    /// Non-public addresses that hostnames of backends may resolve to. Default: none.
    pub allowed_external_addresses: Vec<IpNet>,
    /// Non-public addresses that keys of token issuers may be fetched from. Default: none.
    pub allowed_jwks_addresses: Vec<IpNet>,
    /// Name servers for the hostnames of both; empty means those of the system. Default: empty.
    pub dns_servers: Vec<SocketAddr>,
    /// Graceful shutdown.
    pub drain: Drain,
    /// Permissions that the operator grants to objects.
    pub permissions: Permissions,
    /// Where the process runs. Default: unknown.
    pub location: Location,
}

impl Settings {
    /// The default admin address.
    pub const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 19000);

    /// Returns the default settings for a source, such as the path of a folder.
    pub fn new(source: impl Into<Source>) -> Self {
        Self {
            source: source.into(),
            controller_name: ControllerName::default(),
            admin: Some(Self::ADMIN),
            admin_token_file: None,
            workers: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            log_format: LogFormat::Text,
            access_log: AccessLog::default(),
            ports: Ports::AsDeclared,
            limits: Limits::default(),
            trusted_proxies: Vec::new(),
            metrics: MetricsDetail::default(),
            session_key_file: None,
            accepted_session_key_file: None,
            allowed_external_addresses: Vec::new(),
            allowed_jwks_addresses: Vec::new(),
            dns_servers: Vec::new(),
            drain: Drain::default(),
            permissions: Permissions::default(),
            location: Location::default(),
        }
    }
}

/// Source of Gateway API objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder of YAML.
    Folder(PathBuf),
    /// The cluster of the kubeconfig, or else of the pod's service account.
    Kubernetes {
        /// The only Gateway that is served; `None` serves all.
        gateway: Option<NamespacedName>,
        /// The watched namespaces, in addition to that of `gateway`; empty watches all.
        namespaces: Vec<String>,
    },
    /// The controller that provisioned this pod for a Gateway, and streams the objects of that Gateway to it.
    Stream(StreamSource),
}

/// A controller, and the files of a pod that connects to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSource {
    /// URL of the controller's stream.
    pub controller: ControllerUrl,
    /// The Gateway whose objects are requested.
    pub gateway: NamespacedName,
    /// PEM of the CA certificates that verify the controller; read for each connection.
    pub ca_file: PathBuf,
    /// ServiceAccount token that authenticates the pod; read for each connection.
    pub token_file: PathBuf,
    /// In-memory directory for a copy of the objects, which a restarted container starts with.
    pub state_dir: Option<PathBuf>,
    /// Where other pods of the Gateway ask for their part of limits. They listen at the same port.
    pub peers: SocketAddr,
}

impl StreamSource {
    /// The CA file of provisioned pods.
    pub const CA_FILE: &str = "/var/run/portcullis/controller/ca.crt";
    /// The address for other pods of the Gateway.
    pub const PEERS: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 19001);
    /// The token file of provisioned pods.
    pub const TOKEN_FILE: &str = "/var/run/portcullis/controller/token";
}

/// The address of a controller's stream: `https://HOST[:PORT]`. The host is the name in the controller's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerUrl {
    /// A DNS name or an address, which has no brackets here.
    pub host: String,
    /// The port; 443 if the URL has none.
    pub port: u16,
}

impl FromStr for ControllerUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SHAPE: &str = "must be https://HOST[:PORT], such as https://portcullis-controller-stream.portcullis-system.svc:19443";
        let rest = text.strip_prefix("https://").ok_or(SHAPE)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let authority: http::uri::Authority = rest.parse().map_err(|_| SHAPE)?;
        // User information would precede the host.
        let port = authority.as_str().strip_prefix(authority.host());
        let port = match port.ok_or(SHAPE)?.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| SHAPE)?,
            None => 443,
        };
        let host = authority.host().trim_matches(['[', ']']);
        if host.is_empty() || port == 0 {
            return Err(SHAPE);
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for ControllerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        match host.contains(':') {
            true => write!(f, "https://[{host}]:{port}"),
            false => write!(f, "https://{host}:{port}"),
        }
    }
}

/// Namespace and name of an object, such as a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespacedName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl FromStr for NamespacedName {
    type Err = &'static str;

    /// Reads `NAMESPACE/NAME`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_once('/')
            .filter(|(namespace, name)| is_name(namespace) && is_name(name))
            .map(|(namespace, name)| Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })
            .ok_or("must be NAMESPACE/NAME, in lower case")
    }
}

/// Reports whether a text can be the name of an object.
pub fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
}

impl<P: Into<PathBuf>> From<P> for Source {
    fn from(folder: P) -> Self {
        Self::Folder(folder.into())
    }
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Human-readable lines.
    Text,
}

/// Which ports to bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// The ports that listeners declare.
    AsDeclared,
    /// The ports that listeners declare; privileged ones are mapped to [`container_port`].
    Unprivileged,
    /// A free port of 127.0.0.1 for every port that listeners declare, for tests.
    Ephemeral,
}

/// Returns the port that a pod behind a Service binds for a listener's `port`. Privileged ports are mapped to the top 1,024
/// ports, which are outside of Linux's default range of ephemeral ports; other ports are unchanged.
pub const fn container_port(port: u16) -> u16 {
    const PRIVILEGED: u16 = 1024;
    if port < PRIVILEGED {
        (u16::MAX - PRIVILEGED + 1) + port
    } else {
        port
    }
}

/// Graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Time between failing readiness and closing the listeners, so that load balancers notice first. Default: 5 s.
    pub delay: Duration,
    /// Time after that until connections with requests in flight are closed. Default: 30 s.
    pub deadline: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            delay: Duration::from_secs(5),
            deadline: Duration::from_secs(30),
        }
    }
}

/// Timeouts and limits of connections. A request has no total timeout unless its route sets one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Timeout from accepting a connection to the first byte of a request, and from there to the end of the head. Default: 10 s.
    pub header_timeout: Duration,
    /// Idle timeout between requests of a connection. Default: 75 s.
    pub keep_alive_timeout: Duration,
    /// Idle timeout of a request body while more of it is expected. Default: 30 s.
    pub body_timeout: Duration,
    /// Timeout of writes to a client that does not read. Default: 30 s.
    pub write_timeout: Duration,
    /// Timeout of a TLS handshake with a client. Default: 10 s.
    pub handshake_timeout: Duration,
    /// Idle timeout while a response is awaited or streamed. Default: 5 min.
    pub stream_idle_timeout: Duration,
    /// Idle timeout of a connection that is forwarded as it is: a WebSocket, or one of a TCP or TLS listener. Default: 1 h.
    pub tunnel_idle_timeout: Duration,
    /// Idle timeout of the datagrams of a client address. Default: 60 s.
    pub udp_idle_timeout: Duration,
    /// Timeout of a connect to an endpoint. Default: 5 s.
    pub connect_timeout: Duration,
    /// Idle timeout of connections to endpoints. Default: 60 s.
    pub upstream_idle_timeout: Duration,
    /// Idle time after which a client connection releases its buffers. Default: 1 s.
    pub idle_buffer_timeout: Duration,
    /// Maximum client connections of the process; at the limit, a new one replaces an idle one. Default: 65,536, or as
    /// many as the file descriptors of the process allow.
    pub max_connections: Option<usize>,
    /// Maximum concurrent TLS handshakes of the process; a new one replaces the oldest of the client with
    /// most. Default: 4,096.
    pub max_handshakes: usize,
    /// Maximum size of a request or response head, in bytes. Default: 64 KiB.
    pub max_header_bytes: usize,
    /// Maximum number of headers of a request or response. Default: 100.
    pub max_headers: usize,
    /// Maximum concurrent streams of an HTTP/2 or HTTP/3 connection. Default: 100.
    pub max_streams: u32,
    /// Window of each stream of an HTTP/2 or HTTP/3 connection of a client. Default: what the proxy finds suitable.
    pub stream_window: Option<u32>,
    /// Window of all streams of such a connection together. Default: the sum of those of the streams.
    pub connection_window: Option<u32>,
    /// Maximum idle connections per endpoint and worker; they hold no buffer. Default: 1,024.
    pub upstream_max_idle: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            stream_idle_timeout: Duration::from_secs(5 * 60),
            tunnel_idle_timeout: Duration::from_secs(60 * 60),
            udp_idle_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
            upstream_idle_timeout: Duration::from_secs(60),
            idle_buffer_timeout: Duration::from_secs(1),
            max_connections: None,
            max_handshakes: 4096,
            max_header_bytes: 64 * 1024,
            max_headers: 100,
            max_streams: 100,
            stream_window: None,
            connection_window: None,
            upstream_max_idle: 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_controller_urls() {
        let read = |text: &str| {
            text.parse::<ControllerUrl>()
                .map(|url| (url.host, url.port))
        };
        let expected = |host: &str, port| Ok((host.to_owned(), port));
        assert_eq!(read("https://a.b.svc:19443"), expected("a.b.svc", 19443));
        assert_eq!(read("https://a.b.svc/"), expected("a.b.svc", 443));
        assert_eq!(read("https://127.0.0.1:1"), expected("127.0.0.1", 1));
        assert_eq!(read("https://[::1]:19443"), expected("::1", 19443));
        for other in [
            "",
            "a.b.svc",
            "http://a.b.svc",
            "https://",
            "https://:19443",
            "https://a.b.svc:",
            "https://a.b.svc:0",
            "https://a.b.svc:65536",
            "https://a.b.svc/path",
            "https://user@a.b.svc",
        ] {
            let error = read(other).expect_err(other);
            assert!(error.contains("https://HOST[:PORT]"), "{other}: {error}");
        }
    }
}
