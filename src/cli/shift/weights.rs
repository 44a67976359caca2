//! Computes the weights of a ReleaseBackend after a command. Percentages are exact: weights are scaled if necessary.

use crate::api::release_backend::WeightedRelease;

use super::change::{Change, MAX_WEIGHT, Percent, RequestedWeight};
use crate::cli::table::percent;

/// The weights before and after a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The listed releases in their order, then those that are added.
    pub(super) releases: Vec<PlannedRelease>,
    /// Notes for the user.
    pub(super) notes: Vec<String>,
}

/// A release of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedRelease {
    pub(super) name: String,
    /// `None` if it is not listed yet.
    pub(super) before: Option<u32>,
    pub(super) after: u32,
    /// Whether the command line names it.
    pub(super) is_named: bool,
}

/// A release and the weight to write.
pub(super) type Step = (String, u32);

impl Plan {
    /// Computes the weights after changes.
    ///
    /// # Errors
    /// When a release is not listed and may not be added, or no weights give the percentage exactly.
    pub(super) fn new(
        listed: &[WeightedRelease],
        changes: &[Change],
        add: bool,
    ) -> Result<Self, String> {
        let mut releases: Vec<_> = listed
            .iter()
            .map(|release| PlannedRelease {
                name: release.value.clone(),
                before: Some(release.weight),
                after: release.weight,
                is_named: false,
            })
            .collect();
        let mut notes = Vec::new();
        for change in changes {
            let known = releases.iter().position(|it| it.name == change.release);
            let at = match known {
                Some(at) => at,
                None if add => {
                    releases.push(PlannedRelease {
                        name: change.release.clone(),
                        before: None,
                        after: 0,
                        is_named: false,
                    });
                    releases.len() - 1
                }
                None => return Err(not_listed(&change.release, listed)),
            };
            releases[at].is_named = true;
            match change.target {
                RequestedWeight::Weight(weight) => releases[at].after = weight,
                RequestedWeight::Share(share) => notes.extend(set_share(&mut releases, at, share)?),
            }
        }
        if releases.iter().all(|release| release.after == 0) {
            notes.push(
                "No listed release has a weight above 0: requests get status 503.".to_owned(),
            );
        }
        Ok(Self { releases, notes })
    }

    /// The weights to write.
    pub(super) fn steps(&self) -> Vec<Step> {
        let of = |release: &PlannedRelease| (release.name.clone(), release.after);
        let (falling, rising) = self.changed();
        rising.into_iter().chain(falling).map(of).collect()
    }

    /// The changes that undo the plan. A release that was added stays listed, with weight 0.
    pub(super) fn rollback(&self) -> Vec<Step> {
        let of =
            |release: &PlannedRelease| (release.name.clone(), release.before.unwrap_or_default());
        let (falling, rising) = self.changed();
        falling.into_iter().chain(rising).map(of).collect()
    }

    /// The releases whose weight falls, and the other changed releases. Weights that rise are written first, so that
    /// the sum of all weights is never 0 in between.
    fn changed(&self) -> (Vec<&PlannedRelease>, Vec<&PlannedRelease>) {
        let changed = self
            .releases
            .iter()
            .filter(|it| it.before != Some(it.after));
        changed.partition(|release| release.after < release.before.unwrap_or_default())
    }

    /// The named releases whose share grows; if there are none, all named releases.
    pub(super) fn shifted(&self) -> Vec<&str> {
        let sum = |weight: fn(&PlannedRelease) -> u32| -> u64 {
            self.releases.iter().map(|it| u64::from(weight(it))).sum()
        };
        let before = sum(|it| it.before.unwrap_or_default()).max(1);
        let after = sum(|it| it.after).max(1);
        let grows = |release: &&&PlannedRelease| {
            let old = u128::from(release.before.unwrap_or_default()) * u128::from(after);
            u128::from(release.after) * u128::from(before) > old
        };
        let named: Vec<_> = self.releases.iter().filter(|it| it.is_named).collect();
        let growing: Vec<_> = named.iter().filter(grows).copied().collect();
        let shifted = if growing.is_empty() { named } else { growing };
        shifted
            .iter()
            .map(|release| release.name.as_str())
            .collect()
    }

    /// The share of a release in percent, before and after.
    pub(super) fn shares(&self, release: &PlannedRelease) -> (String, String) {
        let before = self.releases.iter().filter_map(|it| it.before);
        let after = self.releases.iter().map(|it| it.after);
        (
            percent(release.before.unwrap_or_default(), before),
            percent(release.after, after),
        )
    }
}

