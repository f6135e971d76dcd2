//! Tests of the tools of rows: what is read, and what is rejected.

use std::path::Path;

use serde_json::json;

use super::{RowLocation, Tool, Tools, ToolsField, Value};

fn defined() -> Tools {
    ["add", "halve"].map(|name| Tool::new(name, "Of the job.", &json!({}))).into_iter().collect()
}

fn read(defined: &Tools, tools: &Value) -> Result<Tools, String> {
    let location = RowLocation { path: Path::new("rows").into(), unit: "line", number: 7 };
    let row = json!({"tools": tools});
    let tools = ToolsField::new("tools", defined).read(&location, row.as_object().unwrap());
    tools.map_err(|error| error.to_string())
}

fn tool(name: &str) -> Value {
    let function = json!({"name": name, "description": "Of the row.", "parameters": {}});
    json!({"type": "function", "function": function})
}

fn json_text(tools: &Tools) -> String {
    serde_json::to_string(&tools.iter().collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_row_has_the_tools_of_the_workflow_by_name_and_its_own_objects_in_its_order() {
    let tools = read(&defined(), &json!([tool("halve"), "add"])).unwrap();
    let names: Vec<&str> = tools.iter().map(Tool::name).collect();
    assert_eq!(names, ["halve", "add"]);
    let text = json_text(&tools);
    assert!(text.find("Of the row.") < text.find("Of the job."), "{text}");
    for none in [json!(null), json!([]), json!("[]")] {
        assert!(read(&defined(), &none).unwrap().is_empty());
    }
    assert!(read(&Tools::default(), &json!([tool("any")])).is_ok(), "without a workflow");
}

#[test]
fn keys_of_json_text_keep_their_order() {
    let parameters = "{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{}}}";
    let text = format!(
        "[{{\"type\":\"function\",\"function\":{{\"name\":\"add\",\"parameters\":{parameters}}}}}]"
    );
    let as_text = read(&Tools::default(), &json!(text)).unwrap();
    assert!(json_text(&as_text).contains(parameters), "{}", json_text(&as_text));
    let list: Value = serde_json::from_str(&text).unwrap();
    let as_list = json_text(&read(&Tools::default(), &list).unwrap());
    assert!(as_list.contains("\"properties\":{\"a\":{},\"b\":{}}"), "{as_list}");
}

#[test]
fn unusable_tools_are_errors_that_name_row_and_tool() {
    let (none, place) = (Tools::default(), "field `tools` in rows line 7");
    let missing = "has the tool `other`, which rollout.workflow.tools does not execute (it has \
                   add, halve): add it there, or remove it from the row";
    for (defined, tools, expected) in [
        (&defined(), json!(["other"]), missing),
        (&defined(), json!([tool("other")]), missing),
        (&defined(), json!(["add", tool("add")]), "has the tool `add` twice: remove one of them"),
        (
            &none,
            json!(["add"]),
            "has the name `add` as tool 1: without rollout.workflow.tools, write the tool as an \
             object with `type` and `function`",
        ),
        (&none, json!({"add": 1}), "is not a list"),
    ] {
        assert_eq!(read(defined, &tools).unwrap_err(), format!("{place} {expected}"));
    }
    let invalid = read(&none, &json!([tool("add"), {"name": "add"}])).unwrap_err();
    assert!(invalid.starts_with(&format!("{place} has an invalid tool 2: ")), "{invalid}");
    let text = read(&none, &json!("[1")).unwrap_err();
    assert!(text.starts_with(&format!("{place} is not a list in JSON: ")), "{text}");
}
