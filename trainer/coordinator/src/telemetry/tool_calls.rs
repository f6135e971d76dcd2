//! Counter of the calls of tools.

use prometheus::{IntCounterVec, Opts, Registry};

use super::register::register;

/// Calls of tools in rollouts and evaluations.
#[derive(Clone, Debug)]
pub struct ToolCalls(IntCounterVec);

impl ToolCalls {
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let help = "Calls of tools in rollouts and evaluations, by tool and outcome. The tool is \
                    empty for calls that name none of the job.";
        let options = Opts::new("rljob_tool_calls_total", help);
        Ok(Self(register(registry, IntCounterVec::new(options, &["tool", "outcome"])?)?))
    }

    /// Counts a call. `tool` is a name of the spec or empty.
    pub fn count(&self, tool: &str, outcome: &'static str) {
        self.0.with_label_values(&[tool, outcome]).inc();
    }
}
