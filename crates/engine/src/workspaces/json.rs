//! JSON of changes and layers. A name is a string if it is UTF-8, and base64 in another field
//! otherwise.

use super::{FileKind, Layer, LayerChange, UnappliedChange};
use serde::{Serialize, Serializer, ser::SerializeMap};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

impl Serialize for LayerChange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        bytes(&mut map, ["path", "path_base64"], self.path.as_os_str())?;
        map.serialize_entry("change", &self.what)?;
        map.serialize_entry("kind", &self.kind)?;
        map.serialize_entry("mode", &format!("{:03o}", self.mode))?;
        if self.kind == FileKind::File {
            map.serialize_entry("size_bytes", &self.size_bytes)?;
        }
        if let Some(target) = &self.target {
            bytes(&mut map, ["target", "target_base64"], target)?;
        }
        map.serialize_entry("left_out", &self.left_out)?;
        map.serialize_entry("why", &self.why)?;
        map.serialize_entry("conflict", &self.conflict)?;
        map.end()
    }
}

impl Serialize for UnappliedChange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        bytes(&mut map, ["path", "path_base64"], self.path.as_os_str())?;
        map.serialize_entry("reason", &self.reason)?;
        map.serialize_entry("conflict", &self.conflict)?;
        map.serialize_entry("why", &self.why)?;
        map.end()
    }
}

impl Serialize for Layer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        bytes(
            &mut map,
            ["folder", "folder_base64"],
            self.folder.as_os_str(),
        )?;
        map.serialize_entry("made_at", &self.made_at)?;
        map.serialize_entry("in_use", &self.in_use)?;
        map.end()
    }
}

fn bytes<M: SerializeMap>(map: &mut M, names: [&str; 2], value: &OsStr) -> Result<(), M::Error> {
    match value.to_str() {
        Some(text) => map.serialize_entry(names[0], text),
        None => map.serialize_entry(names[1], &spec::base64(value.as_bytes())),
    }
}
