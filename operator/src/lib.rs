//! The RLJob controller and the `rljob` command. One pass of the controller:
//!
//! ```text
//!  validate ─▶ observe ─▶ decide ─▶ status ─▶ desired ─▶ execute
//!  pure        client      pure      pure      pure       client
//!              (reads)                                    (writes)
//! ```
//!
//! The pure steps know no client, no clock and no randomness; time is a parameter. [`decide`] knows
//! roles and facts, not pods, so `rljob run` ([`local`]) uses it for local processes as the
//! controller does for cluster objects. [`pods`] derives facts, incidents and actions from the
//! states of single pods; [`observe`] uses it, and [`execute`] performs the actions.
//!
//! All side effects on a cluster are in [`execute`]. State between passes is in [`cache`]
//! (objects), [`poll`] (coordinators' reports) and [`memory`] (hints that a new operator rebuilds).
//!
//! Reading order: [`controller`], then its steps [`validate`], [`observe`], [`decide`], [`status`],
//! [`desired`], [`execute`]; then [`queue`], [`cache`], [`poll`], [`memory`], [`leader`],
//! [`requests`] and [`server`].

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

pub mod controller;

pub mod validate;

pub mod observe;

pub mod decide;

pub mod status;

pub mod desired;

pub mod queue;

pub mod gang;

pub mod execute;

pub mod pods;

pub mod children;

pub mod pod_group;

pub mod context;

pub mod cache;

pub mod memory;

pub mod poll;

pub mod embedded_engine;
pub mod served_model;
pub mod sglang;

pub mod server;

pub mod metrics;

pub mod leader;

pub mod requests;

mod quantity;
pub mod terminal;
pub mod token_key;

pub mod install;

pub mod cli;

pub mod local;
