//! One call of a tool: a box, its files, the program, what it says meanwhile, what it leaves.
//!
//! ```text
//! /workspace ─ input/NAME…       what was sent along or refers to artifacts
//!            ─ output/           what of it is kept
//!            ─ runner_args.json  what is asked (0600: it may have secrets)
//!            ─ result.json       what came of it; read by handle, bounded
//!            ─ status.pipe       a line a status
//!            ─ ipc.sock          calls to a model
//! ```
