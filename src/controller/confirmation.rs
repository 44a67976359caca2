//! Whether the data planes of a Gateway serve what the controller has computed for it: when every ready replica says
//! so. Pure but for the time, which is given.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::ir::ObjectRef;
use crate::replicas::Answer;
use crate::status::ServedGateway;

/// How long statuses are held back while replicas follow. They need milliseconds; one that needs longer is in trouble,
/// and people should be told.
pub(super) const HOLD: Duration = Duration::from_secs(5);

/// What the data planes of a Gateway have come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They serve it, except for these ports.
    Confirmed(BTreeMap<u16, String>),
    /// They are expected to within moments, at the latest at this time.
    Awaited(Instant),
    /// Some do not, for longer than can be expected.
    Lagging(String),
    /// There is none that is ready.
    Absent,
}

impl Verdict {
    /// When it has to be judged anew, even without news.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Awaited(until) => Some(*until),
            _ => None,
        }
    }
}

/// What is known of each Gateway's data planes from before.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    gateways: BTreeMap<ObjectRef, State>,
}

#[derive(Debug, Default)]
struct State {
    /// What they have served, all of them at one time.
    confirmed: Option<Fingerprint>,
    /// Since when they do not serve what they should.
    since: Option<Instant>,
}

/// Of a Gateway's configuration; `None` when it has no port.
type Fingerprint = Option<String>;

impl Confirmations {
    /// Forgets how long anything has taken: the replicas were not asked in that time.
    pub(super) fn restart(&mut self) {
        self.gateways.clear();
    }

    /// Forgets Gateways that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&ObjectRef) -> bool) {
        self.gateways.retain(|gateway, _| is_there(gateway));
    }

    /// Judges by the answers of a Gateway's ready replicas. Once all of them have served a configuration, replicas that
    /// come or fall silent later put it in doubt no more: they take over what is current before they are ready.
    pub(super) fn judge(
        &mut self,
        gateway: &ObjectRef,
        wanted: &Fingerprint,
        replicas: &[(IpAddr, Option<&Answer>)],
        now: Instant,
    ) -> Verdict {
        let state = self.gateways.entry(gateway.clone()).or_default();
        if replicas.is_empty() {
            *state = State::default();
            return Verdict::Absent;
        }
        let served = |answer: &Answer| match answer {
            Answer::Served(served) => Some(served.gateway(gateway).cloned()),
            Answer::Unreachable(_) => None,
        };
        let current: Vec<ServedGateway> = replicas
            .iter()
            .filter_map(|(_, answer)| served((*answer)?))
            .filter(|served| served.as_ref().map(|served| &served.fingerprint) == wanted.as_ref())
            .map(Option::unwrap_or_default)
            .collect();
        if current.len() == replicas.len() {
            state.confirmed = Some(wanted.clone());
        }
        if state.confirmed.as_ref() == Some(wanted) {
            state.since = None;
            return Verdict::Confirmed(unbound(&current));
        }
        let since = *state.since.get_or_insert(now);
        if now < since + HOLD {
            return Verdict::Awaited(since + HOLD);
        }
        let complaints: Vec<String> = replicas
            .iter()
            .filter_map(|(address, answer)| complaint(gateway, *address, *answer, wanted))
            .collect();
        if complaints.is_empty() {
            return Verdict::Confirmed(unbound(&current));
        }
        Verdict::Lagging(format!(
            "{} of {} ready replicas do not serve the current configuration: {}",
            complaints.len(),
            replicas.len(),
            complaints.join(", ")
        ))
    }
}

/// What is wrong with a replica. One of another version of the program is taken at its word that it is ready: what it
/// serves cannot be compared.
fn complaint(
    gateway: &ObjectRef,
    address: IpAddr,
    answer: Option<&Answer>,
    wanted: &Fingerprint,
) -> Option<String> {
    match answer {
        None => Some(format!("{address} has not answered")),
        Some(Answer::Unreachable(why)) => Some(format!("{address} cannot be asked ({why})")),
        Some(Answer::Served(served)) if served.version != env!("CARGO_PKG_VERSION") => None,
        Some(Answer::Served(served)) => {
            let fingerprint = served.gateway(gateway).map(|served| &served.fingerprint);
            (fingerprint != wanted.as_ref()).then(|| format!("{address} is behind"))
        }
    }
}

