//! The key of session tokens, and another one that is accepted: from files, or from the controller.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use crate::settings::Settings;
use crate::settings::session_key::SessionKey;

/// Returns the key of session tokens, from the files if they are configured.
pub(super) fn open(settings: &Settings) -> anyhow::Result<Arc<SessionKey>> {
    let Some(file) = &settings.session_key_file else {
        return Ok(Arc::default());
    };
    let secret = read(file)?;
    let accepted = settings.accepted_session_key_file.as_deref();
    let accepted = accepted.map(read).transpose()?;
    let key = SessionKey::from_secrets(&secret, accepted.as_deref()).map_err(anyhow::Error::msg)?;
    Ok(Arc::new(key))
}

/// Reads a secret that is long enough.
fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    let read = || {
        let secret = std::fs::read(file)?.trim_ascii().to_vec();
        SessionKey::from_secret(&secret).map_err(anyhow::Error::msg)?;
        anyhow::Ok(secret)
    };
    read().with_context(|| format!("cannot use the session key {}", file.display()))
}

/// Sets the key of session tokens from the controller's secrets.
pub(super) fn set(key: &SessionKey, secret: &str, accepted: Option<&str>) {
    match SessionKey::from_secrets(secret.as_bytes(), accepted.map(str::as_bytes)) {
        Ok(new) => key.replace(new),
        Err(error) => tracing::warn!("ignoring the session key of the controller: {error}"),
    }
}
