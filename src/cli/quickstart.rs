//! `portcullis quickstart`: serves `config/quickstart` on loopback ports, with two echo backends and a certificate that
//! is generated at start. After this set-up it runs the same server as `run`.

use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

use super::certificate::self_signed;
use super::echo;
use super::flags::{AccessLogFlags, LogFlags};
use super::value::AdminAddress;
use crate::process::data_plane;
use crate::settings::{AccessLog, Drain, Settings};
use crate::telemetry;

const GATEWAY: &str = include_str!("../../config/quickstart/gateway.yaml");
const ROUTE: &str = include_str!("../../config/quickstart/route.yaml");
const BACKENDS: &str = include_str!("../../config/quickstart/backends.yaml");

/// Name and declared port of each backend.
const ECHOES: [(&str, u16); 2] = [("stable", 9001), ("canary", 9002)];
const HTTP: u16 = 8080;
const HTTPS: u16 = 8443;
const HOST: &str = "demo.example.com";

/// Serve a small demonstration on loopback, with two backends and a generated certificate.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis quickstart
  portcullis quickstart --http-port 18080 --https-port 18443 --admin off

Serves a temporary copy of config/quickstart and prints its path: edit the files to see a reload. Ctrl-C stops it.
Exit codes: 0 after SIGTERM or Ctrl-C, 1 if it cannot start, such as when a port is in use, 2 for wrong usage.")]
pub struct Args {
    /// Port of the HTTP listener
    #[arg(long, value_name = "PORT", default_value_t = HTTP, env = "PORTCULLIS_QUICKSTART_HTTP_PORT",
          value_parser = clap::value_parser!(u16).range(1..))]
    http_port: u16,
    /// Port of the HTTPS listener
    #[arg(long, value_name = "PORT", default_value_t = HTTPS, env = "PORTCULLIS_QUICKSTART_HTTPS_PORT",
          value_parser = clap::value_parser!(u16).range(1..))]
    https_port: u16,
    /// Admin address: /healthz, /readyz and /metrics; everything else for clients on loopback; `off` disables it
    #[arg(long, value_name = "ADDR|off", env = "PORTCULLIS_ADMIN",
          default_value_t = AdminAddress(Some(Settings::ADMIN)))]
    admin: AdminAddress,
    /// Log and access log.
    #[command(flatten)]
    log: LogFlags,
    /// Access log.
    #[command(flatten)]
    access_log: AccessLogFlags,
}

/// Serves until a signal.
pub fn run(args: &Args) -> anyhow::Result<()> {
    telemetry::log::start(args.log.log_format, &args.log.filter())?;
    args.require_free_ports()?;
    let backends = start_backends()?;
    let folder = Folder::new()?;
    folder.fill(args, &backends)?;
    std::thread::Builder::new().name("greeting".into()).spawn({
        let greeting = args.greeting(&folder.0);
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, args.http_port));
        let admin = args.admin.0;
        move || greet(http, admin, &greeting)
    })?;
    data_plane::run(&Settings {
        admin: args.admin.0,
        log_format: args.log.log_format,
        access_log: AccessLog::from(&args.access_log),
        drain: Drain {
            delay: Duration::ZERO,
            deadline: Duration::from_secs(5),
        },
        ..Settings::new(&folder.0)
    })
}

impl Args {
    /// Fails early if a port is in use. The server itself would retry the bind forever.
    fn require_free_ports(&self) -> anyhow::Result<()> {
        if self.http_port == self.https_port {
            bail!("--http-port and --https-port must differ");
        }
        require_free(
            (Ipv4Addr::LOCALHOST, self.http_port).into(),
            "--http-port PORT",
        )?;
        require_free(
            (Ipv4Addr::LOCALHOST, self.https_port).into(),
            "--https-port PORT",
        )?;
        if let Some(admin) = self.admin.0 {
            require_free(admin, "--admin ADDR, or --admin off")?;
        }
        Ok(())
    }

    fn greeting(&self, folder: &Path) -> String {
        let (http, https) = (self.http_port, self.https_port);
        let mut text = format!(
            "\nPortcullis serves {folder}. Try:\n\
             \n  curl http://localhost:{http}/hello\
             \n  curl -H 'X-Version: canary' http://localhost:{http}/hello\
             \n  curl -i http://localhost:{http}/old/page\
             \n  curl -k --resolve {HOST}:{https}:127.0.0.1 https://{HOST}:{https}/hello\n",
            folder = folder.display(),
        );
        if let Some(admin) = self.admin.0 {
            text.push_str(&format!(
                "\nStatus page: http://{admin}/   Metrics: http://{admin}/metrics\n"
            ));
        }
        text.push_str("Ctrl-C stops it.\n");
        text
    }
}

fn require_free(address: SocketAddr, flag: &str) -> anyhow::Result<()> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(error) => bail!("{address} cannot be used: {error}. Choose another one with {flag}"),
    }
}

