//! Where a page of a list ended, sealed: rows and lines are numbered across all tenants, and such a number would tell one how
//! much the others do. A cursor is its tenant's, of one list, and of the server that gave it: one that began anew knows none.

use crate::{Problem, problem::Answer};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    error::Unspecified,
    rand::{SecureRandom, SystemRandom},
};
use std::{fmt::Display, str::FromStr};

/// Every place is as long as this before it is sealed: so are their numbers not told by their length.
const LENGTH: usize = 48;

/// The lists that are given by the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Audit,
    Containers,
    Jobs,
    Lines,
    Runs,
}

impl List {
    /// What the parameter is called that takes a cursor of it.
    fn parameter(self) -> &'static str {
        match self {
            List::Audit | List::Jobs | List::Runs => "before",
            List::Containers | List::Lines => "page_token",
        }
    }
}

/// Seals and opens them.
#[derive(Debug)]
pub(crate) struct Cursors(LessSafeKey);

impl Cursors {
    /// With a key that nobody else has.
    pub(crate) fn new() -> Result<Cursors, Unspecified> {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key)?;
        Ok(Cursors(LessSafeKey::new(UnboundKey::new(
            &CHACHA20_POLY1305,
            &key,
        )?)))
    }

    /// A cursor for this tenant.
    pub(crate) fn seal(&self, tenant: &str, list: List, place: impl Display) -> Answer<String> {
        self.sealed(tenant, list, &format!("{place:<LENGTH$}"))
            .map_err(|_| {
                let title = "no cursor could be made";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", title, None)
            })
    }

    fn sealed(&self, tenant: &str, list: List, place: &str) -> Result<String, Unspecified> {
        let mut nonce = [0; NONCE_LEN];
        // The number of the cursor would tell as much as what is sealed.
        SystemRandom::new().fill(&mut nonce)?;
        let mut bytes = place.as_bytes().to_vec();
        self.0.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            whose(tenant, list),
            &mut bytes,
        )?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &bytes].concat()))
    }

    /// The place of a cursor that this tenant was given.
    pub(crate) fn open<T: FromStr>(
        &self,
        tenant: &str,
        list: List,
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
            .map(|cursor| self.opened(tenant, list, cursor).ok_or_else(unknown))
            .transpose()
    }

    fn opened<T: FromStr>(&self, tenant: &str, list: List, cursor: &str) -> Option<T> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let place = self
            .0
            .open_in_place(nonce, whose(tenant, list), &mut sealed)
            .ok()?;
        std::str::from_utf8(place).ok()?.trim_end().parse().ok()
    }
}

fn whose(tenant: &str, list: List) -> Aad<Vec<u8>> {
    Aad::from(format!("{list:?} {tenant}").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_of_its_tenant_and_list_and_says_nothing() {
        let cursors = Cursors::new().unwrap();
        let cursor = cursors.seal("acme", List::Runs, 7).unwrap();
        let open =
            |tenant: &str, list, cursor: &str| cursors.open::<i64>(tenant, list, Some(cursor));
        assert_eq!(open("acme", List::Runs, &cursor).unwrap(), Some(7));
        assert_eq!(cursors.open::<i64>("acme", List::Runs, None).unwrap(), None);
        let largest = cursors.seal("acme", List::Runs, i64::MAX).unwrap();
        assert_eq!(cursor.len(), largest.len(), "all are as long");
        assert_ne!(
            cursor,
            cursors.seal("acme", List::Runs, 7).unwrap(),
            "none is known again"
        );
        let other = Cursors::new().unwrap().seal("acme", List::Runs, 7).unwrap();
        let wrong = [
            open("else", List::Runs, &cursor),
            open("acme", List::Jobs, &cursor),
            open("acme", List::Runs, &other),
            open("acme", List::Runs, &cursor[1..]),
            open("acme", List::Runs, &format!("{cursor}A")),
            open("acme", List::Runs, "7"),
            open("acme", List::Runs, ""),
        ];
        for wrong in wrong {
            assert_eq!(wrong.unwrap_err().status(), StatusCode::BAD_REQUEST);
        }
    }
}
