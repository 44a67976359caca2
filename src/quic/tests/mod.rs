//! Clients against a server with two workers on two threads.

mod fixtures;
mod floods;
mod handshakes;
mod paths;
