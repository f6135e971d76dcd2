//! The coding agent of the samples: it runs the Python programs of the model's calls.

use rljob_tests::files::{openai_python, required};

use super::{check_agent_tools, count, folder_of};

#[test]
fn an_agent_runs_the_programs_of_the_model_and_answers_with_what_they_print() {
    let Some(python) = required(openai_python()) else { return };
    let folder = folder_of("python");
    let program = "manifests/samples/agent/code_tool.py";
    let directory = check_agent_tools(folder.path(), "code-agent", &python, program);
    let [prompt, call, printed, answer] =
        [0, 1, 2, 3].map(|segment| format!("json_extract(segments, '$[{segment}].text')"));
    let [a, b] = [1, 4].map(|from| format!("substr({prompt}, {from}, 2)"));
    let sum = format!("CAST(CAST({a} AS INTEGER) + CAST({b} AS INTEGER) AS TEXT)");
    let two_turns = "json_array_length(turn_rewards) = 2";
    // The text of a completion is that beside its call.
    let right = format!("{two_turns} AND {call} = '' AND {printed} = {sum} AND {answer} = {sum}");
    assert!(count(&directory, &format!("{right} AND reward = 1")) > 0);
    assert_eq!(count(&directory, &format!("{right} AND reward != 1")), 0);
    let trained = "json_extract(segments, '$[2].trained')";
    assert_eq!(count(&directory, &format!("{two_turns} AND {trained}")), 0);
}
