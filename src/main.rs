//! The `portcullis` program: hands the command line to [`portcullis::cli`].

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    portcullis::cli::main(std::env::args_os())
}
