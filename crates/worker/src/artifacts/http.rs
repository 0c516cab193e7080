//! HTTP connector for buckets: no redirects, bounded responses. The server is not trusted: a
//! redirect target would be returned as the artifact, and everything except object bodies is
//! limited in size. Timeouts are set by the caller, because a large file on a slow connection may
//! take long.
//!
//! The client rejects a whole page of a listing because of one key that is no valid path (`a//b`,
//! `../x`). Such keys are marked on the way to the client, and stay recognizable as invalid.

use super::credentials;
use http_body_util::{BodyExt, Limited};
use object_store::{
    ClientConfigKey, ClientOptions, Error,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use std::{io, pin::Pin, time::Duration};

/// Timeout to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A page of a listing has a thousand keys of at most 1024 bytes, plus their metadata.
const MAX_RESPONSE_BYTES: usize = 16 << 20;
/// Nothing in a listing, keys included, is longer.
const MAX_LISTING_PIECE_BYTES: usize = 8 << 10;
/// Marks an invalid key; no valid file name contains it.
pub(crate) const INVALID_KEY_MARK: char = '\u{80}';

/// Creates clients that follow no redirects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BoundedConnector {
    /// For the bucket itself.
    Bucket,
    /// For the sources of credentials.
    Credentials,
}

impl HttpConnector for BoundedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // Another part of the process may have installed it first.
        _ = rustls::crypto::ring::default_provider().install_default();
        let plain = options
            .get_config_value(&ClientConfigKey::AllowHttp)
            .as_deref()
            == Some("true");
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .https_only(!plain)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent("airlock")
            .build()
            .map_err(|error| Error::Generic {
                store: "bucket",
                source: error.into(),
            })?;
        Ok(HttpClient::new(BoundedHttpClient {
            client,
            line: *self,
        }))
    }
}

#[derive(Debug)]
struct BoundedHttpClient {
    client: reqwest::Client,
    line: BoundedConnector,
}

type ResponseFuture<'a> =
    Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for BoundedHttpClient {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> ResponseFuture<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let uri = request.uri().clone();
            let is_page = uri
                .query()
                .is_some_and(|query| query.contains("list-type="));
            let is_object =
                self.line == BoundedConnector::Bucket && request.method() == "GET" && !is_page;
            let answer = self.client.call(request).await?;
            let status = answer.status();
            // 304 is no redirect.
            if status.is_redirection() && status != 304 {
                return Err(HttpError::new(
                    HttpErrorKind::Unknown,
                    redirect_refused(status.as_u16()),
                ));
            }
            if is_object && status.is_success() {
                return Ok(answer);
            }
            let (head, body) = answer.map(limit_body).into_parts();
            let body = match self.line {
                BoundedConnector::Credentials if status.is_success() => {
                    credentials::check_metadata_response(
                        uri.path(),
                        body.collect().await?.to_bytes(),
                    )?
                    .into()
                }
                BoundedConnector::Bucket if is_page => sanitize_listing(body).await?,
                BoundedConnector::Bucket | BoundedConnector::Credentials => body,
            };
            Ok(HttpResponse::from_parts(head, body))
        })
    }
}

fn redirect_refused(status: u16) -> io::Error {
    io::Error::other(format!(
        "it sends us elsewhere (status {status}), where we do not go: see whether its address and region are right"
    ))
}

fn limit_body(body: HttpResponseBody) -> HttpResponseBody {
    let too_long = |_| {
        let why = io::Error::other(format!(
            "it says more than {MAX_RESPONSE_BYTES} bytes, or stops in the middle"
        ));
        HttpError::new(HttpErrorKind::Decode, why)
    };
    HttpResponseBody::new(Limited::new(body, MAX_RESPONSE_BYTES).map_err(too_long))
}

/// Replaces invalid keys in a page of a listing. The client decodes only what it needs, so invalid
/// UTF-8 is rejected here.
async fn sanitize_listing(body: HttpResponseBody) -> Result<HttpResponseBody, HttpError> {
    let text = body.collect().await?.to_bytes();
    let why = match std::str::from_utf8(&text) {
        Ok(text) if has_only_short_pieces(text) => return Ok(mark_invalid_keys(text).into()),
        Ok(_) => format!(
            "its listing has a piece of more than {MAX_LISTING_PIECE_BYTES} bytes, or remarks"
        ),
        Err(_) => "its listing is no text".to_owned(),
    };
    Err(HttpError::new(HttpErrorKind::Decode, io::Error::other(why)))
}

