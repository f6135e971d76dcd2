//! Teacher of a run: the field of the spec that names it.

use crate::algorithm::AlgorithmSpec;
use crate::distillation::TeacherSpec;

const OF_DISTILLATION: &str = "spec.algorithm.distillation.teacher";
const OF_GRPO: &str = "spec.algorithm.grpo.distillation.teacher";

impl AlgorithmSpec {
    /// The teacher with its field, if the algorithm has one.
    pub fn teacher_field(&self) -> Option<(&'static str, &TeacherSpec)> {
        let joint = self.grpo.as_ref().and_then(|grpo| grpo.distillation.as_ref());
        let alone = self.distillation.as_ref();
        alone
            .map(|own| (OF_DISTILLATION, &own.teacher))
            .or_else(|| joint.map(|own| (OF_GRPO, &own.teacher)))
    }

    /// [`Self::teacher`], to change it.
    pub fn teacher_field_mut(&mut self) -> Option<(&'static str, &mut TeacherSpec)> {
        let joint = self.grpo.as_mut().and_then(|grpo| grpo.distillation.as_mut());
        let alone = self.distillation.as_mut();
        alone
            .map(|own| (OF_DISTILLATION, &mut own.teacher))
            .or_else(|| joint.map(|own| (OF_GRPO, &mut own.teacher)))
    }
}
