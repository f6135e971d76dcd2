//! Chat template rendering, compatible with `apply_chat_template(add_generation_prompt=True)` of
//! transformers: Jinja with Python's string methods, `trim_blocks`, `lstrip_blocks`, `break`,
//! `continue`, the `generation` tag, `raise_exception` and `strftime_now`.

use std::collections::BTreeMap;

use jiff::civil::Date;
use minijinja::value::{Kwargs, Value, merge_maps};
use minijinja::{
    Environment, Error, ErrorKind, Output, State, UndefinedBehavior, context, escape_formatter,
};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::folder::{SPECIAL_TOKENS, SpecialTokens};
use crate::tools::Tools;

/// Date of `strftime_now`. A real clock would change the tokens of a prompt after a restart;
/// Llama's templates use this date as the default.
const TODAY: Date = jiff::civil::date(2024, 7, 26);

const NAME: &str = "chat_template";

pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: SpecialTokens,
}

/// Instructions that a template may execute for a conversation.
const FUEL: u64 = 10_000_000;

/// Maximum size of a rendered conversation in bytes.
const MAX_TEXT: usize = 64 << 20;

impl ChatTemplate {
    /// Compiles a template; the special tokens become variables.
    pub fn new(source: &str, special_tokens: SpecialTokens) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(print_as_python);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        environment.add_template_owned(NAME, replace_generation_tags(source))?;
        Ok(Self { environment, special_tokens })
    }

    /// Renders a conversation and the start of the assistant's turn. `variables` do not override
    /// the standard variables.
    pub fn render(
        &self,
        messages: &[impl Serialize],
        tools: &Tools,
        variables: &impl Serialize,
    ) -> Result<String, Error> {
        render(&self.environment, messages, tools, &self.special_tokens, variables)
    }

    /// The template as written, with its `generation` tags replaced.
    pub fn source(&self) -> Result<String, Error> {
        Ok(self.environment.get_template(NAME)?.source().to_owned())
    }

    /// The first of these names that the template does not use.
    pub fn unused<'n>(
        &self,
        mut names: impl Iterator<Item = &'n String>,
    ) -> Result<Option<&'n String>, Error> {
        let used = self.environment.get_template(NAME)?.undeclared_variables(false);
        Ok(names.find(|name| !used.contains(name.as_str())))
    }

    /// Special tokens that the template prints but that are not set; transformers omits them
    /// silently.
    pub fn missing_tokens(&self) -> Result<Vec<&'static str>, Error> {
        let used = self.environment.get_template(NAME)?.undeclared_variables(false);
        let missing: Vec<_> = SPECIAL_TOKENS
            .into_iter()
            .filter(|name| used.contains(*name) && !self.special_tokens.contains_key(name))
            .collect();
        let mut strict = self.environment.clone();
        strict.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        let probe = [BTreeMap::from([("role", "user"), ("content", "x")])];
        let none = BTreeMap::<String, String>::new();
        let tools = Tools::default();
        if render(&strict, &probe, &tools, &self.special_tokens, &none).is_ok() {
            return Ok(Vec::new());
        }
        let placeholders = missing.iter().map(|name| (*name, String::new()));
        let complete: SpecialTokens =
            self.special_tokens.clone().into_iter().chain(placeholders).collect();
        let is_complete = render(&strict, &probe, &tools, &complete, &none).is_ok();
        Ok(if is_complete { missing } else { Vec::new() })
    }
}

fn render(
    environment: &Environment,
    messages: &[impl Serialize],
    tools: &Tools,
    tokens: &SpecialTokens,
    variables: &impl Serialize,
) -> Result<String, Error> {
    let conversation = context! {
        messages => Value::from_serialize(messages),
        tools => tools.template_value(),
        documents => (),
        add_generation_prompt => true,
    };
    let variables =
        merge_maps([Value::from_serialize(variables), Value::from_serialize(tokens), conversation]);
    let mut text = Bounded(Vec::new());
    environment.get_template(NAME)?.render_captured_to(variables, &mut text)?;
    String::from_utf8(text.0)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// Rendered text of at most [`MAX_TEXT`] bytes.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) > MAX_TEXT {
            return Err(std::io::Error::other(format!(
                "the rendered conversation is too large: more than {MAX_TEXT} bytes"
            )));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Replaces `{% generation %}` … `{% endgeneration %}`, which mark assistant tokens for loss masks,
/// by `{% if true %}` … `{% endif %}`. Keeps the white space control of the tags.
fn replace_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end.saturating_add(2));
        let (tag, after) = tag.split_at(end);
        let name =
            tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match name {
            "generation" => result.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => result.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => result.push_str(tag),
        }
        rest = after;
    }
    result + rest
}

/// Prints `True`, `False` and `None` as Python does.
fn print_as_python(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    match bool::try_from(value.clone()) {
        Ok(value) => out.write_str(if value { "True" } else { "False" }).map_err(Error::from),
        Err(_) if value.is_none() => out.write_str("None").map_err(Error::from),
        Err(_) => escape_formatter(out, state, value),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the template engine passes arguments by value")]
fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("the template rejects this conversation: {message}"),
    ))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let failed = |error: jiff::Error| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"))
    };
    jiff::fmt::strtime::format(format, TODAY.at(0, 0, 0, 0)).map_err(failed)
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=…)`, which transformers uses instead of
/// Jinja's HTML-safe filter.
#[expect(clippy::needless_pass_by_value, reason = "the template engine passes arguments by value")]
fn tojson(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    match indent {
        Some(width) => {
            to_json(&value, PrettyFormatter::with_indent(" ".repeat(width.min(16)).as_bytes()))
        }
        None => to_json(&value, PythonFormatter),
    }
}

fn to_json(value: &Value, formatter: impl Formatter) -> Result<String, Error> {
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter)).map_err(failed)?;
    String::from_utf8(bytes)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// Separators `, ` and `: `, the default of Python's `json.dumps`.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
