//! Pulling, against a real registry on loopback and against one that lies.

mod docker_registry;
mod hostile;
mod image;
mod proving;
mod pulling;
mod server;
mod tls;
