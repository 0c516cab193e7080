//! What is told over HTTP of how the worker is: both generations of health paths, and metrics.
