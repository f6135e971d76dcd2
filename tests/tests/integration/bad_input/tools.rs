//! Tools in job files.

use super::assert_rejected;

#[test]
fn tools_without_names_schemas_and_urls_are_rejected_with_line_and_field() {
    assert_rejected(&[
        (
            "batchSize: 4",
            "batchSize: 4, workflow: {tools: {tools: [{name: '', description: x, http: {url: \
                'http://a'}}]}}",
            "line 11: spec.rollout.workflow.tools.tools[0].name: must ",
        ),
        (
            "batchSize: 4",
            "batchSize: 4, workflow: {tools: {tools: [{name: a, description: x, parameters: \
                {type: object, properties: [x]}, http: {url: 'http://a'}}]}}",
            "line 11: spec.rollout.workflow.tools.tools[0].parameters.properties: must be an \
                object with a JSON schema for each argument",
        ),
        (
            "batchSize: 4",
            "batchSize: 4, workflow: {tools: {tools: [{name: a, description: x, http: {url: \
                tools.lab}}]}}",
            "line 11: spec.rollout.workflow.tools.tools[0].http.url: must ",
        ),
        (
            "batchSize: 4",
            "batchSize: 4, workflow: {tools: {tools: [{name: a, description: x}]}}",
            "line 11: spec.rollout.workflow.tools.tools[0]: set exactly one of http, command \
                and mcp, found none",
        ),
        (
            "batchSize: 4",
            "batchSize: 4, workflow: {tools: {tools: [{name: a, description: x, command: \
                {command: [], outputKibibytes: 4096}}]}}",
            "line 11: spec.rollout.workflow.tools.tools[0].command.command: must have at least 1 \
                items, found 0",
        ),
        (
            "batchSize: 4",
            "batchSize: 4, workflow: {tools: {tools: [{name: a, description: x, http: {url: \
                'http://a', tokenSecretRef: {name: ''}}}]}}",
            "line 11: spec.rollout.workflow.tools.tools[0].http.tokenSecretRef.name: must ",
        ),
        (
            "batchSize: 4",
            "batchSize: 4, workflow: {tools: {tools: [{name: a, description: x, mcp: {url: \
                'http://a', tokenSecretRef: {name: a, value: b}}}]}}",
            "line 11: spec.rollout.workflow.tools.tools[0].mcp.tokenSecretRef.value: unknown \
                field; expected one of key, name",
        ),
        (
            "batchSize: 4",
            "batchSize: 4, workflow: {environment: {url: 'http://a', tokenSecretRef: {name: lab, \
                key: ''}}}",
            "line 11: spec.rollout.workflow.environment.tokenSecretRef.key: must ",
        ),
        (
            "batchSize: 4",
            "batchSize: 4, workflow: {tools: {tools: []}}",
            "line 11: spec.rollout.workflow.tools.tools: must have at least 1 items, found 0",
        ),
    ]);
}
