//! The loop: what arrives is read, takes its turn, is called and answered.
