//! Signs of life for the supervisor: a byte a second on standard output, another one if the loop
//! got further meanwhile. The thread shows that the process is not stopped, its byte that the loop
//! is not stuck; neither needs the coordinator or a file.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rljob_protocol::supervisor::{BEAT, PROGRESS, SUPERVISOR_PID_VARIABLE};

const PERIOD: Duration = Duration::from_secs(1);

/// Of the whole process, as its standard output is.
static ADVANCES: AtomicU64 = AtomicU64::new(0);

/// The process got further: a micro-batch, a tensor, an answer.
pub fn advance() {
    ADVANCES.fetch_add(1, Ordering::Relaxed);
}

/// Beats until the process ends, for the supervisor; without one, nobody listens and nothing is
/// written.
pub fn start() -> io::Result<()> {
    if std::env::var_os(SUPERVISOR_PID_VARIABLE).is_none() {
        return Ok(());
    }
    let beat = || {
        let mut seen = 0;
        loop {
            let advances = ADVANCES.load(Ordering::Relaxed);
            let mut out = io::stdout().lock();
            if out
                .write_all(&[if advances == seen { BEAT } else { PROGRESS }])
                .and_then(|()| out.flush())
                .is_err()
            {
                return;
            }
            seen = advances;
            std::thread::sleep(PERIOD);
        }
    };
    std::thread::Builder::new().name("pulse".to_owned()).spawn(beat).map(drop)
}
