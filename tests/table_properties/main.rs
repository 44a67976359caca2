//! Properties of the table over random configurations: the index finds the same as a scan in the API's order, and a
//! table built from its predecessor serves the same as a new one. Must not use the internals of the index.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod configuration;
mod precedence;
mod properties;
mod request;
mod reuse;
mod scan;

use portcullis::ir::Bind;

const HOSTNAMES: [&str; 7] = ["", "a", "b.a", "c.b.a", "*.a", "*.b.a", "*.c.b.a"];
const HOSTS: [&str; 8] = ["a", "b.a", "c.b.a", "d.c.b.a", "x.a", "ba", ".a", ""];
const PATHS: [&str; 12] = [
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/a/b/",
    "/ab",
    "/a/b/c",
    "/%C3%A9/a",
    "//a",
    "/b",
    "*",
    "",
];
const BIND: Bind = Bind::tcp(None, 80);
