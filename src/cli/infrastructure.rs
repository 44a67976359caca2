//! The controller's flags about what the parameters and `spec.infrastructure` of Gateways may set.

use clap::Args;

use crate::settings::permissions::{AllowList, HostNetwork, InfrastructurePermissions};

/// What GatewayParameters and `spec.infrastructure` of Gateways may set. The defaults permit what any pod of the namespace
/// may have under the Pod Security Standard `restricted`, and no key that a component of the cluster interprets.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Permissions of GatewayParameters")]
pub struct InfrastructureFlags {
    /// Images that GatewayParameters may name in addition to --image, by prefix, such as registry.example/edge/; `*` for all
    #[arg(
        long,
        value_name = "PREFIX,…",
        env = "PORTCULLIS_ALLOW_IMAGE",
        value_delimiter = ',',
        value_parser = entry
    )]
    pub allow_image: Vec<String>,
    /// Whether pods may use the host network: no, with ports from 1024 on, or with all ports, for which they run as root
    #[arg(long, value_name = "none|unprivileged-ports|all-ports", env = "PORTCULLIS_ALLOW_HOST_NETWORK",
          default_value_t = HostNetwork::default())]
    pub allow_host_network: HostNetwork,
    /// Taints that pods may tolerate, by key; `*` for all
    #[arg(
        long,
        value_name = "KEY,…",
        env = "PORTCULLIS_ALLOW_TOLERATION",
        value_delimiter = ',',
        value_parser = entry
    )]
    pub allow_toleration: Vec<String>,
    /// Priority classes that pods may have; `*` for all
    #[arg(
        long,
        value_name = "NAME,…",
        env = "PORTCULLIS_ALLOW_PRIORITY_CLASS",
        value_delimiter = ',',
        value_parser = entry
    )]
    pub allow_priority_class: Vec<String>,
    /// Annotations of pods, Services and other objects, by domain or prefix of the key, such as networking.gke.io; `*` for
    /// all. Keys without a domain are always permitted
    #[arg(
        long,
        value_name = "PREFIX,…",
        env = "PORTCULLIS_ALLOW_ANNOTATION",
        value_delimiter = ',',
        value_parser = entry
    )]
    pub allow_annotation: Vec<String>,
    /// Labels of pods, Services and other objects, by domain or prefix of the key; `*` for all. Keys without a domain and
    /// those of app.kubernetes.io are always permitted
    #[arg(
        long,
        value_name = "PREFIX,…",
        env = "PORTCULLIS_ALLOW_LABEL",
        value_delimiter = ',',
        value_parser = entry
    )]
    pub allow_label: Vec<String>,
    /// Environment variables of the container, by name; `*` for all but those that begin with PORTCULLIS_, each of which
    /// needs its own entry
    #[arg(
        long,
        value_name = "NAME,…",
        env = "PORTCULLIS_ALLOW_ENV",
        value_delimiter = ',',
        value_parser = entry
    )]
    pub allow_env: Vec<String>,
    /// Volumes of pods, by type: configMap, secret, emptyDir, persistentVolumeClaim, csi; `*` for all
    #[arg(
        long,
        value_name = "TYPE,…",
        env = "PORTCULLIS_ALLOW_VOLUME",
        value_delimiter = ',',
        value_parser = entry
    )]
    pub allow_volume: Vec<String>,
    /// Fields that patches may set, each with those below it, such as workload.spec.template.spec.dnsConfig or
    /// service.spec.ports.nodePort; `*` for all, which lets pods run anything
    #[arg(
        long,
        value_name = "FIELD,…",
        env = "PORTCULLIS_ALLOW_PATCH",
        value_delimiter = ',',
        value_parser = entry
    )]
    pub allow_patch: Vec<String>,
    /// Whether pods may have a NetworkPolicy, which admits clients to them in namespaces that deny them otherwise
    #[arg(long, env = "PORTCULLIS_ALLOW_NETWORK_POLICY")]
    pub allow_network_policy: bool,
}

impl InfrastructureFlags {
    /// Returns the permissions of a controller in `namespace` that gives pods `image`.
    pub fn permissions(&self, namespace: &str, image: &str) -> InfrastructurePermissions {
        let list = |entries: &[String]| AllowList::new(entries.iter().cloned());
        InfrastructurePermissions {
            operator_namespace: namespace.to_owned(),
            own_image: image.to_owned(),
            images: list(&self.allow_image),
            host_network: self.allow_host_network,
            tolerations: list(&self.allow_toleration),
            priority_classes: list(&self.allow_priority_class),
            annotations: list(&self.allow_annotation),
            labels: list(&self.allow_label),
            env: list(&self.allow_env),
            volumes: list(&self.allow_volume),
            patches: list(&self.allow_patch),
            network_policy: self.allow_network_policy,
        }
    }
}

/// Parses an entry of a list. An empty prefix would permit everything.
fn entry(text: &str) -> Result<String, String> {
    let is_valid = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
    match is_valid(text) && (text == "*" || !text.contains('*')) {
        true => Ok(text.to_owned()),
        false => Err("write a name or prefix without spaces, or `*` alone for all".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_not_empty_and_have_no_pattern() {
        for text in ["", " ", "a b", "example.com/*", "**"] {
            assert!(entry(text).is_err(), "{text:?}");
        }
        for text in ["*", "example.com", "registry.example:5000/edge/"] {
            assert_eq!(entry(text).as_deref(), Ok(text));
        }
    }
}