fn not_listed(release: &str, listed: &[WeightedRelease]) -> String {
    let names: Vec<_> = listed.iter().map(|it| it.value.as_str()).collect();
    let known = match names.as_slice() {
        [] => "the list is empty".to_owned(),
        names => format!("listed: {}", names.join(", ")),
    };
    format!("release {release} is not listed in spec.releases ({known}); use --add to list it")
}

/// Sets the share of a release. The other listed releases keep their proportions. Returns a note if their weights
/// are scaled.
fn set_share(
    releases: &mut [PlannedRelease],
    named: usize,
    share: Percent,
) -> Result<Option<String>, String> {
    let before: Vec<u32> = releases.iter().map(|release| release.after).collect();
    let name = releases[named].name.clone();
    let after = weights_for_share(&before, named, share).map_err(|error| match error {
        ShareError::NoOther => format!(
            "release {name} cannot get {share}: no other listed release has a weight above 0; use weights instead"
        ),
        ShareError::TooLarge => format!(
            "no weights up to {MAX_WEIGHT} give release {name} exactly {share} and keep the proportions of the others; \
             use weights instead"
        ),
    })?;
    let mut scaled = Vec::new();
    for (at, release) in releases.iter_mut().enumerate() {
        release.after = after[at];
        if at != named && after[at] != before[at] && after[at] > 0 {
            scaled.push(release.name.clone());
        }
    }
    Ok((!scaled.is_empty()).then(|| {
        format!(
            "Weights of other releases ({}) are scaled, so that {name} gets exactly {share} and they keep their proportions.",
            scaled.join(", ")
        )
    }))
}

/// Why no weights give a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShareError {
    /// No other release has a weight above 0.
    NoOther,
    /// A weight would exceed [`MAX_WEIGHT`].
    TooLarge,
}

/// Computes weights that give one release exactly a share, while the others keep their proportions. In order of
/// preference: the other weights stay, the sum stays, the sum is 100, the sum is minimal.
fn weights_for_share(
    weights: &[u32],
    named: usize,
    share: Percent,
) -> Result<Vec<u32>, ShareError> {
    let total: u64 = weights.iter().copied().map(u64::from).sum();
    let others = total - u64::from(weights[named]);
    let divisor = gcd(u64::from(share.thousandths()), u64::from(Percent::WHOLE));
    let part = u64::from(share.thousandths()) / divisor;
    let rest = u64::from(Percent::WHOLE) / divisor - part;
    let mut result = weights.to_vec();
    if part == 0 {
        result[named] = 0;
        return Ok(result);
    }
    if rest == 0 {
        if others > 0 || weights[named] == 0 {
            result.fill(0);
            let sum = if total == 0 { 100 } else { total };
            result[named] = u32::try_from(sum).unwrap_or(MAX_WEIGHT).min(MAX_WEIGHT);
        }
        return Ok(result);
    }
    if others == 0 {
        return Err(ShareError::NoOther);
    }
    if (part * others).is_multiple_of(rest)
        && let Some(weight) = in_range(part * others / rest)
    {
        result[named] = weight;
        return Ok(result);
    }
    let of_others = |at: &usize| *at != named;
    let common = (0..weights.len())
        .filter(of_others)
        .fold(0, |common, at| gcd(common, u64::from(weights[at])));
    let smallest_others = others / common;
    let shared = gcd(rest, smallest_others);
    let factor = rest / shared;
    let smallest = |at: usize| match at == named {
        true => part * smallest_others / shared,
        false => u64::from(weights[at]) / common * factor,
    };
    let sum = (part + rest) * smallest_others / shared;
    let scales = [(total, sum), (100, sum), (1, 1)];
    let scales = scales
        .into_iter()
        .filter(|(wanted, sum)| wanted.is_multiple_of(*sum));
    let scaled = |scale: u64| -> Option<Vec<u32>> {
        let weights = (0..weights.len()).map(|at| in_range(smallest(at) * scale));
        weights.collect()
    };
    let mut found = scales.filter_map(|(wanted, sum)| scaled(wanted / sum));
    found.next().ok_or(ShareError::TooLarge)
}

fn in_range(weight: u64) -> Option<u32> {
    u32::try_from(weight)
        .ok()
        .filter(|weight| *weight <= MAX_WEIGHT)
}

fn gcd(one: u64, other: u64) -> u64 {
    let (mut one, mut other) = (one, other);
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests;
