//! A client of a pod with one connection, which stays open, and the end of a load of several clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use crate::TEST_TIMEOUT;

/// One connection.
pub(crate) struct Client(TcpStream);

impl Client {
    pub(crate) fn connect(port: u16) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        socket.set_nodelay(true).unwrap();
        Self(socket)
    }

    /// Sends a request to `host`.example with these lines of headers, and returns the status of the response.
    pub(crate) fn status(&mut self, host: &str, headers: &str) -> u16 {
        let head = format!("GET / HTTP/1.1\r\nHost: {host}.example\r\n{headers}\r\n");
        self.0.write_all(head.as_bytes()).unwrap();
        let mut response = Vec::new();
        let end = loop {
            let mut bytes = [0; 2048];
            let read = self.0.read(&mut bytes).unwrap();
            assert!(read > 0, "the connection ended");
            response.extend_from_slice(&bytes[..read]);
            if let Some(end) = response.windows(4).position(|it| it == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let head = String::from_utf8(response[..end].to_vec()).unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |it| it.parse().unwrap());
        let mut rest = vec![0; length - (response.len() - end)];
        self.0.read_exact(&mut rest).unwrap();
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

/// Tells clients in other threads to end when it is dropped, also where the test fails.
pub(crate) struct EndOfLoad<'a>(pub(crate) &'a AtomicBool);

impl Drop for EndOfLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
