//! Sealed pagination cursors. Rows are numbered across tenants, and a plain row number would reveal
//! how active other tenants are. A cursor is encrypted for one tenant, one list and one server
//! process; after a restart old cursors are invalid.

use crate::{Problem, problem::Answer};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    error::Unspecified,
    rand::{SecureRandom, SystemRandom},
};
use std::{fmt::Display, str::FromStr};

/// Positions are padded to this length before encryption, so that the length of a cursor does not
/// reveal the position.
const PADDED_LENGTH: usize = 48;

/// The paginated lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PagedList {
    Audit,
    Containers,
    Jobs,
    Lines,
    Runs,
}

impl PagedList {
    /// Name of the query parameter that takes a cursor of this list.
    fn parameter(self) -> &'static str {
        match self {
            PagedList::Audit | PagedList::Jobs | PagedList::Runs => "before",
            PagedList::Containers | PagedList::Lines => "page_token",
        }
    }
}

/// Encrypts and decrypts cursors.
#[derive(Debug)]
pub(crate) struct CursorSealer(LessSafeKey);

impl CursorSealer {
    /// Creates a random key, which only this process has.
    pub(crate) fn new() -> Result<CursorSealer, Unspecified> {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key)?;
        Ok(CursorSealer(LessSafeKey::new(UnboundKey::new(
            &CHACHA20_POLY1305,
            &key,
        )?)))
    }

    /// Encrypts a position for a tenant.
    pub(crate) fn seal(
        &self,
        tenant: &str,
        list: PagedList,
        position: impl Display,
    ) -> Answer<String> {
        self.encrypt(tenant, list, &format!("{position:<PADDED_LENGTH$}"))
            .map_err(|_| {
                let title = "no cursor could be made";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", title, None)
            })
    }

    fn encrypt(
        &self,
        tenant: &str,
        list: PagedList,
        position: &str,
    ) -> Result<String, Unspecified> {
        let mut nonce = [0; NONCE_LEN];
        // A counter as nonce would reveal as much as the position.
        SystemRandom::new().fill(&mut nonce)?;
        let mut bytes = position.as_bytes().to_vec();
        self.0.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            associated_data(tenant, list),
            &mut bytes,
        )?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &bytes].concat()))
    }

    /// Decrypts the position of a cursor of this tenant and list.
    pub(crate) fn open<T: FromStr>(
        &self,
        tenant: &str,
        list: PagedList,
        cursor: Option<&str>,
    ) -> Answer<Option<T>> {
        let unknown = || {
            let title = format!("`{}` is no cursor", list.parameter());
            Problem::invalid(
                title,
                "give what the answer before gave; from a server that began anew, begin without one",
            )
        };
        cursor
            .map(|cursor| self.decrypt(tenant, list, cursor).ok_or_else(unknown))
            .transpose()
    }

    fn decrypt<T: FromStr>(&self, tenant: &str, list: PagedList, cursor: &str) -> Option<T> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let position = self
            .0
            .open_in_place(nonce, associated_data(tenant, list), &mut sealed)
            .ok()?;
        std::str::from_utf8(position).ok()?.trim_end().parse().ok()
    }
}

fn associated_data(tenant: &str, list: PagedList) -> Aad<Vec<u8>> {
    Aad::from(format!("{list:?} {tenant}").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_of_its_tenant_and_list_and_says_nothing() {
        let cursors = CursorSealer::new().unwrap();
        let cursor = cursors.seal("acme", PagedList::Runs, 7).unwrap();
        let open =
            |tenant: &str, list, cursor: &str| cursors.open::<i64>(tenant, list, Some(cursor));
        assert_eq!(open("acme", PagedList::Runs, &cursor).unwrap(), Some(7));
        assert_eq!(
            cursors.open::<i64>("acme", PagedList::Runs, None).unwrap(),
            None
        );
        let largest = cursors.seal("acme", PagedList::Runs, i64::MAX).unwrap();
        assert_eq!(cursor.len(), largest.len(), "all are as long");
        assert_ne!(
            cursor,
            cursors.seal("acme", PagedList::Runs, 7).unwrap(),
            "none is known again"
        );
        let other = CursorSealer::new()
            .unwrap()
            .seal("acme", PagedList::Runs, 7)
            .unwrap();
        let wrong = [
            open("else", PagedList::Runs, &cursor),
            open("acme", PagedList::Jobs, &cursor),
            open("acme", PagedList::Runs, &other),
            open("acme", PagedList::Runs, &cursor[1..]),
            open("acme", PagedList::Runs, &format!("{cursor}A")),
            open("acme", PagedList::Runs, "7"),
            open("acme", PagedList::Runs, ""),
        ];
        for wrong in wrong {
            assert_eq!(wrong.unwrap_err().status(), StatusCode::BAD_REQUEST);
        }
    }
}
