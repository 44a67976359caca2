//! Where the commands that serve nothing read objects from: a folder, or a cluster, whose objects are listed once.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};

use super::admin_client::runtime;
use super::value::namespace;
use crate::cluster::client::ApiServer;
use crate::provider::file::{self, Locations};
use crate::provider::{FileProvider, KubernetesProvider, Listing, Load};
use crate::settings::NamespacedName;
use crate::settings::controller_name::ControllerName;
use crate::telemetry::log;
use crate::translate::{Mode, Options, watched_kinds};

/// The variable for the folder.
pub(super) const CONFIG_DIR: &str = "PORTCULLIS_CONFIG_DIR";

/// The path that means standard input.
pub(super) const STANDARD_INPUT: &str = "-";
/// Maximum size of standard input, and of a pipe.
const MAX_INPUT: u64 = 64 << 20;

/// A cluster whose objects are listed once.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterFlags {
    /// Read the objects of a cluster instead of DIR: lists every kind once, and gets the Secrets and ConfigMaps that they
    /// refer to. Translates them as the controller does
    #[arg(long)]
    pub(super) kubernetes: bool,
    /// Kubeconfig of the cluster [default: KUBECONFIG, else ~/.kube/config, else the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Read this Gateway only, and no other [default: all]
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "kubernetes")]
    gateway: Option<NamespacedName>,
    /// Read only these namespaces and the namespace of --gateway [default: all]
    #[arg(
        long,
        value_name = "NAMESPACE,…",
        requires = "kubernetes",
        value_delimiter = ',',
        value_parser = namespace
    )]
    namespaces: Vec<String>,
    /// Judge Gateways of GatewayClasses with this controllerName
    #[arg(
        long,
        value_name = "DOMAIN/PATH",
        requires = "kubernetes",
        default_value_t
    )]
    pub(super) controller_name: ControllerName,
}

impl ClusterFlags {
    /// Checks that no cluster is named where none is read.
    ///
    /// # Errors
    /// When one is.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let is_named = self.kubeconfig.is_some() || self.context.is_some();
        match is_named && !self.kubernetes {
            true => Err("--kubeconfig and --context are those of a cluster: add --kubernetes"),
            false => Ok(()),
        }
    }
}

/// Where objects are read from.
#[derive(Clone, Copy, Debug)]
pub(super) enum ObjectSource<'a> {
    /// A folder, a file, or standard input.
    Folder(&'a Path),
    /// A cluster.
    Cluster(&'a ClusterFlags),
}

impl<'a> ObjectSource<'a> {
    /// Returns the source of these arguments. --kubernetes has precedence over a folder from the environment.
    ///
    /// # Errors
    /// When the arguments name both or neither.
    pub(super) fn new(
        folder: Option<&'a Path>,
        cluster: &'a ClusterFlags,
    ) -> Result<Self, &'static str> {
        cluster.check()?;
        match folder {
            Some(folder) if cluster.kubernetes && !is_default(folder) => Err(
                "DIR and --kubernetes exclude each other: the first is a folder, the other a cluster",
            ),
            _ if cluster.kubernetes => Ok(Self::Cluster(cluster)),
            Some(folder) => Ok(Self::Folder(folder)),
            None => Err(
                "name a folder or a file of Gateway API YAML, `-` for standard input, or a cluster with --kubernetes",
            ),
        }
    }

    /// Returns how objects of this source are translated.
    pub(super) fn mode(self) -> Mode {
        match self {
            Self::Folder(_) => Mode::Standalone,
            Self::Cluster(_) => Mode::Dedicated,
        }
    }

    /// Reads the objects, and where they are in files. Says on standard error what of a cluster cannot be read and, with
    /// `asks_rights`, which rights the user lacks that a process needs to follow the cluster.
    ///
    /// # Errors
    /// When the folder cannot be read or the API server cannot be reached.
    pub(super) fn load(
        self,
        options: &Options,
        asks_rights: bool,
    ) -> anyhow::Result<(Load, Arc<Locations>)> {
        match self {
            Self::Folder(path) if path == Path::new(STANDARD_INPUT) => {
                Ok(file::load_text(path, &standard_input()?))
            }
            Self::Folder(path) if path.is_file() => file::load_file(path),
            Self::Folder(path) if is_pipe(path) => Ok(file::load_text(path, &pipe_text(path)?)),
            Self::Folder(folder) => {
                let mut provider = FileProvider::new(folder.to_owned());
                Ok((provider.load()?, provider.locations().load_full()))
            }
            Self::Cluster(flags) => {
                let Listing { load, absent, .. } =
                    runtime()?.block_on(list(flags, options, asks_rights))?;
                for line in absent {
                    log::write_line(&format!("portcullis: {line}"));
                }
                Ok((load, Arc::default()))
            }
        }
    }
}

impl fmt::Display for ObjectSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Folder(_) => "the folder",
            Self::Cluster(_) => "the cluster",
        })
    }
}

/// Reads standard input.
///
/// # Errors
/// When it cannot be read, is not text, or is too large.
pub(super) fn standard_input() -> anyhow::Result<String> {
    text_of(io::stdin().lock(), &"standard input")
}

/// Reads a pipe.
pub(super) fn pipe_text(path: &Path) -> anyhow::Result<String> {
    let pipe = File::open(path);
    let pipe = pipe.with_context(|| format!("{} cannot be read", path.display()))?;
    text_of(pipe, &path.display())
}

fn text_of(input: impl Read, name: &dyn fmt::Display) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut limited = input.take(MAX_INPUT + 1);
    limited
        .read_to_string(&mut text)
        .with_context(|| format!("{name} cannot be read"))?;
    if text.len() as u64 > MAX_INPUT {
        bail!("{name} has more than {} MiB", MAX_INPUT >> 20);
    }
    Ok(text)
}

/// Reports whether a path is a pipe, such as that of the shell's `<(command)`.
pub(super) fn is_pipe(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// Returns the folder of the environment.
pub(super) fn default_folder() -> Option<PathBuf> {
    let folder = std::env::var_os(CONFIG_DIR).filter(|it| !it.is_empty());
    folder.map(PathBuf::from)
}

/// Reports whether a folder may come from the environment.
pub(super) fn is_default(folder: &Path) -> bool {
    default_folder().as_deref() == Some(folder)
}

/// Returns the API server of a kubeconfig and a context, or else of the environment.
///
/// # Errors
/// When there is none, or its credentials cannot be had.
pub(super) async fn api_server(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> anyhow::Result<ApiServer> {
    match (kubeconfig, context) {
        (None, None) => ApiServer::from_environment().await,
        (file, context) => ApiServer::from_kubeconfig(file, context).await,
    }
}

async fn list(
    flags: &ClusterFlags,
    options: &Options,
    asks_rights: bool,
) -> anyhow::Result<Listing> {
    let ClusterFlags {
        kubernetes: _,
        kubeconfig,
        context,
        gateway,
        namespaces,
        controller_name: _,
    } = flags;
    let api_server = api_server(kubeconfig.as_deref(), context.as_deref()).await?;
    let provider = KubernetesProvider::new(&api_server)?
        .of_kinds(watched_kinds(options))
        .within(namespaces.iter().cloned());
    let provider = match gateway {
        Some(only) => provider.only(&only.namespace, &only.name),
        None => provider,
    };
    let mut listing = provider.list_once().await?;
    if asks_rights {
        let missing = provider.missing_rights(&listing).await;
        let unknown =
            |error: anyhow::Error| vec![format!("unknown which rights are missing: {error:#}")];
        listing.absent.extend(missing.unwrap_or_else(unknown));
    }
    Ok(listing)
}
