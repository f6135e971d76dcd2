//! Engines with fixed weights for tests.

use std::sync::Arc;

use rljob_crds::roles::InferenceSpec;
use rljob_protocol::desired::EngineEndpoint;

use crate::clock::Clock;
use crate::engines::suitability::Limits;
use crate::engines::{EngineClient, Fleet};
use crate::tokens::Token;

/// URL at which nothing listens.
pub(crate) async fn refused() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Engines with these URLs, all of which have answered.
pub(crate) fn fleet(urls: &[String]) -> Arc<Fleet> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), "key").unwrap();
    let token = Token::open(folder.path(), "key").unwrap();
    let client = EngineClient::new(token.clone(), token, None);
    let fleet = Fleet::with_fixed_weights(&InferenceSpec::default(), client, Clock::start());
    let name = |index| format!("engine-{index}");
    let endpoints = urls.iter().enumerate().map(|(index, url)| EngineEndpoint {
        name: name(index),
        url: url.clone(),
        uid: None,
    });
    fleet.set(&endpoints.collect::<Vec<_>>());
    for index in 0..urls.len() {
        fleet.update(&name(index), |slot| {
            slot.answered("default".to_owned());
            slot.described(Ok(Limits { requests: 8 }));
        });
    }
    Arc::new(fleet)
}
