//! A UDP port in a process with few file descriptors: which sessions end first.

use std::collections::HashSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use crate::client::get;
use crate::harness::TEST_TIMEOUT;
use crate::harness::ports::closed_address;
use crate::harness::yaml;
use crate::scene::{Objects, eventually, write};
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
    /// Starts with this number of descriptors and these arguments.
    fn start(objects: &Objects, descriptors: usize, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), "objects.yaml", &objects.text());
        let admin = closed_address();
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("ulimit -n {descriptors}; exec \"$0\" \"$@\""))
            .arg(env!("CARGO_BIN_EXE_portcullis"))
            .args(["run", "--workers", "1", "--drain-delay", "0s"])
            .args(["--admin", &admin.to_string()])
            .args(arguments)
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
        eventually("it is started", async || {
            TcpStream::connect(self.admin).await.is_ok()
        })
        .await;
        let metrics = get(self.admin, "localhost", "/metrics").await;
        let mut lines = metrics.text().lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.unwrap_or_else(|| panic!("no {name}"));
        value.parse().expect("a number")
    }

    /// Waits until a metric has this value.
    async fn until_metric(&self, name: &str, value: usize) {
        eventually(name, async || self.metric(name).await == value).await;
    }

    /// Returns the memory of the process without its code, in KiB.
    fn memory(&self) -> usize {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(path).expect("the process runs");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let value = line.and_then(|line| line.trim().strip_suffix(" kB"));
        value.expect("a line").trim().parse().expect("a number")
    }

    async fn until_ready(&self) {
        eventually("it is ready", async || {
            TcpStream::connect(self.admin).await.is_ok()
                && get(self.admin, "localhost", "/readyz").await.status == 200
        })
        .await;
    }
}

/// Returns the address of a UDP port, and objects that forward its datagrams to this backend.
fn port_to(backend: &Echo) -> (SocketAddr, Objects) {
    let (addresses, objects) = ports_to(backend, 1);
    (addresses[0], objects)
}

/// Returns the addresses of this number of UDP ports, and objects that forward their datagrams to this backend.
fn ports_to(backend: &Echo, count: usize) -> (Vec<SocketAddr>, Objects) {
    let address = |_| SocketAddr::from((Ipv4Addr::LOCALHOST, closed_address().port()));
    let addresses: Vec<SocketAddr> = (0..count).map(address).collect();
    let listener = |address: &SocketAddr| {
        let port = address.port();
        format!("{{name: udp-{port}, port: {port}, protocol: UDP}}")
    };
    let listeners: Vec<_> = addresses.iter().map(listener).collect();
    let local = "  addresses: [{type: IPAddress, value: 127.0.0.1}]\n";
    let objects = Objects::default()
        .with(yaml::gateway_with("gateway", &listeners, local))
        .with(service("app", &[backend.address]))
        .with(udp_route(&[("app", 1)]));
    (addresses, objects)
}

#[tokio::test]
async fn full_port_ends_sessions_of_unproven_clients_first() {
    let backend = Echo::start("").await;
    let (address, objects) = port_to(&backend);
    let program = Program::start(&objects, 256, &[]);
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

#[tokio::test]
async fn client_that_keeps_all_sessions_in_use_makes_room_for_others() {
    const UNFORWARDED: &str = "portcullis_unforwarded_total";
    let backend = Echo::start("").await;
    let (address, objects) = port_to(&backend);
    let program = Program::start(&objects, 1024, &[]);
    program.until_ready().await;
    let mut crowd = Vec::new();
    // More than the process has descriptors for. Where the machine is slow, the first are quiet and end before that.
    for _ in 0..400 {
        let client = Client::of(address).await;
        tokio::select! {
            answer = client.ask("hello") => assert_eq!(answer, "hello"),
            () = program.until_metric(UNFORWARDED, 1) => break,
        }
        assert_eq!(client.ask("again").await, "again");
        crowd.push(client);
    }
    let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).await;
    let socket = socket.expect("a free port");
    socket.connect(address).await.expect("connected");
    let other = Client(socket);
    assert_eq!(other.ask("hello").await, "hello");
    for client in &crowd {
        client.send(b"more").await;
        assert_eq!(other.ask("again").await, "again");
    }
}

