//! A request's body, taken in whole: what is checked is what is forwarded. Its size, its time and the memory of all bodies
//! of a session are bounded. The body of a request that is refused already is read out of the way.

use super::fault;
use crate::{
    dialect::Fault,
    session::{BODY_UNIT, BODY_UNITS, Session},
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

/// Room in memory for a body.
type Room<'a> = Option<SemaphorePermit<'a>>;

/// The whole body, within bounds of size and time, and the room that it takes.
pub(super) async fn read<'a>(
    session: &'a Session,
    body: &mut Incoming,
) -> Result<(Bytes, Room<'a>), Fault> {
    let bounds = &session.doors.catalogue.bounds;
    let announced = body.size_hint().exact();
    if body.is_end_stream() {
        return Ok((Bytes::new(), None));
    }
    if announced.is_some_and(|length| length > bounds.body) {
        return Err(fault::body_too_large(bounds.body));
    }
    let room = session
        .bodies
        .acquire_many(units(announced.unwrap_or(bounds.body)));
    let room = timeout(bounds.body_time, room)
        .await
        .map_err(|_| fault::no_room())?;
    let read = timeout(bounds.body_time, collect(body, announced, bounds.body));
    let body = read.await.unwrap_or_else(|_| Err(fault::body_too_slow()))?;
    let mut room = room.ok();
    // One that did not say how long it is took room for the longest.
    if let Some(room) = &mut room {
        drop(
            room.split(
                room.num_permits()
                    .saturating_sub(units(body.len() as u64) as usize),
            ),
        );
    }
    Ok((body, room))
}

/// Most bodies come in one piece, and are not copied.
async fn collect(body: &mut Incoming, announced: Option<u64>, most: u64) -> Result<Bytes, Fault> {
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(fault::bad_body("it broke off"));
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if (first.len() + all.len() + data.len()) as u64 > most {
            return Err(fault::body_too_large(most));
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

/// What a body of so many bytes takes; the largest takes all there is, and waits to be alone.
fn units(bytes: u64) -> u32 {
    bytes.div_ceil(BODY_UNIT).min(BODY_UNITS as u64) as u32
}

/// Lets a small request come to its end. Whoever is refused may still be writing it, and a connection that breaks
/// meanwhile hides the refusal.
pub(crate) async fn read_out(body: &mut Incoming) {
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
