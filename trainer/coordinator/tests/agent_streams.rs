//! Streams of the proxy with a real engine: events while a completion is sampled, the same answer
//! as without a stream, interruptions, and clients that disconnect.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../benches/proxy/engine.rs"]
mod engine;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus::{IntCounter, Registry};
use reqwest::{Client, Response, StatusCode};
use rljob_coordinator::clock::Clock;
use rljob_coordinator::engines::{EngineClient, FixedFleets, Fleet, Weights};
use rljob_coordinator::input::Input;
use rljob_coordinator::persistence::fence::Fence;
use rljob_coordinator::proxy::request::Rules;
use rljob_coordinator::proxy::{LIMITS, LoopbackPort, Proxy};
use rljob_coordinator::reward::Runner;
use rljob_coordinator::rollout::agent::calls;
use rljob_coordinator::rollout::agent::conversation::Conversations;
use rljob_coordinator::rollout::agent::session::Session;
use rljob_coordinator::rollout::episodes::Episodes;
use rljob_coordinator::rollout::request::{Key, Purpose};
use rljob_coordinator::rollout::sampler::{SampleRequest, Sampler};
use rljob_coordinator::telemetry::ToolCalls;
use rljob_coordinator::tokens::Token;
use rljob_crds::RunConfig;
use rljob_crds::roles::InferenceSpec;
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::version::Version;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use engine::Engine;

const KEY: Key = Key { purpose: Purpose::Rollout, step: 1, position: 0, index: 0, turn: 0 };

/// Client of a session.
struct Agent {
    url: String,
    key: String,
    client: Client,
}

impl Agent {
    async fn post(&self, route: &str, body: &Value) -> Response {
        let url = format!("{}/{route}", self.url);
        self.client.post(url).bearer_auth(&self.key).json(body).send().await.unwrap()
    }

    async fn answer(&self, route: &str, body: &Value) -> Value {
        self.post(route, body).await.json().await.unwrap()
    }

    async fn events(&self, route: &str, body: &Value) -> Events {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let response = self.post(route, &body).await;
        assert_eq!(response.status(), StatusCode::OK);
        Events { response, rest: String::new() }
    }
}

/// Events of a stream.
struct Events {
    response: Response,
    rest: String,
}

impl Events {
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.rest.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                let event = data.and_then(|data| serde_json::from_str(data).ok());
                self.rest = rest.to_string();
                match event {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            // Chunks of an event may end within a character only if the proxy splits one.
            self.rest += std::str::from_utf8(&self.response.chunk().await.unwrap()?).unwrap();
        }
    }

    async fn all(mut self) -> Vec<Value> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }
}

/// The text of the choice in chunks of chat completions.
fn text_of(chunks: &[Value], index: usize) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let own = choices.filter(|choice| choice["index"] == index);
    own.filter_map(|choice| choice["delta"]["content"].as_str()).collect()
}

fn config(folder: &Path, model: &Path, temperature: f64) -> RunConfig {
    let data = folder.join("data.jsonl");
    std::fs::write(&data, "{\"question\": \"What is 1 + 1?\"}\n").unwrap();
    let workflow = json!({"agent": {"command": ["true"]}});
    serde_json::from_value(json!({
        "namespace": "test", "name": "streams", "uid": "test",
        "runDirectory": folder, "modelDirectory": model,
        "spec": {
            "model": {"path": model},
            "storage": {"hostPath": {"path": folder}},
            "dataset": {"train": {"path": data, "prompt": "{{question}}"}},
            "algorithm": {"grpo": {}},
            "rollout": {
                "maxNewTokens": 2048, "temperature": temperature, "workflow": workflow,
            },
            "training": {"steps": 1},
        },
    }))
    .unwrap()
}

