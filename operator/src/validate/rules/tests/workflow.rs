//! Tests of tools.

use serde_json::{Value, json};

use super::problems_with;

fn tools(tools: &Value, format: &str) -> Vec<String> {
    let workflow = json!({"tools": {"tools": tools}});
    let train = json!({"train": {"format": format}});
    problems_with(&json!({"rollout": {"workflow": workflow}, "dataset": train}))
}

fn tool(name: &str, parameters: &Value) -> Value {
    json!({
        "name": name, "description": "Adds.", "parameters": parameters,
        "http": {"url": "http://tools.lab/add"},
    })
}

#[test]
fn tools_have_distinct_names_and_schemas_of_their_arguments() {
    let schema = json!({"type": "object", "properties": {"a": {}}, "required": ["a"]});
    assert_eq!(tools(&json!([tool("a", &schema), tool("b", &schema)]), "Chat"), [""; 0]);
    let part = "spec.rollout.workflow.tools.tools[0].parameters";
    for (wrong, expected) in [
        (
            json!({"type": "object", "properties": ["a"]}),
            format!("{part}.properties: must be an object with a JSON schema for each argument"),
        ),
        (
            json!({"type": "object", "properties": {"a": "number"}}),
            format!("{part}.properties.a: must be a JSON schema, an object"),
        ),
        (
            json!({"type": "object", "properties": {"a": {}}, "required": ["b"]}),
            format!("{part}.required: must be a list of names of `properties`"),
        ),
    ] {
        assert_eq!(tools(&json!([tool("a", &wrong)]), "Chat"), [expected]);
    }
    let twice = tools(&json!([tool("a", &schema), tool("a", &schema)]), "Chat");
    let expected = "spec.rollout.workflow.tools.tools[1].name: `a` is the name of an earlier tool";
    assert_eq!(twice, [expected]);
}

#[test]
fn rows_may_have_tools_of_the_workflow() {
    let tools = json!([tool("a", &json!({"type": "object"}))]);
    let of = |train: Value| {
        problems_with(&json!({
            "rollout": {"workflow": {"tools": {"tools": tools}}}, "dataset": {"train": train},
        }))
    };
    assert_eq!(of(json!({"tools": "functions"})), [""; 0]);
    let conversation = json!({"messages": "chat", "tools": "functions"});
    assert_eq!(of(json!({"prompt": "", "conversation": conversation})), [""; 0]);
}

#[test]
fn tools_need_a_chat_template() {
    let problems = tools(&json!([tool("a", &json!({"type": "object"}))]), "Text");
    let expected = "spec.dataset.train.format: must be Chat: the chat template describes the tools \
        of rollout.workflow.tools";
    assert_eq!(problems, [expected]);
    let suite = |name: &str, format: &str| json!({"name": name, "path": "/a", "format": format});
    let suites = json!([suite("plain", "Text"), suite("chat", "Chat")]);
    let evaluation = json!({
        "prompt": "{{q}}", "answer": "a", "format": "Text", "path": null, "suites": suites,
    });
    let tools = json!([tool("a", &json!({"type": "object"}))]);
    let problems = problems_with(&json!({
        "rollout": {"workflow": {"tools": {"tools": tools}}},
        "dataset": {"evaluation": evaluation},
    }));
    let expected = "spec.dataset.evaluation.suites[0].format: must be Chat: the chat template \
        describes the tools of rollout.workflow.tools";
    assert_eq!(problems, [expected]);
}