/// Starts the echo backends on their declared ports, or on free ones. Returns their addresses.
fn start_backends() -> anyhow::Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    let mut listeners = Vec::new();
    for (name, port) in ECHOES {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .with_context(|| format!("no port of 127.0.0.1 for the backend {name}"))?;
        listener.set_nonblocking(true)?;
        addresses.push(listener.local_addr()?);
        listeners.push((name, listener));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("backends".into())
        .spawn(move || {
            runtime.block_on(async {
                for (name, listener) in listeners {
                    match tokio::net::TcpListener::from_std(listener) {
                        Ok(listener) => drop(tokio::spawn(echo::serve(listener, name))),
                        Err(error) => tracing::error!(%error, name, "a backend cannot start"),
                    }
                }
                std::future::pending::<()>().await;
            });
        })?;
    Ok(addresses)
}

/// Prints the greeting once the server is ready, so that all of its commands work.
fn greet(http: SocketAddr, admin: Option<SocketAddr>, greeting: &str) {
    while !is_ready(http, admin).is_ok_and(|ready| ready) {
        std::thread::sleep(Duration::from_millis(50));
    }
    // Serves also if nobody reads this.
    drop(writeln!(io::stdout(), "{greeting}"));
}

/// Asks the admin server; without one, the HTTP port accepts connections when it is ready.
fn is_ready(http: SocketAddr, admin: Option<SocketAddr>) -> io::Result<bool> {
    let Some(admin) = admin else {
        return TcpStream::connect(http).map(|_| true);
    };
    let mut stream = TcpStream::connect(admin)?;
    write!(
        stream,
        "GET /readyz HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200 "))
}

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let path =
            std::env::temp_dir().join(format!("portcullis-quickstart-{}", std::process::id()));
        // `create` fails if the path exists, and the mode is private: the folder will contain a private key.
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    fn fill(&self, args: &Args, backends: &[SocketAddr]) -> anyhow::Result<()> {
        let mut slices = BACKENDS.to_owned();
        for ((_, declared), address) in ECHOES.iter().zip(backends) {
            let actual = format!("port: {}\n", address.port());
            slices = slices.replace(&format!("port: {declared}\n"), &actual);
        }
        let files = [
            ("gateway.yaml", gateway(args.http_port, args.https_port)),
            ("route.yaml", ROUTE.to_owned()),
            ("backends.yaml", slices),
            ("certificate.yaml", certificate()?),
        ];
        for (name, text) in files {
            fs::write(self.0.join(name), text)
                .with_context(|| format!("cannot write {name} to {}", self.0.display()))?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // An error is ignored: a leftover temporary folder does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the Gateway with these ports and an HTTPS listener.
fn gateway(http: u16, https: u16) -> String {
    let plain = GATEWAY.replace(&format!("port: {HTTP}\n"), &format!("port: {http}\n"));
    format!(
        "{plain}    - name: https
      protocol: HTTPS
      port: {https}
      tls:
        certificateRefs:
          - name: demo-certificate
"
    )
}

fn certificate() -> anyhow::Result<String> {
    let demo = self_signed(&[HOST, "localhost"])?;
    let secret = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": "demo-certificate" },
        "type": "kubernetes.io/tls",
        "stringData": { "tls.crt": demo.certificate, "tls.key": demo.key },
    });
    serde_saphyr::to_string(&secret).context("the demo certificate cannot be written")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::translate_objects;
    use crate::cli::objects::ObjectSource;
    use crate::translate::Options;

    #[test]
    fn all_quickstart_objects_are_accepted() {
        let folder = Folder::new().unwrap();
        let cli = <crate::cli::Cli as clap::Parser>::try_parse_from([
            "portcullis",
            "quickstart",
            "--http-port",
            "18080",
        ]);
        let crate::cli::Command::Quickstart(args) = cli.unwrap().command else {
            panic!("not parsed as quickstart");
        };
        let backends = [7001, 7002].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        folder.fill(&args, &backends).unwrap();
        let source = ObjectSource::Folder(&folder.0);
        let (load, _, translation) = translate_objects(source, &Options::default()).unwrap();
        assert_eq!(load.problems, []);
        assert_eq!(translation.report.problems().collect::<Vec<_>>(), []);
        let ports: Vec<u16> = translation
            .ir
            .ports
            .iter()
            .map(|port| port.bind.port)
            .collect();
        assert_eq!(ports, [HTTPS, 18080]);
        let endpoints: Vec<SocketAddr> = translation
            .ir
            .backends
            .iter()
            .flat_map(|backend| backend.endpoints.addresses().to_vec())
            .collect();
        assert_eq!(endpoints.len(), 2);
        assert!(backends.iter().all(|address| endpoints.contains(address)));
    }
}
