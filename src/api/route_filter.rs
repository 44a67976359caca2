//! RouteFilter, a CRD of Portcullis: a filter that rules of HTTPRoutes name in `extensionRef`. Its CRD is
//! deploy/crds/routefilters.yaml.

use serde::{Deserialize, Serialize};

use super::filter::HeaderValue;
use super::meta::ObjectMeta;
use super::reference::{Found, Purpose, ReferenceField, Role};

/// A filter of requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RouteFilter {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: RouteFilterSpec,
}

/// Spec of a RouteFilter, with one field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteFilterSpec {
    /// Changes the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex_rewrite: Option<RegexRewrite>,
    /// Responds itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct_response: Option<DirectResponse>,
}

impl RouteFilterSpec {
    /// Visits the fields that refer to other objects.
    pub fn references(&self, found: &mut Found<'_>) {
        let response = self.direct_response.iter();
        for map in response.filter_map(|it| it.config_map_ref.as_ref()) {
            let role = Role::Contents(Purpose::Texts);
            found(ReferenceField::config_map(role, &map.name));
        }
    }
}

/// A change of the path by a regular expression.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RegexRewrite {
    /// Regular expression for parts of the path.
    pub pattern: String,
    /// What each part that matches is replaced with; `$1` to `$9` are groups.
    pub replacement: String,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectResponse {
    /// Status, 200 to 599.
    pub status: u16,
    /// Body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Where the body is, if it is not in `body`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigMapKeyRef>,
    /// Headers.
    #[serde(default)]
    pub headers: Vec<HeaderValue>,
}

/// A key of a ConfigMap in the namespace of the object.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ConfigMapKeyRef {
    /// Name of the ConfigMap.
    pub name: String,
    /// Key.
    pub key: String,
}
