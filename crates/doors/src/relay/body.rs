//! The body of a request: read whole and within bounds, or, if it is refused already, out of the way.

use super::fault;
use crate::{
    dialect::Fault,
    session::{BODY_UNIT, Session},
};
use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::time::Duration;
use tokio::{sync::SemaphorePermit, time::timeout};

/// What is read of a request that is refused already, and how long.
const MOST_UNREAD: usize = 64 << 10;
const LONGEST_UNREAD: Duration = Duration::from_millis(500);

/// The whole body, within bounds of size and time, and the room it takes.
pub(super) async fn read<'a>(
    session: &'a Session,
    body: &mut Incoming,
) -> Result<(Bytes, Option<SemaphorePermit<'a>>), Fault> {
    let bounds = &session.doors.catalogue.bounds;
    let announced = body.size_hint().exact();
    if body.is_end_stream() {
        return Ok((Bytes::new(), None));
    }
    if announced.is_some_and(|length| length > bounds.body) {
        return Err(fault::body_too_large(bounds.body));
    }
    let read = async {
        let units = announced.unwrap_or(bounds.body).div_ceil(BODY_UNIT) as u32;
        let mut room = session.bodies.acquire_many(units).await.ok();
        let mut all = BytesMut::new();
        let mut first = Bytes::new();
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return Err(fault::bad_body("it broke off")) };
            let Ok(data) = frame.into_data() else { continue };
            if first.is_empty() && all.is_empty() {
                first = data;
                continue;
            }
            if all.is_empty() {
                all.reserve(announced.unwrap_or(64 << 10) as usize);
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&data);
            if all.len() as u64 > bounds.body {
                return Err(fault::body_too_large(bounds.body));
            }
        }
        let whole = if all.is_empty() { first } else { all.freeze() };
        // Of a body that did not say how long it would be, most of the room is free again.
        let taken = (whole.len() as u64).div_ceil(BODY_UNIT) as usize;
        let surplus = room.as_mut().and_then(|room| room.split((units as usize).saturating_sub(taken)));
        drop(surplus);
        Ok((whole, room))
    };
    timeout(bounds.body_time, read).await.unwrap_or_else(|_| Err(fault::body_too_slow()))
}

/// Lets a small request come to its end. Whoever is refused may still be writing it, and a connection that breaks
/// meanwhile hides the refusal.
pub(super) async fn read_out(body: &mut Incoming) {
    let read = async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > MOST_UNREAD {
                break;
            }
        }
    };
    _ = timeout(LONGEST_UNREAD, read).await;
}
