//! The key of session tokens: from a file, or from the controller.

use std::sync::Arc;

use anyhow::Context;

use crate::settings::Settings;
use crate::settings::session_key::SessionKey;

/// Returns the key of session tokens, from its file if one is configured.
pub(super) fn open(settings: &Settings) -> anyhow::Result<Arc<SessionKey>> {
    let Some(file) = &settings.session_key_file else {
        return Ok(Arc::default());
    };
    let read = || {
        let secret = std::fs::read(file)?;
        SessionKey::from_secret(secret.trim_ascii()).map_err(anyhow::Error::msg)
    };
    let key = read().with_context(|| format!("cannot use the session key {}", file.display()))?;
    Ok(Arc::new(key))
}

/// Sets the key of session tokens from the controller's secret.
pub(super) fn follow(key: &SessionKey, secret: &str) {
    match SessionKey::from_secret(secret.as_bytes()) {
        Ok(new) => key.replace(new),
        Err(error) => tracing::warn!("ignoring the session key of the controller: {error}"),
    }
}
