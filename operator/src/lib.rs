//! The RLJob controller and the `rljob` command.
//!
//! ```text
//!  observe ──▶ validate ──▶ decide ──▶ status ──▶ desired ──▶ apply        one pass of the controller
//!  client      pure         pure       pure       pure        client
//! ```
//!
//! The four pure steps know no client, no clock and no randomness: time is a parameter. [`decide`]
//! knows roles and facts, not pods, so that `rljob run` ([`local`]) feeds it local processes as the
//! controller feeds it cluster objects.
//!
//! Beside them, [`pods`] plans what the states of single pods ask for, and [`tend`] does it.
//!
//! Read in this order: [`validate`], [`decide`], [`status`], [`desired`], [`pods`], then the edges
//! [`cache`], [`observe`], [`apply`], [`tend`], [`remove`], [`controller`], [`poll`], [`leader`],
//! [`requests`] and [`server`].

pub mod validate;

pub mod decide;

pub mod status;

pub mod desired;

pub mod pods;

pub mod sglang;

pub mod children;

pub mod cache;

pub mod observe;

pub mod apply;

pub mod tend;

pub mod remove;

pub mod poll;

pub mod controller;

pub mod server;

pub mod metrics;

pub mod leader;

pub mod requests;

pub mod token_key;

pub mod install;

pub mod cli;

pub mod local;
