//! Credentials from the command that a kubeconfig names (`users[].user.exec`). Owns when it runs: once at a start, and again when its
//! credential expires or is refused, whatever the number of clients. The clients of kube run it three times each.

use std::io::IsTerminal;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};

/// Time before its expiry at which a credential is replaced: a request may take as long.
const MARGIN: SignedDuration = SignedDuration::from_secs(10);
/// Minimum time between two runs, also when they fail or their credentials are of no use.
const PAUSE: Duration = Duration::from_secs(5);

/// The command, and its current credential.
pub(super) struct ExecPlugin {
    exec: ExecConfig,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Remains while the requests that wait for it give up.
    running: Option<JoinHandle<Result<ExecCredentialStatus, Failure>>>,
    last: Option<Run>,
    count: u64,
}

/// The last run that has ended.
struct Run {
    ended: Instant,
    outcome: Result<Credential, Failure>,
    expires: Option<Timestamp>,
    is_refused: bool,
}

/// A credential.
#[derive(Clone)]
pub(super) struct Credential {
    /// Number of the run that it is from.
    pub(super) run: u64,
    token: Option<String>,
    /// Certificates and key in PEM.
    identity: Option<(String, String)>,
}

/// Why there is no credential.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the command {command} (users[].user.exec of the kubeconfig) {problem}")]
pub(super) struct Failure {
    command: String,
    problem: String,
}

