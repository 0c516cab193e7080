//! How a bucket is spoken to. Its server is a stranger as well: it does not send us elsewhere, where whatever answers there
//! would come out as a file; and what it says besides the bytes of objects is bounded. How long it may take, whoever asks knows:
//! a large file on a slow line may take long.
//!
//! The client refuses a whole page of a listing for one key that it cannot name (`a//b`, `../x`). Such keys are marked on their
//! way to it, and go on as keys that no file can have.

use super::found;
use http_body_util::{BodyExt, Limited};
use object_store::{
    ClientConfigKey, ClientOptions, Error,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use std::{io, pin::Pin, time::Duration};

/// A server that is away is one after this.
const CONNECT: Duration = Duration::from_secs(10);
/// A page of a listing has a thousand keys of at most a thousand letters, and what is known of them.
const LONGEST_WORD: usize = 16 << 20;
/// No key, and nothing else in a listing, is longer.
const LONGEST_PIECE: usize = 8 << 10;
/// Marks what cannot be named: no name of a file has it.
pub(crate) const ODD: char = '\u{80}';

/// Makes clients that stay where they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// To a bucket.
    Bucket,
    /// To whoever has what opens it.
    Credentials,
}

impl HttpConnector for Line {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // Another part of the program may have been first.
        _ = rustls::crypto::ring::default_provider().install_default();
        let plain = options
            .get_config_value(&ClientConfigKey::AllowHttp)
            .as_deref()
            == Some("true");
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .https_only(!plain)
            .connect_timeout(CONNECT)
            .user_agent("airlock")
            .build()
            .map_err(|error| Error::Generic {
                store: "bucket",
                source: error.into(),
            })?;
        Ok(HttpClient::new(Stays {
            client,
            line: *self,
        }))
    }
}

#[derive(Debug)]
struct Stays {
    client: reqwest::Client,
    line: Line,
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Stays {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Answer<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let uri = request.uri().clone();
            let is_page = uri
                .query()
                .is_some_and(|query| query.contains("list-type="));
            let is_object = self.line == Line::Bucket && request.method() == "GET" && !is_page;
            let answer = self.client.call(request).await?;
            let status = answer.status();
            // 304 sends nobody anywhere.
            if status.is_redirection() && status != 304 {
                return Err(HttpError::new(
                    HttpErrorKind::Unknown,
                    elsewhere(status.as_u16()),
                ));
            }
            if is_object && status.is_success() {
                return Ok(answer);
            }
            let (head, body) = answer.map(bounded).into_parts();
            let body = match self.line {
                Line::Credentials if status.is_success() => {
                    found::answer(uri.path(), body.collect().await?.to_bytes())?.into()
                }
                Line::Bucket if is_page => page(body).await?,
                Line::Bucket | Line::Credentials => body,
            };
            Ok(HttpResponse::from_parts(head, body))
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
        let why = io::Error::other(format!(
            "it says more than {LONGEST_WORD} bytes, or stops in the middle"
        ));
        HttpError::new(HttpErrorKind::Decode, why)
    };
    HttpResponseBody::new(Limited::new(body, LONGEST_WORD).map_err(too_long))
}

/// The client decodes only what it needs, so it does not refuse all that is no text.
async fn page(body: HttpResponseBody) -> Result<HttpResponseBody, HttpError> {
    let text = body.collect().await?.to_bytes();
    let why = match std::str::from_utf8(&text) {
        Ok(text) if has_short_pieces(text) => return Ok(nameable(text).into()),
        Ok(_) => format!("its listing has a piece of more than {LONGEST_PIECE} bytes, or remarks"),
        Err(_) => "its listing is no text".to_owned(),
    };
    Err(HttpError::new(HttpErrorKind::Decode, io::Error::other(why)))
}

/// The client asks for the next page by what this one says, and does not survive it if it is too long for an address. What may
/// be in the middle of a text, and would have it look shorter, is not in a listing; `<?` only begins one.
fn has_short_pieces(page: &str) -> bool {
    let mut pieces = page.split('<');
    pieces.all(|piece| piece.len() <= LONGEST_PIECE && !piece.starts_with('!'))
        && page.matches("<?").count() <= 1
}

/// A page whose keys can all be named.
fn nameable(page: &str) -> String {
    let mut pieces = page.split("<Key>");
    let mut whole = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find('<').unwrap_or(piece.len());
        whole.push_str("<Key>");
        whole.push_str(&marked(&piece[..end]));
        whole.push_str(&piece[end..]);
    }
    whole
}

fn marked(key: &str) -> String {
    if key.is_empty() {
        // There is none, or it is written in another way.
        return String::new();
    }
    // One at the end is that of an empty folder.
    let (key, end) = key.strip_suffix('/').map_or((key, ""), |key| (key, "/"));
    let parts = key.split('/').map(|part| match part {
        "" | "." | ".." => format!("{part}{ODD}"),
        part => without_controls(part),
    });
    parts.collect::<Vec<_>>().join("/") + end
}

/// Control characters as they are, and as numbers (`&#10;`, `&#xA;`).
fn without_controls(part: &str) -> String {
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
                whole.extend([&ODD.to_string(), rest])
            }
            _ => whole.extend(["&#", piece]),
        }
    }
    whole.replace(|letter: char| letter.is_ascii_control(), &ODD.to_string())
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
        assert_eq!(nameable(plain), plain);
        for (odd, told) in [
            ("a//b", "a/\u{80}/b"),
            ("a//", "a/\u{80}/"),
            ("../x/.", "..\u{80}/x/.\u{80}"),
            ("a&#10;b&#xD;&#x7f;\t", "a\u{80}b\u{80}\u{80}\u{80}"),
        ] {
            assert_eq!(
                nameable(&format!("<Key>{odd}</Key>")),
                format!("<Key>{told}</Key>")
            );
        }
        for broken in ["", "<Key>", "<Key>a", "<Key>a&#", "<Key>a&#;</Key><Key"] {
            assert_eq!(nameable(broken).replace(ODD, ""), broken);
        }
    }

    #[tokio::test]
    async fn what_is_no_text_is_no_listing() {
        let told = async |remark: &[u8]| {
            let listing = [b"<ListBucketResult>", remark, b"</ListBucketResult>"].concat();
            page(listing.into())
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
            let marked = marked(&key);
            let read = marked.replace("&#65;", "A").replace("&#300;", "Ĭ");
            prop_assert!(Path::parse(&read).is_ok(), "{:?}", read);
            prop_assert!(marked == key || marked.contains(ODD));
        }
    }
}
