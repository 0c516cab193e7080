//! Records of a pax header, `LENGTH KEY=VALUE\n`; only the relevant keys are kept.

use super::{TarError, sparse::DataSegment};

/// Values that replace those of the following header.
#[derive(Debug, Default)]
pub(super) struct PaxRecords {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) mtime: Option<u64>,
    /// GNU's keys for sparse files: versions 0.0 and 0.1 list the segments here, 1.0 before the
    /// contents.
    pub(super) sparse_name: Option<Vec<u8>>,
    pub(super) sparse_size: Option<u64>,
    pub(super) sparse_numbers: Option<Vec<u64>>,
    pub(super) sparse_in_contents: bool,
}

const BAD: TarError = TarError::Form("a pax record is malformed");

impl PaxRecords {
    pub(super) fn read(mut bytes: &[u8]) -> Result<PaxRecords, TarError> {
        let mut pax = PaxRecords::default();
        while !bytes.is_empty() {
            let (record, rest) = split(bytes).ok_or(BAD)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or(BAD)?;
            pax.take(&record[..equals], &record[equals + 1..])?;
            bytes = rest;
        }
        Ok(pax)
    }

    /// An empty value means that the header's own value applies.
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), TarError> {
        let words = || (!value.is_empty()).then(|| value.to_vec());
        let number = || {
            if value.is_empty() {
                Ok(None)
            } else {
                decimal(value).map(Some).ok_or(BAD)
            }
        };
        let id = || number().map(|id| id.map(|id| u32::try_from(id).unwrap_or(u32::MAX)));
        match key {
            b"path" => self.path = words(),
            b"linkpath" => self.link = words(),
            b"size" => self.size = number()?,
            b"uid" => self.uid = id()?,
            b"gid" => self.gid = id()?,
            b"mtime" => self.mtime = seconds(value),
            b"GNU.sparse.name" => self.sparse_name = words(),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse_size = number()?,
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                self.sparse_numbers
                    .get_or_insert_default()
                    .push(number()?.ok_or(BAD)?);
            }
            b"GNU.sparse.map" => {
                let numbers = value
                    .split(|byte| *byte == b',')
                    .map(decimal)
                    .collect::<Option<Vec<_>>>();
                self.sparse_numbers = Some(if value.is_empty() {
                    Vec::new()
                } else {
                    numbers.ok_or(BAD)?
                });
            }
            b"GNU.sparse.major" => self.sparse_in_contents = value == b"1",
            _ => {}
        }
        Ok(())
    }

    /// The segments that the records list, if any.
    pub(super) fn listed(&self) -> Option<Vec<DataSegment>> {
        let numbers = self.sparse_numbers.as_ref()?;
        Some(
            numbers
                .chunks(2)
                .map(|two| DataSegment {
                    offset: two[0],
                    size: two.get(1).copied().unwrap_or(0),
                })
                .collect(),
        )
    }
}

/// The first record without its length and newline, and the rest.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&bytes[..space])?).ok()?;
    let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    Some((record, &bytes[length..]))
}

pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if digits {
        str::from_utf8(text).ok()?.parse().ok()
    } else {
        None
    }
}

/// The whole seconds of a time; `None` if it is before 1970.
fn seconds(text: &[u8]) -> Option<u64> {
    let whole = text.split(|byte| *byte == b'.').next()?;
    decimal(whole)
}
