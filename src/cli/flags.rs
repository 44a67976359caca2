//! The flags and environment variables of a data plane, and how they become [`Settings`]. Defaults are in
//! `settings.rs` only.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use ipnet::IpNet;

use super::value::{AdminAddress, Size, Span};
use crate::settings::location::Location;
use crate::settings::metrics::{DurationLabel, MetricsDetail};
use crate::settings::permissions::{BackendKinds, InsecureBackend, Permissions, PolicyLevel};
use crate::settings::{
    AccessLog, AccessLogFilter, AccessLogTarget, Drain, Limits, LogFormat, Ports, Settings, Source,
};

/// Flags of every data plane, for all sources of objects.
#[derive(Args, Debug)]
pub struct ServeFlags {
    /// The admin server.
    #[command(flatten)]
    pub admin: AdminServerFlags,
    /// Number of worker threads [default: the cores available to the process]
    #[arg(long, value_name = "N", env = "PORTCULLIS_WORKERS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Clients whose X-Forwarded-* and Forwarded headers are trusted; those of other clients are replaced
    #[arg(
        long,
        value_name = "CIDR,…",
        env = "PORTCULLIS_TRUSTED_PROXIES",
        value_delimiter = ',',
        value_parser = super::value::cidr
    )]
    pub trusted_proxies: Vec<IpNet>,
    /// Metrics of requests.
    #[command(flatten)]
    pub metrics: MetricsFlags,
    /// File with the secret that encrypts session tokens, at least 32 bytes, the same for all replicas [default: a random
    /// key per process: sessions end when it restarts]
    #[arg(long, value_name = "FILE", env = "PORTCULLIS_SESSION_KEY_FILE")]
    pub session_key_file: Option<PathBuf>,
    /// File with another secret, whose session tokens are accepted, while keys are rotated
    #[arg(
        long,
        value_name = "FILE",
        env = "PORTCULLIS_ACCEPTED_SESSION_KEY_FILE",
        requires = "session_key_file"
    )]
    pub accepted_session_key_file: Option<PathBuf>,
    /// Permissions of objects.
    #[command(flatten)]
    pub permissions: PermissionFlags,
    /// Where the process runs.
    #[command(flatten)]
    pub location: LocationFlags,
    /// Addresses and name servers of external backends.
    #[command(flatten)]
    pub external: ExternalFlags,
    /// Log of the process.
    #[command(flatten)]
    pub log: LogFlags,
    /// Access log.
    #[command(flatten)]
    pub access_log: AccessLogFlags,
    /// Graceful shutdown.
    #[command(flatten)]
    pub drain: DrainFlags,
    /// Timeouts and limits.
    #[command(flatten)]
    pub limits: LimitFlags,
}

/// Metrics of requests.
#[derive(Args, Clone, Debug)]
pub struct MetricsFlags {
    /// Count requests and their durations by rule, and not by route: up to 25 series for each rule
    #[arg(long, env = "PORTCULLIS_METRICS_PER_RULE")]
    pub metrics_per_rule: bool,
    /// Count durations of requests by these labels, too: `method` and `status-class`, such as 2xx. Up to 20 series for each
    /// method and class that a route, or a rule, has had [default: none]
    #[arg(
        long,
        value_name = "LABEL,…",
        env = "PORTCULLIS_METRICS_DURATIONS_BY",
        value_delimiter = ','
    )]
    pub metrics_durations_by: Vec<DurationLabel>,
}

impl From<&MetricsFlags> for MetricsDetail {
    fn from(flags: &MetricsFlags) -> Self {
        Self {
            per_rule: flags.metrics_per_rule,
            durations_by: flags.metrics_durations_by.iter().copied().collect(),
        }
    }
}

/// The admin server.
#[derive(Args, Clone, Debug)]
pub struct AdminServerFlags {
    /// Admin address: /healthz, /readyz and /metrics; everything else for clients on loopback; `off` disables it
    #[arg(long, value_name = "ADDR|off", env = "PORTCULLIS_ADMIN",
          default_value_t = AdminAddress(Some(Settings::ADMIN)))]
    pub admin: AdminAddress,
    /// File with a token, at least 32 bytes, that gives clients of the admin address what those on loopback have; read for
    /// each request with a token [default: none, clients on loopback only]
    #[arg(long, value_name = "FILE", env = "PORTCULLIS_ADMIN_TOKEN_FILE")]
    pub admin_token_file: Option<PathBuf>,
}

