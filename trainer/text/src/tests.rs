//! Tests of tokenizers and chat templates. Expected texts and ids are from transformers 5.6
//! (`apply_chat_template(…, add_generation_prompt=True)`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rljob_crds::data::PromptFormat;

use crate::chat_template::ChatTemplate;
use crate::folder::SpecialTokens;
use crate::{PromptStyle, TextError, TextTokenizer, Tools};

const QUESTION: &str = "What is 12 + 30?\nAnswer with a number — bitte. <|im_end|>";
/// Tokens of [`QUESTION`].
const QUESTION_IDS: [i64; 31] = [
    57, 74, 271, 348, 318, 20, 279, 930, 33, 201, 35, 80, 85, 89, 272, 733, 421, 666, 68, 272, 223,
    161, 225, 245, 315, 293, 86, 71, 16, 223, 2,
];

fn tokens(tokens: &[(&'static str, &str)]) -> SpecialTokens {
    tokens.iter().map(|(name, token)| (*name, (*token).to_owned())).collect()
}

fn style(format: PromptFormat) -> PromptStyle {
    PromptStyle { format, ..PromptStyle::default() }
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-chat")
}

/// Copies the fixture, with files replaced or, for `None`, removed.
fn changed(files: &[(&str, Option<&str>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    for (name, content) in files {
        let path = folder.path().join(name);
        match content {
            Some(content) => fs::write(path, content).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
    }
    folder
}

fn render(template: &ChatTemplate, user: &str) -> Result<String, minijinja::Error> {
    template.render(
        &[BTreeMap::from([("role", "user"), ("content", user)])],
        &Tools::default(),
        &BTreeMap::<String, bool>::new(),
    )
}

#[test]
fn chat_prompts_have_the_tokens_of_transformers() {
    let tokenizer = TextTokenizer::open(&fixture()).unwrap();
    let expected =
        [vec![1, 87, 409, 201], QUESTION_IDS.to_vec(), vec![2, 201, 1, 458, 357, 289, 86, 201]]
            .concat();
    assert_eq!(
        tokenizer.encode_prompt(None, QUESTION, &style(PromptFormat::Chat)).unwrap(),
        expected
    );
    assert_eq!(
        tokenizer.decode(&expected).unwrap(),
        "user\nWhat is 12 + 30?\nAnswer with a number — bitte. \nassistant\n"
    );
}

#[test]
fn text_prompts_have_no_added_tokens() {
    let tokenizer = TextTokenizer::open(&fixture()).unwrap();
    assert_eq!(
        tokenizer.encode_prompt(None, QUESTION, &style(PromptFormat::Text)).unwrap(),
        QUESTION_IDS
    );
    assert_eq!(tokenizer.encode("").unwrap(), Vec::<i64>::new());
    assert_eq!(
        (tokenizer.largest_token_id(), tokenizer.stop_token_ids(), tokenizer.eos_token_id()),
        (Some(1023), &[2][..], Some(2))
    );
}

#[test]
fn the_template_of_smollm2_renders_as_in_transformers() {
    let source = concat!(
        "{% for message in messages %}",
        "{% if loop.first and messages[0]['role'] != 'system' %}",
        "{{ '<|im_start|>system\nYou are a helpful AI assistant ",
        "named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}",
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    );
    let template = ChatTemplate::new(source, SpecialTokens::new()).unwrap();
    assert_eq!(
        render(&template, "Hi").unwrap(),
        "<|im_start|>system\nYou are a helpful AI assistant \
         named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn python_methods_white_space_control_and_json_render_as_in_transformers() {
    let source = include_str!("../tests/fixtures/every-construct.jinja");
    let template = ChatTemplate::new(
        source,
        tokens(&[("bos_token", "<|im_start|>"), ("eos_token", "<|im_end|>")]),
    )
    .unwrap();
    assert_eq!(
        render(&template, "  <b>Hi</b> \"there\" – a|b  ").unwrap(),
        "<|im_start|>[no documents]\n  [0] <b>Hi</b> \"there\" – a|b|b|True\n\
         {\"a\": [1, 2.5, null, true], \"b\": \"  <b>Hi</b> \\\"there\\\" – a|b  \"}\n    \
         {\n  \"x\": [\n    1,\n    \"é\"\n  ]\n}\n(<)(b)(>)\n1 1 1 USER<|im_end|>assistant\n"
    );
}

#[test]
fn strftime_now_has_a_fixed_date() {
    let template =
        ChatTemplate::new("{{ strftime_now('%d %b %Y') }}", SpecialTokens::new()).unwrap();
    assert_eq!(render(&template, "Hi").unwrap(), "26 Jul 2024");
}

#[test]
fn raise_exception_is_an_error_with_its_message() {
    let folder = changed(&[("chat_template.jinja", Some("{{ raise_exception('system first') }}"))]);
    let error = TextTokenizer::open(folder.path())
        .unwrap()
        .encode_prompt(None, "Hi", &style(PromptFormat::Chat))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("failed to apply the chat template of {}", folder.path().display())
    );
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(
        cause,
        "invalid operation: the template rejects this conversation: system first \
         (in chat_template:1)"
    );
}

#[test]
fn without_a_template_file_the_tokenizer_config_has_the_template() {
    let config = r#"{"eos_token": {"content": "<|im_end|>"}, "chat_template": [
        {"name": "tools", "template": "no"}, {"name": "default", "template": "{{ eos_token }}!"}
    ]}"#;
    let folder = changed(&[("chat_template.jinja", None), ("tokenizer_config.json", Some(config))]);
    assert_eq!(
        TextTokenizer::open(folder.path()).unwrap().render_chat("Hi").unwrap(),
        "<|im_end|>!"
    );
}

#[test]
fn without_a_template_text_works_and_chat_is_an_error_with_a_fix() {
    let folder = changed(&[("chat_template.jinja", None)]);
    let tokenizer = TextTokenizer::open(folder.path()).unwrap();
    assert_eq!(
        tokenizer.encode_prompt(None, QUESTION, &style(PromptFormat::Text)).unwrap(),
        QUESTION_IDS
    );
    let error = tokenizer.encode_prompt(None, QUESTION, &style(PromptFormat::Chat)).unwrap_err();
    let expected = "has no chat template (chat_template.jinja, or chat_template in \
                    tokenizer_config.json): set the dataset's format to Text";
    assert_eq!(error.to_string(), format!("{} {expected}", folder.path().display()));
}

#[test]
fn stop_tokens_come_from_generation_config_then_config_then_tokenizer() {
    let stops = |files: &[(&str, Option<&str>)]| {
        let folder = changed(files);
        let tokenizer = TextTokenizer::open(folder.path()).unwrap();
        (tokenizer.stop_token_ids().to_vec(), tokenizer.eos_token_id())
    };
    assert_eq!(
        stops(&[("generation_config.json", Some(r#"{"eos_token_id": [7, 2]}"#))]),
        (vec![7, 2], Some(2))
    );
    assert_eq!(
        stops(&[("generation_config.json", Some(r#"{"eos_token_id": [7, 8]}"#))]),
        (vec![7, 8], Some(7))
    );
    assert_eq!(
        stops(&[
            ("generation_config.json", Some("{}")),
            ("config.json", Some(r#"{"eos_token_id": 9}"#))
        ]),
        (vec![9], Some(9))
    );
    assert_eq!(stops(&[("generation_config.json", None)]), (vec![2], Some(2)));
    assert_eq!(
        stops(&[("generation_config.json", None), ("tokenizer_config.json", None)]),
        (vec![], None)
    );
}

#[test]
fn truncation_in_the_tokenizer_file_is_ignored() {
    let file = fs::read_to_string(fixture().join("tokenizer.json")).unwrap();
    let truncating =
        r#""truncation":{"direction":"Right","max_length":4,"strategy":"LongestFirst","stride":0}"#;
    let folder =
        changed(&[("tokenizer.json", Some(&file.replace(r#""truncation":null"#, truncating)))]);
    assert_eq!(TextTokenizer::open(folder.path()).unwrap().encode(QUESTION).unwrap(), QUESTION_IDS);
}

#[test]
fn templates_that_print_missing_tokens_are_errors() {
    let check = |template: &str, config: &str| {
        let folder = changed(&[
            ("chat_template.jinja", Some(template)),
            ("tokenizer_config.json", Some(config)),
        ]);
        let checked = TextTokenizer::open(folder.path()).unwrap().check_chat_template();
        checked.map_err(|error| {
            error.to_string().replace(&folder.path().display().to_string(), "FOLDER")
        })
    };
    let unset = "the chat template of FOLDER prints bos_token, \
                 which its tokenizer_config.json does not set"
        .to_owned();
    assert_eq!(check("{{ bos_token }}{{ messages[0].content }}", "{}"), Err(unset.clone()));
    assert_eq!(check("{{ bos_token + 'x' }}", "{}"), Err(unset));
    assert_eq!(check("{{ bos_token }}", r#"{"bos_token": "<|im_start|>"}"#), Ok(()));
    assert_eq!(
        check(
            "{% if bos_token is defined %}{{ bos_token }}{% endif %}\
             {% if pad_token %}{{ pad_token }}{% endif %}",
            "{}"
        ),
        Ok(())
    );
    let unknown = "the chat template of FOLDER prints <|start_header_id|>, \
                   which its tokenizer.json does not contain: is the template from another model?";
    assert_eq!(
        check("<|im_start|>a<|start_header_id|>user<|end_header_id|>", "{}"),
        Err(unknown.to_owned())
    );
    assert_eq!(check("<|im_start|>{{ messages[0].content }}<| not one |><|im_end|>", "{}"), Ok(()));
    assert_eq!(
        TextTokenizer::open(&fixture())
            .unwrap()
            .check_chat_template()
            .map_err(|error| error.to_string()),
        Ok(())
    );
}

#[test]
fn decoding_an_invalid_token_id_is_an_error() {
    let tokenizer = TextTokenizer::open(&fixture()).unwrap();
    assert!(matches!(tokenizer.decode(&[5, -1]), Err(TextError::NotATokenId(-1))));
}

#[test]
fn templates_see_all_turns_and_the_variables_of_the_caller() {
    let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                  {{ bos_token }}{{ thinking }}";
    let template = ChatTemplate::new(source, tokens(&[("bos_token", "<s>")])).unwrap();
    let turn = |role, content| BTreeMap::from([("role", role), ("content", content)]);
    let variables =
        BTreeMap::from([("thinking".to_owned(), "off"), ("bos_token".to_owned(), "no")]);
    let turns = [turn("system", "Be brief."), turn("user", "Hi")];
    let text = template.render(&turns, &Tools::default(), &variables).unwrap();
    assert_eq!(text, "system: Be brief.\nuser: Hi\n<s>off");
}

#[test]
fn hostile_files_of_a_model_folder_end_in_an_error() {
    let nested = "[".repeat(1_000_000);
    for (name, content) in [
        ("tokenizer_config.json", format!("{{\"chat_template\": {nested}")),
        ("generation_config.json", format!("{{\"eos_token_id\": {nested}")),
        ("tokenizer.json", nested.clone()),
    ] {
        let folder = changed(&[(name, Some(&content))]);
        let error = TextTokenizer::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    let large = format!("{{\"x\": \"{}\"}}", "a".repeat(17 << 20));
    let folder = changed(&[("tokenizer_config.json", Some(&large))]);
    let error = TextTokenizer::open(folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("tokenizer_config.json is too large: more than 16777216 bytes"));
    let endless = "{% for a in range(9999) %}{{ 'x' * 100000 }}{% endfor %}";
    let folder = changed(&[("chat_template.jinja", Some(endless))]);
    let error = TextTokenizer::open(folder.path()).unwrap().render_chat("Hi").unwrap_err();
    let cause = std::error::Error::source(&error).unwrap();
    let chain = format!("{cause:#} {:?}", std::error::Error::source(cause));
    assert!(chain.contains("too large"), "{chain}");
}
