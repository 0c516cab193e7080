//! The provider's own routes, for tests that are no Rust: `GET /_served`, `POST /_reset`, `POST /_set`, `POST /_release`.

use crate::{serve::Shared, settings::Script};
use hyper::{body::Bytes, http::request::Parts};
use serde::Deserialize;
use serde_json::{Value, json};

/// A script, and for whom: the next `times` calls, one `model`, or all that nothing else speaks of.
#[derive(Debug, Deserialize)]
struct Order {
    times: Option<usize>,
    model: Option<String>,
    #[serde(default)]
    script: Script,
}

/// The most calls that one order speaks of.
const MOST_TIMES: usize = 100_000;

/// The whole answer, if the request is one of these.
pub(crate) fn answer(head: &Parts, body: &Bytes, shared: &Shared) -> Option<Vec<u8>> {
    let answer = match (head.method.as_str(), head.uri.path()) {
        ("GET", "/_served") => {
            serde_json::to_value(shared.book.served()).map_err(|error| error.to_string())
        }
        ("POST", "/_reset") => {
            shared.book.reset();
            Ok(json!({}))
        }
        ("POST", "/_set") => set(body, shared),
        ("POST", "/_release") => {
            shared.release.notify_waiters();
            Ok(json!({}))
        }
        (_, path) if path.starts_with("/_") => Err("no such route".to_owned()),
        _ => return None,
    };
    let (status, body) = match answer {
        Ok(body) => ("200 OK", body),
        Err(error) => ("400 Bad Request", json!({ "error": error })),
    };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Some((head + &body).into_bytes())
}

fn set(body: &Bytes, shared: &Shared) -> Result<Value, String> {
    let order: Order = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let mut orders = shared.orders();
    match (order.times, order.model) {
        (Some(times), None) => {
            (0..times.min(MOST_TIMES)).for_each(|_| orders.next.push_back(order.script.clone()));
        }
        (None, Some(model)) => _ = orders.models.insert(model, order.script),
        (None, None) => orders.script = order.script,
        (Some(_), Some(_)) => return Err("`times` and `model` exclude each other".to_owned()),
    }
    Ok(json!({}))
}
