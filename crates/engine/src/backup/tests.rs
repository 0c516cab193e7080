//! Backup and restore, tried.