/// Permissions that the operator grants to objects. All processes that validate or serve the same objects need the same.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Permissions")]
pub struct PermissionFlags {
    /// Kinds that may be backends, each as GROUP/VERSION.Kind, such as v1.Service [default: all built-in kinds]
    #[arg(
        long,
        value_name = "GVK,…",
        env = "PORTCULLIS_BACKEND_KINDS",
        value_delimiter = ',',
        value_parser = super::value::backend_kind
    )]
    pub backend_kinds: Vec<&'static str>,
    /// Weakest verification that policies may request: none (CA and name required), pins-only, skip-verify
    #[arg(long, value_name = "none|pins-only|skip-verify", env = "PORTCULLIS_ALLOW_INSECURE_BACKEND",
          default_value_t = InsecureBackend::default())]
    pub allow_insecure_backend: InsecureBackend,
    /// The most specific level at which policies may weaken TLS to backends: route, listener-set, gateway, consumer or producer
    #[arg(long, value_name = "LEVEL", env = "PORTCULLIS_BACKEND_TLS_FLOOR", default_value_t = PolicyLevel::default())]
    pub backend_tls_floor: PolicyLevel,
}

impl From<&PermissionFlags> for Permissions {
    fn from(flags: &PermissionFlags) -> Self {
        let PermissionFlags {
            backend_kinds,
            allow_insecure_backend,
            backend_tls_floor,
        } = flags;
        let backend_kinds = match backend_kinds.as_slice() {
            [] => BackendKinds::All,
            kinds => {
                let is_first = |index: usize| !kinds[..index].contains(&kinds[index]);
                let each_once = (0..kinds.len()).filter(|index| is_first(*index));
                BackendKinds::Only(each_once.map(|index| kinds[index]).collect())
            }
        };
        Self {
            backend_kinds,
            insecure_backend: *allow_insecure_backend,
            backend_tls_floor: *backend_tls_floor,
        }
    }
}

/// Where the process runs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Location")]
pub struct LocationFlags {
    /// Zone of this process, as in the label topology.kubernetes.io/zone of its node. If all endpoints of a Service have
    /// hints, those for this zone are used [default: unknown, all endpoints are used]
    #[arg(
        long,
        value_name = "ZONE",
        env = "PORTCULLIS_ZONE",
        default_value = "",
        hide_default_value = true
    )]
    pub zone: String,
    /// Node of this process, for endpoint hints that name nodes [default: unknown]
    #[arg(
        long,
        value_name = "NODE",
        env = "PORTCULLIS_NODE",
        default_value = "",
        hide_default_value = true
    )]
    pub node: String,
}

impl From<&LocationFlags> for Location {
    fn from(flags: &LocationFlags) -> Self {
        Self::new(&flags.zone, &flags.node)
    }
}

/// Addresses and name servers of external backends.
#[derive(Args, Debug)]
#[command(next_help_heading = "External backends")]
pub struct ExternalFlags {
    /// Addresses that are not public.
    #[command(flatten)]
    pub addresses: AddressFlags,
    /// Name servers for names of XBackends and of token issuers [default: those of /etc/resolv.conf]
    #[arg(
        long,
        value_name = "ADDR[:PORT],…",
        env = "PORTCULLIS_DNS_SERVER",
        value_delimiter = ',',
        value_parser = super::value::dns_server
    )]
    pub dns_server: Vec<SocketAddr>,
}

/// Addresses that the operator permits objects to lead to, in addition to public ones.
#[derive(Args, Clone, Debug)]
pub struct AddressFlags {
    /// Addresses that names of XBackends may resolve to in addition to public ones. Loopback, private, link-local and other
    /// special addresses are refused by default
    #[arg(
        long,
        value_name = "CIDR,…",
        env = "PORTCULLIS_ALLOW_EXTERNAL_ADDRESS",
        value_delimiter = ',',
        value_parser = super::value::cidr
    )]
    pub allow_external_address: Vec<IpNet>,
    /// Addresses of token issuers.
    #[command(flatten)]
    pub issuers: IssuerAddressFlags,
}

/// Addresses of token issuers, which objects name as text, so that they can be checked without a look-up.
#[derive(Args, Clone, Debug)]
pub struct IssuerAddressFlags {
    /// Addresses that keys of token issuers may be fetched from, and OpenID providers be asked at, in addition to public ones:
    /// those that the URI of an AccessPolicy names or resolves to. Keys of a Service may also come from addresses of pods
    #[arg(
        long,
        value_name = "CIDR,…",
        env = "PORTCULLIS_ALLOW_JWKS_ADDRESS",
        value_delimiter = ',',
        value_parser = super::value::cidr
    )]
    pub allow_jwks_address: Vec<IpNet>,
}

