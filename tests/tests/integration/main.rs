//! Integration tests: architecture invariants, the API on a real control plane, `rljob run`, and
//! jobs on a real cluster.

#[cfg(test)]
mod agents;
#[cfg(test)]
mod alerts;
#[cfg(test)]
mod async_rollouts;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod chart;
#[cfg(test)]
mod control_plane;
#[cfg(test)]
mod dashboard;
#[cfg(test)]
mod dashboards;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod e2e;
#[cfg(test)]
mod exact_recovery;
mod fencing;
#[cfg(test)]
mod hub;
#[cfg(test)]
mod images;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod json_logs;
#[cfg(test)]
mod local_run;
#[cfg(test)]
mod resharding;
#[cfg(test)]
mod s3_run;
#[cfg(test)]
mod site;
#[cfg(test)]
mod termination;
#[cfg(test)]
mod tool_calls;
#[cfg(test)]
mod traces;
#[cfg(test)]
mod tracking;
#[cfg(test)]
mod validation_and_exports;
#[cfg(test)]
mod workflows;
