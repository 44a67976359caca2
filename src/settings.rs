//! Everything that one process is told at start, resolved to plain data with its defaults. Knows neither flags nor
//! environment variables (`cli::flags` reads those) and nothing that can change while the process runs.

mod access_log;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;

pub use self::access_log::{AccessLog, AccessLogFilter, AccessLogTarget};
use crate::location::Location;
use crate::permissions::Permissions;

/// Static configuration of a data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where Gateway API objects come from.
    pub source: Source,
    /// Where health, metrics and the configuration are shown; `None` turns that off. Default: [`Self::ADMIN`].
    pub admin: Option<SocketAddr>,
    /// Worker threads, at least 1. Default: the cores that the process may use.
    pub workers: usize,
    /// Shape of the log on standard error. The access log is JSON always. Default: text.
    pub log_format: LogFormat,
    /// Where the access log goes and which requests it has. Default: all on standard output.
    pub access_log: AccessLog,
    /// Which ports to bind. Default: as declared.
    pub ports: Ports,
    /// Timeouts and caps.
    pub limits: Limits,
    /// Peers whose `X-Forwarded-*` and `Forwarded` headers are believed. Default: none.
    pub trusted_proxies: Vec<IpNet>,
    /// File with the secret that seals session tokens. Default: none, and the process makes its own key.
    pub session_key_file: Option<PathBuf>,
    /// Non-public addresses that hostnames of backends may resolve to. Default: none.
    pub allowed_external_addresses: Vec<IpNet>,
    /// Name servers for these hostnames; empty means those of the system. Default: empty.
    pub dns_servers: Vec<SocketAddr>,
    /// How the process leaves.
    pub drain: Drain,
    /// What the operator permits objects to do.
    pub permissions: Permissions,
    /// Where the process runs. Default: unknown.
    pub location: Location,
}

impl Settings {
    /// The admin address when none is given.
    pub const ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 19000);

    /// Settings for a source, such as the path of a folder, with the default of everything else.
    pub fn new(source: impl Into<Source>) -> Self {
        Self {
            source: source.into(),
            admin: Some(Self::ADMIN),
            workers: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            log_format: LogFormat::Text,
            access_log: AccessLog::default(),
            ports: Ports::AsDeclared,
            limits: Limits::default(),
            trusted_proxies: Vec::new(),
            session_key_file: None,
            allowed_external_addresses: Vec::new(),
            dns_servers: Vec::new(),
            drain: Drain::default(),
            permissions: Permissions::default(),
            location: Location::default(),
        }
    }
}

/// Where Gateway API objects come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder of YAML.
    Folder(PathBuf),
    /// The cluster of the pod's service account, else of the kubeconfig.
    Kubernetes {
        /// The only Gateway that is served; `None` serves all.
        gateway: Option<NamespacedName>,
        /// The only namespaces that are watched, and that of the only Gateway; empty means all.
        namespaces: Vec<String>,
    },
    /// The controller, which has made this pod for one Gateway and streams that Gateway's objects to it.
    Stream(StreamSource),
}

/// A controller, and what a pod of its Gateway needs to connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSource {
    /// Where the controller serves streams.
    pub controller: ControllerUrl,
    /// The Gateway whose objects are asked for.
    pub gateway: NamespacedName,
    /// PEM of the certificates that the controller's certificate may be signed by; read for each connection.
    pub ca_file: PathBuf,
    /// The ServiceAccount token that tells the controller who asks; read for each connection.
    pub token_file: PathBuf,
    /// A directory in memory for a copy of the objects, which a restarted container begins with.
    pub state_dir: Option<PathBuf>,
}

impl StreamSource {
    /// The CA file of pods that the controller has made.
    pub const CA_FILE: &str = "/var/run/portcullis/controller/ca.crt";
    /// The token file of pods that the controller has made.
    pub const TOKEN_FILE: &str = "/var/run/portcullis/controller/token";
}

/// The address of a controller's stream: `https://HOST[:PORT]`. The host is the name in the controller's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerUrl {
    /// A DNS name or an address, which has no brackets here.
    pub host: String,
    /// The port; 443 when the URL has none.
    pub port: u16,
}

impl FromStr for ControllerUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SHAPE: &str = "must be https://HOST[:PORT], such as https://portcullis-controller-stream.portcullis.svc:19443";
        let rest = text.strip_prefix("https://").ok_or(SHAPE)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let authority: http::uri::Authority = rest.parse().map_err(|_| SHAPE)?;
        // A user would stand before the host.
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

/// Whether a text can be the name of an object.
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

/// Shape of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Lines for people.
    Text,
}

/// Which ports to bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// The ports that listeners declare.
    AsDeclared,
    /// The ports that listeners declare, except privileged ones: those are bound at [`container_port`].
    Unprivileged,
    /// A free port of 127.0.0.1 for every port that listeners declare, for tests.
    Ephemeral,
}

/// The port that a pod behind a Service binds for a listener's `port`: the same, but for privileged ports. The top 1,024
/// ports are outside Linux's range of ephemeral ports and hold one place for each of those.
pub const fn container_port(port: u16) -> u16 {
    const PRIVILEGED: u16 = 1024;
    if port < PRIVILEGED {
        (u16::MAX - PRIVILEGED + 1) + port
    } else {
        port
    }
}

/// How the process leaves once it is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// From "not ready" until nothing new is accepted, so that load balancers notice first. Default: 5 s.
    pub delay: Duration,
    /// From then until what is still in flight is cut. Default: 30 s.
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

/// Timeouts and caps of connections. There is no total timeout of a request unless its route asks for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the first byte of a request to the end of its head, and from accepting to that first byte. Default: 10 s.
    pub header_timeout: Duration,
    /// Idle time between requests of a connection. Default: 75 s.
    pub keep_alive_timeout: Duration,
    /// No byte of a request body while one is awaited. Default: 30 s.
    pub body_timeout: Duration,
    /// The client takes nothing of what is written to it. Default: 30 s.
    pub write_timeout: Duration,
    /// A TLS handshake. Default: 10 s.
    pub handshake_timeout: Duration,
    /// No byte either way while a response is awaited or streamed. Default: 5 min.
    pub stream_idle_timeout: Duration,
    /// No byte either way in an upgraded connection, such as a WebSocket. Default: 1 h.
    pub tunnel_idle_timeout: Duration,
    /// Connecting to an endpoint. Default: 5 s.
    pub connect_timeout: Duration,
    /// How long an unused connection to an endpoint is kept. Default: 60 s.
    pub upstream_idle_timeout: Duration,
    /// How long a connection is idle before it gives its buffers back. Default: 1 s.
    pub park_after: Duration,
    /// Client connections of the process. Default: 65,536.
    pub max_connections: usize,
    /// TLS handshakes of the process at one time; when there are more, the oldest are given up. Default: 4,096.
    pub max_handshakes: usize,
    /// Bytes of a request's or response's head. Default: 64 KiB.
    pub max_header_bytes: usize,
    /// Headers of a request or a response. Default: 100.
    pub max_headers: usize,
    /// Streams of an HTTP/2 connection at one time. Default: 100.
    pub max_streams: u32,
    /// Unused connections kept per endpoint and worker; they hold no buffer. Default: 1,024.
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
            connect_timeout: Duration::from_secs(5),
            upstream_idle_timeout: Duration::from_secs(60),
            park_after: Duration::from_secs(1),
            max_connections: 65_536,
            max_handshakes: 4096,
            max_header_bytes: 64 * 1024,
            max_headers: 100,
            max_streams: 100,
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
