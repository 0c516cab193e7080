//! Claims about images, each with archives made for it.

mod common;
mod hostile;
mod layers;
mod store;
