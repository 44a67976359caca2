//! The `portcullis` program: hands the command line to [`portcullis::cli`].

mod memory;

use std::process::ExitCode;

fn main() -> ExitCode {
    memory::release_when_idle();
    portcullis::cli::main(std::env::args_os())
}
