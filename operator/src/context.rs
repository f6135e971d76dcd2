//! Context of all passes of one leader: clients, cache, memory and settings.

use std::sync::Arc;

use kube::Client;
use kube::runtime::events::Reporter;

use crate::cache::{Cache, WatchHealth};
use crate::desired::Settings;
use crate::desired::tokens::TokenKey;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::poll::Pollers;
use crate::validate::Policy;

/// Shared by every pass.
pub struct Context {
    pub client: Client,
    /// The namespace whose jobs are managed; `None` for all.
    pub namespace: Option<String>,
    pub cache: Arc<Cache>,
    pub health: Arc<WatchHealth>,
    pub memory: Memory,
    pub settings: Settings,
    pub policy: Policy,
    pub token_key: TokenKey,
    pub pollers: Pollers,
    /// Reports events.
    pub reporter: Reporter,
    pub metrics: Metrics,
}
