//! Stale reads: responses as of an earlier resourceVersion. The API server keeps recent versions
//! for minutes and serves them as lists; a single object is read as a list with a field selector.
//!
//! Applies only to reads that an API server may answer from a stale cache (`resourceVersion=0`).

use anyhow::Result;
use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::call::{Call, Verb};
use super::response::error_response;
use crate::api::Api;

/// Resources that are always read at their current version.
const PRESENT: [&str; 4] = ["", "secrets", "leases", "customresourcedefinitions"];

/// Whether the proxy may answer a request with an earlier version.
pub(super) fn applies_to(call: &Call, uri: &Uri) -> bool {
    let from_cache =
        uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "resourceVersion=0"));
    from_cache
        && call.verb == Verb::Read
        && call.subresource.is_empty()
        && !PRESENT.contains(&call.resource.as_str())
}

pub(super) async fn respond(
    api: &Api,
    call: &Call,
    uri: &Uri,
    headers: &HeaderMap,
    version: &str,
) -> Result<Response> {
    let (collection, one) = match call.name.as_str() {
        "" => (uri.path().to_owned(), String::new()),
        name => (
            uri.path().trim_end_matches(name).trim_end_matches('/').to_owned(),
            format!("&fieldSelector=metadata.name={name}"),
        ),
    };
    let is_kept = |pair: &&str| {
        !["resourceVersion", "limit", "continue", "timeoutSeconds"]
            .iter()
            .any(|name| pair.starts_with(name))
    };
    let kept: Vec<&str> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
        .filter(is_kept)
        .collect();
    let url = format!(
        "{}{collection}?{}{one}&resourceVersion={version}&resourceVersionMatch=Exact",
        api.server(),
        kept.join("&")
    );
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .unwrap_or("application/json");
    let accept = accept.replace("as=PartialObjectMetadata;", "as=PartialObjectMetadataList;");
    let list = api.http().get(url).header(header::ACCEPT, accept).send().await?;
    if !list.status().is_success() || one.is_empty() {
        return Ok((
            list.status(),
            [(header::CONTENT_TYPE, "application/json")],
            list.bytes().await?,
        )
            .into_response());
    }
    let list: Value = serde_json::from_slice(&list.bytes().await?)?;
    let Some(mut object) = list["items"].get(0).cloned() else {
        return Ok(error_response(404, call));
    };
    for field in ["apiVersion", "kind"] {
        if object[field].is_null() {
            object[field] =
                list[field].as_str().unwrap_or_default().trim_end_matches("List").into();
        }
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], object.to_string()).into_response())
}
