//! A Service: one address that forwards to a changeable controller. The test can cut its
//! connections.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Forwards connections until dropped.
pub(crate) struct Service {
    pub(crate) port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Target of new connections. Without a target, they are closed.
    target: Mutex<Option<SocketAddr>>,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Service {
    /// Starts a Service that points nowhere.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let accepting = Arc::downgrade(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Some(shared)) = (client, accepting.upgrade()) else {
                    return;
                };
                let target = *shared.target.lock().unwrap();
                if let Some(server) = target.and_then(|target| TcpStream::connect(target).ok()) {
                    shared.forward(&client, &server);
                }
            }
        });
        Self { port, shared }
    }

    /// Changes the target of new connections. Keeps open ones.
    pub(crate) fn point(&self, target: Option<SocketAddr>) {
        *self.shared.target.lock().unwrap() = target;
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        for socket in self.shared.sockets.lock().unwrap().drain(..) {
            // Fails for closed connections, which is ignored.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.point(None);
        self.cut();
    }
}

impl Shared {
    fn forward(&self, client: &TcpStream, server: &TcpStream) {
        for (from, to) in [(client, server), (server, client)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            self.sockets.lock().unwrap().push(from.try_clone().unwrap());
            thread::spawn(move || {
                // A connection that is cut ends here.
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
            });
        }
    }
}
