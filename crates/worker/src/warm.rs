//! Interpreters that wait in a box with their tool imported. Each serves one call.
