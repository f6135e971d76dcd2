//! The operator under faults of the API server and misuse, by category (Sieve, Acto, Anvil): the
//! end state is that of a run without faults. The operator is tested as a binary with a real API
//! server and controllers; pods and coordinators are simulated.

mod conflicts;
mod deletion;
mod external_changes;
mod intermediate;
mod liveness;
mod misoperation;
mod recovery;
mod spec_history;
mod stale;
mod unobserved;

use super::fixture;
