//! `portcullis man`: writes manual pages of the command line, in roff, from the help of its commands and flags.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;

/// Write manual pages into a folder: one of the program and one of each command
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis man ~/.local/share/man/man1
  portcullis man /tmp && man /tmp/portcullis-run.1

Exit codes: 0 on success, 1 if a page cannot be written, 2 for wrong usage.")]
pub struct Args {
    /// The folder, which has to exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes the pages.
///
/// # Errors
/// When a page cannot be written.
pub fn run(args: &Args, command: Command) -> anyhow::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write(args, &command)?;
    let mut shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    shown.try_for_each(|one| write(args, one))
}

fn write(args: &Args, command: &Command) -> anyhow::Result<()> {
    let source = concat!("portcullis ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).source(source);
    let path = args.folder.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text)
        .and_then(|()| fs::write(&path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}
