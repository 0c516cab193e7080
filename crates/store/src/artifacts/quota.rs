//! Quotas: how much each owner and all together have stored. Stored artifacts are measured again
//! from time to time, because other processes write, too; reservations of our own writers are not
//! visible in the store yet and are counted separately.

use super::{ArtifactOwner, Artifacts};
use spec::ArtifactLimits;
use std::{
    collections::HashMap,
    io,
    sync::{MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long a measurement is used.
const MEASUREMENT_LIFETIME: Duration = Duration::from_secs(60);

/// Stored and reserved amounts, as far as this process knows.
#[derive(Debug, Default)]
pub(super) struct QuotaUsage {
    at: Option<Instant>,
    stored: AmountsByOwner,
    reserved: AmountsByOwner,
    /// Committed since the last measurement began, which may have been too early to see it.
    committed: AmountsByOwner,
}

/// Amounts by owner, and their sum.
#[derive(Debug, Default)]
struct AmountsByOwner {
    all: Amount,
    owners: HashMap<ArtifactOwner, Amount>,
}

/// Names and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) names: u64,
    pub(super) bytes: u64,
}

impl Amount {
    pub(super) const NAME: Amount = Amount { names: 1, bytes: 0 };

    pub(super) fn bytes(bytes: u64) -> Amount {
        Amount { names: 0, bytes }
    }

    pub(super) fn add(&mut self, more: Amount) {
        *self = self.with(more);
    }

    fn with(self, more: Amount) -> Amount {
        Amount {
            names: self.names.saturating_add(more.names),
            bytes: self.bytes.saturating_add(more.bytes),
        }
    }

    fn without(self, less: Amount) -> Amount {
        Amount {
            names: self.names.saturating_sub(less.names),
            bytes: self.bytes.saturating_sub(less.bytes),
        }
    }

    /// The addition never raises the amount above `max`.
    fn with_up_to(self, more: Amount, limit: Amount) -> Amount {
        let sum = self.with(more);
        Amount {
            names: sum.names.min(limit.names).max(self.names),
            bytes: sum.bytes.min(limit.bytes).max(self.bytes),
        }
    }
}

impl AmountsByOwner {
    fn of(&self, owner: &ArtifactOwner) -> Amount {
        self.owners.get(owner).copied().unwrap_or_default()
    }

    fn add(&mut self, owner: &ArtifactOwner, more: Amount) {
        self.set(owner, self.of(owner).with(more));
    }

    /// Never subtracts more than that owner has, so the sum stays right for the others.
    fn subtract(&mut self, owner: &ArtifactOwner, less: Amount) {
        self.set(owner, self.of(owner).without(less));
    }

    fn set(&mut self, owner: &ArtifactOwner, share: Amount) {
        self.all = self.all.without(self.of(owner)).with(share);
        if share == Amount::default() {
            self.owners.remove(owner)
        } else {
            self.owners.insert(owner.clone(), share)
        };
    }
}

impl QuotaUsage {
    fn is_fresh(&self) -> bool {
        self.at
            .is_some_and(|at| at.elapsed() < MEASUREMENT_LIFETIME)
    }

    /// Amounts of all owners, and of one.
    fn sums(&self, owner: &ArtifactOwner) -> (Amount, Amount) {
        let own = self.stored.of(owner).with(self.reserved.of(owner));
        (self.stored.all.with(self.reserved.all), own)
    }
}

impl Artifacts {
    /// Measures the store, unless that was done lately; concurrent callers wait for the same
    /// measurement.
    pub(super) async fn measure(&self) -> io::Result<()> {
        let _alone = self.0.measuring.lock().await;
        if self.usage().is_fresh() {
            return Ok(());
        }
        let at = Instant::now();
        self.usage().committed = AmountsByOwner::default();
        let owners = self.measure_all().await?;
        let mut stored = AmountsByOwner::default();
        owners
            .iter()
            .for_each(|(owner, share)| stored.add(owner, *share));
        let mut usage = self.usage();
        // Some of it may have been measured already and count twice until the next measurement, but
        // never beyond its owner's own limit: an owner that stores and removes all the time does
        // not use up the quota of others.
        for (owner, kept) in &usage.committed.owners {
            let limit = self.owner_limit(owner);
            stored.set(owner, stored.of(owner).with_up_to(*kept, limit));
        }
        (usage.at, usage.stored) = (Some(at), stored);
        Ok(())
    }

    /// Reserves a name for a writer; otherwise returns the quota that is reached.
    pub(super) fn reserve_name(&self, owner: &ArtifactOwner) -> Result<(), (&'static str, u64)> {
        let limit = self.0.limits.names;
        let of_one = self.owner_limit(owner).names;
        let mut usage = self.usage();
        let (all, own) = usage.sums(owner);
        if all.names >= limit {
            return Err(("names", limit));
        }
        if own.names >= of_one {
            return Err(("names of one owner", of_one));
        }
        usage.reserved.add(owner, Amount::NAME);
        Ok(())
    }

    /// Reserves bytes for a writer; otherwise returns the quota that is reached.
    pub(super) fn reserve_bytes(
        &self,
        owner: &ArtifactOwner,
        bytes: u64,
    ) -> Result<(), (&'static str, u64)> {
        let limit = self.0.limits.total_bytes;
        let of_one = self.owner_limit(owner).bytes;
        let mut usage = self.usage();
        let (all, own) = usage.sums(owner);
        let fits = |sum: u64, limit| sum.checked_add(bytes).is_some_and(|sum| sum <= limit);
        if !fits(all.bytes, limit) {
            return Err(("bytes in all", limit));
        }
        if !fits(own.bytes, of_one) {
            return Err(("bytes of one owner", of_one));
        }
        usage.reserved.add(owner, Amount::bytes(bytes));
        Ok(())
    }

    /// Releases the reservation of a writer that published nothing.
    pub(super) fn release(&self, owner: &ArtifactOwner, reservation: Amount) {
        self.usage().reserved.subtract(owner, reservation);
    }

    /// Turns a reservation into stored usage.
    pub(super) fn commit(&self, owner: &ArtifactOwner, reservation: Amount) {
        let mut usage = self.usage();
        usage.reserved.subtract(owner, reservation);
        usage.stored.add(owner, reservation);
        usage.committed.add(owner, reservation);
    }

    /// Subtracts what was removed.
    pub(super) fn record_removal(&self, owner: &ArtifactOwner, removed: Amount) {
        self.usage().stored.subtract(owner, removed);
    }

    /// Bytes of an owner's artifacts, including reservations.
    pub async fn used_bytes(&self, owner: &ArtifactOwner) -> io::Result<u64> {
        self.measure().await?;
        Ok(self.usage().sums(owner).1.bytes)
    }

    fn owner_limit(&self, owner: &ArtifactOwner) -> Amount {
        let usual = owner_limit(&self.0.limits, owner);
        let own = self
            .0
            .tenants
            .quota(owner.as_str())
            .storage
            .filter(|_| *owner != ArtifactOwner::local());
        Amount {
            bytes: own.map_or(usual.bytes, |own| own.0),
            ..usual
        }
    }

    fn usage(&self) -> MutexGuard<'_, QuotaUsage> {
        self.0.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The general quota of one owner; at least one name.
fn owner_limit(limits: &ArtifactLimits, owner: &ArtifactOwner) -> Amount {
    let usual = if *owner == ArtifactOwner::local() {
        Amount {
            names: limits.names,
            bytes: limits.total_bytes,
        }
    } else {
        Amount {
            names: (limits.names / 4).max(1),
            bytes: limits.total_bytes / 4,
        }
    };
    Amount {
        names: limits.owner_names.unwrap_or(usual.names),
        bytes: limits.owner_bytes.unwrap_or(usual.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ArtifactError, ArtifactSettings, NewArtifact, VersionWriter};
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

        async fn begin(&self, name: &str) -> Result<VersionWriter, ArtifactError> {
            self.0
                .begin(NewArtifact::local(
                    spec::WorkspacePath::new(Path::new(name)).unwrap(),
                ))
                .await
        }

        async fn write(
            &self,
            name: &str,
            bytes: &'static [u8],
        ) -> Result<VersionWriter, ArtifactError> {
            let mut putting = self.begin(name).await?;
            putting
                .write(Bytes::from_static(bytes))
                .await
                .map(|()| putting)
        }

        /// Makes the last measurement look a minute old.
        fn a_minute_later(&self) {
            self.0.usage().at = None;
        }
    }

    impl Drop for Store {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.1);
        }
    }

    fn lacks<T>(answer: Result<T, ArtifactError>) -> &'static str {
        match answer {
            Err(ArtifactError::Quota { what, .. }) => what,
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
        let one = ArtifactOwner::local();
        let other = ArtifactOwner::key(&spec::Id::new("other").unwrap());
        let mut shares = AmountsByOwner::default();
        shares.add(&one, Amount { names: 1, bytes: 5 });
        shares.add(&other, Amount { names: 2, bytes: 7 });
        shares.subtract(
            &one,
            Amount {
                names: 9,
                bytes: 99,
            },
        );
        assert_eq!(
            (shares.all, shares.of(&other)),
            (shares.of(&other), Amount { names: 2, bytes: 7 })
        );
        assert_eq!(shares.owners.len(), 1, "who has nothing takes no room");
    }
}