/// What the command prints, as far as it is of use here (`client.authentication.k8s.io`).
#[derive(Deserialize)]
struct ExecCredential {
    status: ExecCredentialStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialStatus {
    expiration_timestamp: Option<Timestamp>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl ExecPlugin {
    /// Takes the command from a user, unless it has a credential that takes precedence.
    pub(super) fn take_from(user: &mut AuthInfo) -> Option<Self> {
        let has_other = user.auth_provider.is_some()
            || user.token.is_some()
            || user.token_file.is_some()
            || (user.username.is_some() && user.password.is_some());
        let exec = user.exec.take_if(|_| !has_other)?;
        Some(Self {
            exec,
            state: Mutex::default(),
        })
    }

    /// Returns the current credential. Runs the command if there is none.
    pub(super) async fn credential(&self) -> Result<Credential, Failure> {
        let mut state = self.state.lock().await;
        let state = &mut *state;
        if let Some(last) = state.last.as_ref().filter(|last| last.is_current()) {
            return last.outcome.clone();
        }
        let running = state.running.get_or_insert_with(|| {
            let exec = self.exec.clone();
            spawn_blocking(move || run(&exec))
        });
        let ended = running.await;
        state.running = None;
        state.count += 1;
        let ended =
            ended.unwrap_or_else(|error| Err(failure(&self.exec, format!("failed: {error}"))));
        let expires = ended.as_ref().ok().and_then(|it| it.expiration_timestamp);
        let outcome = ended.and_then(|status| self.credential_of(status, state.count));
        let last = state.last.insert(Run {
            ended: Instant::now(),
            outcome,
            expires,
            is_refused: false,
        });
        last.outcome.clone()
    }

    /// Records that the API server does not accept the credential of a run.
    pub(super) async fn refuse(&self, credential: &Credential) {
        let mut state = self.state.lock().await;
        let is_of_run = state.count == credential.run;
        if let Some(last) = state.last.as_mut().filter(|_| is_of_run) {
            last.is_refused = true;
        }
    }

    fn credential_of(&self, status: ExecCredentialStatus, run: u64) -> Result<Credential, Failure> {
        let token = status.token.filter(|it| !it.is_empty());
        let certificates = status.client_certificate_data.filter(|it| !it.is_empty());
        let key = status.client_key_data.filter(|it| !it.is_empty());
        let identity = certificates.zip(key);
        if token.is_none() && identity.is_none() {
            let problem = "returned neither a token nor a certificate with its key";
            return Err(failure(&self.exec, problem.to_owned()));
        }
        Ok(Credential {
            run,
            token,
            identity,
        })
    }
}

impl Run {
    fn is_current(&self) -> bool {
        let is_valid = || {
            let ends = |at| at <= Timestamp::now() + MARGIN;
            self.outcome.is_ok() && !self.is_refused && !self.expires.is_some_and(ends)
        };
        self.ended.elapsed() < PAUSE || is_valid()
    }
}

impl Credential {
    /// Gives the user this credential.
    pub(super) fn add_to(&self, user: &mut AuthInfo) {
        user.token = self.token.clone().map(Into::into);
        if let Some((certificates, key)) = &self.identity {
            user.client_certificate_data = Some(STANDARD.encode(certificates));
            user.client_key_data = Some(STANDARD.encode(key).into());
        }
    }
}

fn failure(exec: &ExecConfig, problem: String) -> Failure {
    Failure {
        command: exec.command.clone().unwrap_or_default(),
        problem,
    }
}

/// Runs the command as client-go does. What it writes to standard error is for the user.
fn run(exec: &ExecConfig) -> Result<ExecCredentialStatus, Failure> {
    let failure = |problem: String| failure(exec, problem);
    let is_interactive =
        exec.interactive_mode != Some(ExecInteractiveMode::Never) && std::io::stdin().is_terminal();
    if exec.interactive_mode == Some(ExecInteractiveMode::Always) && !is_interactive {
        return Err(failure("needs a terminal as standard input".to_owned()));
    }
    let cluster = exec.cluster.as_ref().filter(|_| exec.provide_cluster_info);
    let mut spec = json!({"interactive": is_interactive});
    if let Some(cluster) = cluster {
        spec["cluster"] = json!(cluster);
    }
    let request = json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec});
    let mut command = Command::new(exec.command.as_deref().unwrap_or_default());
    command.args(exec.args.iter().flatten());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    command.env("KUBERNETES_EXEC_INFO", request.to_string());
    command
        .stderr(Stdio::inherit())
        .stdin(match is_interactive {
            true => Stdio::inherit(),
            false => Stdio::null(),
        });
    let output = command.output().map_err(|error| {
        let hint = exec.install_hint.as_deref().unwrap_or_default();
        failure(
            format!("cannot be run: {error}. {hint}")
                .trim_end()
                .to_owned(),
        )
    })?;
    if !output.status.success() {
        return Err(failure(format!("failed: {}", output.status)));
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    // The reason would show a part of the credential.
    let printed = serde_saphyr::from_str::<ExecCredential>(&printed);
    let credential = printed.map_err(|_| failure("printed no ExecCredential".to_owned()))?;
    Ok(credential.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(more: &serde_json::Value) -> AuthInfo {
        let mut user = json!({"exec": {"command": "plugin"}});
        user.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_value(user).unwrap()
    }

    #[test]
    fn other_credentials_of_the_user_take_precedence() {
        for other in [
            json!({"token": "t"}),
            json!({"tokenFile": "/token"}),
            json!({"username": "u", "password": "p"}),
        ] {
            let mut user = user(&other);
            assert!(ExecPlugin::take_from(&mut user).is_none());
            assert!(user.exec.is_some());
        }
        let mut user = user(&json!({"username": "u"}));
        assert!(ExecPlugin::take_from(&mut user).is_some());
        assert!(user.exec.is_none());
    }

    #[test]
    fn user_gets_token_and_certificate_of_the_command() {
        let mut user = user(&json!({"as": "someone"}));
        let plugin = ExecPlugin::take_from(&mut user).unwrap();
        let status = |status| plugin.credential_of(serde_json::from_value(status).unwrap(), 1);
        let credential = status(json!({
            "token": "t", "clientCertificateData": "certificates", "clientKeyData": "key",
        }));
        credential.unwrap().add_to(&mut user);
        assert_eq!(
            serde_json::to_value(&user).unwrap(),
            json!({
                "as": "someone", "token": "t",
                "client-certificate-data": STANDARD.encode("certificates"),
                "client-key-data": STANDARD.encode("key"),
            })
        );
        for useless in [
            json!({}),
            json!({"token": ""}),
            json!({"clientCertificateData": "certificates"}),
        ] {
            assert!(status(useless).is_err());
        }
    }
}
