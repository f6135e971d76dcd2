//! Everything that is tested on the whole: the architecture's invariants, the API on a real control
//! plane, `rljob run`, and a job on a real cluster.

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod control_plane;
#[cfg(test)]
mod e2e;
#[cfg(test)]
mod exact_recovery;
mod fencing;
#[cfg(test)]
mod in_a_bucket;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod local_run;
#[cfg(test)]
mod on_the_way;
#[cfg(test)]
mod other_ranks;
#[cfg(test)]
mod sampling_ahead;