/// Plays an agent. Returns its result, its completions and the number of interruptions.
async fn play<T>(
    engine: &Engine,
    temperature: f64,
    agent: impl AsyncFnOnce(Agent) -> T,
) -> (T, Conversations, u64) {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), engine.model.path(), temperature);
    let input = Arc::new(
        Input::open(&config, &Runner::Program(PathBuf::new()), &FixedFleets::default()).unwrap(),
    );
    std::fs::write(folder.path().join("token"), "secret").unwrap();
    let token = Token::open(folder.path(), "token").unwrap();
    let fence = Fence::claim(folder.path(), "test", 1, 1).unwrap();
    let client = EngineClient::new(token.clone(), token, None);
    let fleet = Fleet::new(&InferenceSpec::default(), client, Clock::start());
    fleet.set(&[EngineEndpoint { name: "engine-0".into(), url: engine.url.clone(), uid: None }]);
    let interrupted = IntCounter::new("interrupted", "Interruptions.").unwrap();
    let sampler = Sampler::new(&config, &input, &fleet, Clock::start(), 1, interrupted.clone());
    let max_new_tokens = config.spec.rollout.max_new_tokens;
    let episodes = Episodes {
        input: &input,
        data: input.train().unwrap(),
        sampler: &sampler,
        weights: Weights::Exactly(Version { step: 0, attempt: 0 }),
        lengths: input.lengths(&config.spec, max_new_tokens),
        tool_calls: &ToolCalls::new(&Registry::new()).unwrap(),
    };
    let prompt = episodes.data.prompt(0).unwrap();
    let request = SampleRequest {
        key: KEY,
        temperature,
        top_p: 1.0,
        max_new_tokens,
        stop: Vec::new(),
        live: None,
    };
    let session = Session { episodes: &episodes, prompt: &prompt, request: &request };
    let (proxy, port) = (Proxy::new(Rules { temperature }), LoopbackPort::open().unwrap());
    let mut opened = proxy.session([1; 32]);
    let client = Client::builder().no_proxy().build().unwrap();
    let agent = agent(Agent { url: port.base_url(), key: opened.api_key.clone(), client });
    let stop = CancellationToken::new();
    let (result, progress) = tokio::select! {
        played = calls::answer(&mut opened, session, 16, agent) => played.unwrap(),
        served = port.serve(&proxy, LIMITS, stop.clone()) => panic!("{served:?}"),
        () = fleet.monitor(&fence, stop.clone()) => panic!("the fence is lost"),
    };
    (result, progress.conversations, interrupted.get())
}

