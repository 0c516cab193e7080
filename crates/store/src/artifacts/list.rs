//! Listing: first by location, which is cheap; metadata is read only for the versions shown.

use super::{
    Amount, ArtifactOwner, Artifacts, StoredArtifact, location::StorageBackend, run_blocking,
    version::ArtifactVersion,
};
use crate::name_encoding;
use spec::WorkspacePath;
use std::{
    collections::{HashMap, VecDeque},
    ffi::OsStr,
    fmt, io,
    os::unix::ffi::OsStrExt,
    path::Path,
};
use tokio::task::JoinHandle;

/// Maximum versions scanned by one listing.
const MAX_SCANNED_VERSIONS: usize = 100_000;
/// Maximum problems reported by one listing.
const MAX_PROBLEMS: usize = 1000;
/// Concurrent metadata reads; each may be a request.
const CONCURRENT_READS: usize = 16;

/// Result of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArtifactListing {
    /// Sorted by owner, name and version.
    pub kept: Vec<StoredArtifact>,
    /// Entries that could not be read, and why.
    pub problems: Vec<String>,
    /// The store has more versions than one listing scans.
    pub truncated: bool,
    /// Cursor of the next page, if there is one.
    pub next: Option<String>,
}

/// Filter and position of a listing.
#[derive(Clone, Copy)]
pub struct ArtifactQuery<'a> {
    /// Owner; `None` for all.
    pub owner: Option<&'a ArtifactOwner>,
    /// Predicate on names.
    pub name: &'a (dyn Fn(&WorkspacePath) -> bool + Sync),
    /// Only artifacts of this run.
    pub run_id: Option<&'a str>,
    /// Cursor of the previous page.
    pub after: Option<&'a str>,
    /// Page size.
    pub limit: usize,
}

impl fmt::Debug for ArtifactQuery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Wanted {{ owner: {:?}, most: {}, .. }}",
            self.owner, self.limit
        )
    }
}

impl ArtifactQuery<'_> {
    /// All artifacts of one owner, or of all.
    pub fn all(owner: Option<&ArtifactOwner>) -> ArtifactQuery<'_> {
        ArtifactQuery {
            owner,
            name: &|_| true,
            run_id: None,
            after: None,
            limit: MAX_SCANNED_VERSIONS,
        }
    }

    /// Whether the location may match: short names are encoded in it; for long ones the metadata
    /// decides.
    fn may_match(&self, location: &ArtifactVersion) -> bool {
        let name = name_encoding::percent_decoded(&location.entry)
            .filter(|_| !location.entry.starts_with('~'));
        let name =
            name.and_then(|bytes| WorkspacePath::new(Path::new(OsStr::from_bytes(&bytes))).ok());
        name.is_none_or(|name| (self.name)(&name))
    }

    fn matches(&self, kept: &StoredArtifact) -> bool {
        let run = self
            .run_id
            .is_none_or(|run| kept.lineage.run_id.as_deref() == Some(run));
        run && (self.name)(&kept.name)
    }
}

impl Artifacts {
    /// Lists stored artifacts.
    pub async fn list(&self, query: ArtifactQuery<'_>) -> ArtifactListing {
        let mut listing = ArtifactListing::default();
        match self.locations(query.owner, &mut listing.problems).await {
            Ok(mut locations) => {
                listing.truncated = locations.len() >= MAX_SCANNED_VERSIONS;
                let after = query.after.and_then(ArtifactVersion::from_cursor);
                locations.retain(|location| {
                    after.as_ref().is_none_or(|after| location > after) && query.may_match(location)
                });
                locations.sort();
                self.fill(&mut listing, locations, query).await;
            }
            Err(source) => listing.add_problem(format!("the artifacts cannot be listed: {source}")),
        }
        listing.kept.sort_by(|one, other| {
            (&one.owner, &one.name, one.version).cmp(&(&other.owner, &other.name, other.version))
        });
        listing
    }

