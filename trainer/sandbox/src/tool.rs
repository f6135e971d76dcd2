//! Messages between the coordinator and the sandbox of a tool: a program that runs once per call.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A tool and its limits.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ToolSettings {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Working folder, which the program reads. Without one, it starts in its scratch folder.
    pub folder: Option<PathBuf>,
    /// Seconds of a call, by the clock.
    pub timeout_seconds: u32,
    /// Address space of a process in MiB, and memory of all processes together.
    pub memory_mib: u32,
    /// Standard output of a call in KiB.
    pub output_kib: u32,
}

/// A call.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ToolRequest {
    pub id: u64,
    /// Standard input of the program.
    pub input: String,
}

/// How a call ended.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ToolResponse {
    pub id: u64,
    pub outcome: ToolOutcome,
}

/// Outcome of a call.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum ToolOutcome {
    /// The program exited with 0; its standard output.
    Output(String),
    /// The program failed.
    Failed {
        status: String,
        /// Last line of standard error, possibly empty.
        stderr: String,
    },
    TimeLimit,
    /// The processes of the program exceeded the limit of their memory together.
    MemoryLimit,
    OutputLimit,
    /// The output is not UTF-8.
    NotText,
}
