//! Connection limit and eviction. Connections without an API key are limited per address. A quarter
//! of all connections may be without a key, so that a new one has time to send its request.
//!
//! ```text
//! accepted ─ no key yet ─── first request with a key ─── idle ⇄ active requests
//!               │                                          │      (never evicted)
//!               │                                          └─ evicted if its tenant has the most
//!               └─ evicted first if they are more than a quarter, or older than
//!                  `UNAUTHENTICATED_GRACE`
//! ```

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// Connections above the limit. While as many connections as the limit are active, only admins are
/// served.
const RESERVED_CONNECTIONS: usize = 8;
/// An unauthenticated connection that is idle for longer is evicted before those with a key.
const UNAUTHENTICATED_GRACE: Duration = Duration::from_secs(5);
/// Minimum limit of unauthenticated connections per address; otherwise a quarter of the limit.
const MIN_UNAUTHENTICATED_PER_ADDRESS: usize = 8;

/// The open connections and their limit.
#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    all: HashMap<u64, ConnectionEntry>,
    /// Number of connections with a request in progress.
    active: usize,
}

#[derive(Debug)]
struct ConnectionEntry {
    peer: Option<IpAddr>,
    /// Tenant of the last key that was used on it.
    tenant: Option<String>,
    /// Requests in progress.
    requests: usize,
    /// When the connection was opened or its last request finished.
    idle_since: Instant,
    close: Arc<Notify>,
}

/// Registration of one open connection; removed when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    id: u64,
    close: Arc<Notify>,
    connections: Arc<Connections>,
}

/// A request in progress on a connection, until the last byte of its response is sent.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    slot: Arc<ConnectionSlot>,
    /// As many connections as the limit were active when it began: only admins are served.
    pub(crate) is_reserved: bool,
}

impl OpenConnections {
    /// The connection that has been idle longest among those that match.
    fn longest_idle(&self, may_be: impl Fn(&ConnectionEntry) -> bool) -> Option<u64> {
        let idle = self.all.iter().filter(|(_, one)| one.requests == 0);
        let idle = idle.filter(|(_, one)| may_be(one));
        idle.min_by_key(|(_, one)| one.idle_since)
            .map(|(id, _)| *id)
    }

    /// The idle connection to evict: an unauthenticated one if there are too many or one is idle
    /// for too long, else one of the tenant with the most connections, if those are not fewer than
    /// the unauthenticated ones.
    fn connection_to_evict(&self, max_unauthenticated: usize) -> Option<u64> {
        let unauthenticated = || {
            let all = self.all.values();
            all.filter(|one| one.is_idle_unauthenticated())
        };
        let count = unauthenticated().count();
        let is_old = unauthenticated().any(|one| one.idle_since.elapsed() >= UNAUTHENTICATED_GRACE);
        if count > max_unauthenticated || is_old {
            return self.longest_idle(ConnectionEntry::is_idle_unauthenticated);
        }
        self.longest_idle_of_largest_tenant(count)
    }

    /// The longest idle connection of the tenant with the most connections among those with an idle
    /// one, if it has at least `min`.
    fn longest_idle_of_largest_tenant(&self, min: usize) -> Option<u64> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for tenant in self.all.values().filter_map(|one| one.tenant.as_deref()) {
            *counts.entry(tenant).or_default() += 1;
        }
        let count = |one: &ConnectionEntry| counts.get(one.tenant.as_deref()?).copied();
        let idle = self.all.values().filter(|one| one.requests == 0);
        let max = idle.filter_map(count).max()?;
        if max < min {
            return None;
        }
        self.longest_idle(|one| count(one) == Some(max))
    }

    fn close(&mut self, id: u64) {
        if let Some(entry) = self.all.remove(&id) {
            entry.close.notify_one();
        }
    }
}

impl ConnectionEntry {
    fn is_idle_unauthenticated(&self) -> bool {
        self.tenant.is_none() && self.requests == 0
    }
}