#[tokio::test]
async fn ports_share_the_sessions_of_the_process() {
    let backend = Echo::start("").await;
    let (addresses, objects) = ports_to(&backend, 4);
    let program = Program::start(&objects, 256, &[]);
    program.until_ready().await;
    let mut clients = Vec::new();
    for address in addresses {
        for _ in 0..60 {
            let client = Client::of(address).await;
            assert_eq!(client.ask("hello").await, "hello");
            // No other client gets its address.
            clients.push(client);
        }
    }
    // A quarter of what the process has for all of its connections.
    let open = program.metric("portcullis_udp_sessions_open").await;
    assert!((4..=43).contains(&open), "{open}");
    assert_eq!(program.metric("portcullis_unforwarded_total").await, 0);
}

/// Lets a datagram come from each of this number of source ports, while polite clients keep asking. Checks that these keep
/// their sessions, that memory is bounded meanwhile, and is back where it was after the sessions have ended.
async fn flood(ports: usize) {
    const POLITE: usize = 10;
    /// Fewer than the buffer of a socket takes.
    const STEP: usize = 100;
    /// KiB that the sessions of the port may take, and what may be left of them.
    const BOUND: usize = 40_000;
    const LEFT: usize = 8_000;
    let backend = Echo::start("").await;
    let (address, objects) = port_to(&backend);
    let program = Program::start(&objects, 20_000, &["--udp-idle-timeout", "4s"]);
    program.until_ready().await;
    let mut polite = Vec::new();
    for _ in 0..POLITE {
        let client = Client::of(address).await;
        assert_eq!(client.ask("hello").await, "hello");
        assert_eq!(client.ask("again").await, "again");
        polite.push(client);
    }
    let sessions = backend.peers().iter().copied().collect::<HashSet<_>>();
    assert_eq!(sessions.len(), POLITE);
    let before = program.memory();
    let mut most = before;
    for step in 0..ports / STEP {
        let source = Ipv4Addr::new(127, 1, (step / 250) as u8, (step % 250) as u8 + 1);
        let bind = |_| std::net::UdpSocket::bind((source, 0)).expect("a free port");
        let sockets: Vec<_> = (0..STEP).map(bind).collect();
        for socket in &sockets {
            socket.send_to(b"flood", address).expect("sent");
        }
        // The answers show that the port has taken the datagrams before.
        for client in &polite {
            assert_eq!(client.ask("still here").await, "still here");
        }
        most = most.max(program.memory());
    }
    let total = program.metric("portcullis_udp_sessions_total").await;
    assert_eq!(
        total,
        ports + POLITE,
        "polite clients have one session each"
    );
    assert_eq!(program.metric("portcullis_unforwarded_total").await, 0);
    program
        .until_metric("portcullis_udp_sessions_open", 0)
        .await;
    let released = async {
        while program.memory() > before + LEFT {
            // No notification tells the change.
            sleep(Duration::from_millis(50)).await;
        }
    };
    let released = timeout(TEST_TIMEOUT, released).await;
    eprintln!(
        "{before} KiB before, {most} at most, {} after",
        program.memory()
    );
    assert!(
        released.is_ok(),
        "{before} KiB before, {} after",
        program.memory()
    );
    assert!(most < before + BOUND, "{before} KiB before, {most} at most");
}

#[tokio::test]
async fn memory_is_bounded_and_returns_after_a_flood_of_source_ports() {
    flood(20_000).await;
}

#[tokio::test]
#[ignore = "takes a minute: cargo test --test proxy udp_limits -- --ignored"]
async fn memory_is_bounded_and_returns_after_a_flood_of_all_source_ports() {
    flood(100_000).await;
}
