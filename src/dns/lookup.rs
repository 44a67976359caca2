//! DNS lookups: A and AAAA records from the system's or from configured name servers, and from the
//! system's hosts file.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;

use super::{Answer, Lookup, LookupError};

/// Resolves names like the system, but without search domains.
#[derive(Default)]
pub struct SystemLookup {
    servers: Vec<SocketAddr>,
    /// Created on the first lookup, and recreated after a failure, since the system's configuration
    /// may have changed.
    resolver: Option<TokioResolver>,
}

impl SystemLookup {
    /// Queries these name servers, or those of /etc/resolv.conf if empty.
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self {
            servers,
            resolver: None,
        }
    }

    fn resolver(&mut self) -> Result<TokioResolver, NetError> {
        if let Some(resolver) = &self.resolver {
            return Ok(resolver.clone());
        }
        let mut builder = if self.servers.is_empty() {
            TokioResolver::builder_tokio()?
        } else {
            let config = ResolverConfig::from_parts(None, Vec::new(), name_servers(&self.servers));
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        let options: &mut ResolverOpts = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        // Names are resolved again when their TTL expires. A cache would only delay that.
        options.cache_size = 0;
        let resolver = builder.build()?;
        self.resolver = Some(resolver.clone());
        Ok(resolver)
    }
}

impl Lookup for SystemLookup {
    fn lookup(&mut self, name: &str) -> BoxFuture<'static, Result<Answer, LookupError>> {
        let resolver = match self.resolver() {
            Ok(resolver) => resolver,
            Err(error) => return ready(Err(lookup_error(&error))).boxed(),
        };
        // The trailing dot makes the name fully qualified.
        let name = match Name::from_ascii(format!("{name}.")) {
            Ok(name) => name,
            Err(error) => return ready(Err(LookupError::Failed(error.to_string()))).boxed(),
        };
        async move {
            let found = resolver
                .lookup_ip(name)
                .await
                .map_err(|error| lookup_error(&error))?;
            let ttl = found
                .valid_until()
                .saturating_duration_since(Instant::now());
            let addresses: Vec<IpAddr> = found.iter().collect();
            if addresses.is_empty() {
                return Err(LookupError::NoAddress);
            }
            Ok(Answer { addresses, ttl })
        }
        .boxed()
    }

    fn on_failure(&mut self) {
        self.resolver = None;
    }
}

/// Groups the servers by address, each with all its ports. Uses UDP, and TCP for truncated
/// responses.
fn name_servers(servers: &[SocketAddr]) -> Vec<NameServerConfig> {
    let mut ports: BTreeMap<IpAddr, Vec<u16>> = BTreeMap::new();
    for server in servers {
        ports.entry(server.ip()).or_default().push(server.port());
    }
    let server = |(ip, ports): (IpAddr, Vec<u16>)| {
        let mut server = NameServerConfig::udp_and_tcp(ip);
        let connections = ports.into_iter().flat_map(|port| {
            let at_port = |mut connection: ConnectionConfig| {
                connection.port = port;
                connection
            };
            [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(at_port)
        });
        server.connections = connections.collect();
        server
    };
    ports.into_iter().map(server).collect()
}

fn lookup_error(error: &NetError) -> LookupError {
    if error.is_no_records_found() {
        LookupError::NoAddress
    } else {
        LookupError::Failed(error.to_string())
    }
}
