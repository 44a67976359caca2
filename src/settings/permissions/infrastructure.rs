//! What the operator permits the parameters and `spec.infrastructure` of Gateways to ask of the cluster. The controller
//! creates pods and Services with its own rights, so the default permits nothing that the namespace's owner might not
//! have: no other image, host network, taint, priority class, environment variable, volume, patch or network policy, or
//! label or annotation that a cluster component interprets.

use std::fmt;
use std::str::FromStr;

use super::names::{name, parse};

/// Permits everything, in an [`AllowList`].
const ALL: &str = "*";
/// Keys of taints that pods tolerate with the effect `NoExecute` in any case: the admission plugin
/// DefaultTolerationSeconds adds both to every pod.
const TOLERATED_BY_DEFAULT: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];
/// Recommended labels of Kubernetes, which no component interprets.
const RECOMMENDED_LABELS: &str = "app.kubernetes.io/";

/// Prefix of variables that are settings of `portcullis run`.
const SETTING: &str = "PORTCULLIS_";

/// What parameters and `spec.infrastructure` may set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfrastructurePermissions {
    /// Namespace of the controller. GatewayParameters in it that a GatewayClass refers to are the operator's own, and may
    /// set everything.
    pub operator_namespace: String,
    /// The image of the controller's configuration, which is always permitted.
    pub own_image: String,
    /// Other images, by prefix.
    pub images: AllowList,
    /// Host network.
    pub host_network: HostNetwork,
    /// Taints that pods may tolerate, by key.
    pub tolerations: AllowList,
    /// Priority classes, by name.
    pub priority_classes: AllowList,
    /// Annotations of all objects, by prefix of the key.
    pub annotations: AllowList,
    /// Labels of all objects, by prefix of the key.
    pub labels: AllowList,
    /// Environment variables of the container, by name.
    pub env: AllowList,
    /// Volumes of pods, by type.
    pub volumes: AllowList,
    /// Fields that patches may set, by path.
    pub patches: AllowList,
    /// Whether pods may have a NetworkPolicy, which admits connections in addition to those that others admit.
    pub network_policy: bool,
}

/// Whether pods of Gateways may use the network of their node. Each value includes the previous ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostNetwork {
    /// No.
    #[default]
    None,
    /// Yes, with ports from 1024 on.
    UnprivilegedPorts,
    /// Yes, with all ports: pods that bind one below 1024 run as root.
    AllPorts,
}

/// Permitted names, keys or prefixes; empty permits none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList(Vec<String>);

impl InfrastructurePermissions {
    /// Reports whether the container may run an image.
    pub fn permits_image(&self, image: &str) -> bool {
        image == self.own_image
            || self
                .images
                .any(|permitted| is_image_below(image, permitted))
    }

    /// Reports whether pods may have a toleration of this key and effect. Without a key, it tolerates every taint.
    pub fn permits_toleration(&self, key: Option<&str>, effect: Option<&str>) -> bool {
        let is_default =
            |key: &str| TOLERATED_BY_DEFAULT.contains(&key) && effect == Some("NoExecute");
        match key.filter(|key| !key.is_empty()) {
            Some(key) => is_default(key) || self.tolerations.any(|permitted| permitted == key),
            None => self.tolerations.any(|_| false),
        }
    }

    /// Reports whether pods may have a priority class.
    pub fn permits_priority_class(&self, name: &str) -> bool {
        self.priority_classes.any(|permitted| permitted == name)
    }

    /// Reports whether objects may have an annotation with this key.
    pub fn permits_annotation(&self, key: &str) -> bool {
        is_private(key)
            || self
                .annotations
                .any(|permitted| is_key_below(key, permitted))
    }

    /// Reports whether objects may have a label with this key.
    pub fn permits_label(&self, key: &str) -> bool {
        is_private(key)
            || key.starts_with(RECOMMENDED_LABELS)
            || self.labels.any(|permitted| is_key_below(key, permitted))
    }
}

impl InfrastructurePermissions {
    /// Reports whether the container may have an environment variable. Those that are settings of the program have to be
    /// permitted by name, since some of them loosen what the operator permits objects.
    pub fn permits_env(&self, name: &str) -> bool {
        match name.starts_with(SETTING) {
            true => self.env.0.iter().any(|permitted| permitted == name),
            false => self.env.any(|permitted| permitted == name),
        }
    }

