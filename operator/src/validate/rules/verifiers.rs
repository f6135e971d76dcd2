//! Rules of verifier pods.

use rljob_crds::RLJobSpec;
use rljob_crds::verifiers::VerifiersSpec;

use crate::validate::Problem;

pub(super) fn check_verifiers(
    spec: &RLJobSpec,
    verifiers: &VerifiersSpec,
    problems: &mut Vec<Problem>,
) {
    let (least, most) = (verifiers.min_replicas, verifiers.max_replicas);
    if least > most {
        let message = format!("must be at most maxReplicas ({most}), found {least}");
        problems.push(Problem::new("spec.verifiers.minReplicas", message));
    }
    // The cost of this rule exceeds the budget of CEL.
    if !spec.has_programs() {
        let message = "needs a reward, tool or agent that runs a program: code, python or command \
                       of a reward, command of a tool, or the workflow agent";
        problems.push(Problem::new("spec.verifiers", message));
    }
}
