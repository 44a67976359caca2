//! The finalizer of GatewayClasses in use. It prevents the deletion of a class while a Gateway uses
//! it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::inventory::WATCH_SECONDS;
use crate::cluster::api_server::{describe, request};
use crate::ir::object_ref::GATEWAY_GROUP;

/// The finalizer defined by the Gateway API (GatewayClass, `GatewayClassFinalizerGatewaysExist`).
const FINALIZER: &str = "gateway-exists-finalizer.gateway.networking.k8s.io";
/// Delay after a failure, which is usually a conflict with another writer.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// GatewayClasses of this controller by name, and whether a Gateway uses them.
pub type ClassUsage = BTreeMap<String, bool>;

/// Adds and removes finalizers according to `uses` while polled, also after changes by other clients.
pub async fn keep_finalizers(client: &Client, mut uses: watch::Receiver<ClassUsage>) {
    let kind = GroupVersionKind::gvk(GATEWAY_GROUP, "v1", "GatewayClass");
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut changes = watch_classes(client, &resource);
    // The classes of which it is known whether they have the finalizer.
    let mut kept = ClassUsage::new();
    loop {
        let wanted = uses.borrow_and_update().clone();
        kept.retain(|class, _| wanted.contains_key(class));
        let mut has_failed = false;
        for (class, used) in &wanted {
            if kept.get(class) == Some(used) {
                continue;
            }
            let written = request(write_finalizer(&api, class, *used)).await;
            match written.and_then(|written| written.map_err(|error| describe(&error))) {
                Ok(()) => {
                    kept.insert(class.clone(), *used);
                }
                Err(error) => {
                    tracing::warn!(
                        "GatewayClass {class}: cannot write the finalizer: {error}; retrying"
                    );
                    has_failed = true;
                }
            }
        }
        let again = async {
            if !has_failed {
                std::future::pending::<()>().await;
            }
            sleep(RETRY_DELAY).await;
        };
        tokio::select! {
            changed = uses.changed() => if changed.is_err() {
                return;
            },
            Some((class, has_finalizer)) = changes.next() => {
                kept.insert(class, has_finalizer);
            }
            () = again => {}
        }
    }
}

/// Watches all GatewayClasses. Returns the name of each one that exists or changes, and whether it has the finalizer.
fn watch_classes(client: &Client, resource: &ApiResource) -> BoxStream<'static, (String, bool)> {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), resource);
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let classes = watcher::watcher(api, config).default_backoff();
    let changes = classes.applied_objects().filter_map(|class| async move {
        match class {
            Ok(class) => {
                let mut finalizers = class.finalizers().iter();
                Some((class.name_any(), finalizers.any(|it| it == FINALIZER)))
            }
            Err(error) => {
                tracing::warn!("cannot watch gatewayclasses: {}", describe(&error));
                None
            }
        }
    });
    changes.boxed()
}

async fn write_finalizer(
    api: &Api<DynamicObject>,
    class: &str,
    used: bool,
) -> Result<(), kube::Error> {
    let Some(object) = api.get_metadata_opt(class).await? else {
        return Ok(());
    };
    let mut finalizers = object.finalizers().to_vec();
    // The API server rejects new finalizers on an object that is being deleted.
    let may_add = object.metadata.deletion_timestamp.is_none();
    let before = finalizers.len();
    finalizers.retain(|finalizer| finalizer != FINALIZER);
    if used && (may_add || finalizers.len() < before) {
        finalizers.push(FINALIZER.to_owned());
    }
    if finalizers.len() == before {
        return Ok(());
    }
    let version = object.resource_version();
    // A merge patch replaces the whole list. The version turns a concurrent change into a conflict.
    let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
    api.patch_metadata(class, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}
