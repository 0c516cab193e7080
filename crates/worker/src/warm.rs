//! Interpreters that wait inside boxes with a tool imported, each for one call.