    /// Reads metadata concurrently, in order, until the page is full.
    async fn fill(
        &self,
        listing: &mut ArtifactListing,
        locations: Vec<ArtifactVersion>,
        query: ArtifactQuery<'_>,
    ) {
        let mut pending: VecDeque<(ArtifactVersion, JoinHandle<io::Result<StoredArtifact>>)> =
            VecDeque::new();
        let mut last = None;
        let mut locations = locations.into_iter();
        loop {
            pending.extend(
                locations
                    .by_ref()
                    .take(CONCURRENT_READS - pending.len())
                    .map(|location| {
                        let artifacts = self.clone();
                        let at = location.clone();
                        (
                            location,
                            tokio::spawn(
                                async move { artifacts.metadata(&at).await?.into_stored(&at) },
                            ),
                        )
                    }),
            );
            let Some((location, asking)) = pending.pop_front() else {
                return;
            };
            if listing.kept.len() >= query.limit {
                listing.next = last;
                return;
            }
            match asking.await.unwrap_or_else(|error| Err(error.into())) {
                Ok(kept) if query.matches(&kept) => {
                    last = Some(location.cursor());
                    listing.kept.push(kept);
                }
                Ok(_) => {}
                // Removed meanwhile.
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    let entry = location.entry.escape_debug().to_string();
                    listing
                        .add_problem(format!("`{entry}`, version {}: {source}", location.version));
                }
            }
        }
    }

    /// The locations of versions, up to the scan limit.
    pub(super) async fn locations(
        &self,
        owner: Option<&ArtifactOwner>,
        problems: &mut Vec<String>,
    ) -> io::Result<Vec<ArtifactVersion>> {
        let mut locations = Vec::new();
        match &self.0.backend {
            StorageBackend::Folder(folder) => {
                let folder = folder.clone();
                let owner = owner.cloned();
                let walked = run_blocking(move || {
                    let mut found = (Vec::new(), Vec::new());
                    folder.walk(owner.as_ref(), &mut |entry| {
                        match entry {
                            Ok(location) => found.0.push(location),
                            Err(problem) if found.1.len() < MAX_PROBLEMS => found.1.push(problem),
                            Err(_) => {}
                        }
                        found.0.len() < MAX_SCANNED_VERSIONS
                    })?;
                    Ok(found)
                });
                let (locations, found) = walked.await?;
                problems.extend(found);
                Ok(locations)
            }
            StorageBackend::Bucket(bucket) => {
                let mut each = |location| {
                    locations.push(location);
                    locations.len() < MAX_SCANNED_VERSIONS
                };
                bucket.locations(owner, &mut each, &mut |_, _| {}).await?;
                Ok(locations)
            }
        }
    }

    /// Counts the names and bytes of each owner.
    pub(super) async fn measure_all(&self) -> io::Result<HashMap<ArtifactOwner, Amount>> {
        let mut tally = UsageCounter::default();
        match &self.0.backend {
            StorageBackend::Folder(folder) => {
                let folder = folder.clone();
                tally = run_blocking(move || {
                    folder.walk(None, &mut |entry| {
                        if let Ok(location) = entry {
                            tally
                                .share(&location.owner)
                                .add(Amount::bytes(folder.usage(&location)));
                            tally.see(location);
                        }
                        true
                    })?;
                    Ok(tally)
                })
                .await?;
            }
            StorageBackend::Bucket(bucket) => {
                let mut bytes: HashMap<ArtifactOwner, Amount> = HashMap::new();
                let mut each = |location| {
                    tally.see(location);
                    true
                };
                let mut measure = |owner: &ArtifactOwner, more| {
                    bytes
                        .entry(owner.clone())
                        .or_default()
                        .add(Amount::bytes(more))
                };
                bucket.locations(None, &mut each, &mut measure).await?;
                bytes
                    .iter()
                    .for_each(|(owner, share)| tally.share(owner).add(*share));
            }
        }
        Ok(tally.owners)
    }
}

/// Counters of a scan, in which the versions of a name follow each other.
#[derive(Default)]
struct UsageCounter {
    last: Option<ArtifactVersion>,
    owners: HashMap<ArtifactOwner, Amount>,
}

impl UsageCounter {
    fn see(&mut self, location: ArtifactVersion) {
        let same = |last: &ArtifactVersion| {
            (&last.owner, &last.entry) == (&location.owner, &location.entry)
        };
        if !self.last.as_ref().is_some_and(same) {
            self.share(&location.owner).names += 1;
        }
        self.last = Some(location);
    }

    fn share(&mut self, owner: &ArtifactOwner) -> &mut Amount {
        self.owners.entry(owner.clone()).or_default()
    }
}

impl ArtifactListing {
    fn add_problem(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }
}
