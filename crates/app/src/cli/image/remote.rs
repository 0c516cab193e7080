//! Images at a server: listed, loaded, shown, removed. The responses are the objects that `--json`
//! prints.

use super::{image_store, list};
use crate::{
    cli::{
        message::{self, Failure, printable},
        print, print_json,
        size::human_size,
    },
    remote::{Client, ClientRequest, query, segments, upload},
};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    time::Duration,
};

/// How long a server may take to unpack an upload.
const LOAD_TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Deserialize)]
struct ImageList {
    images: Vec<Value>,
}

/// Lists the server's images.
pub(super) async fn list(client: &Client, json: bool) -> Result<u8, Failure> {
    let ImageList { images } = client.json(ClientRequest::get("/v1/images")).await?;
    if json {
        print_json(&json!({ "images": images, "notes": [] }))?
    } else {
        print(&list::table(images.iter().map(row).collect()))?
    }
    Ok(0)
}

fn row(image: &Value) -> [String; 5] {
    let text = |name: &str| image[name].as_str().unwrap_or_default();
    let digest = text("digest").trim_start_matches("sha256:");
    let size = image["size_bytes"].as_u64().unwrap_or_default();
    list::cells(
        text("name"),
        digest,
        size,
        text("platform"),
        text("created"),
    )
}

#[derive(Deserialize)]
struct LoadResponse {
    names: Vec<String>,
    size_bytes: u64,
    fresh: bool,
}

/// Uploads an archive.
pub(super) async fn load(
    client: &Client,
    source: &Path,
    name: Option<&str>,
    json: bool,
) -> Result<u8, Failure> {
    let (from, length) = archive(source)?;
    let path = format!("/v1/images{}", query(&[("name", name.map(str::to_owned))]));
    let ask = ClientRequest::new(Method::POST, path)
        .body(upload(from, length))
        .response_timeout(LOAD_TIMEOUT);
    let answer: Value = client.json(ask).await?;
    if json {
        print_json(&answer)?;
        return Ok(0);
    }
    let loaded = LoadResponse::deserialize(&answer)
        .map_err(|error| client.not_airlock(error.to_string()))?;
    let word = if loaded.fresh {
        "loaded"
    } else {
        "was there already:"
    };
    let text = format!(
        "{word} {} ({})",
        loaded.names.join(", "),
        human_size(loaded.size_bytes)
    );
    print(&format!("{}\n", message::printable(&text)))?;
    Ok(0)
}

fn archive(source: &Path) -> Result<(Box<dyn Read + Send>, Option<u64>), Failure> {
    if source.as_os_str() == "-" {
        return Ok((Box::new(io::stdin()), None));
    }
    let hint = "give an archive; a layout in a folder becomes one with `tar -C DIR -c .`";
    let failed =
        |why: String| Failure::invalid(format!("cannot send `{}`: {why}", source.display()), hint);
    let file = File::open(source).map_err(|error| failed(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| failed(error.to_string()))?;
    if metadata.is_dir() {
        Err(failed("it is a folder".to_owned()))
    } else {
        Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
    }
}

/// Shows one image.
pub(super) async fn inspect(client: &Client, name: &str, json: bool) -> Result<u8, Failure> {
    let image: Value = client.json(ClientRequest::get(path(name)?)).await?;
    if json {
        print_json(&image)?
    } else {
        print(&lines(&image))?
    }
    Ok(0)
}

/// One field a line.
fn lines(image: &Value) -> String {
    let Some(facts) = image.as_object() else {
        return String::new();
    };
    let config = image["config"].as_object().into_iter().flatten();
    let shown = facts
        .iter()
        .filter(|(name, _)| *name != "config")
        .chain(config);
    let line = |(name, value): (&String, &Value)| {
        let text = match value {
            Value::Null => return None,
            Value::String(text) => text.clone(),
            Value::Array(list) if list.is_empty() => return None,
            other => other.to_string(),
        };
        (!text.is_empty()).then(|| format!("{:<12}  {}\n", printable(name), printable(&text)))
    };
    shown.filter_map(line).collect()
}

/// Removes names.
pub(super) async fn remove(client: &Client, names: &[String], json: bool) -> Result<u8, Failure> {
    let mut gone = Vec::new();
    let mut images = Vec::new();
    let mut freed = 0;
    for name in names {
        let removed: RemoveResponse = client
            .json(ClientRequest::new(Method::DELETE, path(name)?))
            .await?;
        if !json {
            let what = if removed.images.is_empty() {
                "the image has other names".to_owned()
            } else {
                format!("{} freed", human_size(removed.freed_bytes))
            };
            let text = removed
                .names
                .iter()
                .map(|name| format!("removed {} ({what})\n", printable(name)));
            print(&text.collect::<String>())?;
        }
        gone.extend(removed.names);
        images.extend(removed.images);
        freed += removed.freed_bytes;
    }
    if json {
        print_json(&json!({ "names": gone, "images": images, "freed_bytes": freed }))?;
    }
    Ok(0)
}

#[derive(Deserialize)]
struct RemoveResponse {
    names: Vec<String>,
    images: Vec<String>,
    freed_bytes: u64,
}

fn path(name: &str) -> Result<String, Failure> {
    // The name is checked here as well, so that an invalid one never becomes part of a URL.
    image_store::reference(name)?;
    Ok(format!("/v1/images/{}", segments(name.as_bytes())))
}