    /// Reports whether pods may have a volume of this type, such as `configMap`.
    pub fn permits_volume(&self, kind: &str) -> bool {
        self.volumes.any(|permitted| permitted == kind)
    }

    /// Reports whether a patch may set a field, such as `workload.spec.template.spec.dnsConfig`. An entry permits the fields
    /// below it too.
    pub fn permits_patch(&self, field: &str) -> bool {
        self.patches.any(|permitted| {
            let rest = field.strip_prefix(permitted);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }
}

impl AllowList {
    /// Returns a list of these entries.
    pub fn new(entries: impl IntoIterator<Item = String>) -> Self {
        Self(entries.into_iter().collect())
    }

    fn any(&self, permits: impl Fn(&str) -> bool) -> bool {
        let mut entries = self.0.iter();
        entries.any(|entry| entry == ALL || permits(entry))
    }
}

/// Keys without a prefix are private to the user (Kubernetes, "Labels and Selectors"): no component interprets them.
fn is_private(key: &str) -> bool {
    !key.contains('/')
}

/// Reports whether a key has a permitted prefix. An entry without a slash is a whole domain.
fn is_key_below(key: &str, permitted: &str) -> bool {
    match permitted.contains('/') {
        true => key.starts_with(permitted),
        false => key
            .split_once('/')
            .is_some_and(|(domain, _)| domain == permitted),
    }
}

/// Reports whether an image has a permitted prefix. An entry without a slash is a whole registry. An entry that ends
/// within a name stands for that whole name, so that `example.com/edge` does not permit `example.com/edge-of-another`.
fn is_image_below(image: &str, permitted: &str) -> bool {
    let Some(rest) = image.strip_prefix(permitted) else {
        return false;
    };
    if !permitted.contains('/') {
        // A port would make it another registry.
        return rest.starts_with('/');
    }
    let is_open = permitted.ends_with(|last: char| !last.is_alphanumeric());
    is_open || rest.is_empty() || rest.starts_with(['/', ':', '@'])
}

impl HostNetwork {
    const NAMES: [(Self, &str); 3] = [
        (Self::None, "none"),
        (Self::UnprivilegedPorts, "unprivileged-ports"),
        (Self::AllPorts, "all-ports"),
    ];
}

impl FromStr for HostNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(&Self::NAMES, text)
    }
}

