//! Tests of streams.

use serde_json::json;
use tokio::sync::oneshot;

use super::*;
use crate::proxy::answer::Choice;

const LINE: &str = ": keep-alive\n\n";

/// Sends the text of the first choice whenever there is one.
struct Texts;

impl Encoder for Texts {
    fn events(&mut self, completed: &Completed) -> Vec<Event> {
        let texts = completed.choices.iter().map(|choice| json!(choice.text)).collect::<Vec<_>>();
        chunks(&texts, completed.is_whole())
    }
}

fn completed(text: &str, finish_reason: Option<&'static str>) -> Completed {
    let choice = Choice { text: text.to_owned(), finish_reason, ..Choice::default() };
    Completed { choices: vec![choice], ..Completed::default() }
}

type End = oneshot::Sender<Result<Completed, ProxyError>>;

/// Completions in progress, and what publishes and ends them.
fn progress() -> (Progress, watch::Sender<Completed>, End) {
    let (sender, partial) = watch::channel(Completed::default());
    let (end, result) = oneshot::channel();
    let completed: Pending = Box::pin(async move { result.await.unwrap() });
    (Progress { partial, completed: Some(completed), encoder: Box::new(Texts) }, sender, end)
}

/// The texts of a stream.
fn texts(response: Response) -> impl futures::Stream<Item = String> + Unpin {
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let bytes = response.into_body().into_data_stream();
    Box::pin(bytes.map(|bytes| String::from_utf8(bytes.unwrap().to_vec()).unwrap()))
}

/// What follows two comments when the completions end after them.
async fn sent(ended: Result<Completed, ProxyError>) -> String {
    let (progress, _sender, end) = progress();
    let response = respond(progress, Duration::from_millis(1)).await.unwrap();
    let mut texts = texts(response);
    for _ in 0..2 {
        assert_eq!(texts.next().await.as_deref(), Some(LINE));
    }
    end.send(ended).unwrap();
    texts.filter(|text| ready(text != LINE)).collect::<Vec<_>>().await.concat()
}

#[tokio::test]
async fn comments_are_sent_until_the_completions_are_whole_or_fail() {
    let whole = completed("c", Some("stop"));
    assert_eq!(sent(Ok(whole)).await, "data: \"c\"\n\ndata: [DONE]\n\n");
    let failed = sent(Err(ProxyError::Ended)).await;
    assert_eq!(failed, format!("data: {}\n\n", ProxyError::Ended.object()));
}

#[tokio::test]
async fn an_error_before_the_first_event_has_its_status() {
    let (progress, sender, end) = progress();
    // Completions that begin have no event.
    sender.send_replace(Completed::default());
    end.send(Err(ProxyError::Turns(2))).unwrap();
    assert_eq!(respond(progress, INTERVAL).await.unwrap_err(), ProxyError::Turns(2));
}

#[tokio::test]
async fn events_arrive_before_the_completions_are_whole_and_a_slow_client_gets_larger_ones() {
    let (progress, sender, end) = progress();
    sender.send_replace(completed("a", None));
    let mut texts = texts(respond(progress, INTERVAL).await.unwrap());
    assert_eq!(texts.next().await.as_deref(), Some("data: \"a\"\n\n"));
    for text in ["ab", "abc", "abcd"] {
        sender.send_replace(completed(text, None));
    }
    assert_eq!(texts.next().await.as_deref(), Some("data: \"abcd\"\n\n"));
    drop(sender);
    end.send(Ok(completed("abcde", Some("stop")))).unwrap();
    let rest = texts.collect::<Vec<_>>().await.concat();
    assert_eq!(rest, "data: \"abcde\"\n\ndata: [DONE]\n\n");
}

#[tokio::test]
async fn an_error_after_the_first_event_ends_the_stream() {
    let (progress, sender, end) = progress();
    sender.send_replace(completed("a", None));
    let texts = texts(respond(progress, INTERVAL).await.unwrap());
    end.send(Err(ProxyError::Changed)).unwrap();
    let all = texts.collect::<Vec<_>>().await.concat();
    assert_eq!(all, format!("data: \"a\"\n\ndata: {}\n\n", ProxyError::Changed.object()));
}
