//! Listing a bucket page by page, around keys that the client cannot name (`a//b`, `../x`). It fails with a whole page for one
//! such key, and tells which: the page is asked for in halves until that key stands alone, and then what comes after it.

use super::remote::unusable;
use object_store::{
    Error, ObjectMeta, Result,
    list::{PaginatedListOptions, PaginatedListStore},
};

const PAGE: usize = 1000;
/// A server that always has another page is given up.
const MOST_PAGES: usize = 1000;
/// Each costs a dozen pages.
const MOST_ODD: usize = 20;

/// Calls `each` with every object until it says that it is enough. Comes back with the keys that cannot be named.
pub(super) async fn list(
    store: &dyn PaginatedListStore,
    below: &str,
    each: &mut (dyn FnMut(&ObjectMeta) -> Result<bool> + Send),
) -> Result<Vec<String>> {
    let prefix = format!("{below}/");
    let (mut odd, mut size) = (Vec::new(), PAGE);
    let (mut offset, mut page_token) = (None, None);
    for _ in 0..MOST_PAGES {
        let options = PaginatedListOptions {
            offset: offset.clone(),
            page_token: page_token.clone(),
            max_keys: Some(size),
            ..PaginatedListOptions::default()
        };
        match store.list_paginated(Some(&prefix), options).await {
            Ok(page) => {
                for meta in &page.result.objects {
                    if !each(meta)? {
                        return Ok(odd);
                    }
                }
                match page.page_token {
                    None => return Ok(odd),
                    next => page_token = next,
                }
            }
            Err(Error::InvalidPath { .. }) if size > 1 => size /= 2,
            Err(error) => {
                let key = odd_key(&error).filter(|_| odd.len() < MOST_ODD).map(str::to_owned);
                let Some(key) = key else { return Err(error) };
                (offset, page_token, size) = (Some(key.clone()), None, PAGE);
                odd.push(key);
            }
        }
    }
    Err(unusable(format!("its listing has more than {MOST_PAGES} pages")))
}

fn odd_key(error: &Error) -> Option<&str> {
    use object_store::path::Error::{BadSegment, EmptySegment};
    match error {
        Error::InvalidPath { source: EmptySegment { path } | BadSegment { path, .. } } => Some(path),
        _ => None,
    }
}
