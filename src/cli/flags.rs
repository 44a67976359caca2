//! The flags and environment variables of a data plane, and how they become [`Settings`]. Defaults stand in
//! `settings.rs` only.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use ipnet::IpNet;

use super::value::{AdminAddress, Size, Span};
use crate::location::Location;
use crate::permissions::{BackendKinds, InsecureBackend, Permissions, PolicyLevel};
use crate::settings::{
    AccessLog, AccessLogFilter, AccessLogTarget, Drain, Limits, LogFormat, Ports, Settings, Source,
};

/// Flags that every data plane has, wherever its objects come from.
#[derive(Args, Debug)]
pub struct ServeFlags {
    /// Address of /healthz, /readyz and /metrics, and of /config and the status page for those on loopback; or `off`
    #[arg(long, value_name = "ADDR|off", env = "PORTCULLIS_ADMIN",
          default_value_t = AdminAddress(Some(Settings::ADMIN)))]
    pub admin: AdminAddress,
    /// Worker threads [default: the cores that the process may use]
    #[arg(long, value_name = "N", env = "PORTCULLIS_WORKERS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Clients whose X-Forwarded-* and Forwarded headers are believed; those of all others are overwritten
    #[arg(
        long,
        value_name = "CIDR,…",
        env = "PORTCULLIS_TRUSTED_PROXIES",
        value_delimiter = ','
    )]
    pub trusted_proxies: Vec<IpNet>,
    /// File with the secret of at least 32 bytes that seals session tokens, the same for all replicas [default: a key of
    /// its own for each process, with which sessions end]
    #[arg(long, value_name = "FILE", env = "PORTCULLIS_SESSION_KEY_FILE")]
    pub session_key_file: Option<PathBuf>,
    /// What objects may do.
    #[command(flatten)]
    pub permissions: PermissionFlags,
    /// Where the process runs.
    #[command(flatten)]
    pub location: LocationFlags,
    /// What names of backends resolve to.
    #[command(flatten)]
    pub external: ExternalFlags,
    /// Log and access log.
    #[command(flatten)]
    pub log: LogFlags,
    /// Leaving.
    #[command(flatten)]
    pub drain: DrainFlags,
    /// Timeouts and caps.
    #[command(flatten)]
    pub limits: LimitFlags,
}

/// What the operator permits objects to do. Every process that judges or serves them has to have the same.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Permissions")]
pub struct PermissionFlags {
    /// Kinds that may be backends, each as GROUP/VERSION.Kind, such as v1.Service [default: all that are built in]
    #[arg(
        long,
        value_name = "GVK,…",
        env = "PORTCULLIS_BACKEND_KINDS",
        value_delimiter = ',',
        value_parser = super::value::backend_kind
    )]
    pub backend_kinds: Vec<&'static str>,
    /// Whether policies may have backends verified by pins alone (pins-only), or not at all (skip-verify, with pins-only)
    #[arg(long, value_name = "none|pins-only|skip-verify", env = "PORTCULLIS_ALLOW_INSECURE_BACKEND",
          default_value_t = InsecureBackend::default())]
    pub allow_insecure_backend: InsecureBackend,
    /// The most precise level at which policies may weaken TLS to backends: route, listener-set, gateway, consumer or producer
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
    /// Zone of this process, as in the label topology.kubernetes.io/zone of its node: endpoints with hints for it are used
    /// where all have hints [default: unknown, all endpoints are used]
    #[arg(
        long,
        value_name = "ZONE",
        env = "PORTCULLIS_ZONE",
        default_value = "",
        hide_default_value = true
    )]
    pub zone: String,
    /// Node of this process, for hints for nodes [default: unknown]
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

/// What names of XBackends resolve to.
#[derive(Args, Debug)]
#[command(next_help_heading = "External backends")]
pub struct ExternalFlags {
    /// Addresses that names of XBackends may resolve to, beside public ones: loopback, private, link-local and other special
    /// addresses are refused otherwise
    #[arg(
        long,
        value_name = "CIDR,…",
        env = "PORTCULLIS_ALLOW_EXTERNAL_ADDRESS",
        value_delimiter = ','
    )]
    pub allow_external_address: Vec<IpNet>,
    /// Name servers to resolve names of XBackends with [default: those of /etc/resolv.conf]
    #[arg(
        long,
        value_name = "ADDR[:PORT],…",
        env = "PORTCULLIS_DNS_SERVER",
        value_delimiter = ',',
        value_parser = super::value::dns_server
    )]
    pub dns_server: Vec<SocketAddr>,
}

/// What is logged, and how.
#[derive(Args, Debug)]
#[command(next_help_heading = "Log")]
pub struct LogFlags {
    /// Shape of the log on standard error
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
    /// One JSON line per request on standard output (on), or at the end of a file, which is reopened on SIGUSR1 and when
    /// it was moved or deleted
    #[arg(long, value_name = "on|off|PATH", env = "PORTCULLIS_ACCESS_LOG", default_value_t = AccessLogTarget::default())]
    pub access_log: AccessLogTarget,
    /// Requests in the access log: all; errors, which are those with a status of 400 or above, no response or an aborted
    /// one; or errors and a share of the others, such as 0.01
    #[arg(long, value_name = "all|errors|SHARE", env = "PORTCULLIS_ACCESS_LOG_FILTER",
          default_value_t = AccessLogFilter::default())]
    pub access_log_filter: AccessLogFilter,
}

