//! Rights of people with the cluster roles `view`, `edit` and `admin`, into which the chart's roles
//! are aggregated.

use std::collections::BTreeMap;

use rljob_tests::Namespace;
use rljob_tests::process::wait_until;

use crate::control_plane::cluster;
use crate::control_plane::operator::LIMIT;

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

#[test]
fn view_edit_and_admin_contain_the_rights_on_rljobs() {
    let namespace = Namespace::create(cluster(), "users").unwrap();
    let (read, scale) = ("get list watch", "get list watch update patch");
    let edit = "get list watch create update patch delete";
    let admin = "get list watch create update patch delete deletecollection";
    for (role, jobs, scale) in
        [("view", read, read), ("edit", edit, scale), ("admin", admin, scale)]
    {
        let (to, user) = (format!("--clusterrole={role}"), format!("--user={role}"));
        namespace.kubectl.run(&["create", "rolebinding", role, &to, &user]).unwrap();
        let expected = [("", jobs), ("/scale", scale), ("/status", read)];
        let expected: BTreeMap<String, String> =
            expected.map(|(resource, verbs)| (resource.to_owned(), verbs.to_owned())).into();
        // The controller manager aggregates roles after they are created.
        let _ =
            wait_until("the aggregated role", LIMIT, || Ok(rights(&namespace, role) == expected));
        assert_eq!(rights(&namespace, role), expected, "{role}");
    }
    assert_eq!(rights(&namespace, "other"), BTreeMap::new());
}
