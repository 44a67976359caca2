//! A UDP port in a process with few file descriptors: which sessions end first.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::get;
use crate::harness::TEST_TIMEOUT;
use crate::harness::ports::closed_address;
use crate::harness::yaml;
use crate::scene::{Objects, write};
use crate::udp_route::{Client, Echo, service, udp_route};

/// The program in its own process, which may open few files; killed when dropped.
struct Program {
    child: Child,
    admin: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(objects: &Objects) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), "objects.yaml", &objects.text());
        let admin = closed_address();
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_portcullis"))
            .args(["run", "--workers", "1", "--drain-delay", "0s"])
            .args(["--admin", &admin.to_string()])
            .arg("--config-dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self {
            child: command.spawn().expect("started"),
            admin,
            _folder: folder,
        }
    }

    /// Returns a metric without labels, once the program serves metrics.
    async fn metric(&self, name: &str) -> usize {
        let running = async {
            while TcpStream::connect(self.admin).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(TEST_TIMEOUT, running)
            .await
            .expect("started in time");
        let metrics = get(self.admin, "localhost", "/metrics").await;
        let mut lines = metrics.text().lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.unwrap_or_else(|| panic!("no {name}"));
        value.parse().expect("a number")
    }

    async fn until_ready(&self) {
        let ready = async {
            loop {
                if TcpStream::connect(self.admin).await.is_ok()
                    && get(self.admin, "localhost", "/readyz").await.status == 200
                {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(TEST_TIMEOUT, ready).await.expect("ready in time");
    }
}

#[tokio::test]
async fn full_port_ends_sessions_of_unproven_clients_first() {
    let backend = Echo::start("").await;
    let address: SocketAddr = (Ipv4Addr::LOCALHOST, closed_address().port()).into();
    let listener = format!("{{name: udp, port: {}, protocol: UDP}}", address.port());
    let local = "  addresses: [{type: IPAddress, value: 127.0.0.1}]\n";
    let objects = Objects::default()
        .with(yaml::gateway_with("gateway", &[listener], local))
        .with(service("app", &[backend.address]))
        .with(udp_route(&[("app", 1)]));
    let program = Program::start(&objects);
    program.until_ready().await;
    let proven = Client::of(address).await;
    for _ in 0..3 {
        assert_eq!(proven.ask("hello").await, "hello");
    }
    let peer = backend.peers()[0];
    // More clients than a process with 256 descriptors can have sockets for.
    let mut others = Vec::new();
    for _ in 0..400 {
        let client = Client::of(address).await;
        assert_eq!(client.ask("hello").await, "hello");
        // No other client gets its address.
        others.push(client);
    }
    assert_eq!(proven.ask("hello").await, "hello");
    assert_eq!(backend.peers().last(), Some(&peer), "the same session");
    let open = program.metric("portcullis_udp_sessions_open").await;
    assert!((10..128).contains(&open), "{open}");
    assert_eq!(program.metric("portcullis_udp_sessions_total").await, 401);
    assert_eq!(program.metric("portcullis_unforwarded_total").await, 0);
}
