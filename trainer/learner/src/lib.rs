//! Learner of a trainer pod: models, sharding, objectives, optimizer, checkpoints, weight
//! publication.
//!
//! ```text
//!  rljob-learner   startup ──▶ learner (main loop), group_learner (that of `trainer.groups`)
//!                     train        trainer, step ──▶ objective/   the loss; pure
//!                                                ──▶ models       by role: model/, fsdp, optimizer
//!                     publish      publish/
//!                     checkpoint   checkpoint/
//!                     memory       memory/      plan at the start, errors
//!                  used by all: ranks (collectives), mesh, coordinator_client, heartbeat, parent
//! ```
//! Read in this order: [`learner`], [`trainer`], [`step`], [`objective`], [`models`], [`fsdp`],
//! [`optimizer`], [`model`], [`checkpoint`], [`publish`], [`memory`]. The supervisor is a separate
//! program (`bin/rljob-supervisor`).

pub mod background;
pub mod checkpoint;
pub mod coordinator_client;
pub mod fsdp;
pub mod group_learner;
pub mod heartbeat;
pub mod learner;
pub mod memory;
pub mod mesh;
pub mod model;
pub mod models;
pub mod objective;
pub mod optimizer;
pub mod parent;
pub mod publish;
pub mod ranks;
pub mod schedule;
pub mod spans;
pub mod startup;
pub mod step;
pub mod teacher;
pub mod trainer;

use rljob_protocol::error_line;
