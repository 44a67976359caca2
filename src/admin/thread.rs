//! The thread of the admin server, so that a probe gets its response whatever the other threads do.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::state::AdminState;
use super::{bind, serve};
use crate::runtime::shutdown::Shutdown;

/// The running thread. It ends when this is dropped, or when shutdown is forced.
pub struct AdminThread {
    address: SocketAddr,
    /// Never sends: its drop ends the thread.
    _stop: oneshot::Sender<Infallible>,
}

impl AdminThread {
    /// Binds the address and starts the thread.
    ///
    /// # Errors
    /// When the address cannot be bound, or the thread cannot be started.
    pub fn start(
        address: SocketAddr,
        state: Arc<AdminState>,
        shutdown: Shutdown,
    ) -> io::Result<Self> {
        let listener = bind(address)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            runtime.block_on(async {
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => tokio::select! {
                        () = serve(listener, state, shutdown) => {}
                        _ = stopped => {}
                    },
                    Err(error) => {
                        tracing::error!("cannot accept connections on the admin address: {error}");
                    }
                }
            });
        };
        std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(work)?;
        Ok(Self {
            address,
            _stop: stop,
        })
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
