//! Reads the request body into memory: what is checked is what is forwarded. Size, time and the
//! memory of all bodies of a session are limited. The body of a refused request is read and
//! discarded.

use super::api_errors;
use crate::{
    dialect::ApiError,
    session::{BODY_UNIT, BODY_UNITS, DoorSession},
};
use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::time::Duration;
use tokio::{sync::SemaphorePermit, time::timeout};

/// How much of a refused request's body is discarded, and for how long.
const MAX_DISCARDED_BYTES: usize = 64 << 10;
const DISCARD_TIMEOUT: Duration = Duration::from_millis(500);

/// Permit for the memory of a body.
type BodyPermit<'a> = Option<SemaphorePermit<'a>>;

/// Reads the whole body; returns it with its memory permit.
pub(super) async fn read<'a>(
    session: &'a DoorSession,
    body: &mut Incoming,
) -> Result<(Bytes, BodyPermit<'a>), ApiError> {
    let limits = &session.doors.catalogue.limits;
    let announced = body.size_hint().exact();
    if body.is_end_stream() {
        return Ok((Bytes::new(), None));
    }
    if announced.is_some_and(|length| length > limits.max_body_bytes) {
        return Err(api_errors::body_too_large(limits.max_body_bytes));
    }
    let permit = session
        .bodies
        .acquire_many(units(announced.unwrap_or(limits.max_body_bytes)));
    let permit = timeout(limits.body_timeout, permit)
        .await
        .map_err(|_| api_errors::no_room())?;
    let read = timeout(
        limits.body_timeout,
        collect(body, announced, limits.max_body_bytes),
    );
    let body = read
        .await
        .unwrap_or_else(|_| Err(api_errors::body_too_slow()))?;
    let mut permit = permit.ok();
    // A body of unknown length reserved the maximum.
    if let Some(permit) = &mut permit {
        drop(
            permit.split(
                permit
                    .num_permits()
                    .saturating_sub(units(body.len() as u64) as usize),
            ),
        );
    }
    Ok((body, permit))
}

/// Most bodies arrive in one chunk and are not copied.
async fn collect(
    body: &mut Incoming,
    announced: Option<u64>,
    most: u64,
) -> Result<Bytes, ApiError> {
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(api_errors::bad_body("it broke off"));
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if (first.len() + all.len() + data.len()) as u64 > most {
            return Err(api_errors::body_too_large(most));
        }
        if first.is_empty() && all.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.reserve(announced.unwrap_or(64 << 10) as usize);
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

/// Memory units of a body; the largest body takes all of them and waits to be alone.
fn units(bytes: u64) -> u32 {
    bytes.div_ceil(BODY_UNIT).min(BODY_UNITS as u64) as u32
}

/// Reads the rest of a small request. The client may still be sending, and a connection that breaks
/// meanwhile would hide the refusal.
pub(crate) async fn discard_body(body: &mut Incoming) {
    let read = async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > MAX_DISCARDED_BYTES {
                break;
            }
        }
    };
    _ = timeout(DISCARD_TIMEOUT, read).await;
}
