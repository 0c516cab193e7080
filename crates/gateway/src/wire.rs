//! What requests and answers look like as JSON. Only here are names of fields; everything behind is the engine's.