fn request(more: &Value) -> Value {
    let mut body = json!({
        "model": "policy", "messages": [{"role": "user", "content": "Count to ten."}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_arrive_while_a_completion_is_sampled_and_after_an_interruption() {
    let engine = Engine::start().await;
    let abort = format!("{}/abort_request", engine.url);
    let options = json!({"include_usage": true});
    let more = json!({"n": 2, "max_tokens": 1000, "logprobs": true, "stream_options": options});
    let (chunks, nodes, interrupted) = play(&engine, 1.0, async |agent: Agent| {
        let mut events = agent.events("chat/completions", &request(&more)).await;
        let mut chunks = vec![events.next().await.unwrap()];
        // The completions have not ended: the engine aborts them, and they are continued.
        let all = json!({"rid": "", "abort_all": true});
        assert!(agent.client.post(&abort).json(&all).send().await.unwrap().status().is_success());
        chunks.extend(events.all().await);
        chunks
    })
    .await;
    assert!((1..=2).contains(&interrupted), "{interrupted}");
    assert!(chunks.len() > 20, "{} chunks", chunks.len());
    let mut tokens = 0;
    for index in 0..2 {
        let node = nodes.get(index).unwrap();
        tokens += node.sampled.completion.tokens.len();
        assert_eq!(text_of(&chunks, index), node.text);
        let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
        let own: Vec<&Value> = choices.filter(|choice| choice["index"] == index).collect();
        assert_eq!(own[0]["delta"]["role"], "assistant");
        let (last, before) = own.split_last().unwrap();
        assert_eq!(last["finish_reason"], node.sampled.completion.finish_reason.unwrap());
        assert!(before.iter().all(|choice| choice["finish_reason"].is_null()));
        let logprobs = own.iter().filter_map(|choice| choice["logprobs"]["content"].as_array());
        let logprobs = logprobs.flatten().map(|token| token["logprob"].as_f64().unwrap() as f32);
        assert_eq!(logprobs.collect::<Vec<_>>(), node.sampled.completion.logprobs);
    }
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens"], tokens);
    assert!(chunks.iter().all(|chunk| chunk["id"] == "chatcmpl-0-0-0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_the_answer_that_a_greedy_request_has_without_one() {
    let engine = Engine::start().await;
    let ((), nodes, _) = play(&engine, 0.0, async |agent: Agent| {
        let whole = agent.answer("chat/completions", &request(&json!({"max_tokens": 120}))).await;
        let whole = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        let middle: String = whole.chars().skip(whole.chars().count() / 2).take(4).collect();
        for more in [json!({}), json!({"stop": middle}), json!({"stop": [middle, "never"]})] {
            let mut body = request(&more);
            body["max_tokens"] = json!(120);
            let expected = agent.answer("chat/completions", &body).await;
            let expected = &expected["choices"][0];
            let chunks = agent.events("chat/completions", &body).await.all().await;
            assert_eq!(text_of(&chunks, 0), expected["message"]["content"].as_str().unwrap());
            let end = &chunks.last().unwrap()["choices"][0]["finish_reason"];
            assert_eq!(end, &expected["finish_reason"]);
        }
        let body = json!({
            "model": "policy", "prompt": "One, two,", "max_tokens": 60, "logprobs": 1,
            "return_token_ids": true,
        });
        let expected = &agent.answer("completions", &body).await["choices"][0];
        let chunks = agent.events("completions", &body).await.all().await;
        let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
        let list = |of: fn(&Value) -> &Value| {
            let lists = choices.iter().filter_map(|choice| of(choice).as_array().cloned());
            Value::Array(lists.flatten().collect())
        };
        let texts: String = choices.iter().filter_map(|own| own["text"].as_str()).collect();
        assert_eq!(texts, expected["text"].as_str().unwrap());
        let parts: [fn(&Value) -> &Value; 4] = [
            |own| &own["token_ids"],
            |own| &own["prompt_token_ids"],
            |own| &own["logprobs"]["tokens"],
            |own| &own["logprobs"]["text_offset"],
        ];
        for part in parts {
            assert_eq!(&list(part), part(expected));
        }
        let body = json!({"model": "policy", "input": "Count.", "max_output_tokens": 60});
        let expected = agent.answer("responses", &body).await;
        let events = agent.events("responses", &body).await.all().await;
        let deltas = events.iter().filter(|own| own["type"] == "response.output_text.delta");
        let deltas: Vec<&str> = deltas.filter_map(|event| event["delta"].as_str()).collect();
        assert!(deltas.len() > 5, "{deltas:?}");
        assert_eq!(deltas.concat(), expected["output"][0]["content"][0]["text"].as_str().unwrap());
    })
    .await;
    assert!(nodes.get(10).is_some() && nodes.get(11).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_whose_client_disconnects_is_sampled_to_its_end_and_recorded() {
    let engine = Engine::start().await;
    let (id, nodes, _) = play(&engine, 1.0, async |agent: Agent| {
        let body = request(&json!({"max_tokens": 200}));
        let mut events = agent.events("chat/completions", &body).await;
        let first = events.next().await.unwrap();
        drop(events);
        let id = first["id"].as_str().unwrap().to_owned();
        let reward = json!({"reward": 1.0, "completion": id});
        // The completion exists when it is recorded.
        while agent.post("rljob/reward", &reward).await.status() == StatusCode::NOT_FOUND {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        id
    })
    .await;
    let node = nodes.get(0).unwrap();
    assert_eq!((&node.id, node.reward), (&id, Some(1.0)));
    assert!(node.sampled.completion.finish_reason.is_some());
}
