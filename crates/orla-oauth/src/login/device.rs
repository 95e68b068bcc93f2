//! Device sign-in: a user enters a code in a browser on any machine (RFC 8628).

use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::grant::{Grant, with_client};
use crate::login::SignIn;
use crate::pkce::{self, Pkce};
use crate::secret::Secret;
use crate::token::{Refusal, refusal};
use crate::upstream::{Subject, Upstream};

/// The pause between two polls, unless the server sets another (RFC 8628 §3.2).
const INTERVAL: Duration = Duration::from_secs(5);
/// The increase of the pause when the server asks for slower polling (RFC 8628 §3.5).
const SLOWER: Duration = Duration::from_secs(5);
/// The maximum lifetime of a code.
const MAX_LIFE: Duration = Duration::from_secs(3600);
/// The redirect address that a client is registered with although it uses none.
const NO_REDIRECT: &str = "http://127.0.0.1/callback";

/// The information that a user needs for a device sign-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePrompt {
    /// The address where the code is entered.
    pub url: String,
    /// The same address with the code in it, if there is one.
    pub complete_url: Option<String>,
    /// The code.
    pub code: String,
}

/// The answer of a device authorization endpoint (RFC 8628 §3.2).
#[derive(Deserialize)]
struct Answer {
    device_code: Option<Secret>,
    user_code: Option<String>,
    verification_uri: Option<String>,
    verification_uri_complete: Option<String>,
    expires_in: Option<f64>,
    interval: Option<f64>,
    error: Option<String>,
    error_description: Option<String>,
}

impl Upstream {
    /// Signs in by a device code: shows the prompt, and waits for the user.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn sign_in_device(
        &self,
        subject: &Subject,
        show: impl FnOnce(&DevicePrompt),
    ) -> Result<(), Error> {
        let found = self.discovered().await?;
        let endpoint = found.metadata.device_authorization_endpoint.as_ref();
        let endpoint = found.endpoint("endpoint for the sign-in of devices", endpoint)?;
        let (client, scopes) = self.client_and_scopes(subject, &found, NO_REDIRECT).await?;
        let names = scopes.to_string();
        let mut fields = vec![("resource", found.resource.as_str())];
        if !names.is_empty() {
            fields.push(("scope", &names));
        }
        let form = with_client(fields, &client, client.method(Some(&found.metadata)));
        let response = self.http.post(endpoint, found.trust, &form).await?;
        let (code, prompt, interval, life) =
            read(response.status, &response.body, client.secret.as_slice())?;
        show(&prompt);
        let sign_in = SignIn {
            found,
            client,
            redirect_uri: NO_REDIRECT.to_owned(),
            scopes,
            pkce: Pkce::new()?,
            state: pkce::random()?,
        };
        self.wait_for_device(subject, &sign_in, code, interval, life).await
    }

    async fn wait_for_device(
        &self,
        subject: &Subject,
        sign_in: &SignIn,
        code: Secret,
        mut interval: Duration,
        life: Duration,
    ) -> Result<(), Error> {
        let (grant, end) = (Grant::Device(code), Instant::now() + life);
        while Instant::now() + interval < end {
            sleep(interval).await;
            let endpoint = sign_in.found.token_endpoint()?;
            let request = self.token_request(sign_in, &grant);
            match self.request(&request, endpoint, sign_in.found.trust, None).await {
                Ok(token) => return self.keep(subject, sign_in, &token).await,
                Err(refusal) if refusal.is("slow_down") => interval += SLOWER,
                Err(refusal) if refusal.is("authorization_pending") => {}
                // A failed connection is retried, more slowly (RFC 8628 §3.5).
                Err(Refusal::Unreadable(_)) => interval += SLOWER,
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Err(Error::Failed("the code has expired before the sign-in was complete".to_owned()))
    }
}

/// Parses the answer to the first request, which had these `secrets`: the device code, the prompt, the
/// pause and the lifetime.
fn read(
    status: u16,
    body: &[u8],
    secrets: &[Secret],
) -> Result<(Secret, DevicePrompt, Duration, Duration), Error> {
    let unreadable =
        || Error::Failed(format!("the authorization server did not give a code (HTTP {status})"));
    let answer: Answer = serde_json::from_slice(body).map_err(|_| unreadable())?;
    if let Some(code) = answer.error {
        return Err(refusal(&code, answer.error_description.as_deref(), secrets).into());
    }
    let (Some(device), Some(code), Some(url)) =
        (answer.device_code, answer.user_code, answer.verification_uri)
    else {
        return Err(unreadable());
    };
    let seconds = |value: Option<f64>, default: Duration| {
        let duration = value.and_then(|value| Duration::try_from_secs_f64(value).ok());
        duration.unwrap_or(default)
    };
    let prompt = DevicePrompt { url, complete_url: answer.verification_uri_complete, code };
    let interval = seconds(answer.interval, INTERVAL).clamp(Duration::from_millis(100), MAX_LIFE);
    Ok((device, prompt, interval, seconds(answer.expires_in, MAX_LIFE).min(MAX_LIFE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_says_what_the_person_needs() {
        let (code, prompt, interval, life) = read(
            200,
            br#"{"device_code":"d","user_code":"AB-CD","verification_uri":"https://as.example/device","expires_in":60}"#,
            &[],
        )
        .unwrap();
        assert_eq!((code.expose(), prompt.code.as_str()), ("d", "AB-CD"));
        assert_eq!((interval, life), (INTERVAL, Duration::from_secs(60)));
        assert!(
            read(400, br#"{"error":"unauthorized_client"}"#, &[])
                .unwrap_err()
                .to_string()
                .contains("unauth")
        );
        assert!(read(200, b"{}", &[]).is_err() && read(500, b"<html>", &[]).is_err());
    }
}
