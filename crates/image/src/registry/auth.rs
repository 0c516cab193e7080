//! Authentication: name and password, or a token from the server that the registry names. The token
//! is requested for pulling this one repository only, whatever scope the registry suggests.

use super::{
    challenge::{self, Challenge},
    client::Client,
    credentials::Credentials,
    error::PullError,
    secret::{self, RegistrySecret},
    timeouts::{AttemptError, TimedBody},
};
use reqwest::{
    Response, StatusCode, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE},
};
use serde::Deserialize;

/// Maximum bytes of a token server's response.
const MAX_TOKEN_BYTES: u64 = 256 << 10;

/// The value of `Authorization` that answers a 401 response.
pub(super) async fn answer(
    client: &Client,
    response: &Response,
    what: &str,
) -> Result<HeaderValue, AttemptError> {
    let headers = response.headers().get_all(WWW_AUTHENTICATE);
    let requested: Vec<_> = headers
        .iter()
        .filter_map(|header| header.to_str().ok())
        .flat_map(challenge::parse)
        .collect();
    let bearer = requested.iter().find_map(|challenge| match challenge {
        Challenge::Bearer { realm, service } => Some((realm, service.as_deref())),
        Challenge::Basic => None,
    });
    match (bearer, &client.credentials) {
        (Some((realm, service)), _) => token(client, response.url(), realm, service, what).await,
        (None, Some(Credentials::Password { user, password }))
            if requested.contains(&Challenge::Basic) =>
        {
            Ok(basic(user, password)
                .ok_or_else(|| denied(client, what, ": the credentials have invalid characters"))?)
        }
        (None, _) if requested.contains(&Challenge::Basic) => Err(denied(
            client,
            what,
            ": it requires a name and a password, and none are configured",
        )
        .into()),
        (None, _) => Err(denied(
            client,
            what,
            ": it requires an unsupported authentication scheme",
        )
        .into()),
    }
}

/// Requests a token for pulling this repository.
async fn token(
    client: &Client,
    from: &Url,
    realm: &str,
    service: Option<&str>,
    what: &str,
) -> Result<HeaderValue, AttemptError> {
    let mut url = Url::parse(realm)
        .map_err(|_| client.protocol(from, what, "the address of its token server is invalid"))?;
    client.check_next(from, &url, "a token")?;
    let scope = format!("repository:{}:pull", client.name.repository());
    let request = match &client.credentials {
        Some(Credentials::Identity(token)) => {
            let form = refresh_form(token, service, &scope);
            client
                .http
                .post(url.clone())
                .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(form)
        }
        Some(Credentials::Password { user, password }) => {
            let proof = basic(user, password)
                .ok_or_else(|| denied(client, what, ": the credentials have invalid characters"))?;
            url.query_pairs_mut()
                .extend_pairs(query(service, &scope))
                .append_pair("account", user);
            client.http.get(url.clone()).header(AUTHORIZATION, proof)
        }
        None => {
            url.query_pairs_mut().extend_pairs(query(service, &scope));
            client.http.get(url.clone())
        }
    };
    let response = client.send(request, &url).await?;
    match response.status() {
        StatusCode::OK => read(client, response).await,
        _ => Err(client.refusal(response, "a token").await),
    }
}

fn query<'q>(service: Option<&'q str>, scope: &'q str) -> impl Iterator<Item = (&'q str, &'q str)> {
    service
        .into_iter()
        .map(|service| ("service", service))
        .chain([("scope", scope)])
}

fn refresh_form(token: &RegistrySecret, service: Option<&str>, scope: &str) -> String {
    // `Url` is used only to encode the form.
    let Ok(mut form) = Url::parse("form:") else {
        return String::new();
    };
    let fixed = [
        ("grant_type", "refresh_token"),
        ("client_id", "airlock"),
        ("refresh_token", token.expose()),
    ];
    form.query_pairs_mut()
        .extend_pairs(query(service, scope))
        .extend_pairs(fixed);
    form.query().unwrap_or_default().to_owned()
}

async fn read(client: &Client, response: Response) -> Result<HeaderValue, AttemptError> {
    #[derive(Deserialize)]
    struct HelperResponse {
        token: Option<String>,
        access_token: Option<String>,
    }
    let from = response.url().clone();
    let bytes = TimedBody::new(response, &client.timeouts)
        .all(MAX_TOKEN_BYTES)
        .await?;
    // The parse error is dropped: it could quote the token.
    let answer: Option<HelperResponse> = serde_json::from_slice(&bytes).ok();
    let token = answer
        .and_then(|answer| answer.token.or(answer.access_token))
        .filter(|token| !token.is_empty());
    let value = token.and_then(|token| sensitive(&format!("Bearer {token}")));
    value.ok_or_else(|| {
        client
            .protocol(&from, "a token", "the response contains none")
            .into()
    })
}

fn basic(user: &str, password: &RegistrySecret) -> Option<HeaderValue> {
    let both = format!("{user}:{}", password.expose());
    sensitive(&format!("Basic {}", secret::encode(both.as_bytes())))
}

/// A header value that debug output does not show.
fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn denied(client: &Client, what: &str, reason: &str) -> PullError {
    let registry = client.name.registry().to_owned();
    PullError::Denied {
        registry,
        what: what.to_owned(),
        reason: reason.to_owned(),
    }
}
