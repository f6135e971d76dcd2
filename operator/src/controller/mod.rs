//! Controller of RLJobs. A pass reconciles one job after a change of the job, its children, its
//! pods or its coordinator's report, in the order of [`reconcile`]:
//!
//! ```text
//!  validate ─▶ observe ─▶ decide ─▶ status ─▶ desired ─▶ execute ─▶ requeue
//!  pure        client      pure      pure      pure       client     pure
//!              (reads)                                    (writes)
//! ```
//!
//! The spec is validated first, because a job that cannot run needs no observation. The status is
//! computed before the children and written before any other side effect. Every write names the
//! version that was observed, so a pass over outdated state changes nothing.

mod desired;
mod gang;
mod reconcile;
mod requeue;
mod restored;
mod run;
mod subject;

pub use reconcile::ReconcileError;
pub use restored::restored;
pub use run::{new, run};