/// Log of the process.
#[derive(Args, Debug)]
#[command(next_help_heading = "Log")]
pub struct LogFlags {
    /// Format of the log on standard error
    #[arg(
        long,
        value_name = "FORMAT",
        env = "PORTCULLIS_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
    /// Level, or directives such as `info,portcullis::proxy=debug` [default: RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL", env = "PORTCULLIS_LOG_LEVEL")]
    pub log_level: Option<String>,
}

/// Access log.
#[derive(Args, Debug)]
#[command(next_help_heading = "Access log")]
pub struct AccessLogFlags {
    /// Access log, one JSON line per request, and per connection that is forwarded as it is: `on` writes to standard output, a path appends to a file, which is reopened
    /// on SIGUSR1 and after it was moved or deleted
    #[arg(long, value_name = "on|off|PATH", env = "PORTCULLIS_ACCESS_LOG", default_value_t = AccessLogTarget::default())]
    pub access_log: AccessLogTarget,
    /// Requests and connections in the access log: `all`; `errors`, which have a status of 400 or above, or no complete
    /// response, or have failed; or a share such as 0.01, which adds a sample of the others to the errors
    #[arg(long, value_name = "all|errors|SHARE", env = "PORTCULLIS_ACCESS_LOG_FILTER",
          default_value_t = AccessLogFilter::default())]
    pub access_log_filter: AccessLogFilter,
}

/// Graceful shutdown after SIGTERM or SIGINT.
#[derive(Args, Debug)]
#[command(next_help_heading = "Shutdown")]
pub struct DrainFlags {
    /// Time between failing readiness and closing the listeners
    #[arg(long, value_name = "TIME", env = "PORTCULLIS_DRAIN_DELAY", default_value_t = Span(Drain::default().delay))]
    pub drain_delay: Span,
    /// Time after that until connections with requests in flight are closed
    #[arg(long, value_name = "TIME", env = "PORTCULLIS_DRAIN_DEADLINE", default_value_t = Span(Drain::default().deadline))]
    pub drain_deadline: Span,
}

