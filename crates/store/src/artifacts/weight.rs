//! Quotas: how much each owner and all together have stored. Stored artifacts are measured again
//! from time to time, because other processes write, too; reservations of our own writers are not
//! visible in the store yet and are counted separately.

use super::{Artifacts, Owner};
use spec::ArtifactLimits;
use std::{
    collections::HashMap,
    io,
    sync::{MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long a measurement is used.
const WEIGHED_FOR: Duration = Duration::from_secs(60);

/// Stored and reserved amounts, as far as this process knows.
#[derive(Debug, Default)]
pub(super) struct Weight {
    at: Option<Instant>,
    there: Shares,
    under_way: Shares,
    /// Committed since the last measurement began, which may have been too early to see it.
    since: Shares,
}

/// Amounts by owner, and their sum.
#[derive(Debug, Default)]
struct Shares {
    all: Share,
    owners: HashMap<Owner, Share>,
}

/// Names and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) names: u64,
    pub(super) bytes: u64,
}

impl Share {
    pub(super) const NAME: Share = Share { names: 1, bytes: 0 };

    pub(super) fn bytes(bytes: u64) -> Share {
        Share { names: 0, bytes }
    }

    pub(super) fn add(&mut self, more: Share) {
        *self = self.with(more);
    }

    fn with(self, more: Share) -> Share {
        Share {
            names: self.names.saturating_add(more.names),
            bytes: self.bytes.saturating_add(more.bytes),
        }
    }

    fn without(self, less: Share) -> Share {
        Share {
            names: self.names.saturating_sub(less.names),
            bytes: self.bytes.saturating_sub(less.bytes),
        }
    }

    /// The addition never raises the amount above `max`.
    fn with_up_to(self, more: Share, most: Share) -> Share {
        let sum = self.with(more);
        Share {
            names: sum.names.min(most.names).max(self.names),
            bytes: sum.bytes.min(most.bytes).max(self.bytes),
        }
    }
}

impl Shares {
    fn of(&self, owner: &Owner) -> Share {
        self.owners.get(owner).copied().unwrap_or_default()
    }

    fn add(&mut self, owner: &Owner, more: Share) {
        self.set(owner, self.of(owner).with(more));
    }

    /// Never subtracts more than that owner has, so the sum stays right for the others.
    fn subtract(&mut self, owner: &Owner, less: Share) {
        self.set(owner, self.of(owner).without(less));
    }

    fn set(&mut self, owner: &Owner, share: Share) {
        self.all = self.all.without(self.of(owner)).with(share);
        match share == Share::default() {
            true => self.owners.remove(owner),
            false => self.owners.insert(owner.clone(), share),
        };
    }
}

impl Weight {
    fn is_fresh(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < WEIGHED_FOR)
    }

    /// Amounts of all owners, and of one.
    fn sums(&self, owner: &Owner) -> (Share, Share) {
        let own = self.there.of(owner).with(self.under_way.of(owner));
        (self.there.all.with(self.under_way.all), own)
    }
}

impl Artifacts {
    /// Measures the store, unless that was done lately; concurrent callers wait for the same
    /// measurement.
    pub(super) async fn weigh(&self) -> io::Result<()> {
        let _alone = self.0.weighing.lock().await;
        if self.weight().is_fresh() {
            return Ok(());
        }
        let at = Instant::now();
        self.weight().since = Shares::default();
        let owners = self.weigh_all().await?;
        let mut there = Shares::default();
        owners
            .iter()
            .for_each(|(owner, share)| there.add(owner, *share));
        let mut weight = self.weight();
        // Some of it may have been measured already and count twice until the next measurement, but
        // never beyond its owner's own limit: an owner that stores and removes all the time does
        // not use up the quota of others.
        for (owner, kept) in &weight.since.owners {
            let most = self.most_of_one(owner);
            there.set(owner, there.of(owner).with_up_to(*kept, most));
        }
        (weight.at, weight.there) = (Some(at), there);
        Ok(())
    }

    /// Reserves a name for a writer; otherwise returns the quota that is reached.
    pub(super) fn take_name(&self, owner: &Owner) -> Result<(), (&'static str, u64)> {
        let (most, of_one) = (self.0.limits.names, self.most_of_one(owner).names);
        let mut weight = self.weight();
        let (all, own) = weight.sums(owner);
        if all.names >= most {
            return Err(("names", most));
        }
        if own.names >= of_one {
            return Err(("names of one owner", of_one));
        }
        weight.under_way.add(owner, Share::NAME);
        Ok(())
    }

    /// Reserves bytes for a writer; otherwise returns the quota that is reached.
    pub(super) fn take_room(&self, owner: &Owner, bytes: u64) -> Result<(), (&'static str, u64)> {
        let (most, of_one) = (self.0.limits.total_bytes, self.most_of_one(owner).bytes);
        let mut weight = self.weight();
        let (all, own) = weight.sums(owner);
        let fits = |sum: u64, limit| sum.checked_add(bytes).is_some_and(|sum| sum <= limit);
        if !fits(all.bytes, most) {
            return Err(("bytes in all", most));
        }
        if !fits(own.bytes, of_one) {
            return Err(("bytes of one owner", of_one));
        }
        weight.under_way.add(owner, Share::bytes(bytes));
        Ok(())
    }

    /// Releases the reservation of a writer that published nothing.
    pub(super) fn give_back(&self, owner: &Owner, taken: Share) {
        self.weight().under_way.subtract(owner, taken);
    }