impl Connections {
    /// Accepts at most `max` connections, and the reserved ones.
    pub(crate) fn new(max: usize) -> Arc<Connections> {
        let open = Mutex::default();
        Arc::new(Connections { max, open })
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection from this address, and may evict another; `None` if no connection can
    /// be evicted.
    pub(crate) fn admit(
        self: &Arc<Connections>,
        peer: Option<IpAddr>,
    ) -> Option<Arc<ConnectionSlot>> {
        let mut open = self.open();
        let max_unauthenticated = (self.max / 4).max(MIN_UNAUTHENTICATED_PER_ADDRESS);
        if peer.is_some() && open.all.len() >= max_unauthenticated {
            let is_same = |one: &ConnectionEntry| one.tenant.is_none() && one.peer == peer;
            if open.all.values().filter(|one| is_same(one)).count() >= max_unauthenticated {
                let idle = open.longest_idle(is_same)?;
                open.close(idle);
            }
        }
        if open.all.len() >= self.max {
            let mut idle = open.connection_to_evict(self.max / 4);
            if idle.is_none() && open.all.len() >= self.max + RESERVED_CONNECTIONS {
                idle = Some(open.longest_idle(|_| true)?);
            }
            if let Some(idle) = idle {
                open.close(idle);
            }
        }
        let id = open.next;
        let close = Arc::new(Notify::new());
        let slot = ConnectionSlot {
            id,
            close: close.clone(),
            connections: self.clone(),
        };
        let entry = ConnectionEntry {
            peer,
            tenant: None,
            requests: 0,
            idle_since: Instant::now(),
            close,
        };
        open.next += 1;
        open.all.insert(id, entry);
        Some(Arc::new(slot))
    }
}

impl ConnectionSlot {
    /// Resolves when this connection is evicted.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }

