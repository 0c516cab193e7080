//! Claims about images, each with archives made for it.

mod common;
mod documents;
mod hostile;
mod layers;
mod rights;
mod store;
