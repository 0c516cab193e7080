//! Registries of a world: packages that the test makes are published where `pip` and `npm` look by themselves.

use crate::World;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;
use sha2::{Digest, Sha256, Sha512};
use std::{fs, process::Command};

/// Packs a module and what must lie beside it as a wheel: `NAME VERSION FILE`.
const WHEEL: &str = r#"
import sys, zipfile
name, version, file = sys.argv[1:]
about = f'{name}-{version}.dist-info'
files = {
    f'{name}/__init__.py': f'__version__ = "{version}"\n',
    f'{about}/METADATA': f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n',
    f'{about}/WHEEL': 'Wheel-Version: 1.0\nGenerator: world\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
}
files[f'{about}/RECORD'] = ''.join(f'{path},,\n' for path in [*files, f'{about}/RECORD'])
with zipfile.ZipFile(file, 'w') as wheel:
    for path, text in files.items():
        wheel.writestr(path, text)
"#;

impl World {
    /// Publishes a Python package: its page at `pypi.org`, its wheel at `files.pythonhosted.org`.
    pub fn python_package(&self, name: &str, version: &str) {
        let file = format!("{name}-{version}-py3-none-any.whl");
        let path = self.path("").join(&file);
        let made = Command::new("/usr/bin/python3")
            .args(["-c", WHEEL, name, version])
            .arg(&path)
            .status()
            .expect("python3");
        assert!(made.success(), "prerequisite: python3, to make a wheel");
        let wheel = fs::read(&path).expect("a wheel");
        let hash: String = Sha256::digest(&wheel)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let link = format!("https://files.pythonhosted.org/packages/{file}");
        let page = format!(
            "<!DOCTYPE html><html><body><a href=\"{link}#sha256={hash}\">{file}</a></body></html>"
        );
        self.publish("pypi.org", &format!("/simple/{name}/"), "text/html", page);
        self.publish(
            "files.pythonhosted.org",
            &format!("/packages/{file}"),
            "application/zip",
            wheel,
        );
    }

    /// Publishes a package of Node's at `registry.npmjs.org`.
    pub fn node_package(&self, name: &str, version: &str) {
        let folder = self.path(&format!("{name}-{version}"));
        fs::create_dir_all(folder.join("package")).expect("a folder");
        let about = json!({ "name": name, "version": version, "main": "index.js" });
        fs::write(folder.join("package/package.json"), about.to_string()).expect("a manifest");
        fs::write(
            folder.join("package/index.js"),
            format!("module.exports = '{version}';\n"),
        )
        .expect("a module");
        let packed = Command::new("tar")
            .arg("-czC")
            .arg(&folder)
            .arg("package")
            .output()
            .expect("tar starts");
        assert!(
            packed.status.success(),
            "{}",
            String::from_utf8_lossy(&packed.stderr)
        );
        let integrity = format!("sha512-{}", STANDARD.encode(Sha512::digest(&packed.stdout)));
        let file = format!("/{name}/-/{name}-{version}.tgz");
        let dist = json!({ "tarball": format!("https://registry.npmjs.org{file}"), "integrity": integrity });
        let versions = json!({ version: { "name": name, "version": version, "dist": dist } });
        let page =
            json!({ "name": name, "dist-tags": { "latest": version }, "versions": versions });
        self.publish(
            "registry.npmjs.org",
            &format!("/{name}"),
            "application/json",
            page.to_string(),
        );
        self.publish(
            "registry.npmjs.org",
            &file,
            "application/octet-stream",
            packed.stdout,
        );
    }
}
