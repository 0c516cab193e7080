//! Builds the launcher a second time, static and small, so that the library can carry it as bytes.
//! Only with feature `embed`. The inner build does not set it, so this cannot recurse.

use std::{env, ffi::OsStr, path::PathBuf, process::Command};

const FLAGS: &str = "-Ctarget-feature=+crt-static\x1f-Crelocation-model=static";
const PROFILE: [&str; 6] = [
    "opt-level='s'",
    "panic='abort'",
    "codegen-units=1",
    "strip=true",
    "debug=false",
    "lto=false",
];
/// The outer build's settings for *this* crate (wrappers, flags, features) must not reach the inner
/// build.
const KEPT: [&str; 7] = [
    "CARGO_HOME",
    "CARGO_MAKEFLAGS",
    "CARGO_NET_",
    "CARGO_HTTP_",
    "CARGO_REGISTR",
    "CARGO_SOURCE_",
    "CARGO_TARGET_",
];

fn main() {
    for path in ["src", "Cargo.toml", "build.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed=AIRLOCK_INIT_BIN");
    if env::var_os("CARGO_FEATURE_EMBED").is_none() {
        return;
    }
    let built = match env::var_os("AIRLOCK_INIT_BIN") {
        Some(ready) => PathBuf::from(ready), // a packager brings his own
        None => build(),
    };
    println!("cargo::rustc-env=AIRLOCK_INIT_BIN={}", built.display());
}

fn build() -> PathBuf {
    let variable = |name| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let target = env::var("TARGET").expect("cargo sets TARGET");
    // A folder of its own: the outer build locks the usual one.
    let out = PathBuf::from(variable("OUT_DIR")).join("static");
    let mut cargo = Command::new(variable("CARGO"));
    for (name, _) in env::vars_os().filter(|(name, _)| foreign(name)) {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS);
    cargo.args([
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--bin",
        "airlock-init",
    ]);
    cargo
        .arg("--target-dir")
        .arg(&out)
        .args(["--target", &target]);
    for setting in PROFILE {
        cargo
            .arg("--config")
            .arg(format!("profile.release.{setting}"));
    }
    let status = cargo
        .current_dir(variable("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo starts");
    assert!(status.success(), "building the static launcher failed");
    out.join(target).join("release/airlock-init")
}

fn foreign(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let of_cargo = name.starts_with("CARGO") && !KEPT.iter().any(|kept| name.starts_with(kept));
    of_cargo
        || name.starts_with("RUSTC")
        || ["RUSTFLAGS", "RUSTDOCFLAGS", "CLIPPY_ARGS"].contains(&&*name)
}
