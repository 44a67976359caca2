//! Applies a list of weights one after the other, and shows the command line that does.

use anyhow::anyhow;

use super::cluster::{ApplyError, Cluster, Mode, Observed};
use super::object_name::ObjectName;
use super::weights::Step;

/// Applies weights one after the other. Returns the object after the last apply.
pub(super) async fn apply_steps(
    cluster: &Cluster,
    uid: &str,
    steps: &[Step],
    mode: Mode,
) -> anyhow::Result<Option<Observed>> {
    let mut latest = None;
    for (release, weight) in steps {
        let applied = cluster.apply(uid, release, *weight, mode).await;
        latest = Some(applied.map_err(|error| refused(release, &error))?);
    }
    Ok(latest)
}

fn refused(release: &str, error: &ApplyError) -> anyhow::Error {
    anyhow!("the weight of release {release} cannot be set: {error}")
}

/// Returns the command line that sets these weights.
pub(super) fn command(name: &ObjectName, steps: &[Step]) -> String {
    let weights: Vec<_> = steps
        .iter()
        .map(|(release, weight)| format!("{release}={weight}"))
        .collect();
    format!("portcullis shift {} {}", name.path(), weights.join(" "))
}
