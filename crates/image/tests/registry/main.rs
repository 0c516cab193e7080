//! Pulls from a real registry on loopback, and from hostile ones.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that tells")]

mod authentication;
mod docker_registry;
mod hostile;
mod image;
mod pulling;
mod server;
mod tls;
