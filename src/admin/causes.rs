//! The order of problems: by kind, but a problem that may make the requests of a rule fail comes before these failures, which
//! then name it.

use super::problem::{Kind, Problem, ProblemSource, Symptom};

/// Place of a problem: its kind, and whether it is a symptom, or the number of further ones.
type Rank = (Kind, bool);

/// Place of what makes requests of a rule fail.
const CAUSE: Rank = (Kind::Route, false);

/// Orders problems, and says of each symptom which problem is its cause, or else what to do about it.
pub(super) fn order(problems: &mut Vec<Problem>) {
    let rank = |it: &Problem| {
        (
            it.kind,
            it.kind == Kind::Route && it.place == ProblemSource::Service,
        )
    };
    let mut ranks: Vec<Rank> = problems.iter().map(rank).collect();
    for at in 0..problems.len() {
        let Some(symptom) = &problems[at].symptom else {
            continue;
        };
        let others = problems.iter().enumerate();
        let causes = others.filter(|(_, problem)| symptom.has_cause(problem));
        let causes: Vec<_> = causes.map(|(index, _)| index).collect();
        let first = causes.iter().min_by_key(|index| ranks[**index]);
        let advice = match first {
            Some(first) => format!("see {}", problems[*first].object),
            None => symptom.remedy.to_owned(),
        };
        for index in causes {
            ranks[index] = ranks[index].min(CAUSE);
        }
        let message = &mut problems[at].message;
        message.push_str("; ");
        message.push_str(&advice);
    }
    let mut ranked: Vec<_> = ranks.into_iter().zip(problems.drain(..)).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    problems.extend(ranked.into_iter().map(|(_, problem)| problem));
}

impl Symptom {
    /// Reports whether a problem may be the cause.
    fn has_cause(&self, problem: &Problem) -> bool {
        let may_be = match problem.kind {
            // Backends that fail checks respond, too.
            Kind::Endpoint => true,
            Kind::Overload | Kind::Backend | Kind::Route | Kind::Failing | Kind::Object => {
                !self.is_of_backend
            }
            _ => false,
        };
        let Some(subject) = problem.subject.as_ref().filter(|_| may_be) else {
            return false;
        };
        let is_named = || {
            let name = subject.to_string();
            self.faults.iter().any(|fault| names(fault, &name))
        };
        problem.symptom.is_none() && (self.objects.contains(subject) || is_named())
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

    fn problem(kind: Kind, object: &ObjectRef) -> Problem {
        Problem::of_service(kind, object.to_string(), "is wrong".to_owned()).about(object)
    }

    fn symptom(backend: &str, is_of_backend: bool) -> Problem {
        let route = ObjectRef::gateway_api("HTTPRoute", "shop", "web");
        Problem {
            symptom: Some(Symptom {
                objects: vec![route.clone(), service(backend)],
                faults: vec!["AccessPolicy shop/web: broken".to_owned()],
                is_of_backend,
                remedy: "look",
            }),
            ..problem(Kind::Route, &route)
        }
    }

    fn ordered(mut problems: Vec<Problem>) -> Vec<String> {
        order(&mut problems);
        let lines = problems.iter();
        lines
            .map(|it| format!("{}: {}", it.object, it.message))
            .collect()
    }

    #[test]
    fn causes_come_before_their_symptoms_and_before_what_harms_no_request() {
        let other = problem(Kind::Failing, &service("other"));
        let cause = problem(Kind::Failing, &service("app"));
        let expired = problem(Kind::Expired, &service("tls"));
        let expected = [
            "Service shop/tls: is wrong",
            "Service shop/app: is wrong",
            "HTTPRoute shop/web: is wrong; see Service shop/app",
            "Service shop/other: is wrong",
        ];
        let problems = vec![other, symptom("app", false), cause, expired];
        assert_eq!(ordered(problems), expected);
    }

    #[test]
    fn objects_are_causes_that_a_fault_names() {
        let policy = |name| ObjectRef::new("portcullis.dev", "AccessPolicy", "shop", name);
        let problems = vec![
            symptom("app", false),
            problem(Kind::Object, &policy("we")),
            problem(Kind::Object, &policy("web")),
        ];
        let expected = [
            "AccessPolicy shop/web: is wrong",
            "HTTPRoute shop/web: is wrong; see AccessPolicy shop/web",
            "AccessPolicy shop/we: is wrong",
        ];
        assert_eq!(ordered(problems), expected);
    }

    #[test]
    fn responses_of_backends_have_no_other_cause() {
        let problems = vec![
            symptom("app", true),
            problem(Kind::Failing, &service("app")),
        ];
        let expected = [
            "HTTPRoute shop/web: is wrong; look",
            "Service shop/app: is wrong",
        ];
        assert_eq!(ordered(problems), expected);
    }
}
