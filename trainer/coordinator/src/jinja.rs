//! Environment of Jinja templates that people write.

use std::collections::HashSet;

use minijinja::value::ValueKind;
use minijinja::{
    Environment, ErrorKind, Output, State, Template, UndefinedBehavior, escape_formatter,
};
use rljob_crds::jinja::without_slices;

/// Instructions that a template may execute each time.
const FUEL: u64 = 1_000_000;

/// An environment in which undefined variables and printed nulls are errors.
pub fn strict_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_formatter(reject_null);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment
}

/// A strict environment in which printed lists and maps are errors, too. Their text would be JSON,
/// which is rarely meant in a text that a model reads or learns.
pub fn row_environment() -> Environment<'static> {
    let mut environment = strict_environment();
    environment.set_formatter(reject_structures);
    environment
}

/// Names that a template uses and does not set, also those of slices.
pub fn variables(environment: &Environment<'_>, template: &Template<'_, '_>) -> HashSet<String> {
    let source = without_slices(template.source());
    match environment.template_from_str(&source) {
        Ok(template) => template.undeclared_variables(false),
        Err(_) => template.undeclared_variables(false),
    }
}

/// Attributes of such names, as `name.attribute`, and the names without attributes.
pub fn attributes(environment: &Environment<'_>, template: &Template<'_, '_>) -> HashSet<String> {
    let source = without_slices(template.source());
    match environment.template_from_str(&source) {
        Ok(template) => template.undeclared_variables(true),
        Err(_) => template.undeclared_variables(true),
    }
}

fn reject_structures(
    out: &mut Output,
    state: &State,
    value: &minijinja::Value,
) -> Result<(), minijinja::Error> {
    let kind = match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => "list",
        ValueKind::Map => "map",
        _ => return reject_null(out, state, value),
    };
    let message = format!(
        "a printed field is a {kind}: print a part of it, as `{{{{chosen[-1].content}}}}`, use \
         `conversation` in place of `prompt` for lists of messages, or the filter `tojson` for \
         JSON text"
    );
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

/// Rejects null, which Jinja would print as `None`.
fn reject_null(
    out: &mut Output,
    state: &State,
    value: &minijinja::Value,
) -> Result<(), minijinja::Error> {
    if value.is_none() {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "a printed field is null"));
    }
    escape_formatter(out, state, value)
}
