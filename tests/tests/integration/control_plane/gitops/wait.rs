//! Scripts of docs/gitops.md that wait for the end of a job, run by bash with a real kubectl.

use std::process::{Child, Output};

use rljob_tests::process::wait_until;
use serde_json::json;

use super::{blocks, user};
use crate::control_plane::fixture::Fixture;
use crate::control_plane::operator::LIMIT;
use crate::documents::user::User;

/// A script that runs with the kubeconfig of a job's namespace.
struct Script {
    child: Child,
    _user: User,
}

impl Script {
    fn start(fixture: &Fixture, text: &str) -> Self {
        let user = user(&fixture.namespace.name);
        let child = user.start(&text.replace("rljob/gsm8k", "rljob/sample"));
        Self { child, _user: user }
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Whether the script succeeded, and its output.
    fn end(mut self) -> (bool, String) {
        wait_until("the end of the script", LIMIT, || Ok(!self.is_running())).unwrap();
        let Output { status, stdout, stderr } = self.child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (status.success(), text(&stdout) + &text(&stderr))
    }
}

/// The scripts that wait: until the job has ended, and until it has ended or needs a person.
fn scripts() -> [String; 2] {
    let all: Vec<String> = blocks().into_iter().filter(|b| b.contains("kubectl wait")).collect();
    all.try_into().unwrap()
}

#[test]
fn waiting_ends_with_the_success_of_a_job() {
    let fixture = Fixture::running("wait-success", &json!({}));
    let mut waiting = scripts().map(|script| Script::start(&fixture, &script));
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(waiting.iter_mut().all(Script::is_running), "a wait ended before the job");
    fixture.bring_to("finished");
    for script in waiting {
        let (succeeded, output) = script.end();
        assert!(succeeded, "{output}");
    }
}

#[test]
fn waiting_ends_with_an_error_if_a_job_fails() {
    let fixture = Fixture::running("wait-failure", &json!({}));
    let waiting = scripts().map(|script| Script::start(&fixture, &script));
    fixture.bring_to("failed");
    for script in waiting {
        let (succeeded, output) = script.end();
        assert!(!succeeded, "{output}");
    }
}

#[test]
fn waiting_ends_with_an_error_if_a_job_needs_a_person() {
    let patch = json!({"spec": {"training": {"minibatches": 5}}});
    let mut fixture = Fixture::new("wait-stalled", &patch);
    let [_, script] = scripts();
    let waiting = Script::start(&fixture, &script);
    fixture.start_operator();
    let (succeeded, output) = waiting.end();
    assert!(!succeeded && output.contains("InvalidSpec"), "{output}");
}
