//! Unions: objects of which exactly one member is set, each an optional field. Their lists of
//! members give the rule of the CRD and the messages of validation.

use kube::core::{Message, Rule};
use serde::Serialize;

/// An object of which exactly one member is set. Members that are not set are not serialized.
pub trait Union: Serialize {
    /// Fields that are members, by their names in the CRD.
    const MEMBERS: &'static [&'static str];
}

/// The rule that exactly one member is set.
pub(crate) fn exactly_one(members: &[&str]) -> Rule {
    Rule::new(expression(members)).message(Message::Message(message(members)))
}

/// The rule in the Common Expression Language (CEL).
pub(crate) fn expression(members: &[&str]) -> String {
    let set: Vec<String> = members.iter().map(|name| format!("has(self.{name})")).collect();
    format!("[{}].filter(x, x).size() == 1", set.join(", "))
}

/// What to do about an object that violates the rule.
pub fn message(members: &[&str]) -> String {
    format!("set exactly one of {}", listed(members))
}

/// `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [names @ .., last] => format!("{} and {last}", names.join(", ")),
    }
}
