//! A real registry (Debian's `docker-registry`) on loopback, started and stopped by the test.

use crate::image::{Folder, Image, MANIFEST, digest};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

pub(crate) struct Registry {
    child: Child,
    pub(crate) address: String,
    _configuration: Folder,
}

/// Whether a registry is installed. Without one a test says so, and fails where all tools are
/// required.
pub(crate) fn available() -> bool {
    let found = Command::new("docker-registry")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok();
    if !found {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "missing: apt-get install docker-registry"
        );
        eprintln!("NOT TESTED: there is no docker-registry; apt-get install docker-registry");
    }
    found
}

impl Registry {
    /// Starts a registry on a storage folder, with further lines of configuration.
    pub(crate) fn start(storage: &Path, http: &str, more: &str) -> Registry {
        let folder = Folder::new();
        let text = format!(
            "version: 0.1\nlog: {{level: info, accesslog: {{disabled: true}}}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\n\
             http:\n  addr: 127.0.0.1:0\n  secret: test\n{http}\n{more}\n",
            storage.display()
        );
        let file = folder.0.join("config.yml");
        fs::write(&file, text).unwrap();
        let mut command = Command::new("docker-registry");
        command
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("docker-registry starts");
        let mut told = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let ready = told.find_map(|line| {
            let (_, rest) = line.split_once("msg=\"listening on ")?;
            Some(rest.split(['"', ',']).next()?.to_owned())
        });
        // The log must be read, or the registry blocks on a full pipe.
        std::thread::spawn(move || told.for_each(drop));
        let address =
            ready.unwrap_or_else(|| panic!("docker-registry does not start: {:?}", child.wait()));
        Registry {
            child,
            address,
            _configuration: folder,
        }
    }

    pub(crate) fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address)
    }

    /// Pushes an image over HTTP.
    pub(crate) async fn push(&self, repository: &str, tag: &str, image: &Image) {
        for blob in &image.blobs {
            self.push_blob(repository, blob).await;
        }
        self.push_manifest(
            repository,
            image.digest().as_str(),
            MANIFEST,
            image.manifest(),
        )
        .await;
        self.push_manifest(repository, tag, MANIFEST, image.manifest())
            .await;
    }

    async fn push_blob(&self, repository: &str, bytes: &[u8]) {
        let http = reqwest_client();
        let begin = http.post(format!(
            "http://{}/v2/{repository}/blobs/uploads/",
            self.address
        ));
        let begun = begin.send().await.unwrap();
        assert_eq!(begun.status(), 202);
        let place = begun.headers()["location"].to_str().unwrap();
        let place = format!(
            "{place}{}digest={}",
            if place.contains('?') { '&' } else { '?' },
            digest(bytes)
        );
        let put = http
            .put(place)
            .header("content-type", "application/octet-stream")
            .body(bytes.to_vec());
        assert_eq!(put.send().await.unwrap().status(), 201);
    }

    pub(crate) async fn push_manifest(
        &self,
        repository: &str,
        reference: &str,
        kind: &str,
        bytes: Vec<u8>,
    ) {
        let place = format!(
            "http://{}/v2/{repository}/manifests/{reference}",
            self.address
        );
        let put = reqwest_client()
            .put(place)
            .header("content-type", kind)
            .body(bytes);
        let put = put.send().await.unwrap();
        assert_eq!(put.status(), 201, "{:?}", put.text().await);
    }
}

/// The tests' own HTTP client, for pushing.
fn reqwest_client() -> reqwest::Client {
    _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

impl Drop for Registry {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
