//! What happened, one JSON object a line, with trace, task and correlation; without secrets.
