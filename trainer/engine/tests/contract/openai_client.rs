//! OpenAI's Python client against the embedded engine.

use std::process::Command;

use rljob_tests::files::{openai_python, required};

use crate::models::model_folder;
use crate::server::Server;

const SCRIPT: &str = r#"
import sys
from openai import OpenAI, BadRequestError
client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
model = client.models.list().data[0].id
assert client.models.list().data[0].max_model_len > 0
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
chat = lambda **k: client.chat.completions.create(
    model=model, messages=messages, max_tokens=12, temperature=0,
    extra_body={"ignore_eos": True}, **k)
whole = chat(logprobs=True, top_logprobs=2)
choice = whole.choices[0]
assert choice.finish_reason == "length" and choice.message.role == "assistant", choice
assert whole.usage.completion_tokens == 12 and len(choice.logprobs.content) == 12, whole
assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in choice.logprobs.content)
chunks = list(chat(stream=True, stream_options={"include_usage": True}))
text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
assert text == choice.message.content, (text, choice.message.content)
assert chunks[0].choices[0].delta.role == "assistant"
assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
complete = lambda **k: client.completions.create(model=model, max_tokens=5, **k)
two = complete(prompt=["What", "is"], n=2, temperature=0.8, seed=3)
assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
assert two.usage.completion_tokens <= 20
stream = complete(prompt="What", temperature=0, stream=True)
once = complete(prompt="What", temperature=0)
assert "".join(chunk.choices[0].text for chunk in stream) == once.choices[0].text
try:
    complete(prompt="What", temperature=-1)
    raise SystemExit("a negative temperature was accepted")
except BadRequestError as error:
    assert "temperature must be non-negative" in str(error), error
print("passed")
"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_openai_client_library_works_with_the_embedded_engine() {
    let Some(python) = required(openai_python()) else { return };
    let models = model_folder();
    let server = Server::embedded(&models.path().join("first")).await;
    let url = server.url.clone();
    let run = move || {
        Command::new(python).args(["-c", SCRIPT, &url]).env("no_proxy", "*").output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "passed\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    server.stop().await;
}
