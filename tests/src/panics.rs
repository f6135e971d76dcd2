//! Last lines of a failing test: the message of its panic, after the long report that follows it.
//! Output is often cut to its end.

use std::any::Any;
use std::cell::RefCell;
use std::panic;
use std::sync::Once;

/// Longest message to repeat, in characters.
const LIMIT: usize = 2_000;

thread_local! {
    static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the messages of later panics of all threads.
pub fn keep_messages() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let message: String = text(info.payload()).chars().take(LIMIT).collect();
            MESSAGE.set(format!("panicked at {place}:\n{message}"));
            report(info);
        }));
    });
}

/// The message of this thread's last panic since [`keep_messages`].
#[must_use]
pub fn last_message() -> String {
    MESSAGE.with_borrow(Clone::clone)
}

/// Message of a panic.
#[must_use]
pub fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text")
}
