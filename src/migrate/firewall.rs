//! The web application firewall of ingress-nginx, ModSecurity: whether it may refuse requests. There is none here.

use super::model::Ingress;
use super::values::Values;

/// Annotation and key of the ConfigMap that enable it.
pub(super) const ENABLE: &str = "enable-modsecurity";
/// Annotation and key of the ConfigMap with rules.
pub(super) const RULES: &str = "modsecurity-snippet";

/// Files of rules in the image of the controller, with which requests are only logged.
const OF_IMAGE: [&str; 2] = [
    "/etc/nginx/modsecurity/modsecurity.conf",
    "/etc/nginx/owasp-modsecurity-crs/nginx-modsecurity.conf",
];

/// What the controller enables for all Ingresses.
#[derive(Debug, Default)]
pub(super) struct Firewall {
    is_on: bool,
    may_refuse: bool,
}

impl Firewall {
    pub(super) fn new(enabled: Option<bool>, rules: Option<&str>) -> Self {
        let is_on = enabled == Some(true);
        Self {
            is_on,
            may_refuse: is_on && rules.is_some_and(may_refuse),
        }
    }

    /// Reports whether it may refuse requests of an Ingress.
    pub(super) fn restricts(&self, ingress: &Ingress) -> bool {
        let values = Values(ingress);
        let is_on = values.flag(ENABLE).unwrap_or(self.is_on);
        is_on && (self.may_refuse || values.text(RULES).is_some_and(may_refuse))
    }
}

/// Reports whether it may refuse requests with these rules. It only detects unless they say otherwise.
fn may_refuse(rules: &str) -> bool {
    let lower = rules.to_ascii_lowercase();
    let words = lower.split(|it: char| it.is_whitespace() || it == '"' || it == '\'');
    let mut words = words.filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        let refuses = match word {
            "secruleengine" => !matches!(words.next(), Some("off" | "detectiononly")),
            "include" => words.next().is_none_or(|file| !OF_IMAGE.contains(&file)),
            "secremoterules" => true,
            _ => word.contains("ruleengine=on"),
        };
        if refuses {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_refuse_with_the_engine_only() {
        let included = "Include /etc/nginx/owasp-modsecurity-crs/nginx-modsecurity.conf";
        for (rules, expected) in [
            ("SecRuleEngine On", true),
            ("secruleengine \"on\"\n", true),
            ("SecRuleEngine DetectionOnly", false),
            ("SecRuleEngine Off\nSecAuditLog /dev/stdout", false),
            ("SecRuleEngine Off\nSecRuleEngine On", true),
            ("SecRuleEngine", true),
            ("SecRule ARGS a \"id:1,deny\"", false),
            ("SecAction \"id:1,pass,ctl:ruleEngine=On\"", true),
            (included, false),
            ("Include /etc/nginx/own.conf", true),
            ("", false),
        ] {
            assert_eq!(may_refuse(rules), expected, "{rules}");
        }
    }
}
