//! Rules of `spec.trainer.groups`.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Algorithm;
use rljob_crds::algorithm::teacher::TeacherSource;
use rljob_crds::data::EvaluationDataset;
use rljob_crds::trainer_groups::{GroupRole, MAX_GROUPS, TrainerGroupSpec};

use super::common::{Role, TRAINER, is_dns_label};
use super::{roles, template};
use crate::validate::{Policy, Problem};

/// Fields of the groups, whose containers are those of trainers.
const FIELDS: [&str; MAX_GROUPS] =
    ["trainer.groups[0]", "trainer.groups[1]", "trainer.groups[2]", "trainer.groups[3]"];
/// Longest name of a StatefulSet, whose revisions have its name in a label.
const NAME_LIMIT: usize = 52;

/// Roles of pods. In the name of a pod, a group named like one would be taken for it.
const POD_ROLES: [&str; 7] =
    ["inference", "evaluation", "reward", "teacher", "coordinator", "trainer", "verifier"];

/// Checks the groups of a job of this name.
pub(super) fn check_groups(
    spec: &RLJobSpec,
    job: Option<&str>,
    policy: Policy,
    problems: &mut Vec<Problem>,
) {
    let groups = &spec.trainer.groups;
    if groups.len() > MAX_GROUPS {
        let message = format!("at most {MAX_GROUPS} groups, found {}", groups.len());
        problems.push(Problem::new("spec.trainer.groups", message));
    }
    for (index, (group, field)) in groups.iter().zip(FIELDS).enumerate() {
        let before = groups.get(..index).unwrap_or_default();
        check_name(group, field, before, job, problems);
        check_roles(spec, group, field, before, problems);
        let pods = spec.trainer.of_group(group);
        roles::check_learners(field, &pods, problems);
        let role = Role { field, ..TRAINER };
        roles::check_resources(role, &pods.resources, problems);
        if let Some(own) = &pods.template {
            template::check_template(role, own, &spec.volumes, policy, problems);
        }
    }
    check_validation(spec, problems);
}

fn check_name(
    group: &TrainerGroupSpec,
    field: &str,
    before: &[TrainerGroupSpec],
    job: Option<&str>,
    problems: &mut Vec<Problem>,
) {
    let (path, name) = (format!("spec.{field}.name"), &group.name);
    let starts_well = name.starts_with(|first: char| first.is_ascii_lowercase());
    if !starts_well || !is_dns_label(name) {
        let message = format!("must be a DNS label that starts with a letter, found \"{name}\"");
        return problems.push(Problem::new(path, message));
    }
    if POD_ROLES.contains(&name.as_str()) {
        let message = format!("\"{name}\" is a role of pods: use another name");
        problems.push(Problem::new(&path, message));
    }
    if before.iter().any(|other| other.name == *name) {
        problems.push(Problem::new(&path, format!("another group has the name \"{name}\"")));
    }
    let set = format!("{}-trainer-{name}", job.unwrap_or_default());
    if set.len() > NAME_LIMIT {
        let message = format!(
            "{set}, the name of its StatefulSet, has {} characters, and at most {NAME_LIMIT} fit \
                the names of its pods: use a shorter name of the group or of the job",
            set.len()
        );
        problems.push(Problem::new(path, message));
    }
}

fn check_roles(
    spec: &RLJobSpec,
    group: &TrainerGroupSpec,
    field: &str,
    before: &[TrainerGroupSpec],
    problems: &mut Vec<Problem>,
) {
    if group.roles.is_empty() {
        let message = "is empty: set Reference or Teacher";
        problems.push(Problem::new(format!("spec.{field}.roles"), message));
    }
    for (index, role) in group.roles.iter().enumerate() {
        let earlier = group.roles.get(..index).unwrap_or_default();
        let taken = before.iter().flat_map(|other| &other.roles).chain(earlier);
        let message = match (role, spec.algorithm.resolve()) {
            _ if taken.into_iter().any(|other| other == role) => {
                format!("{role:?} is in trainer.groups twice: one group holds a model")
            }
            (GroupRole::Policy | GroupRole::Critic, _) => format!(
                "{role:?} is trained, and spec.trainer itself trains its models: a group has \
                    frozen ones, Reference or Teacher"
            ),
            (_, Some(algorithm)) if GroupRole::frozen(algorithm) != Some(*role) => {
                missing(*role, algorithm)
            }
            _ => continue,
        };
        problems.push(Problem::new(format!("spec.{field}.roles[{index}]"), message));
    }
}

/// Why learners of the algorithm hold no model of this role.
fn missing(role: GroupRole, algorithm: Algorithm<'_>) -> String {
    let (name, has) = (algorithm.name(), GroupRole::frozen(algorithm));
    let instead = match has {
        Some(other) => format!("its learners hold {other:?}; set that role"),
        None if role == GroupRole::Teacher && algorithm.served_teacher().is_some() => {
            let source = algorithm.served_teacher().and_then(TeacherSource::on_engines);
            let source = source.map_or("is a server", |_| "is on engines of the job");
            format!("its teacher {source}, which needs no group; remove it")
        }
        None if role == GroupRole::Teacher && algorithm.teacher().is_some() => {
            "with offPolicy its learners hold the teacher; remove the group".to_owned()
        }
        // A teacher excludes klCoefficient.
        None if role == GroupRole::Reference
            && algorithm.policy().is_some()
            && algorithm.teacher_source().is_none() =>
        {
            format!("set algorithm.{name}.klCoefficient above 0, or remove the group")
        }
        None => "remove it".to_owned(),
    };
    format!("algorithm.{name} has no {role:?} model: {instead}")
}

/// The loss of evaluation data of pairs needs the reference model in the learners.
fn check_validation(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let measures_loss =
        spec.dataset.evaluation.as_ref().is_some_and(EvaluationDataset::measures_loss);
    if spec.frozen_group().is_some() && spec.algorithm.dpo.is_some() && measures_loss {
        let message = "the learners need the reference model for the loss of dataset.evaluation: \
                       remove the group or dataset.evaluation";
        problems.push(Problem::new("spec.trainer.groups", message));
    }
}
