//! Changes of a job by commits, applied as Argo CD and Flux apply them: suspension, frozen fields,
//! more steps. `health` deletes and recreates a job.

use rljob_tests::Kubectl;
use rljob_tests::gitops::actions;
use serde_json::{Value, json};

use crate::control_plane::fixture::Fixture;
use crate::control_plane::job_with;
use crate::control_plane::operator::wait_for_pods;

/// A repository with one job, and the way in which its tool applies it.
struct Repository<'a> {
    fixture: &'a Fixture,
    mode: &'a [&'a str],
}

impl Repository<'_> {
    /// Applies the sample job with these fields of its spec.
    fn commit(&self, spec: &Value) -> anyhow::Result<String> {
        let arguments = [&["apply", "--filename=-"], self.mode].concat();
        let job = job_with(&json!({ "spec": spec }));
        self.kubectl().run_with_input(&arguments, &job)
    }

    fn kubectl(&self) -> &Kubectl {
        &self.fixture.namespace.kubectl
    }

    fn rejected(&self, spec: &Value) -> String {
        format!("{:#}", self.commit(spec).unwrap_err())
    }
}

fn follows_its_repository(prefix: &str, mode: &[&str]) {
    let mut fixture = Fixture::new(prefix, &json!({}));
    fixture.namespace.kubectl.run(&["delete", "rljob/sample"]).unwrap();
    fixture.start_operator();
    let repository = Repository { fixture: &fixture, mode };
    repository.commit(&json!({})).unwrap();
    fixture.wait_for("Ready");

    let optimizer = json!({"learningRate": 2.0e-5});
    let message = repository.rejected(&json!({ "optimizer": optimizer }));
    assert!(
        message.contains("set spec.suspend to true, wait for condition Suspended"),
        "{message}"
    );
    wait_for_pods(&fixture.namespace, 3);
    repository.commit(&json!({"suspend": true})).unwrap();
    fixture.wait_for("Suspended");
    wait_for_pods(&fixture.namespace, 0);
    // The field is removed instead of set to false.
    repository.commit(&json!({ "optimizer": optimizer })).unwrap();
    wait_for_pods(&fixture.namespace, 3);
    fixture.wait_for("Ready");
    let spec = fixture.job()["spec"].take();
    assert_eq!(
        (&spec["suspend"], &spec["optimizer"]["learningRate"]),
        (&json!(false), &json!(2e-5))
    );

    fixture.bring_to("finished");
    let with_steps = |steps: u32| json!({"optimizer": optimizer, "training": {"steps": steps}});
    let message = repository.rejected(&with_steps(2));
    assert!(message.contains("raise training.steps"), "{message}");
    fixture.pods.run.lock().end = None;
    repository.commit(&with_steps(5)).unwrap();
    fixture.wait_for("Ready");
    wait_for_pods(&fixture.namespace, 3);
}

/// Performs the only action that Argo CD offers for the job.
fn perform(fixture: &Fixture, name: &str) {
    let job = fixture.job();
    let offered = actions(&job).unwrap();
    let mut expected = job;
    expected["spec"]["suspend"] = json!(name == "suspend");
    assert_eq!(offered, [(name.to_owned(), expected.clone())].into());
    // Argo CD patches the object with the difference.
    fixture.patch(&json!({"suspend": expected["spec"]["suspend"]}));
}

#[test]
fn actions_of_argo_cd_suspend_and_resume_a_job_until_it_has_ended() {
    let fixture = Fixture::running("actions", &json!({}));
    perform(&fixture, "suspend");
    fixture.wait_for("Suspended");
    perform(&fixture, "resume");
    fixture.wait_for("Ready");
    wait_for_pods(&fixture.namespace, 3);
    fixture.bring_to("finished");
    assert_eq!(actions(&fixture.job()).unwrap(), [].into());
}

#[test]
fn a_job_follows_commits_that_are_applied_client_side() {
    follows_its_repository("commits-client", &[]);
}

#[test]
fn a_job_follows_commits_that_are_applied_server_side() {
    follows_its_repository("commits-server", &["--server-side"]);
}
