//! Everything that is tested on the whole: the architecture's invariants, the API on a real control plane, and a job on a real cluster.

mod control_plane;
mod e2e;
mod invariants;
