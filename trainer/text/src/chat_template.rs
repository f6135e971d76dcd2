//! A chat template rendered as transformers does (`apply_chat_template` with `add_generation_prompt`): Jinja with Python's string methods,
//! `trim_blocks`, `lstrip_blocks`, `break` and `continue`, and the functions `raise_exception` and `strftime_now`.

use std::collections::BTreeMap;

use jiff::civil::Date;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, Output, State, context, escape_formatter};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// The day that `strftime_now` tells. A real clock would give one position other tokens after a restart; this is the day that Llama's templates
/// use where they have no clock.
const TODAY: Date = jiff::civil::date(2024, 7, 26);

const NAME: &str = "chat_template";

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl ChatTemplate {
    /// Compiles a template's source; the tokens are its variables.
    pub fn new(source: String, bos_token: Option<String>, eos_token: Option<String>) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(print_as_python);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        environment.add_template_owned(NAME, source)?;
        Ok(Self { environment, bos_token, eos_token })
    }

    /// The text of a conversation, with the assistant's turn opened. `variables` come beside the standard ones and do not replace them.
    pub fn render(&self, messages: &[impl Serialize], variables: &BTreeMap<String, impl Serialize>) -> Result<String, Error> {
        let token = |token: &Option<String>| token.as_ref().map_or(Value::UNDEFINED, |text| Value::from(text.as_str()));
        self.environment.get_template(NAME)?.render(context! {
            messages => Value::from_serialize(messages),
            tools => (),
            documents => (),
            add_generation_prompt => true,
            bos_token => token(&self.bos_token),
            eos_token => token(&self.eos_token),
            ..Value::from_serialize(variables)
        })
    }
}

/// `True`, `False` and `None` have capitals where a template prints them.
fn print_as_python(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    match bool::try_from(value.clone()) {
        Ok(value) => out.write_str(if value { "True" } else { "False" }).map_err(Error::from),
        Err(_) if value.is_none() => out.write_str("None").map_err(Error::from),
        Err(_) => escape_formatter(out, state, value),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the template engine passes arguments by value")]
fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("the template refuses this conversation: {message}")))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let failed = |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"));
    jiff::fmt::strtime::format(format, TODAY.at(0, 0, 0, 0)).map_err(failed)
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=…)`, which transformers puts in the place of Jinja's HTML-safe filter.
#[expect(clippy::needless_pass_by_value, reason = "the template engine passes arguments by value")]
fn tojson(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    match indent {
        Some(width) => to_json(&value, PrettyFormatter::with_indent(" ".repeat(width.min(16)).as_bytes())),
        None => to_json(&value, PythonFormatter),
    }
}

fn to_json(value: &Value, formatter: impl Formatter) -> Result<String, Error> {
    let failed = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter)).map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// Separators `, ` and `: `, as Python's without indent.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: std::io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
