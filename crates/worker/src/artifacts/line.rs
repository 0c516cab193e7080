//! How a bucket is spoken to. Its server is a stranger as well: it does not send us elsewhere, where whatever answers there
//! would come out as a file; and what it says besides the bytes of objects is bounded.

use http_body_util::{BodyExt, Limited};
use object_store::{
    ClientConfigKey, ClientOptions, Error,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
        HttpService,
    },
};
use std::{io, pin::Pin, time::Duration};

/// A server that is away is one after this.
const CONNECT: Duration = Duration::from_secs(10);
/// The whole answer must come within this.
const WHOLE: Duration = Duration::from_secs(120);
/// A page of a listing has a thousand keys of at most a thousand letters, and what is known of them.
const LONGEST_WORD: usize = 16 << 20;

/// Makes clients that stay where they are sent.
#[derive(Debug)]
pub(super) struct Line;

impl HttpConnector for Line {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // Another part of the program may have been first.
        _ = rustls::crypto::ring::default_provider().install_default();
        let plain = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .https_only(!plain)
            .connect_timeout(CONNECT)
            .timeout(WHOLE)
            .user_agent("airlock")
            .build()
            .map_err(|error| Error::Generic { store: "bucket", source: error.into() })?;
        Ok(HttpClient::new(Stays(client)))
    }
}

#[derive(Debug)]
struct Stays(reqwest::Client);

type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Stays {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Answer<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let is_page = request.uri().query().is_some_and(|query| query.contains("list-type="));
            let is_object = request.method() == "GET" && !is_page;
            let answer = self.0.call(request).await?;
            let status = answer.status();
            // 304 sends nobody anywhere.
            if status.is_redirection() && status != 304 {
                return Err(HttpError::new(HttpErrorKind::Unknown, elsewhere(status.as_u16())));
            }
            Ok(if is_object && status.is_success() { answer } else { answer.map(bounded) })
        })
    }
}

fn elsewhere(status: u16) -> io::Error {
    io::Error::other(format!(
        "it sends us elsewhere (status {status}), where we do not go: see whether its address and region are right"
    ))
}

fn bounded(body: HttpResponseBody) -> HttpResponseBody {
    let too_long = |_| {
        let why = io::Error::other(format!("it says more than {LONGEST_WORD} bytes, or stops in the middle"));
        HttpError::new(HttpErrorKind::Decode, why)
    };
    HttpResponseBody::new(Limited::new(body, LONGEST_WORD).map_err(too_long))
}
