//! What patches are for, and the words of the format: directives, and the fields that identify elements of lists.

/// What is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patched {
    /// The Deployment or DaemonSet.
    Workload,
    /// Each Service that clients connect to.
    Service,
}

/// The field of a patch, or of an element of a list, that says what else is done than a merge.
pub(super) const DIRECTIVE: &str = "$patch";
/// The directive that removes an element or a field.
pub(super) const DELETE: &str = "delete";
/// The directive that removes what the patch does not have.
pub(super) const REPLACE: &str = "replace";

impl Patched {
    /// Returns the fields that identify the elements of a list; `None` if a patch replaces the list as a whole. Only the
    /// first one is required.
    pub(super) fn keys(self, list: &str) -> Option<&'static [&'static str]> {
        match (self, list) {
            (Self::Service, "ports") => Some(&["port", "protocol"]),
            (Self::Service, _) => None,
            (Self::Workload, "ports") => Some(&["containerPort", "protocol"]),
            (
                Self::Workload,
                "containers" | "initContainers" | "env" | "volumes" | "imagePullSecrets"
                | "resourceClaims" | "schedulingGates",
            ) => Some(&["name"]),
            (Self::Workload, "volumeMounts") => Some(&["mountPath"]),
            (Self::Workload, "volumeDevices") => Some(&["devicePath"]),
            (Self::Workload, "hostAliases") => Some(&["ip"]),
            (Self::Workload, "topologySpreadConstraints") => Some(&["topologyKey"]),
            (Self::Workload, _) => None,
        }
    }
}