fn unbound(served: &[ServedGateway]) -> BTreeMap<u16, String> {
    let ports = served.iter().flat_map(|served| &served.unbound);
    ports.map(|(port, error)| (*port, error.clone())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::status::Served;

    fn answer(fingerprint: &str, version: &str) -> Answer {
        let served = ServedGateway {
            fingerprint: fingerprint.to_owned(),
            ..ServedGateway::default()
        };
        Answer::Served(Arc::new(Served {
            version: version.to_owned(),
            gateways: [("infra/edge".to_owned(), served)].into(),
        }))
    }

    struct Bench {
        confirmations: Confirmations,
        began: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                confirmations: Confirmations::default(),
                began: Instant::now(),
            }
        }

        /// The verdict on fingerprint "new", so many seconds after the beginning.
        fn judge(&mut self, seconds: u64, answers: &[Option<Answer>]) -> Verdict {
            let gateway = ObjectRef::gateway_api("Gateway", "infra", "edge");
            let replicas: Vec<_> = answers
                .iter()
                .enumerate()
                .map(|(index, answer)| (IpAddr::from([10, 0, 0, index as u8]), answer.as_ref()))
                .collect();
            let now = self.began + Duration::from_secs(seconds);
            self.confirmations
                .judge(&gateway, &Some("new".to_owned()), &replicas, now)
        }
    }

    fn current() -> Option<Answer> {
        Some(answer("new", env!("CARGO_PKG_VERSION")))
    }

    fn behind() -> Option<Answer> {
        Some(answer("old", env!("CARGO_PKG_VERSION")))
    }

    #[test]
    fn every_ready_replica_has_to_serve_it() {
        let mut bench = Bench::new();
        assert_eq!(bench.judge(0, &[]), Verdict::Absent);
        assert!(matches!(
            bench.judge(0, &[current(), behind()]),
            Verdict::Awaited(_)
        ));
        assert!(matches!(
            bench.judge(1, &[current(), None]),
            Verdict::Awaited(_)
        ));
        assert_eq!(
            bench.judge(2, &[current(), current()]),
            Verdict::Confirmed(BTreeMap::new())
        );
    }

    #[test]
    fn what_is_confirmed_stays_so_when_replicas_come_or_fall_silent() {
        let mut bench = Bench::new();
        bench.judge(0, &[current()]);
        let silent = Some(Answer::Unreachable("gone".into()));
        for answers in [[current(), None], [current(), silent]] {
            assert!(matches!(bench.judge(60, &answers), Verdict::Confirmed(_)));
        }
        assert_eq!(bench.judge(61, &[]), Verdict::Absent);
        assert!(matches!(bench.judge(62, &[None]), Verdict::Awaited(_)));
    }

    #[test]
    fn a_replica_that_stays_behind_is_named_after_a_while() {
        let mut bench = Bench::new();
        bench.judge(0, &[current(), behind()]);
        let Verdict::Lagging(message) = bench.judge(5, &[current(), behind()]) else {
            panic!("not lagging");
        };
        assert!(
            message.starts_with("1 of 2 ") && message.contains("10.0.0.1 is behind"),
            "{message}"
        );
    }

    #[test]
    fn a_replica_of_another_version_is_believed_after_a_while() {
        let mut bench = Bench::new();
        let older = || Some(answer("other", "0.0.1"));
        assert!(matches!(
            bench.judge(0, &[current(), older()]),
            Verdict::Awaited(_)
        ));
        assert!(matches!(
            bench.judge(6, &[current(), older()]),
            Verdict::Confirmed(_)
        ));
    }
}
