//! `portcullis completions`: prints a script that completes the command line in a shell.

use std::io::{self, Write};

use clap_complete::Shell;

/// Print a completion script for a shell.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis completions bash > ~/.local/share/bash-completion/completions/portcullis
  portcullis completions zsh > \"${fpath[1]}/_portcullis\"
  portcullis completions fish > ~/.config/fish/completions/portcullis.fish

Exit codes: 0 on success, 2 for wrong usage.")]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(args: &Args, mut command: clap::Command) -> io::Result<()> {
    let mut script = Vec::new();
    // clap_complete panics when it cannot write.
    clap_complete::generate(args.shell, &mut command, "portcullis", &mut script);
    io::stdout().write_all(&script)
}