/// The client puts the continuation token of this page into a URL and panics if that becomes too
/// long. Markup that could split a long text (`<!`) does not occur in listings, and `<?` only at
/// the beginning.
fn has_only_short_pieces(page: &str) -> bool {
    let mut pieces = page.split('<');
    pieces.all(|piece| piece.len() <= MAX_LISTING_PIECE_BYTES && !piece.starts_with('!'))
        && page.matches("<?").count() <= 1
}

/// A page in which every key is a valid path.
fn mark_invalid_keys(page: &str) -> String {
    let mut pieces = page.split("<Key>");
    let mut whole = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find('<').unwrap_or(piece.len());
        whole.push_str("<Key>");
        whole.push_str(&mark_key(&piece[..end]));
        whole.push_str(&piece[end..]);
    }
    whole
}

fn mark_key(key: &str) -> String {
    if key.is_empty() {
        // The key is empty, or spelled differently.
        return String::new();
    }
    // A trailing slash is the key of an empty folder.
    let (key, end) = key.strip_suffix('/').map_or((key, ""), |key| (key, "/"));
    let parts = key.split('/').map(|part| match part {
        "" | "." | ".." => format!("{part}{INVALID_KEY_MARK}"),
        part => mark_control_characters(part),
    });
    parts.collect::<Vec<_>>().join("/") + end
}

/// Replaces control characters, literal or as references (`&#10;`, `&#xA;`).
fn mark_control_characters(part: &str) -> String {
    let mut pieces = part.split("&#");
    let mut whole = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let number = piece.split_once(';').and_then(|(number, rest)| {
            let hexadecimal = number
                .strip_prefix(['x', 'X'])
                .map(|digits| u8::from_str_radix(digits, 16));
            Some((hexadecimal.unwrap_or_else(|| number.parse()).ok()?, rest))
        });
        match number {
            Some((number, rest)) if number.is_ascii_control() => {
                whole.extend([&INVALID_KEY_MARK.to_string(), rest])
            }
            _ => whole.extend(["&#", piece]),
        }
    }
    whole.replace(
        |letter: char| letter.is_ascii_control(),
        &INVALID_KEY_MARK.to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::path::Path;
    use proptest::prelude::*;

    #[test]
    fn keys_that_cannot_be_named_are_marked_and_others_left() {
        let plain =
            "<A><Key>a/b.c/&#34;&amp;&#x27;é/</Key><Key>...</Key><Key><![CDATA[a]]></Key></A>";
        assert_eq!(mark_invalid_keys(plain), plain);
        for (odd, told) in [
            ("a//b", "a/\u{80}/b"),
            ("a//", "a/\u{80}/"),
            ("../x/.", "..\u{80}/x/.\u{80}"),
            ("a&#10;b&#xD;&#x7f;\t", "a\u{80}b\u{80}\u{80}\u{80}"),
        ] {
            assert_eq!(
                mark_invalid_keys(&format!("<Key>{odd}</Key>")),
                format!("<Key>{told}</Key>")
            );
        }
        for broken in ["", "<Key>", "<Key>a", "<Key>a&#", "<Key>a&#;</Key><Key"] {
            assert_eq!(
                mark_invalid_keys(broken).replace(INVALID_KEY_MARK, ""),
                broken
            );
        }
    }

    #[tokio::test]
    async fn what_is_no_text_is_no_listing() {
        let told = async |remark: &[u8]| {
            let listing = [b"<ListBucketResult>", remark, b"</ListBucketResult>"].concat();
            sanitize_listing(listing.into())
                .await
                .map(drop)
                .map_err(|error| format!("{error:?}"))
        };
        assert_eq!(told(b"<Name>bucket</Name>").await, Ok(()), "the control");
        assert!(
            told(b"<Name>\xff</Name>")
                .await
                .is_err_and(|why| why.contains("is no text"))
        );
    }

    proptest! {
        #[test]
        fn whatever_is_marked_can_be_named(key in "(/|\\.|a|é|\\t|\n|&#9;|&#x1F;|&#65;|&#300;){0,8}") {
            let mark_key = mark_key(&key);
            let read = mark_key.replace("&#65;", "A").replace("&#300;", "Ĭ");
            prop_assert!(Path::parse(&read).is_ok(), "{:?}", read);
            prop_assert!(mark_key == key || mark_key.contains(INVALID_KEY_MARK));
        }
    }
}