    /// Marks the start of a request.
    pub(crate) fn begin(self: &Arc<ConnectionSlot>) -> ActiveRequest {
        let mut guard = self.connections.open();
        let open = &mut *guard;
        let others = open.active;
        let mut is_first = false;
        if let Some(entry) = open.all.get_mut(&self.id) {
            is_first = entry.requests == 0;
            entry.requests += 1;
            open.active += usize::from(is_first);
        }
        ActiveRequest {
            slot: self.clone(),
            is_reserved: is_first && others >= self.connections.max,
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.open().all.remove(&self.id);
    }
}

impl ActiveRequest {
    /// Records the tenant whose key the request used.
    pub(crate) fn set_tenant(&self, tenant: &str) {
        if let Some(entry) = self.slot.connections.open().all.get_mut(&self.slot.id)
            && entry.tenant.as_deref() != Some(tenant)
        {
            entry.tenant = Some(tenant.to_owned());
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut guard = self.slot.connections.open();
        let open = &mut *guard;
        if let Some(entry) = open.all.get_mut(&self.slot.id) {
            entry.requests -= 1;
            entry.idle_since = Instant::now();
            open.active -= usize::from(entry.requests == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_closed(slot: &ConnectionSlot) -> bool {
        !slot.connections.open().all.contains_key(&slot.id)
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    /// Connections of one after the other, each with a key or none; milliseconds lie between them.
    async fn opened(
        connections: &Arc<Connections>,
        tenants: &[Option<&str>],
    ) -> Vec<Arc<ConnectionSlot>> {
        let mut all = Vec::new();
        for tenant in tenants {
            let slot = connections.admit(None).unwrap();
            if let Some(tenant) = tenant {
                slot.begin().set_tenant(tenant);
            }
            all.push(slot);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        all
    }

    fn closed(all: &[Arc<ConnectionSlot>]) -> Vec<usize> {
        let found = (0..all.len()).filter(|at| is_closed(&all[*at]));
        found.collect()
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_beyond_a_quarter_make_room_and_then_the_tenant_with_the_most() {
        let connections = Connections::new(4);
        let all = opened(&connections, &[Some("a"), None, Some("b"), None]).await;
        let c = opened(&connections, &[Some("c"); 2]).await;
        assert_eq!(
            closed(&all),
            [0, 1],
            "the older stranger, then who is idle for longest"
        );
        all[1].closed().await;
        let _d = opened(&connections, &[Some("d")]).await;
        assert_eq!(closed(&all), [0, 1]);
        assert_eq!(closed(&c), [0], "c has two");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_that_has_just_come_has_time_to_send_its_request() {
        let connections = Connections::new(64);
        let kept = opened(&connections, &[Some("attacker"); 64]).await;
        assert_eq!(closed(&kept), [0; 0]);
        let newcomer = opened(&connections, &[None]).await;
        let _flood = opened(&connections, &[None; 16]).await;
        assert_eq!(closed(&newcomer), [0; 0], "sixteen others came after it");
        assert_eq!(closed(&kept).len(), 17, "the attacker gave room");
        let _more = opened(&connections, &[None]).await;
        assert_eq!(closed(&newcomer), [0], "they are more than a quarter");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_that_waits_for_long_makes_room_before_a_tenant() {
        let connections = Connections::new(64);
        let stranger = opened(&connections, &[None]).await;
        let kept = opened(&connections, &[Some("a"); 63]).await;
        tokio::time::advance(UNAUTHENTICATED_GRACE).await;
        let _next = opened(&connections, &[None]).await;
        assert_eq!((closed(&stranger), closed(&kept)), (vec![0], vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn one_idle_connection_of_a_small_tenant_stays_where_strangers_are_more() {
        let connections = Connections::new(16);
        let small = opened(&connections, &[Some("small")]).await;
        let large = opened(&connections, &[Some("large"); 12]).await;
        let busy: Vec<_> = large.iter().map(ConnectionSlot::begin).collect();
        let strangers = opened(&connections, &[None; 20]).await;
        assert_eq!((closed(&small), closed(&large)), (vec![], vec![]));
        assert!(!is_closed(&strangers[19]));
        drop(busy);
    }

    #[tokio::test]
    async fn what_is_active_is_not_closed_and_an_admin_finds_a_place() {
        let connections = Connections::new(2);
        let open = || connections.admit(None);
        let begin = |slot: &Arc<ConnectionSlot>| slot.begin();
        let slots = [open().unwrap(), open().unwrap()];
        let busy = slots.each_ref().map(begin);
        assert!(busy.iter().all(|one| !one.is_reserved));
        // Each is active before the next comes: an idle one would be evicted for it.
        let reserved: Vec<_> = (0..RESERVED_CONNECTIONS)
            .map(|_| open().unwrap().begin())
            .collect();
        assert!(reserved.iter().all(|one| one.is_reserved));
        assert!(open().is_none(), "all of them are at work");
        assert!(slots.iter().all(|slot| !is_closed(slot)));
        drop(reserved);
        assert!(open().unwrap().begin().is_reserved);
        drop(busy);
        assert!(!open().unwrap().begin().is_reserved, "nothing is at work");
    }

    #[tokio::test]
    async fn one_address_without_a_key_has_a_quarter_and_closes_its_own() {
        let connections = Connections::new(64);
        let other = connections.admit(address(1)).unwrap();
        let own: Vec<_> = (0..17)
            .map(|_| connections.admit(address(2)).unwrap())
            .collect();
        assert_eq!(own.iter().filter(|slot| is_closed(slot)).count(), 1);
        assert!(is_closed(&own[0]) && !is_closed(&other));
        let busy: Vec<_> = own.iter().map(ConnectionSlot::begin).collect();
        assert!(
            connections.admit(address(2)).is_none(),
            "none of its is idle"
        );
        assert!(connections.admit(address(1)).is_some());
        drop(busy);
    }
}
