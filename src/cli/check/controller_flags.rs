//! Flags of `check` about the controller that serves the objects: what it permits the infrastructure of Gateways, and where it
//! fetches keys.

use std::sync::Arc;

use crate::cli::flags::IssuerAddressFlags;
use crate::cli::infrastructure::InfrastructureFlags;
use crate::cli::value::namespace;
use crate::dns::AllowedAddresses;
use crate::settings::permissions::InfrastructurePermissions;

/// What the controller is started with.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct ControllerFlags {
    /// Namespace of the controller that serves the objects: also those of DIR are judged as it does, GatewayParameters and
    /// `spec.infrastructure` of Gateways by its permissions, which are the `--allow-` flags below [default: these are not
    /// checked, and DIR is judged as for `run`]
    #[arg(
        long,
        value_name = "NAMESPACE",
        help_heading = "Controller",
        value_parser = namespace
    )]
    controller_namespace: Option<String>,
    /// Image of the controller's `--image`, which GatewayParameters may name
    #[arg(
        long,
        value_name = "IMAGE",
        help_heading = "Controller",
        requires = "controller_namespace",
        default_value = ""
    )]
    image: String,
    /// What the controller permits.
    #[command(flatten)]
    infrastructure: InfrastructureFlags,
    /// Where keys may be fetched from.
    #[command(flatten, next_help_heading = "Permissions")]
    issuers: IssuerAddressFlags,
}

impl ControllerFlags {
    /// Returns what the infrastructure of Gateways may ask; `None` if that is not checked.
    ///
    /// # Errors
    /// When there are permissions without the namespace of their controller.
    pub(super) fn infrastructure(
        &self,
    ) -> Result<Option<Arc<InfrastructurePermissions>>, &'static str> {
        let permissions = |namespace: &str| self.infrastructure.permissions(namespace, &self.image);
        match &self.controller_namespace {
            Some(namespace) => Ok(Some(Arc::new(permissions(namespace)))),
            None if permissions("") == InfrastructurePermissions::default() => Ok(None),
            None => Err(
                "permissions of GatewayParameters need the namespace of the controller that has them: \
                 add --controller-namespace",
            ),
        }
    }

    /// Returns where keys may be fetched from.
    pub(super) fn key_addresses(&self) -> AllowedAddresses {
        AllowedAddresses::new(self.issuers.allow_jwks_address.clone())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    /// What these arguments permit, or why they are wrong.
    fn infrastructure(
        arguments: &[&str],
    ) -> Result<Option<Arc<InfrastructurePermissions>>, &'static str> {
        let command = ControllerFlags::augment_args(Command::new("check"));
        let line = ["check"].iter().chain(arguments);
        let matches = command.try_get_matches_from(line).unwrap();
        ControllerFlags::from_arg_matches(&matches)
            .unwrap()
            .infrastructure()
    }

    #[test]
    fn permissions_are_those_of_the_controller_in_its_namespace() {
        assert_eq!(infrastructure(&[]), Ok(None));
        let alone = infrastructure(&["--allow-image", "*"]);
        assert!(alone.unwrap_err().contains("--controller-namespace"));
        let named = [
            "--controller-namespace=infra",
            "--image=edge:1",
            "--allow-image=registry.example/edge/",
        ];
        let permissions = infrastructure(&named).unwrap().unwrap();
        assert_eq!(permissions.operator_namespace, "infra");
        for (image, is_permitted) in [
            ("edge:1", true),
            ("registry.example/edge/portcullis", true),
            ("other", false),
        ] {
            assert_eq!(permissions.permits_image(image), is_permitted, "{image}");
        }
    }
}
