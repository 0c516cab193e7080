//! Whether it lives and can serve, over HTTP, in the words of both generations; and what it counted.