    /// Turns a reservation into stored usage.
    pub(super) fn is_there(&self, owner: &Owner, taken: Share) {
        let mut weight = self.weight();
        weight.under_way.subtract(owner, taken);
        weight.there.add(owner, taken);
        weight.since.add(owner, taken);
    }

    /// Subtracts what was removed.
    pub(super) fn is_gone(&self, owner: &Owner, removed: Share) {
        self.weight().there.subtract(owner, removed);
    }

    /// Bytes of an owner's artifacts, including reservations.
    pub async fn held(&self, owner: &Owner) -> io::Result<u64> {
        self.weigh().await?;
        Ok(self.weight().sums(owner).1.bytes)
    }

    fn most_of_one(&self, owner: &Owner) -> Share {
        let usual = most_of_one(&self.0.limits, owner);
        let own = self
            .0
            .tenants
            .quota(owner.as_str())
            .storage
            .filter(|_| *owner != Owner::local());
        Share {
            bytes: own.map_or(usual.bytes, |own| own.0),
            ..usual
        }
    }

    fn weight(&self) -> MutexGuard<'_, Weight> {
        self.0.weight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The general quota of one owner; at least one name.
fn most_of_one(limits: &ArtifactLimits, owner: &Owner) -> Share {
    let usual = match *owner == Owner::local() {
        true => Share {
            names: limits.names,
            bytes: limits.total_bytes,
        },
        false => Share {
            names: (limits.names / 4).max(1),
            bytes: limits.total_bytes / 4,
        },
    };
    Share {
        names: limits.owner_names.unwrap_or(usual.names),
        bytes: limits.owner_bytes.unwrap_or(usual.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ArtifactSettings, New, Putting, StoreError};
    use super::*;
    use bytes::Bytes;
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    struct Store(Artifacts, PathBuf);

    impl Store {
        fn new(test: &str) -> Store {
            let path =
                std::env::temp_dir().join(format!("airlock-weight-{}-{test}", std::process::id()));
            let mut settings = ArtifactSettings::folder(&path);
            settings.limits.owner_bytes = Some(10);
            settings.limits.owner_names = Some(2);
            Store(Artifacts::open(settings).unwrap(), path)
        }

        async fn begin(&self, name: &str) -> Result<Putting, StoreError> {
            self.0
                .begin(New::local(
                    spec::WorkspacePath::new(Path::new(name)).unwrap(),
                ))
                .await
        }

        async fn write(&self, name: &str, bytes: &'static [u8]) -> Result<Putting, StoreError> {
            let mut putting = self.begin(name).await?;
            putting
                .write(Bytes::from_static(bytes))
                .await
                .map(|()| putting)
        }

        /// Makes the last measurement look a minute old.
        fn a_minute_later(&self) {
            self.0.weight().at = None;
        }
    }

    impl Drop for Store {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.1);
        }
    }

    fn lacks<T>(answer: Result<T, StoreError>) -> &'static str {
        match answer {
            Err(StoreError::Quota { what, .. }) => what,
            Err(error) => panic!("another error: {error}"),
            Ok(_) => "nothing",
        }
    }

    #[tokio::test]
    async fn what_writers_under_way_have_taken_stays_taken_when_all_is_weighed_again() {
        let store = Store::new("taken");
        let slow = store.write("a", b"12345678").await.unwrap();
        assert_eq!(
            lacks(store.write("b", b"123").await),
            "bytes of one owner",
            "the control: at once"
        );
        store.a_minute_later();
        assert_eq!(lacks(store.write("b", b"123").await), "bytes of one owner");
        drop(slow);
        let other = store.write("b", b"123").await.unwrap();
        store.a_minute_later();
        drop(other);
        assert_eq!(
            lacks(store.write("c", b"12345678901").await),
            "bytes of one owner"
        );
        store
            .write("c", b"1234567890")
            .await
            .unwrap()
            .finish(None)
            .await
            .unwrap();
        assert_eq!(
            lacks(store.write("c", b"1").await),
            "bytes of one owner",
            "what is kept counts once"
        );
        store.a_minute_later();
        assert_eq!(lacks(store.write("c", b"1").await), "bytes of one owner");
    }

    #[tokio::test]
    async fn names_of_writers_under_way_stay_taken_too() {
        let store = Store::new("names");
        let slow = (
            store.begin("a").await.unwrap(),
            store.begin("b").await.unwrap(),
        );
        assert_eq!(
            lacks(store.begin("c").await),
            "names of one owner",
            "the control: at once"
        );
        store.a_minute_later();
        assert_eq!(lacks(store.begin("c").await), "names of one owner");
        slow.0.finish(None).await.unwrap();
        assert_eq!(lacks(store.begin("c").await), "names of one owner");
        drop(slow.1);
        store.a_minute_later();
        assert_eq!(lacks(store.begin("c").await), "nothing");
    }

    #[test]
    fn nobody_gives_back_what_is_another_ones() {
        let (one, other) = (Owner::local(), Owner::key(&spec::Id::new("other").unwrap()));
        let mut shares = Shares::default();
        shares.add(&one, Share { names: 1, bytes: 5 });
        shares.add(&other, Share { names: 2, bytes: 7 });
        shares.subtract(
            &one,
            Share {
                names: 9,
                bytes: 99,
            },
        );
        assert_eq!(
            (shares.all, shares.of(&other)),
            (shares.of(&other), Share { names: 2, bytes: 7 })
        );
        assert_eq!(shares.owners.len(), 1, "who has nothing takes no room");
    }
}
