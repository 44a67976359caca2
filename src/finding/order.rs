//! The order of findings: by severity, then by kind, but what may make the requests of a rule fail comes before these failures,
//! which then name it.

use super::kind::Kind;
use super::record::{Finding, Source, Symptom};
use super::severity::Severity;

/// Place of a finding: its severity and kind, and whether it is a symptom, or the number of further ones.
type Rank = (Severity, Kind, bool);

/// Place of what makes requests of a rule fail.
const CAUSE: Rank = (Severity::Error, Kind::Route, false);

/// Orders findings, and says of each symptom which finding is its cause, or else what to do about it.
pub fn order(findings: &mut Vec<Finding>) {
    let rank = |it: &Finding| {
        let is_symptom = it.kind == Kind::Route && it.source == Source::Service;
        (it.severity, it.kind, is_symptom)
    };
    let mut ranks: Vec<Rank> = findings.iter().map(rank).collect();
    for at in 0..findings.len() {
        let Some(symptom) = &findings[at].symptom else {
            continue;
        };
        let others = findings.iter().enumerate();
        let causes = others.filter(|(_, finding)| symptom.has_cause(finding));
        let causes: Vec<_> = causes.map(|(index, _)| index).collect();
        let first = causes.iter().min_by_key(|index| ranks[**index]);
        let advice = match first {
            Some(first) => format!("see {}", findings[*first].object),
            None => symptom.remedy.to_owned(),
        };
        for index in causes {
            ranks[index] = ranks[index].min(CAUSE);
        }
        findings[at].remedy = advice;
    }
    let mut ranked: Vec<_> = ranks.into_iter().zip(findings.drain(..)).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    findings.extend(ranked.into_iter().map(|(_, finding)| finding));
}

impl Symptom {
    /// Reports whether a finding may be the cause.
    fn has_cause(&self, finding: &Finding) -> bool {
        let may_be = match finding.kind {
            // Backends that fail checks respond, too.
            Kind::Endpoint => true,
            Kind::Overload | Kind::Backend | Kind::Route | Kind::Failing | Kind::Object => {
                !self.is_of_backend
            }
            _ => false,
        };
        let Some(subject) = finding.subject.as_ref().filter(|_| may_be) else {
            return false;
        };
        let is_named = || {
            let name = subject.to_string();
            self.faults.iter().any(|fault| names(fault, &name))
        };
        finding.symptom.is_none() && (self.objects.contains(subject) || is_named())
    }
}

/// Reports whether a text has the name of an object as a whole.
fn names(text: &str, name: &str) -> bool {
    let mut found = text.match_indices(name);
    found.any(|(at, _)| {
        let next = text[at + name.len()..].chars().next();
        !next.is_some_and(|it| it.is_ascii_alphanumeric() || it == '-' || it == '.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ObjectRef;

    fn service(name: &str) -> ObjectRef {
        ObjectRef::new("", "Service", "shop", name)
    }

    fn finding(kind: Kind, object: &ObjectRef) -> Finding {
        Finding::of_service(kind, object.to_string(), "is wrong".to_owned()).about(object)
    }

    fn symptom(backend: &str, is_of_backend: bool) -> Finding {
        let route = ObjectRef::gateway_api("HTTPRoute", "shop", "web");
        Finding {
            symptom: Some(Symptom {
                objects: vec![route.clone(), service(backend)],
                faults: vec!["AccessPolicy shop/web: broken".to_owned()],
                is_of_backend,
                remedy: "look",
            }),
            ..finding(Kind::Route, &route)
        }
    }

    fn ordered(mut findings: Vec<Finding>) -> Vec<String> {
        order(&mut findings);
        let lines = findings.iter();
        lines
            .map(|it| format!("{}: {}", it.object, it.message()))
            .collect()
    }

    #[test]
    fn causes_come_before_their_symptoms_and_before_what_harms_no_request() {
        let other = finding(Kind::Failing, &service("other"));
        let cause = finding(Kind::Failing, &service("app"));
        let expired = finding(Kind::Expired, &service("tls"));
        let expected = [
            "Service shop/tls: is wrong",
            "Service shop/app: is wrong",
            "HTTPRoute shop/web: is wrong; see Service shop/app",
            "Service shop/other: is wrong",
        ];
        let findings = vec![other, symptom("app", false), cause, expired];
        assert_eq!(ordered(findings), expected);
    }

    #[test]
    fn errors_come_before_warnings_that_are_not_their_cause() {
        let findings = vec![
            finding(Kind::Controller, &service("controller")),
            finding(Kind::Endpoint, &service("other")),
            finding(Kind::Endpoint, &service("app")),
            symptom("app", true),
            finding(Kind::Object, &service("refused")),
        ];
        let expected = [
            "Service shop/app: is wrong",
            "HTTPRoute shop/web: is wrong; see Service shop/app",
            "Service shop/refused: is wrong",
            "Service shop/controller: is wrong",
            "Service shop/other: is wrong",
        ];
        assert_eq!(ordered(findings), expected);
    }

    #[test]
    fn objects_are_causes_that_a_fault_names() {
        let policy = |name| ObjectRef::new("portcullis.dev", "AccessPolicy", "shop", name);
        let findings = vec![
            symptom("app", false),
            finding(Kind::Object, &policy("we")),
            finding(Kind::Object, &policy("web")),
        ];
        let expected = [
            "AccessPolicy shop/web: is wrong",
            "HTTPRoute shop/web: is wrong; see AccessPolicy shop/web",
            "AccessPolicy shop/we: is wrong",
        ];
        assert_eq!(ordered(findings), expected);
    }

    #[test]
    fn responses_of_backends_have_no_other_cause() {
        let findings = vec![
            symptom("app", true),
            finding(Kind::Failing, &service("app")),
        ];
        let expected = [
            "HTTPRoute shop/web: is wrong; look",
            "Service shop/app: is wrong",
        ];
        assert_eq!(ordered(findings), expected);
    }
}