/// How the process leaves after SIGTERM or SIGINT.
#[derive(Args, Debug)]
#[command(next_help_heading = "Leaving")]
pub struct DrainFlags {
    /// From "not ready" until nothing new is accepted
    #[arg(long, value_name = "TIME", env = "PORTCULLIS_DRAIN_DELAY", default_value_t = Span(Drain::default().delay))]
    pub drain_delay: Span,
    /// From then until what is still in flight is cut
    #[arg(long, value_name = "TIME", env = "PORTCULLIS_DRAIN_DEADLINE", default_value_t = Span(Drain::default().deadline))]
    pub drain_deadline: Span,
}

/// Declares [`LimitFlags`]: each flag is named for a field of [`Limits`], whose default it has.
macro_rules! limit_flags {
    ($($(#[doc = $help:literal])* $name:ident: $type:ty, $value:literal, $env:literal;)*) => {
        /// Timeouts and caps of connections.
        #[derive(Args, Debug)]
        #[command(next_help_heading = "Limits")]
        pub struct LimitFlags {
            $(
                $(#[doc = $help])*
                #[arg(long, value_name = $value, env = $env, default_value_t = Limits::default().$name.into())]
                pub $name: $type,
            )*
        }

        impl From<&LimitFlags> for Limits {
            fn from(flags: &LimitFlags) -> Self {
                Self { $($name: flags.$name.into(),)* }
            }
        }
    };
}

limit_flags! {
    /// From accepting to the first byte of a request, and from there to the end of its head
    header_timeout: Span, "TIME", "PORTCULLIS_HEADER_TIMEOUT";
    /// Idle time between requests of a connection
    keep_alive_timeout: Span, "TIME", "PORTCULLIS_KEEP_ALIVE_TIMEOUT";
    /// No byte of a request body while one is awaited
    body_timeout: Span, "TIME", "PORTCULLIS_BODY_TIMEOUT";
    /// The client takes nothing of what is written to it
    write_timeout: Span, "TIME", "PORTCULLIS_WRITE_TIMEOUT";
    /// A TLS handshake
    handshake_timeout: Span, "TIME", "PORTCULLIS_HANDSHAKE_TIMEOUT";
    /// No byte either way while a response is awaited or streamed
    stream_idle_timeout: Span, "TIME", "PORTCULLIS_STREAM_IDLE_TIMEOUT";
    /// No byte either way in an upgraded connection, such as a WebSocket
    tunnel_idle_timeout: Span, "TIME", "PORTCULLIS_TUNNEL_IDLE_TIMEOUT";
    /// Connecting to an endpoint
    connect_timeout: Span, "TIME", "PORTCULLIS_CONNECT_TIMEOUT";
    /// How long an unused connection to an endpoint is kept
    upstream_idle_timeout: Span, "TIME", "PORTCULLIS_UPSTREAM_IDLE_TIMEOUT";
    /// How long a connection is idle before it gives its buffers back
    park_after: Span, "TIME", "PORTCULLIS_PARK_AFTER";
    /// Client connections of the process
    max_connections: usize, "N", "PORTCULLIS_MAX_CONNECTIONS";
    /// TLS handshakes of the process at one time; the oldest make room
    max_handshakes: usize, "N", "PORTCULLIS_MAX_HANDSHAKES";
    /// Bytes of the head of a request or a response, in HTTP/1.1 and HTTP/2
    max_header_bytes: Size, "SIZE", "PORTCULLIS_MAX_HEADER_BYTES";
    /// Headers of a request or a response
    max_headers: usize, "N", "PORTCULLIS_MAX_HEADERS";
    /// Streams of an HTTP/2 connection at one time
    max_streams: u32, "N", "PORTCULLIS_MAX_STREAMS";
    /// Unused connections kept per endpoint and worker
    upstream_max_idle: usize, "N", "PORTCULLIS_UPSTREAM_MAX_IDLE";
}

impl ServeFlags {
    /// The settings that these flags ask for, with objects from `source`.
    pub fn settings(&self, source: Source) -> Settings {
        let mut settings = Settings::new(source);
        if let Some(workers) = self.workers {
            settings.workers = workers.into();
        }
        Settings {
            admin: self.admin.0,
            log_format: self.log.log_format,
            access_log: self.log.access_log(),
            ports: Ports::AsDeclared,
            limits: Limits::from(&self.limits),
            trusted_proxies: self.trusted_proxies.clone(),
            session_key_file: self.session_key_file.clone(),
            allowed_external_addresses: self.external.allow_external_address.clone(),
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

impl LogFlags {
    /// The settings of the access log.
    pub fn access_log(&self) -> AccessLog {
        AccessLog {
            target: self.access_log.clone(),
            filter: self.access_log_filter,
        }
    }

    /// The level or directives to log by.
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
