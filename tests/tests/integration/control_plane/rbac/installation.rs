//! An installed operator and its permissions, which are removed one by one to see that the operator
//! reports what it cannot do.

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use rljob_tests::process::wait_until;
use rljob_tests::{AuditedRequest, Cluster, Namespace};
use serde_json::{Value, json};

use super::super::operator::{LIMIT, Operator, SYSTEM};
use super::super::{job, merge};
use super::permissions::{Permission, Role, granted, without};

/// A release, and the namespace of its jobs.
pub(super) struct Installation<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) namespace: &'a Namespace,
    pub(super) granted: Vec<Permission<'a>>,
    /// Permissions whose removal was reported.
    needed: RefCell<BTreeSet<Permission<'a>>>,
    /// Number of jobs of [`Self::create_job`].
    created: Cell<u32>,
}

impl<'a> Installation<'a> {
    pub(super) fn new(
        cluster: &'a Cluster,
        namespace: &'a Namespace,
        roles: impl IntoIterator<Item = Role<'a>>,
    ) -> Self {
        let granted = roles.into_iter().flat_map(|role| granted(&namespace.api, role)).collect();
        let (needed, created) = (RefCell::default(), Cell::default());
        Self { cluster, namespace, granted, needed, created }
    }

    /// Starts the operator as at the first start: without a Lease and a token key.
    pub(super) fn start_operator(&self) -> Operator {
        let objects = ["lease/rljob-operator", "secret/rljob-operator-token-key"];
        let delete = ["delete", "--ignore-not-found", objects[0], objects[1]];
        self.cluster.kubectl().in_namespace(SYSTEM).run(&delete).unwrap();
        Operator::start_deployed(self.cluster, SYSTEM)
    }

    /// Permissions of any role for one of these verbs on a resource.
    pub(super) fn permissions(
        &self,
        group: &str,
        resource: &str,
        verbs: &[&str],
    ) -> Vec<&Permission<'a>> {
        let is_one = |permission: &&Permission| {
            (permission.group.as_str(), permission.resource.as_str()) == (group, resource)
                && verbs.contains(&permission.verb.as_str())
        };
        self.granted.iter().filter(is_one).collect()
    }

    /// Creates a job like `sample`, modified by a merge patch, and returns its name.
    pub(super) fn create_job(&self, patch: &Value) -> String {
        self.created.set(self.created.get() + 1);
        let name = format!("job-{}", self.created.get());
        let mut job = job();
        merge(&mut job, patch);
        merge(&mut job, &json!({"metadata": {"name": name}}));
        self.namespace.api.create(&self.jobs(), &job).unwrap();
        name
    }

    pub(super) fn patch_job(&self, name: &str, spec: &Value) {
        let path = format!("{}/{name}", self.jobs());
        self.namespace.api.patch(&path, &json!({ "spec": spec })).unwrap();
    }

    pub(super) fn delete_job(&self, name: &str) {
        self.namespace.api.delete(&format!("{}/{name}", self.jobs()), &json!({})).unwrap();
    }

    pub(super) fn has_ended(&self, job: &str) -> anyhow::Result<bool> {
        let job = self.namespace.api.get(&format!("{}/{job}", self.jobs()))?;
        Ok(job["status"]["completionTime"].is_string())
    }

    /// Waits until a job has its three pods.
    pub(super) fn wait_for_pods_of(&self, job: &str) {
        let Namespace { name, api, .. } = self.namespace;
        let path = format!("/api/v1/namespaces/{name}/pods?labelSelector=rljob.dev/job={job}");
        let pods = || Ok(api.get(&path)?["items"].as_array().map_or(0, Vec::len));
        wait_until("the pods", LIMIT, || pods().map(|count| count == 3)).unwrap();
    }

    fn jobs(&self) -> String {
        format!("/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs", self.namespace.name)
    }

    /// Removes a permission, and creates a job.
    pub(super) fn create_job_without(
        &self,
        permission: &Permission<'a>,
        operator: &Operator,
        patch: &Value,
    ) {
        let mut name = String::new();
        self.without(&[permission], || {
            name = self.create_job(patch);
            operator
        });
        self.delete_job(&name);
    }

    /// Removes permissions, lets an operator need them, and waits until it has reported each
    /// denial. Then restores them.
    pub(super) fn without<O: Borrow<Operator>>(
        &self,
        removed: &[&Permission<'a>],
        act: impl FnOnce() -> O,
    ) {
        let api = &self.namespace.api;
        let roles: BTreeSet<Role> = removed.iter().map(|permission| permission.role).collect();
        let before: Vec<(Role, Value)> =
            roles.into_iter().map(|role| (role, role.rules(api))).collect();
        for (role, rules) in &before {
            let of_role: Vec<_> =
                removed.iter().copied().filter(|permission| permission.role == *role).collect();
            role.set_rules(api, &without(rules.clone(), &of_role));
        }
        self.wait_for_effect(removed, false);
        let operator = act();
        for permission in removed {
            let is_reported =
                || Ok(self.reports(operator.borrow())?.contains(&permission.denial()));
            wait_until("the denial to be reported", LIMIT, is_reported)
                .unwrap_or_else(|error| panic!("without {permission:?}: {error:#}"));
        }
        for (role, rules) in &before {
            role.set_rules(api, rules);
        }
        self.wait_for_effect(removed, true);
        self.needed.borrow_mut().extend(removed.iter().copied().cloned());
    }

    fn wait_for_effect(&self, permissions: &[&Permission], effective: bool) {
        let api = &self.namespace.api;
        let is_done = |one: &&Permission| one.is_effective(api) == effective;
        wait_until("the permissions to change", LIMIT, || Ok(permissions.iter().all(is_done)))
            .unwrap();
    }

    /// The operator's log and the statuses of the jobs, without escapes of JSON.
    fn reports(&self, operator: &Operator) -> anyhow::Result<String> {
        let jobs = self.namespace.api.get(&self.jobs())?;
        Ok((operator.output() + &jobs.to_string()).replace('\\', ""))
    }

    /// Each permission is needed, and allows all requests.
    pub(super) fn assert_permissions_are_needed_and_sufficient(&self) {
        let granted: BTreeSet<_> = self.granted.iter().cloned().collect();
        let unneeded: Vec<_> = granted.difference(&self.needed.borrow()).cloned().collect();
        assert_eq!(
            unneeded,
            Vec::<Permission>::new(),
            "permissions that no part of this test needs"
        );
        let requests = self.cluster.audited_requests().unwrap();
        let is_covered =
            |request: &&AuditedRequest| granted.iter().any(|granted| granted.covers(request));
        let others: BTreeSet<_> = requests.iter().filter(|request| !is_covered(request)).collect();
        assert_eq!(others, BTreeSet::new(), "requests without a permission");
    }
}
