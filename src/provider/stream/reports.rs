//! The reports that a controller gets. A state is reported once a restarted container cannot begin with an older one: the
//! copy has it, or there is no copy. Does no I/O.

use std::convert::Infallible;
use std::future::pending;

use tokio::sync::watch;

use crate::wire::{Position, Serves};

/// What a restarted container begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// Nothing: it waits for a controller.
    Nothing,
    /// A copy.
    Copy {
        /// Position of its state; `None` if it could not be read.
        position: Option<Position>,
        /// Why the copy can neither be written nor removed, if that has failed.
        failure: Option<String>,
    },
}

impl Stored {
    /// Returns a copy of a state.
    pub(super) fn copy_of(position: Position) -> Self {
        Self::Copy {
            position: Some(position),
            failure: None,
        }
    }
}

/// Passes on what holds of the latest report while polled.
pub(super) async fn pass_on(
    mut reports: watch::Receiver<Option<Serves>>,
    mut stored: watch::Receiver<Stored>,
    confirmed: watch::Sender<Option<Serves>>,
) -> Infallible {
    let mut is_repeated = true;
    loop {
        let next = {
            let (report, stored) = (reports.borrow_and_update(), stored.borrow_and_update());
            // A write may have ended the wait although there is a report, too.
            is_repeated |= report.has_changed();
            let report = report.clone();
            report.and_then(|report| confirm(report, &stored))
        };
        confirmed.send_if_modified(|last| {
            // A table that is published again is reported again. A write that changes nothing is not.
            let is_new = next.is_some() && (is_repeated || *last != next);
            if is_new {
                *last = next;
            }
            is_new
        });
        is_repeated = tokio::select! {
            changed = reports.changed() => match changed {
                Ok(()) => true,
                Err(_) => return pending().await,
            },
            Ok(()) = stored.changed() => false,
        };
    }
}

/// Returns what holds of a report after a restart of the container. A pod that serves a later state than its copy has
/// reports that of the copy, so that reports do not stop while changes come faster than writes.
fn confirm(report: Serves, stored: &Stored) -> Option<Serves> {
    let Stored::Copy { position, failure } = stored else {
        return Some(report);
    };
    let position = position.as_ref();
    let copied = position.filter(|copied| copied.instance == report.position.instance);
    let copied = match (copied, failure) {
        (Some(copied), _) => copied.clone(),
        // The order of positions of different controllers is unknown. The next write or the next table makes them equal.
        (None, None) => return None,
        // Confirms nothing, and says why.
        (None, Some(_)) => Position {
            instance: report.position.instance.clone(),
            revision: 0,
        },
    };
    if copied.revision >= report.position.revision {
        return Some(report);
    }
    Some(Serves {
        position: copied,
        behind: failure.clone(),
        ..report
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn position(instance: &str, revision: u64) -> Position {
        Position {
            instance: instance.to_owned(),
            revision,
        }
    }

    fn serves(instance: &str, revision: u64) -> Serves {
        Serves {
            position: position(instance, revision),
            unbound: [(80, "taken".to_owned())].into(),
            binds: None,
            problems: vec!["unknown field".to_owned()],
            behind: None,
        }
    }

    fn copy(instance: &str, revision: u64) -> Stored {
        Stored::copy_of(position(instance, revision))
    }

    #[test]
    fn without_a_copy_every_state_is_reported() {
        let report = confirm(serves("5f2c", 7), &Stored::Nothing);
        assert_eq!(report, Some(serves("5f2c", 7)));
    }

    #[test]
    fn no_later_state_than_that_of_the_copy_is_reported() {
        for (copied, reported) in [(6, 6), (7, 7), (8, 7)] {
            let report = confirm(serves("5f2c", 7), &copy("5f2c", copied));
            assert_eq!(report, Some(serves("5f2c", reported)), "{copied}");
        }
    }

    #[test]
    fn nothing_is_reported_while_the_copy_is_of_another_controller_or_unknown() {
        let unknown = Stored::Copy {
            position: None,
            failure: None,
        };
        for stored in [copy("77aa", 6), copy("77aa", 8), unknown] {
            assert_eq!(confirm(serves("5f2c", 7), &stored), None, "{stored:?}");
        }
    }

    #[test]
    fn report_says_why_the_pod_is_behind() {
        let failure = "read-only".to_owned();
        let stored = Stored::Copy {
            position: Some(position("5f2c", 6)),
            failure: Some(failure.clone()),
        };
        let report = confirm(serves("5f2c", 7), &stored).unwrap();
        assert_eq!(report.position, position("5f2c", 6));
        assert_eq!(report.behind, Some(failure));
        let report = confirm(serves("5f2c", 6), &stored).unwrap();
        assert_eq!(report.behind, None);
    }

    #[test]
    fn report_says_why_nothing_is_confirmed() {
        for copied in [None, Some(position("77aa", 8))] {
            let stored = Stored::Copy {
                position: copied,
                failure: Some("read-only".to_owned()),
            };
            let report = confirm(serves("5f2c", 7), &stored).unwrap();
            assert_eq!(report.position, position("5f2c", 0));
            assert_eq!(report.behind.as_deref(), Some("read-only"));
        }
    }

    #[tokio::test]
    async fn state_that_is_published_again_is_reported_again_beside_a_write() {
        let (report, reports) = watch::channel(Some(serves("5f2c", 7)));
        let (store, stored) = watch::channel(copy("5f2c", 7));
        let (confirmed, mut confirmations) = watch::channel(None);
        let passing = tokio::spawn(pass_on(reports, stored, confirmed));
        for round in 0..64 {
            let confirmation = timeout(Duration::from_secs(60), confirmations.changed()).await;
            confirmation
                .unwrap_or_else(|_| panic!("round {round}"))
                .unwrap();
            report.send_replace(Some(serves("5f2c", 7)));
            store.send_replace(copy("5f2c", 7));
        }
        passing.abort();
    }

    #[tokio::test]
    async fn each_write_is_reported_while_changes_come_faster() {
        let (report, reports) = watch::channel(None);
        let (store, stored) = watch::channel(copy("5f2c", 1));
        let (confirmed, mut confirmations) = watch::channel(None);
        let passing = tokio::spawn(pass_on(reports, stored, confirmed));
        for revision in 2..10 {
            report.send_replace(Some(serves("5f2c", 10 * revision)));
            store.send_replace(copy("5f2c", 10 * revision - 1));
            let is_written =
                |report: &Option<Serves>| *report == Some(serves("5f2c", 10 * revision - 1));
            confirmations.wait_for(is_written).await.unwrap();
        }
        // The last report stays while the copy is of another controller.
        report.send_replace(Some(serves("77aa", 1)));
        store.send_replace(copy("77aa", 1));
        let is_other = |report: &Option<Serves>| *report == Some(serves("77aa", 1));
        confirmations.wait_for(is_other).await.unwrap();
        passing.abort();
    }
}
