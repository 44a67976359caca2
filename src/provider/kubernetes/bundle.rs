//! The release of the installed Gateway API CRDs.

use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The CRD to read. All CRDs of a release have the same annotation.
const CRD: &str = "gatewayclasses.gateway.networking.k8s.io";
/// Annotation with the release.
const BUNDLE_VERSION: &str = "gateway.networking.k8s.io/bundle-version";
/// Poll interval.
const PERIOD: Duration = Duration::from_secs(60);

/// Keeps `version` up to date while polled. It is `None` until the first response.
pub async fn watch_bundle_version(client: &Client, version: &watch::Sender<Option<String>>) {
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    loop {
        if let Ok(Ok(crd)) = timeout(PERIOD, api.get_metadata(CRD)).await {
            let found = crd.annotations().get(BUNDLE_VERSION);
            let found = found.cloned().unwrap_or_else(|| "unknown".to_owned());
            version.send_if_modified(|version| {
                let is_changed = version.as_ref() != Some(&found);
                *version = Some(found);
                is_changed
            });
        }
        sleep(PERIOD).await;
    }
}
