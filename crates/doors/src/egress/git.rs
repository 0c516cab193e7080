//! git over HTTP: what a request asks of which repository, and what a push wants to change. Pure functions of bytes.
