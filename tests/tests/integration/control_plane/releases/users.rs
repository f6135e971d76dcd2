//! Rights of people with the cluster roles `view`, `edit` and `admin`, into which the chart's roles
//! are aggregated.

use std::collections::{BTreeMap, BTreeSet};

use rljob_tests::Namespace;
use rljob_tests::process::wait_until;
use serde_json::json;

use crate::control_plane::cluster;
use crate::control_plane::operator::{LIMIT, namespace_in};

/// Verbs of a user on RLJobs and their subresources, by resource.
fn rights(namespace: &Namespace, user: &str) -> BTreeMap<String, String> {
    let account = format!("--as={user}");
    let list = ["auth", "can-i", "--list", &account];
    let table = namespace.kubectl.run(&list).unwrap();
    // RESOURCES [] [] [VERB …]
    let right = |line: &str| {
        let (resource, rest) = line.split_once(' ')?;
        let verbs = rest.trim_end().strip_suffix(']')?.rsplit('[').next()?;
        Some((resource.strip_prefix("rljobs.rljob.dev")?.to_owned(), verbs.to_owned()))
    };
    table.lines().filter_map(right).collect()
}

/// A request that needs one verb. It changes nothing.
struct Request {
    resource: &'static str,
    verb: &'static str,
    arguments: Vec<String>,
    input: String,
}

/// A request for each verb that a role has on RLJobs.
fn requests(namespace: &Namespace) -> Vec<Request> {
    let jobs = format!("/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs", namespace.name);
    let job = format!("{jobs}/sample");
    let stored = |path: &str| namespace.kubectl.run(&["get", "--raw", path]).unwrap();
    let (text, scale) = (stored(&job), stored(&format!("{job}/scale")));
    let mut new = crate::control_plane::job();
    new["metadata"]["name"] = json!("other");
    let request = |resource, verb, arguments: &[&str], input: &str| Request {
        resource,
        verb,
        arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
        input: input.to_owned(),
    };
    let get = |resource, verb, path: &str| request(resource, verb, &["get", "--raw", path], "");
    let send = |resource, verb, (command, path): (&str, &str), input: &str| {
        let path = format!("{path}?dryRun=All");
        request(resource, verb, &[command, "--raw", &path, "--filename=-"], input)
    };
    let delete = |verb, path: &str| {
        request("", verb, &["delete", "--raw", &format!("{path}?dryRun=All")], "")
    };
    let patch = ["patch", "rljob/sample", "--dry-run=server", "--type=merge"];
    let of_scale = ["--subresource=scale", "--patch={\"spec\":{\"replicas\":3}}"];
    let of_job = "--patch={\"metadata\":{\"labels\":{\"a\":\"b\"}}}";
    vec![
        get("", "get", &job),
        get("", "list", &jobs),
        get("", "watch", &format!("{jobs}?watch=true&timeoutSeconds=1")),
        send("", "create", ("create", &jobs), &new.to_string()),
        send("", "update", ("replace", &job), &text),
        request("", "patch", &[&patch[..], &[of_job]].concat(), ""),
        delete("delete", &job),
        delete("deletecollection", &jobs),
        get("/status", "get", &format!("{job}/status")),
        get("/scale", "get", &format!("{job}/scale")),
        send("/scale", "update", ("replace", &format!("{job}/scale")), &scale),
        request("/scale", "patch", &[&patch[..], &of_scale].concat(), ""),
    ]
}

/// Each verb of a user allows its request, which is refused without it.
fn assert_verbs_are_needed(
    namespace: &Namespace,
    user: &str,
    rights: &BTreeMap<String, String>,
    requests: &[Request],
) {
    let account = format!("--as={user}");
    for Request { resource, verb, arguments, input } in requests {
        let granted =
            rights.get(*resource).is_some_and(|verbs| verbs.split(' ').any(|v| v == *verb));
        let arguments: Vec<&str> =
            arguments.iter().map(String::as_str).chain([account.as_str()]).collect();
        match namespace.kubectl.run_with_input(&arguments, input) {
            Ok(_) => assert!(granted, "{user} may {verb} rljobs{resource}"),
            Err(error) => {
                let message = format!("{error:#}");
                assert!(!granted && message.contains("orbidden"), "{user} {verb}: {message}");
            }
        }
    }
    let known: BTreeSet<(&str, &str)> =
        requests.iter().map(|request| (request.resource, request.verb)).collect();
    let verbs = rights
        .iter()
        .flat_map(|(resource, verbs)| verbs.split(' ').map(move |verb| (resource.as_str(), verb)));
    let unused: Vec<(&str, &str)> = verbs.filter(|verb| !known.contains(verb)).collect();
    assert_eq!(unused, [], "verbs that no request needs");
}

#[test]
fn view_edit_and_admin_contain_the_rights_on_rljobs_that_their_requests_need() {
    let namespace = namespace_in(cluster(), "users", &json!({}));
    let requests = requests(&namespace);
    let (read, scale) = ("get list watch", "get update patch");
    let edit = "get list watch create update patch delete";
    let admin = "get list watch create update patch delete deletecollection";
    for (role, jobs, scale) in
        [("view", read, "get"), ("edit", edit, scale), ("admin", admin, scale)]
    {
        let (to, user) = (format!("--clusterrole={role}"), format!("--user={role}"));
        namespace.kubectl.run(&["create", "rolebinding", role, &to, &user]).unwrap();
        let expected = [("", jobs), ("/scale", scale), ("/status", "get")];
        let expected: BTreeMap<String, String> =
            expected.map(|(resource, verbs)| (resource.to_owned(), verbs.to_owned())).into();
        // The controller manager aggregates roles after they are created.
        let _ =
            wait_until("the aggregated role", LIMIT, || Ok(rights(&namespace, role) == expected));
        assert_eq!(rights(&namespace, role), expected, "{role}");
        assert_verbs_are_needed(&namespace, role, &expected, &requests);
    }
    assert_eq!(rights(&namespace, "other"), BTreeMap::new());
    assert_verbs_are_needed(&namespace, "other", &BTreeMap::new(), &requests);
}
