//! A small broker for a laptop: JSON lines over TCP, everybody gets everything that they subscribed to, nothing is kept.
