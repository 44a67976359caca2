//! `portcullis status --readiness`, as a pod without a shell asks it.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread::{self, JoinHandle};

use crate::{output, stdout};

/// Serves one response on a free port. Returns its address, and the line of the request once it was served.
fn serve(status: &str, body: &str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let length = body.len();
    let response =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let lines = lines.map(Result::unwrap);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        stream.write_all(response.as_bytes()).unwrap();
        head[0].clone()
    });
    (address, server)
}

#[test]
fn readiness_is_the_exit_code_and_the_reason() {
    for (status, body, code, printed) in [
        ("200 OK", "ready\n", 0, "ready\n"),
        (
            "503 Service Unavailable",
            "port 80 is in use\n",
            1,
            "port 80 is in use\n",
        ),
        ("404 Not Found", "nothing\n", 3, ""),
    ] {
        let (address, server) = serve(status, body);
        let output = output(&["status", "--readiness", "--admin", &address]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!(stdout(&output), printed);
        assert_eq!(server.join().unwrap(), "GET /readyz HTTP/1.1");
    }
}

#[test]
fn readiness_has_one_format() {
    let output = output(&["status", "--readiness", "-o", "json"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("cannot be used with"), "{error}");
}
