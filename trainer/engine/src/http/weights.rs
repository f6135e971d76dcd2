//! The weight routes. Answers are `{"success", "message"}`, with status 400 on failure.

use std::io;
use std::net::{IpAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rljob_collective::{Group, Store};
use rljob_protocol::sglang::{
    DestroyWeightsUpdateGroup, GetWeightsByName, InitWeightsUpdateGroup, UpdateWeightsFromDisk,
    UpdateWeightsFromDistributed, WeightsAnswer,
};
use serde::Serialize;

use super::answers::{invalid, parse, scheduler_ended, weights_answer};
use crate::engine::Engine;
use crate::scheduler::Command;

/// How long the other members and each broadcast are waited for. SGLang waits 30 minutes, in which
/// it answers nothing.
const GROUP_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the sender's store may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// SGLang adds a count of paused requests to this route's answer.
#[derive(Serialize)]
struct DiskAnswer {
    #[serde(flatten)]
    answer: WeightsAnswer,
    num_paused_requests: u32,
}

/// Loads a folder's weights.
pub async fn from_disk(State(engine): State<Engine>, body: Bytes) -> Response {
    let update: UpdateWeightsFromDisk = match parse(&body) {
        Ok(update) => update,
        Err(response) => return *response,
    };
    let Some(answer) = engine.ask(|done| Command::UpdateFromDisk(update, done)).await else {
        return scheduler_ended();
    };
    let status = if answer.success { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    (status, Json(DiskAnswer { answer, num_paused_requests: 0 })).into_response()
}

/// Joins the group of one sender. Waiting for it is not the scheduler's business, which goes on
/// meanwhile.
pub async fn init_group(State(engine): State<Engine>, body: Bytes) -> Response {
    let init: InitWeightsUpdateGroup = match parse(&body) {
        Ok(init) => init,
        Err(response) => return *response,
    };
    let name = init.group_name.clone();
    let failed = |reason: &str| {
        weights_answer(WeightsAnswer {
            success: false,
            message: format!("Failed to initialize custom process group: {reason}."),
        })
    };
    if init.backend != "gloo" {
        return failed(&format!("backend `{}` is not known here, use gloo", init.backend));
    }
    match engine.ask(|done| Command::GroupIsFree(name.clone(), done)).await {
        None => return scheduler_ended(),
        Some(false) => {
            return failed(&format!("group `{name}` exists; destroy it or use a new name"));
        }
        Some(true) => {}
    }
    let group = match tokio::task::spawn_blocking(move || join(&init)).await {
        Ok(Ok(group)) => group,
        Ok(Err(reason)) => return failed(&reason),
        Err(error) => return failed(&error.to_string()),
    };
    answered(engine.ask(|done| Command::AddGroup(name, group, done)).await)
}

fn join(init: &InitWeightsUpdateGroup) -> Result<Group, String> {
    let address = own_address(&init.master_address, init.master_port)
        .map_err(|error| format!("{}:{}: {error}", init.master_address, init.master_port))?;
    let store = Store::connect(&init.master_address, init.master_port, CONNECT_TIMEOUT)
        .map_err(|error| error.to_string())?;
    // The engine is one process: its only rank is the offset.
    Group::join_weight_update(
        &store,
        &init.group_name,
        init.rank_offset,
        init.world_size,
        &address.to_string(),
        GROUP_TIMEOUT,
    )
    .map_err(|error| error.to_string())
}

/// The address of this machine from which the sender's store is reached. The store listens before
/// an engine is asked to join, so a refusal is final: the sender has died, which c10d would find
/// out after minutes.
fn own_address(host: &str, port: u16) -> io::Result<IpAddr> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for peer in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&peer, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream.local_addr()?.ip()),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Receives weights.
pub async fn from_distributed(State(engine): State<Engine>, body: Bytes) -> Response {
    match parse::<UpdateWeightsFromDistributed>(&body) {
        Ok(update) => {
            answered(engine.ask(|done| Command::UpdateFromDistributed(update, done)).await)
        }
        Err(response) => *response,
    }
}

/// Leaves a group.
pub async fn destroy_group(State(engine): State<Engine>, body: Bytes) -> Response {
    match parse::<DestroyWeightsUpdateGroup>(&body) {
        Ok(request) => {
            answered(engine.ask(|done| Command::DestroyGroup(request.group_name, done)).await)
        }
        Err(response) => *response,
    }
}

fn answered(answer: Option<WeightsAnswer>) -> Response {
    answer.map_or_else(scheduler_ended, weights_answer)
}

/// The first entries of a weight, asked for in the query.
pub async fn read_query(
    State(engine): State<Engine>,
    Query(wanted): Query<GetWeightsByName>,
) -> Response {
    read(engine, wanted).await
}

/// The first entries of a weight, asked for in the body.
pub async fn read_body(State(engine): State<Engine>, body: Bytes) -> Response {
    match parse(&body) {
        Ok(wanted) => read(engine, wanted).await,
        Err(response) => *response,
    }
}

async fn read(engine: Engine, wanted: GetWeightsByName) -> Response {
    match engine.ask(|done| Command::ReadWeight(wanted, done)).await {
        Some(Some(numbers)) => Json(numbers).into_response(),
        Some(None) => invalid("Get parameter by name failed"),
        None => scheduler_ended(),
    }
}
