//! The native backend: namespaces, cgroups, Landlock and seccomp of plain Linux.
