//! The format of what commands print on standard output, and the exit code of those that have nothing to print.

use std::io::{self, Write};

use serde::Serialize;

/// Exit code of a command that cannot read what it judges or shows: a folder, a cluster or a proxy.
pub(super) const UNREACHABLE: u8 = 3;

/// The format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// For people
    #[default]
    Text,
    /// One JSON document, for programs
    Json,
}

/// The flag for the format.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct OutputFlag {
    /// Format of the output
    #[arg(long, short, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Prints a value as one line of JSON.
pub(super) fn json(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}
