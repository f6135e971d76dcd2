//! The operator under faults of its API server and of people, by category (Sieve, Acto, Anvil):
//! whatever happened on the way, the end is that of the undisturbed run. The operator is a black
//! box: its program, beside a real API server with real controllers; pods and coordinators are
//! played.

mod conflicts;
mod deletion;
mod indirect;
mod intermediate;
mod liveness;
mod misoperation;
mod paths;
mod recovery;
mod stale;
mod unobserved;

use super::stage;
