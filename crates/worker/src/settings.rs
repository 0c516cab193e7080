//! What the environment says: each variable honoured, accepted with a notice, or refused.