impl fmt::Display for HostNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(&Self::NAMES, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> AllowList {
        AllowList::new(entries.iter().map(|entry| (*entry).to_owned()))
    }

    #[test]
    fn default_permits_only_what_no_component_interprets() {
        let strict = InfrastructurePermissions {
            own_image: "ghcr.io/portcullis/portcullis:1".to_owned(),
            ..InfrastructurePermissions::default()
        };
        assert!(strict.permits_image("ghcr.io/portcullis/portcullis:1"));
        assert!(!strict.permits_image("ghcr.io/portcullis/portcullis:2"));
        assert!(!strict.permits_image(""));
        assert!(!strict.permits_priority_class("high"));
        assert!(strict.permits_annotation("note") && strict.permits_label("team"));
        assert!(strict.permits_label("app.kubernetes.io/part-of"));
        assert!(!strict.permits_annotation("app.kubernetes.io/part-of"));
        assert!(!strict.permits_annotation("eks.amazonaws.com/role-arn"));
        assert!(!strict.permits_label("azure.workload.identity/use"));
        let not_ready = Some("node.kubernetes.io/not-ready");
        assert!(strict.permits_toleration(not_ready, Some("NoExecute")));
        assert!(!strict.permits_toleration(not_ready, None));
        for key in [
            None,
            Some(""),
            Some("edge"),
            Some("node-role.kubernetes.io/control-plane"),
        ] {
            assert!(
                !strict.permits_toleration(key, Some("NoExecute")),
                "{key:?}"
            );
        }
    }

    #[test]
    fn image_prefix_ends_at_the_end_of_a_name() {
        let permits = |entry: &str, image: &str| {
            let images = list(&[entry]);
            let permissions = InfrastructurePermissions {
                images,
                ..Default::default()
            };
            permissions.permits_image(image)
        };
        for (entry, image) in [
            ("example.com", "example.com/edge:1"),
            ("example.com/team/", "example.com/team/edge"),
            ("example.com/team/edge", "example.com/team/edge"),
            ("example.com/team/edge", "example.com/team/edge:1"),
            ("example.com/team/edge", "example.com/team/edge@sha256:12"),
            ("example.com/team", "example.com/team/edge"),
            ("example.com/team/edge-", "example.com/team/edge-debug:1"),
            (
                "example.com:5000/team/edge:1.",
                "example.com:5000/team/edge:1.2",
            ),
            ("*", "anything"),
        ] {
            assert!(permits(entry, image), "{entry} {image}");
        }
        for (entry, image) in [
            ("example.com", "example.com.evil.test/edge"),
            ("example.com", "example.com:5000/edge"),
            ("example.com", "evil.test/example.com/edge"),
            ("example.com/team/edge", "example.com/team/edge-of-another"),
            ("example.com/team", "example.com/teams/edge"),
            ("example.com/team/", "example.com/team"),
        ] {
            assert!(!permits(entry, image), "{entry} {image}");
        }
    }

    #[test]
    fn keys_are_permitted_by_domain_or_prefix() {
        let permissions = InfrastructurePermissions {
            annotations: list(&[
                "networking.gke.io",
                "service.beta.kubernetes.io/aws-load-balancer-",
            ]),
            labels: list(&["*"]),
            ..Default::default()
        };
        for key in [
            "networking.gke.io/load-balancer-type",
            "service.beta.kubernetes.io/aws-load-balancer-scheme",
        ] {
            assert!(permissions.permits_annotation(key), "{key}");
        }
        for key in [
            "networking.gke.io.evil.test/a",
            "a.networking.gke.io/b",
            "service.beta.kubernetes.io/azure-load-balancer-internal",
        ] {
            assert!(!permissions.permits_annotation(key), "{key}");
        }
        assert!(permissions.permits_label("anything.test/a"));
    }

    #[test]
    fn settings_are_permitted_by_name_only() {
        let permits = |entries: &[&str], name: &str| {
            let env = list(entries);
            let permissions = InfrastructurePermissions {
                env,
                ..Default::default()
            };
            permissions.permits_env(name)
        };
        assert!(permits(&["*"], "HTTPS_PROXY"));
        assert!(permits(&["PORTCULLIS_WORKERS"], "PORTCULLIS_WORKERS"));
        assert!(!permits(&["*"], "PORTCULLIS_ALLOW_EXTERNAL_ADDRESS"));
        assert!(!permits(&["HTTPS_PROXY"], "HTTPS_PROXY_"));
        assert!(!permits(&[], "HTTPS_PROXY"));
    }

    #[test]
    fn fields_of_patches_are_permitted_with_those_below() {
        let permits = |entry: &str, field: &str| {
            let patches = list(&[entry]);
            let permissions = InfrastructurePermissions {
                patches,
                ..Default::default()
            };
            permissions.permits_patch(field)
        };
        let dns = "workload.spec.template.spec.dnsConfig";
        assert!(permits("*", dns) && permits(dns, dns));
        assert!(permits("workload.spec.template.spec", dns));
        assert!(permits(dns, &format!("{dns}.nameservers")));
        assert!(!permits(dns, &format!("{dns}urations")));
        assert!(!permits("service", dns));
        assert!(!InfrastructurePermissions::default().permits_patch(dns));
    }

    #[test]
    fn tolerations_are_permitted_by_key() {
        let some = InfrastructurePermissions {
            tolerations: list(&["edge"]),
            ..Default::default()
        };
        assert!(some.permits_toleration(Some("edge"), None));
        assert!(!some.permits_toleration(Some("edges"), None));
        assert!(!some.permits_toleration(None, None));
        let all = InfrastructurePermissions {
            tolerations: list(&["*"]),
            ..Default::default()
        };
        assert!(all.permits_toleration(None, None));
    }
}
