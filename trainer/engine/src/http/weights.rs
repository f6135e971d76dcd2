//! Weight routes. Responses are `{"success", "message"}`, with status 400 on failure.

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

use super::responses::{invalid, parse, scheduler_exited, weights_result};
use crate::engine::Engine;
use crate::scheduler::Command;

/// Timeout of the group rendezvous and of each broadcast. SGLang waits 30 minutes without
/// responding.
const GROUP_TIMEOUT: Duration = Duration::from_secs(120);
/// Connection timeout of the sender's store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// SGLang adds the number of paused requests to this response.
#[derive(Serialize)]
struct DiskResponse {
    #[serde(flatten)]
    result: WeightsAnswer,
    num_paused_requests: u32,
}

pub async fn from_disk(State(engine): State<Engine>, body: Bytes) -> Response {
    let update: UpdateWeightsFromDisk = match parse(&body) {
        Ok(update) => update,
        Err(response) => return *response,
    };
    let Some(result) = engine.call(|done| Command::UpdateFromDisk(update, done)).await else {
        return scheduler_exited();
    };
    let status = if result.success { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    (status, Json(DiskResponse { result, num_paused_requests: 0 })).into_response()
}

/// Joins the process group of a sender, while the scheduler continues.
pub async fn init_group(State(engine): State<Engine>, body: Bytes) -> Response {
    let init: InitWeightsUpdateGroup = match parse(&body) {
        Ok(init) => init,
        Err(response) => return *response,
    };
    let name = init.group_name.clone();
    let failed = |reason: &str| {
        weights_result(WeightsAnswer {
            success: false,
            message: format!("Failed to initialize custom process group: {reason}."),
        })
    };
    if init.backend != "gloo" {
        return failed(&format!("backend `{}` is not supported; use gloo", init.backend));
    }
    match engine.call(|done| Command::GroupIsFree(name.clone(), done)).await {
        None => return scheduler_exited(),
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
    weights_response(engine.call(|done| Command::AddGroup(name, group, done)).await)
}

fn join(init: &InitWeightsUpdateGroup) -> Result<Group, String> {
    let address = own_address(&init.master_address, init.master_port)
        .map_err(|error| format!("{}:{}: {error}", init.master_address, init.master_port))?;
    let store = Store::connect(&init.master_address, init.master_port, CONNECT_TIMEOUT)
        .map_err(|error| error.to_string())?;
    // The engine is one rank, `rank_offset`.
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

/// Returns the local address that reaches the sender's store. The store listens before engines are
/// asked to join, so a refused connection means that the sender has exited; c10d would detect that
/// only after minutes.
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

pub async fn from_distributed(State(engine): State<Engine>, body: Bytes) -> Response {
    match parse::<UpdateWeightsFromDistributed>(&body) {
        Ok(update) => {
            weights_response(engine.call(|done| Command::UpdateFromDistributed(update, done)).await)
        }
        Err(response) => *response,
    }
}

pub async fn destroy_group(State(engine): State<Engine>, body: Bytes) -> Response {
    match parse::<DestroyWeightsUpdateGroup>(&body) {
        Ok(request) => weights_response(
            engine.call(|done| Command::DestroyGroup(request.group_name, done)).await,
        ),
        Err(response) => *response,
    }
}

fn weights_response(result: Option<WeightsAnswer>) -> Response {
    result.map_or_else(scheduler_exited, weights_result)
}

/// Query form of `/get_weights_by_name`.
pub async fn read_query(
    State(engine): State<Engine>,
    Query(wanted): Query<GetWeightsByName>,
) -> Response {
    read(engine, wanted).await
}

/// Body form of `/get_weights_by_name`.
pub async fn read_body(State(engine): State<Engine>, body: Bytes) -> Response {
    match parse(&body) {
        Ok(wanted) => read(engine, wanted).await,
        Err(response) => *response,
    }
}

async fn read(engine: Engine, wanted: GetWeightsByName) -> Response {
    match engine.call(|done| Command::ReadWeight(wanted, done)).await {
        Some(Some(numbers)) => Json(numbers).into_response(),
        Some(None) => invalid("Get parameter by name failed"),
        None => scheduler_exited(),
    }
}
