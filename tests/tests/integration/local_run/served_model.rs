//! `rljob-engine` that serves a model beside a run.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};

use rljob_tests::files::binary;

/// A process that is killed when this value is dropped.
pub(crate) struct ServedModel(Child);

impl ServedModel {
    pub(crate) fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    /// Serves the model in a folder once it is there.
    pub(crate) fn start(port: u16, folder: &Path, more: &[&str]) -> Self {
        let engine = Command::new(binary("rljob-engine").unwrap())
            .args(["--port", &port.to_string(), "--model-path"])
            .arg(folder)
            .args(more)
            .spawn();
        Self(engine.unwrap())
    }
}

impl Drop for ServedModel {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