/// Declares [`LimitFlags`]: each flag has the name and the default of a field of [`Limits`].
macro_rules! limit_flags {
    ($($(#[doc = $help:literal])* $name:ident: $type:ty, $value:literal, $env:literal;)*) => {
        /// Timeouts and limits of connections.
        #[derive(Args, Debug)]
        #[command(next_help_heading = "Limits")]
        pub struct LimitFlags {
            /// Maximum client connections of the process; at the limit, a new one replaces an idle one [default: 65536, or
            /// what the file descriptors allow]
            #[arg(long, value_name = "N", env = "PORTCULLIS_MAX_CONNECTIONS")]
            pub max_connections: Option<usize>,
            $(
                $(#[doc = $help])*
                #[arg(long, value_name = $value, env = $env, default_value_t = Limits::default().$name.into())]
                pub $name: $type,
            )*
        }

        impl From<&LimitFlags> for Limits {
            fn from(flags: &LimitFlags) -> Self {
                Self {
                    max_connections: flags.max_connections,
                    $($name: flags.$name.into(),)*
                    ..Self::default()
                }
            }
        }
    };
}

limit_flags! {
    /// Timeout from accepting a connection to the first byte of a request, and from there to the end of the request head
    header_timeout: Span, "TIME", "PORTCULLIS_HEADER_TIMEOUT";
    /// Idle timeout between requests of a connection
    keep_alive_timeout: Span, "TIME", "PORTCULLIS_KEEP_ALIVE_TIMEOUT";
    /// Idle timeout of a request body while more of it is expected
    body_timeout: Span, "TIME", "PORTCULLIS_BODY_TIMEOUT";
    /// Timeout of writes to a client that does not read
    write_timeout: Span, "TIME", "PORTCULLIS_WRITE_TIMEOUT";
    /// Timeout of a TLS handshake with a client
    handshake_timeout: Span, "TIME", "PORTCULLIS_HANDSHAKE_TIMEOUT";
    /// Idle timeout while a response is awaited or streamed
    stream_idle_timeout: Span, "TIME", "PORTCULLIS_STREAM_IDLE_TIMEOUT";
    /// Idle timeout of a connection that is forwarded as it is: a WebSocket, or one of a TCP or TLS listener
    tunnel_idle_timeout: Span, "TIME", "PORTCULLIS_TUNNEL_IDLE_TIMEOUT";
    /// Idle timeout of the datagrams of a client address
    udp_idle_timeout: Span, "TIME", "PORTCULLIS_UDP_IDLE_TIMEOUT";
    /// Timeout of a connect to an endpoint
    connect_timeout: Span, "TIME", "PORTCULLIS_CONNECT_TIMEOUT";
    /// Idle timeout of connections to endpoints
    upstream_idle_timeout: Span, "TIME", "PORTCULLIS_UPSTREAM_IDLE_TIMEOUT";
    /// Idle time after which a client connection releases its buffers
    idle_buffer_timeout: Span, "TIME", "PORTCULLIS_IDLE_BUFFER_TIMEOUT";
    /// Maximum concurrent TLS handshakes of the process; a new one replaces an old one
    max_handshakes: usize, "N", "PORTCULLIS_MAX_HANDSHAKES";
    /// Maximum size of a request or response head
    max_header_bytes: Size, "SIZE", "PORTCULLIS_MAX_HEADER_BYTES";
    /// Maximum number of headers of a request or response
    max_headers: usize, "N", "PORTCULLIS_MAX_HEADERS";
    /// Maximum concurrent streams of an HTTP/2 connection, and requests of an HTTP/3 connection
    max_streams: u32, "N", "PORTCULLIS_MAX_STREAMS";
    /// Maximum idle connections per endpoint and worker
    upstream_max_idle: usize, "N", "PORTCULLIS_UPSTREAM_MAX_IDLE";
}

impl ServeFlags {
    /// Returns the settings of these flags, with objects from `source`.
    pub fn settings(&self, source: Source) -> Settings {
        let mut settings = Settings::new(source);
        if let Some(workers) = self.workers {
            settings.workers = workers.into();
        }
        let addresses = &self.external.addresses;
        Settings {
            admin: self.admin.admin.0,
            admin_token_file: self.admin.admin_token_file.clone(),
            log_format: self.log.log_format,
            access_log: AccessLog::from(&self.access_log),
            ports: Ports::AsDeclared,
            limits: Limits::from(&self.limits),
            trusted_proxies: self.trusted_proxies.clone(),
            metrics: MetricsDetail::from(&self.metrics),
            session_key_file: self.session_key_file.clone(),
            accepted_session_key_file: self.accepted_session_key_file.clone(),
            allowed_external_addresses: addresses.allow_external_address.clone(),
            allowed_jwks_addresses: addresses.issuers.allow_jwks_address.clone(),
            dns_servers: self.external.dns_server.clone(),
            drain: Drain {
                delay: self.drain.drain_delay.0,
                deadline: self.drain.drain_deadline.0,
            },
            permissions: Permissions::from(&self.permissions),
            location: Location::from(&self.location),
            ..settings
        }
    }
}

impl From<&AccessLogFlags> for AccessLog {
    fn from(flags: &AccessLogFlags) -> Self {
        Self {
            target: flags.access_log.clone(),
            filter: flags.access_log_filter,
        }
    }
}

impl LogFlags {
    /// Returns the level or the directives of the log.
    pub fn filter(&self) -> String {
        let environment = || std::env::var("RUST_LOG").ok();
        self.log_level
            .clone()
            .or_else(environment)
            .filter(|filter| !filter.is_empty())
            .unwrap_or_else(|| "info".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    #[test]
    fn location_is_known_as_far_as_flags_name_it() {
        let location = |arguments: &[&str]| {
            let command = ServeFlags::augment_args(Command::new("run"));
            let line = ["run"].iter().chain(arguments);
            let matches = command.try_get_matches_from(line).unwrap();
            let flags = ServeFlags::from_arg_matches(&matches).unwrap();
            flags.settings("folder".into()).location
        };
        let known = |text: &str| Some(text.to_owned());
        let (zone, node) = (known("a"), known("one"));
        let both = location(&["--zone", "a", "--node", "one"]);
        assert_eq!(both, Location { zone, node });
        // As in a pod without the label of a zone.
        let node = known("one");
        let only_node = location(&["--zone", "", "--node", "one"]);
        assert_eq!(only_node, Location { zone: None, node });
    }
}
