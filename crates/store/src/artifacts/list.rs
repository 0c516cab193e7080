//! Listing: first by location, which is cheap; metadata is read only for the versions shown.

use super::{Artifacts, Kept, Owner, Share, kept::Spot, off_the_loop, place::Shelf};
use crate::names;
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
const LONGEST_LISTING: usize = 100_000;
/// Maximum problems reported by one listing.
const MOST_PROBLEMS: usize = 1000;
/// Concurrent metadata reads; each may be a request.
const AT_A_TIME: usize = 16;

/// Result of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Sorted by owner, name and version.
    pub kept: Vec<Kept>,
    /// Entries that could not be read, and why.
    pub problems: Vec<String>,
    /// The store has more versions than one listing scans.
    pub cut: bool,
    /// Cursor of the next page, if there is one.
    pub next: Option<String>,
}

/// Filter and position of a listing.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// Owner; `None` for all.
    pub owner: Option<&'a Owner>,
    /// Predicate on names.
    pub name: &'a (dyn Fn(&WorkspacePath) -> bool + Sync),
    /// Only artifacts of this run.
    pub run_id: Option<&'a str>,
    /// Cursor of the previous page.
    pub after: Option<&'a str>,
    /// Page size.
    pub most: usize,
}

impl fmt::Debug for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Wanted {{ owner: {:?}, most: {}, .. }}",
            self.owner, self.most
        )
    }
}

impl Wanted<'_> {
    /// All artifacts of one owner, or of all.
    pub fn all(owner: Option<&Owner>) -> Wanted<'_> {
        Wanted {
            owner,
            name: &|_| true,
            run_id: None,
            after: None,
            most: LONGEST_LISTING,
        }
    }

    /// Whether the location may match: short names are encoded in it; for long ones the metadata
    /// decides.
    fn may_be(&self, spot: &Spot) -> bool {
        let name = names::percent_decoded(&spot.entry).filter(|_| !spot.entry.starts_with('~'));
        let name =
            name.and_then(|bytes| WorkspacePath::new(Path::new(OsStr::from_bytes(&bytes))).ok());
        name.is_none_or(|name| (self.name)(&name))
    }

    fn is(&self, kept: &Kept) -> bool {
        let run = self
            .run_id
            .is_none_or(|run| kept.lineage.run_id.as_deref() == Some(run));
        run && (self.name)(&kept.name)
    }
}

impl Artifacts {
    /// Lists stored artifacts.
    pub async fn list(&self, wanted: Wanted<'_>) -> Listing {
        let mut listing = Listing::default();
        match self.spots(wanted.owner, &mut listing.problems).await {
            Ok(mut spots) => {
                listing.cut = spots.len() >= LONGEST_LISTING;
                let after = wanted.after.and_then(Spot::of_cursor);
                spots.retain(|spot| {
                    after.as_ref().is_none_or(|after| spot > after) && wanted.may_be(spot)
                });
                spots.sort();
                self.fill(&mut listing, spots, wanted).await;
            }
            Err(source) => listing.complain(format!("the artifacts cannot be listed: {source}")),
        }
        listing.kept.sort_by(|one, other| {
            (&one.owner, &one.name, one.version).cmp(&(&other.owner, &other.name, other.version))
        });
        listing
    }

    /// Reads metadata concurrently, in order, until the page is full.
    async fn fill(&self, listing: &mut Listing, spots: Vec<Spot>, wanted: Wanted<'_>) {
        let mut asked: VecDeque<(Spot, JoinHandle<io::Result<Kept>>)> = VecDeque::new();
        let mut last = None;
        let mut spots = spots.into_iter();
        loop {
            asked.extend(spots.by_ref().take(AT_A_TIME - asked.len()).map(|spot| {
                let (artifacts, at) = (self.clone(), spot.clone());
                (
                    spot,
                    tokio::spawn(async move { artifacts.about(&at).await?.kept(&at) }),
                )
            }));
            let Some((spot, asking)) = asked.pop_front() else {
                return;
            };
            if listing.kept.len() >= wanted.most {
                listing.next = last;
                return;
            }
            match asking.await.unwrap_or_else(|error| Err(error.into())) {
                Ok(kept) if wanted.is(&kept) => {
                    last = Some(spot.cursor());
                    listing.kept.push(kept);
                }
                Ok(_) => {}
                // Removed meanwhile.
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    let entry = spot.entry.escape_debug().to_string();
                    listing.complain(format!("`{entry}`, version {}: {source}", spot.version));
                }
            }
        }
    }

    /// The locations of versions, up to the scan limit.
    pub(super) async fn spots(
        &self,
        owner: Option<&Owner>,
        problems: &mut Vec<String>,
    ) -> io::Result<Vec<Spot>> {
        let mut spots = Vec::new();
        match &self.0.shelf {
            Shelf::Folder(folder) => {
                let (folder, owner) = (folder.clone(), owner.cloned());
                let walked = off_the_loop(move || {
                    let mut found = (Vec::new(), Vec::new());
                    folder.walk(owner.as_ref(), &mut |entry| {
                        match entry {
                            Ok(spot) => found.0.push(spot),
                            Err(problem) if found.1.len() < MOST_PROBLEMS => found.1.push(problem),
                            Err(_) => {}
                        }
                        found.0.len() < LONGEST_LISTING
                    })?;
                    Ok(found)
                });
                let (spots, found) = walked.await?;
                problems.extend(found);
                Ok(spots)
            }
            Shelf::Bucket(bucket) => {
                let mut each = |spot| {
                    spots.push(spot);
                    spots.len() < LONGEST_LISTING
                };
                bucket.spots(owner, &mut each, &mut |_, _| {}).await?;
                Ok(spots)
            }
        }
    }

    /// Counts the names and bytes of each owner.
    pub(super) async fn weigh_all(&self) -> io::Result<HashMap<Owner, Share>> {
        let mut tally = Tally::default();
        match &self.0.shelf {
            Shelf::Folder(folder) => {
                let folder = folder.clone();
                tally = off_the_loop(move || {
                    folder.walk(None, &mut |entry| {
                        if let Ok(spot) = entry {
                            tally
                                .share(&spot.owner)
                                .add(Share::bytes(folder.weight(&spot)));
                            tally.see(spot);
                        }
                        true
                    })?;
                    Ok(tally)
                })
                .await?;
            }
            Shelf::Bucket(bucket) => {
                let mut bytes: HashMap<Owner, Share> = HashMap::new();
                let mut each = |spot| {
                    tally.see(spot);
                    true
                };
                let mut weigh = |owner: &Owner, more| {
                    bytes
                        .entry(owner.clone())
                        .or_default()
                        .add(Share::bytes(more))
                };
                bucket.spots(None, &mut each, &mut weigh).await?;
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
struct Tally {
    last: Option<Spot>,
    owners: HashMap<Owner, Share>,
}

impl Tally {
    fn see(&mut self, spot: Spot) {
        let same = |last: &Spot| (&last.owner, &last.entry) == (&spot.owner, &spot.entry);
        if !self.last.as_ref().is_some_and(same) {
            self.share(&spot.owner).names += 1;
        }
        self.last = Some(spot);
    }

    fn share(&mut self, owner: &Owner) -> &mut Share {
        self.owners.entry(owner.clone()).or_default()
    }
}

impl Listing {
    fn complain(&mut self, problem: String) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(problem);
        }
    }
}
