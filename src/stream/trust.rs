//! The Secret of the stream's CA. The leader creates and renews it. Every replica watches it and
//! serves with a certificate that it signs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::time::sleep;

use super::authority::Authority;
use crate::cluster::api_server::{describe, field_manager, request};
use crate::runtime::backoff::Backoff;
use crate::wire::SessionSecrets;

/// Name of the Secret in the controller's namespace.
pub const SECRET: &str = "portcullis-controller-ca";

/// Interval of renewal checks. Certificates are valid for days.
const PERIOD: Duration = Duration::from_secs(60 * 60);
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(10),
};

/// Trust material derived from the Secret.
#[derive(Debug, Default)]
pub struct Trust {
    /// TLS configuration of the stream server; `None` before the Secret is known.
    pub tls: watch::Sender<Option<Arc<ServerConfig>>>,
    /// CA bundle for pods, as PEM.
    pub bundle: watch::Sender<Option<Arc<str>>>,
    /// Master secrets of session tokens.
    pub session_secret: watch::Sender<Option<Arc<SessionSecrets>>>,
}

/// Creates and renews the Secret while polled. Runs on the leader only.
pub async fn maintain(client: &Client, namespace: &str) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut failures = 0;
    let mut logged = String::new();
    loop {
        let pause = match renew(&secrets, today()).await {
            Ok(()) => {
                failures = 0;
                logged.clear();
                PERIOD
            }
            Err(error) => {
                if error != logged {
                    tracing::warn!("Secret {namespace}/{SECRET}: {error}; retrying");
                    logged = error;
                }
                failures += 1;
                BACKOFF.after(failures)
            }
        };
        // A deleted or corrupted Secret is recreated at once.
        tokio::select! {
            () = sleep(pause) => {}
            () = until_invalid(&secrets), if failures == 0 => {}
        }
    }
}

/// Creates the Secret, or renews its CA if that is due.
async fn renew(secrets: &Api<Secret>, today: Date) -> Result<(), String> {
    let params = PostParams {
        field_manager: Some(field_manager().to_owned()),
        ..PostParams::default()
    };
    let found = request(secrets.get_opt(SECRET)).await?;
    let Some(mut secret) = found.map_err(|error| describe(&error))? else {
        let authority = Authority::new(today).map_err(|error| error.to_string())?;
        let secret = with_data(Secret::default(), &authority);
        let created = request(secrets.create(&params, &secret)).await?;
        return created.map(drop).map_err(|error| describe(&error));
    };
    let renewed = match Authority::from_data(&data(&secret)) {
        Ok(authority) => authority.renewed(today)?,
        Err(error) => {
            tracing::error!("Secret {SECRET} is invalid: {error}; creating a new CA");
            Some(Authority::new(today).map_err(|error| error.to_string())?)
        }
    };
    let Some(authority) = renewed else {
        return Ok(());
    };
    secret = with_data(secret, &authority);
    let replaced = request(secrets.replace(SECRET, &params, &secret)).await?;
    replaced.map(drop).map_err(|error| describe(&error))
}

/// Returns when the Secret is deleted or invalid.
async fn until_invalid(secrets: &Api<Secret>) {
    let mut events = watch_object(secrets.clone(), SECRET)
        .default_backoff()
        .boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(Some(secret)) if Authority::from_data(&data(&secret)).is_ok() => {}
            Ok(_) => return,
            Err(_) => {}
        }
    }
}

/// Updates `trust` from the Secret while polled. `host` is the name in the serving certificate.
pub async fn watch_secret(client: &Client, namespace: &str, host: &str, trust: &Trust) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut events = watch_object(secrets, SECRET).default_backoff().boxed();
    let mut authority = None;
    let mut issued = None;
    loop {
        tokio::select! {
            Some(event) = events.next() => match event {
                Ok(Some(secret)) => match Authority::from_data(&data(&secret)) {
                    Ok(read) if authority.as_ref() != Some(&read) => {
                        let secret = read.session_secrets().map(Arc::new);
                        trust.session_secret.send_replace(secret);
                        trust.bundle.send_replace(Some(read.bundle().into()));
                        (authority, issued) = (Some(read), None);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::error!("Secret {namespace}/{SECRET} is invalid: {error}");
                    }
                },
                // The previous trust stays in force until there is a new Secret.
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!("cannot watch Secret {namespace}/{SECRET}: {}", describe(&error));
                }
            },
            () = sleep(PERIOD) => {}
        }
        let today = today();
        if let Some(authority) = &authority
            && issued != Some(today)
        {
            match authority.serve(host, today) {
                Ok(tls) => {
                    issued = Some(today);
                    trust.tls.send_replace(Some(tls));
                }
                Err(error) => tracing::error!("cannot issue a certificate for {host}: {error}"),
            }
        }
    }
}

fn data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| (key.clone(), value.0.clone()))
        .collect()
}

fn with_data(secret: Secret, authority: &Authority) -> Secret {
    let data = authority.data().into_iter();
    let labels = [("app.kubernetes.io/name", "portcullis")];
    let mut metadata = secret.metadata;
    metadata.name = Some(SECRET.to_owned());
    metadata
        .labels
        .get_or_insert_default()
        .extend(labels.map(|(key, value)| (key.to_owned(), value.to_owned())));
    Secret {
        data: Some(data.map(|(key, value)| (key, ByteString(value))).collect()),
        metadata,
        ..secret
    }
}

fn today() -> Date {
    Zoned::new(Timestamp::now(), TimeZone::UTC).date()
}
